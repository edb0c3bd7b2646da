"""Where an incarnation lives: its private folder and its environment variables.

Everything is set at exec and never later: CUDA, OpenMP and the engines read
most variables once, at import.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import InputError, Problem
from orchestrator.run.reclaim import Slot, remove_unused_shm
from protocol.channel import MAX_IPC_PATH_BYTES
from protocol.specs import MethodSpec

SHM_NOTES = "shm"
#: "/al-" + 8 of the tag + "-" + 8 random + "/s", behind the temporary folder.
IPC_SUFFIX_BYTES = 25

#: What every engine needs to stay on this machine and keep its output in its log.
_COMMON = {
    "HF_HUB_OFFLINE": "1",  # models are local folders by now; a worker never downloads
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_BY_ENGINE: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    },
    "sglang": {},
    "hf": {},
    "scripted": {},
}


def check_tmpdir() -> None:
    """Raises InputError where no socket can be made. Touches nothing."""
    base = Path(tempfile.gettempdir()).absolute()
    if len(os.fsencode(base)) + IPC_SUFFIX_BYTES > MAX_IPC_PATH_BYTES:
        raise InputError([Problem("", "TMPDIR", f"{base} is too long for a socket's name", "set it to a short path")])


@dataclass(frozen=True)
class Workplace:
    """The private folder of one coordinator: short, because sun_path holds 107 bytes, and 0700."""

    root: Path
    run_tag: str

    @classmethod
    def create(cls, run_tag: str) -> Workplace:
        """Removes what an earlier life of the same run left behind. Only under the run's lock."""
        base = Path(tempfile.gettempdir()).absolute()
        prefix = f"al-{run_tag[:8]}-"
        for old in base.glob(f"{prefix}*"):
            if old.stat().st_uid == os.getuid():
                remove_unused_shm(_noted(old / SHM_NOTES))
                shutil.rmtree(old, ignore_errors=True)
        return cls(Path(tempfile.mkdtemp(prefix=prefix, dir=base)), run_tag)

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.root}/s"

    def room(self, incarnation: str) -> Path:
        """TMPDIR of one incarnation, with its compile caches."""
        folder = self.root / incarnation.split("-")[0]
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def clear(self, incarnation: str) -> None:
        shutil.rmtree(self.root / incarnation.split("-")[0], ignore_errors=True)

    def note_shm(self, paths: Iterable[str]) -> None:
        """Keeps the names of our workers' shared memory for the case that this coordinator is
        killed: the next life removes what nobody has any more."""
        with (self.root / SHM_NOTES).open("a", encoding="utf-8") as notes:
            notes.writelines(f"{path}\n" for path in paths)

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def _noted(notes: Path) -> list[str]:
    try:
        return notes.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def worker_environment(
    base: Mapping[str, str], *, method: MethodSpec, slot: Slot, endpoint: str, token: str, room: Path
) -> dict[str, str]:
    """The whole environment of a worker; the method's own variables win over ours."""
    caches = {
        "TMPDIR": str(room),
        "TORCHINDUCTOR_CACHE_DIR": str(room / "inductor"),
        "TRITON_CACHE_DIR": str(room / "triton"),
        "VLLM_CACHE_ROOT": str(room / "vllm"),
    }
    ours = {
        "AIRLOCK_ENDPOINT": endpoint,
        "AIRLOCK_TOKEN": token,
        "AIRLOCK_ENGINE": method.engine,
        "CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in slot.devices),
    }
    return {**base, **_COMMON, **caches, **_BY_ENGINE[method.engine], **ours, **method.env_vars}
