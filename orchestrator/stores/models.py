"""Where the model of a sweep lies, and what all engines must agree on about it.

`resolve` gives a local folder whatever the user named: a folder, a name on the
hub, or the demo model, which is fetched and converted once into AIRLOCK_HOME/models.
The scripted model is no files at all; the scripted engine needs none.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.config import ModelRef
from orchestrator.definition.inputs import DIGEST_SCHEME, SCRIPTED, ModelInfo
from orchestrator.definition.memory import shape_of
from orchestrator.errors import EnvironmentFailed, InputError, Problem
from orchestrator.launcher import Launcher
from orchestrator.stores.demo import DemoModel
from orchestrator.stores.envbuild import OnWait, Say
from orchestrator.stores.envstate import EngineEnv
from orchestrator.stores.home import tag_of
from orchestrator.stores.modelfiles import digest_of, hub_folder, problems_of, text_only
from orchestrator.stores.named import Named
from orchestrator.stores.tools import Reminder, run_tool

INFO_TIMEOUT_S = 600.0
FETCH_TIMEOUT_S = 24 * 3600.0  # hundreds of gigabytes; the user sees that it goes on and can stop it
#: A model is a local folder by the time it is read.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
UNKNOWN_DIGEST = "unknown"


class ModelStore:
    """Finds and makes models. A relative path is taken from `base`, the sweep file's folder."""

    def __init__(
        self, home: Path, launcher: Launcher, say: Say, *, base: Path | None = None, on_wait: OnWait = None
    ) -> None:
        self._home, self._launcher, self._say, self._on_wait = home, launcher, say, on_wait
        self._base = base or Path.cwd()
        self._demo = DemoModel(home, launcher, say, on_wait)

    def check(self, ref: ModelRef) -> None:
        """What can be found wrong at once, without any environment. Raises InputError with everything."""
        if ref.kind == "path":
            named = Named(ref.value, self._base)
            if problems := problems_of(named.path):
                hint = named.instead(Path.is_dir)
                raise InputError([Problem(ref.where, ref.key, f"{named} {problem}", hint) for problem in problems])

    def present(self, ref: ModelRef) -> bool:
        """Whether `resolve` will neither download nor convert, as far as can be seen from here."""
        if ref.kind == "hub":
            return self._cached(ref) is not None
        return ref.kind != "demo" or self._demo.complete

    def provisional(self, ref: ModelRef) -> ModelInfo:
        """A stand-in for planning before the model is read: nothing is known of it but its name, and that it takes
        text only if its folder is here and says nothing of images."""
        if ref.kind == "scripted":
            return SCRIPTED
        folder = self._local(ref) if ref.kind == "path" else self._cached(ref) if ref.kind == "hub" else None
        vision = False if ref.kind == "demo" or (folder and text_only(folder)) else None
        return ModelInfo(ref.value, ref.value, UNKNOWN_DIGEST, None, (), None, None, ref.revision, vision=vision)

    def resolve(self, ref: ModelRef, env: EngineEnv | None, scheme: str = DIGEST_SCHEME) -> ModelInfo:
        """The model as a local folder, fetched or converted first if need be, and what is known of it.

        `env` is any environment with transformers in it; only the scripted model needs none.
        `scheme`: as for `digest_of`.
        Raises InputError if the model is not usable, EnvironmentFailed if the environment is not.
        """
        if ref.kind == "scripted":
            return SCRIPTED
        if env is None:
            raise EnvironmentFailed("any", "there is none to read the model in")
        self.check(ref)
        folder, revision, name = self._folder(ref, env)
        found = self._tool(env, "model_info", _about(folder, ref), INFO_TIMEOUT_S, OFFLINE)
        return ModelInfo(
            name=name,
            path=str(folder),
            digest=digest_of(folder, scheme),
            context_length=found["context_length"],
            stop_token_ids=tuple(found["stop_token_ids"]),
            kv_bytes_per_token=found["kv_bytes_per_token"],
            dtype=found["dtype"],
            revision=revision,
            trust_remote_code=ref.trust_remote_code,
            shape=shape_of(found["shape"]),
            vision=found["vision"],
        )

    def _folder(self, ref: ModelRef, env: EngineEnv) -> tuple[Path, str | None, str]:
        """Where it lies, its commit, its name."""
        if ref.kind == "demo":
            return self._demo.ensure(env), None, self._demo.name
        if ref.kind == "hub":
            folder, revision = self._fetch(ref, env)
            return folder, revision, ref.value
        folder = self._local(ref)
        return folder, None, folder.name

    def _local(self, ref: ModelRef) -> Path:
        return Named(ref.value, self._base).path

    def _fetch(self, ref: ModelRef, env: EngineEnv) -> tuple[Path, str]:
        named = f"{ref.value} {ref.revision or ''}".strip()
        remind = Reminder(f"model {named}: fetching from the hub", self._say, self._on_wait)
        request = {"repo": ref.value, "revision": ref.revision}
        found = self._tool(env, "fetch_hub", request, FETCH_TIMEOUT_S, {}, remind)
        if "problem" in found:
            raise InputError([Problem(ref.where, ref.key, f"{ref.value}: {found['problem']}")])
        folder = Path(found["path"])
        problems = problems_of(folder)
        if problems:
            raise InputError([Problem(ref.where, ref.key, f"{named}: {folder} {problem}") for problem in problems])
        return folder, str(found["revision"])

    def _cached(self, ref: ModelRef) -> Path | None:
        """The snapshot in the hub's own cache, if it is there and complete."""
        repo = hub_folder(ref.value)
        revision = ref.revision or "main"
        try:
            commit = (repo / "refs" / revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            commit = revision
        snapshot = repo / "snapshots" / commit
        return None if problems_of(snapshot) else snapshot

    def _tool(
        self,
        env: EngineEnv,
        tool: str,
        request: Mapping[str, Any],
        timeout_s: float,
        variables: Mapping[str, str],
        on_wait: OnWait = None,
    ) -> dict[str, Any]:
        log = self._home / "logs" / f"{tool}-{secrets.token_hex(3)}.log"
        return run_tool(
            self._launcher,
            env.python,
            tool,
            request,
            tag_of(self._home),
            timeout_s,
            log,
            env=env.name,
            variables={**env.variables, **variables},
            on_wait=on_wait or self._on_wait,
        )


def _about(folder: Path, ref: ModelRef) -> dict[str, Any]:
    return {"path": str(folder), "trust_remote_code": ref.trust_remote_code}
