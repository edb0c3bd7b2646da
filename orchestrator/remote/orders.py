"""What a back end is asked to start, and the file in the run directory that tells it whose it is.

Keys stand in that file alone, which only its user can read: a back end shows arguments, scripts and environments
of its jobs to others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.clusters.base import Errand
from orchestrator.definition.clusteruse import ClusterUse
from orchestrator.remote.allegiance import VARIABLE, Orders
from orchestrator.stores.home import airlock_home, tag_of
from orchestrator.stores.logs import last_lines
from protocol.keys import Keys


@dataclass(frozen=True)
class Writer:
    """`run_dir` must be there under the same path on every node."""

    run_dir: Path
    use: ClusterUse
    endpoint: str

    @property
    def folder(self) -> Path:
        return self.run_dir.absolute() / "outposts"

    def errand(self, name: str, token: str, keys: Keys) -> Errand:
        """Raises OSError where the orders can't be written."""
        tag = self.tag(name)
        orders = Orders(self.endpoint, name, token, keys.server, keys.secret, tag, self.use.silence_s)
        # What a life that was killed had asked for, and could not write down, must not find the orders of another.
        path = self.folder / f"{name}-{token[:8]}.json"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            path.unlink()
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(orders))
        return self._errand(name, self._env(path, tag, name))

    def sample(self) -> Errand:
        """What any of them asks for, and nothing of whose it is."""
        return self._errand("sample", {})

    def _errand(self, name: str, env: Mapping[str, str]) -> Errand:
        return Errand(
            name=f"airlock-{name}",
            argv=(self.use.python or sys.executable, "-m", "orchestrator", "outpost"),
            env=env,
            cwd=self.run_dir.absolute(),
            log=self._log(name),
            gpus=self.use.gpus,
            cpus=self.use.cpus,
            memory_mib=self.use.memory_mib,
            time_limit_s=self.use.time_limit_s,
            options=tuple(self.use.options),
        )

    def _env(self, path: Path, tag: str, name: str) -> Mapping[str, str]:
        """The tag makes an outpost that lives on findable for its successor on the same machine."""
        found = {VARIABLE: str(path), "AIRLOCK_RUN": tag, "AIRLOCK_INCARNATION": f"outpost-{name}"}
        # Where a site holds nobody to what was granted, a job would see all that its node has.
        hidden = {} if self.use.gpus else {"CUDA_VISIBLE_DEVICES": ""}
        return {**found, **hidden, "AIRLOCK_HOME": str(airlock_home()), "PYTHONUNBUFFERED": "1"}

    def tag(self, name: str) -> str:
        """The same for every attempt at one slot of the run, and for no other slot."""
        slot = name.rpartition("a")[0]
        return tag_of(self.run_dir / "slots" / slot)

    def withdraw(self, name: str) -> None:
        for path in self.folder.glob(f"{name}-*.json"):
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):
            self.folder.rmdir()

    def withdraw_all(self) -> None:
        """What an earlier life left."""
        self.withdraw("*")

    def last_words(self, name: str) -> str:
        """The last line of what its errand said, and where the rest is."""
        path = self._log(name)
        lines = [line for line in last_lines(path) if line.strip()]
        return f"{lines[-1].strip()} ({path.relative_to(self.run_dir.absolute())})" if lines else ""

    def _log(self, name: str) -> Path:
        return self.run_dir.absolute() / "logs" / f"outpost-{name}.log"

    def keep_log(self, name: str, text: bytes) -> None:
        with suppress(OSError):
            (self.run_dir / "logs" / Path(name).name).write_bytes(text)
