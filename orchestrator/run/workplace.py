"""Where an incarnation lives: its private folder and its environment variables.

Everything is set at exec and never later: CUDA, OpenMP and the engines read
most variables once, at import.
"""

from __future__ import annotations

import errno
import getpass
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.definition.variables import CACHES
from orchestrator.errors import InputError, Problem
from orchestrator.record.disk import trouble
from orchestrator.run.segments import Segment, remove_unused
from orchestrator.run.slots import Slot
from protocol.channel import MAX_IPC_PATH_BYTES
from protocol.keys import Keys
from protocol.specs import MethodSpec

SHM_NOTES = "shm"
#: In a worker's room: what engines compile, and may be kept for later workers.
CACHE = "cache"
#: "/al-" + 8 of the tag + "-" + 8 random, behind the temporary folder.
ROOT_BYTES = 21
#: Behind that: our own socket, or one that an engine makes in its TMPDIR, "/w1234/" and its name.
SOCKET_BYTES = 2
ENGINE_SOCKET_BYTES = {"sglang": 7 + 11, "vllm": 7 + 36}

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
    "sglang": {
        # A file as torch's meeting point, as vLLM has it by itself: a port that is chosen here and bound
        # seconds later in a child may be another's by then.
        "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": "file://{room}/rendezvous",
    },
    "hf": {},
    "scripted": {},
}
#: Ports that the caller may have fixed for a server of its own; two workers would fight over them.
_PORTS = frozenset(
    {"VLLM_PORT", "VLLM_DP_MASTER_PORT", "VLLM_DP_MASTER_IP", "SGLANG_PORT"}
    | {"SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"}
)
#: Torch puts what its caches share, headers that take seconds to compile, into TMPDIR whatever it is told.
_SHARED = "inductor_shared"
#: The code of models that bring some: read from the model's folder each time, never kept.
_MODULES = {"HF_MODULES_CACHE": "modules"}


def check_tmpdir(engines: Iterable[str] = ()) -> None:
    """Raises InputError where no socket can be made; `engines` are those that will make some of their own,
    vLLM only where it has several devices. Touches nothing."""
    base = _base()
    if told := _not_taken(os.environ.get("TMPDIR", ""), base):
        raise InputError([Problem("", "TMPDIR", told, "set it to another folder")])
    name_bytes = max([SOCKET_BYTES, *(ENGINE_SOCKET_BYTES.get(engine, 0) for engine in engines)])
    room_bytes = MAX_IPC_PATH_BYTES - ROOT_BYTES - name_bytes
    if len(os.fsencode(base)) > room_bytes:
        told = f"{base} is too long for a socket's name, by {len(os.fsencode(base)) - room_bytes} bytes"
        raise InputError([Problem("", "TMPDIR", told, "set it to a short path")])


def _not_taken(named: str, base: Path) -> str:
    """What is wrong with TMPDIR; "" if `base` is what it names. Where Python can't use it, it says nothing and takes
    another: a small /tmp, perhaps. libzmq's binding encodes names of sockets strictly."""
    try:
        str(base).encode()
    except UnicodeEncodeError:
        return f"{base} is not UTF-8, and a socket's name must be"
    if not named or os.path.abspath(named) == str(base):
        return ""
    try:
        with tempfile.TemporaryFile(dir=named, buffering=0) as file:
            file.write(b"as Python tries it")
        why = "was refused"
    except OSError as exc:
        why = f"takes no file: {exc.strerror}"
    return f"{named} {why}; {base} would be used in its place"


@dataclass(frozen=True)
class Workplace:
    """The private folder of one coordinator: short, because sun_path holds 107 bytes, and 0700."""

    root: Path
    run_tag: str

    @classmethod
    def create(cls, run_tag: str) -> Workplace:
        """Where nothing of an earlier life is left. Only under the run's lock.

        Raises InputError where TMPDIR takes no folder.
        """
        remove_abandoned(run_tag)
        base = _base()
        try:
            return cls(Path(tempfile.mkdtemp(prefix=_prefix(run_tag), dir=base)), run_tag)
        except OSError as exc:
            raise InputError([Problem("", "TMPDIR", trouble(base, exc), "make room there, or set it")]) from exc

    def require_sockets(self) -> None:
        """Folders shared with another system often take none, and libzmq says little of it. Raises InputError."""
        path = self.root / "s"
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(str(path))
            path.unlink()
        except OSError as exc:
            told = f"{self.root.parent} takes no sockets: {exc.strerror or exc}"
            raise InputError([Problem("", "TMPDIR", told, "set it to a folder on a disk of this machine")]) from exc

    def restore(self) -> None:
        """Cleaners of temporary files remove what nobody touched for days. Raises OSError."""
        self.root.mkdir(mode=0o700, exist_ok=True)
        if self.root.stat().st_uid != os.getuid():
            raise OSError(errno.EPERM, "was removed, and is another user's now", str(self.root))

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.root}/s"

    def room(self, incarnation: str) -> Path:
        """TMPDIR of one incarnation, with its compile caches."""
        folder = self.root / incarnation.split("-")[0]
        folder.mkdir(mode=0o700, exist_ok=True)
        # CUDA's driver makes the last part of a path only.
        (folder / CACHE / _SHARED).mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (folder / inductor_default()).symlink_to(folder / CACHE / _SHARED)
        return folder

    def clear(self, incarnation: str) -> None:
        shutil.rmtree(self.root / incarnation.split("-")[0], ignore_errors=True)

    def note_shm(self, segments: Sequence[Segment]) -> None:
        """Keeps the names of our workers' shared memory for the case that this coordinator is
        killed: the next life removes what nobody has any more. No room for a note is no reason to end a run."""
        if segments:
            with suppress(OSError), (self.root / SHM_NOTES).open("a", encoding="utf-8") as notes:
                notes.writelines(f"{one.note}\n" for one in segments)

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def check_sockets() -> None:
    """Before there is a run directory, which would be of a run that never was. Raises InputError."""
    workplace = Workplace.create(secrets.token_hex(8))  # nobody else's
    try:
        workplace.require_sockets()
    finally:
        workplace.remove()


def remove_abandoned(run_tag: str) -> None:
    """What an earlier life of the same run left behind. Only under the run's lock."""
    for old in _base().glob(f"{_prefix(run_tag)}*"):
        if old.stat().st_uid == os.getuid():
            remove_unused(_noted(old / SHM_NOTES))
            shutil.rmtree(old, ignore_errors=True)


def _base() -> Path:
    return Path(tempfile.gettempdir()).absolute()


def _prefix(run_tag: str) -> str:
    return f"al-{run_tag[:8]}-"


def inductor_default() -> str:
    """The name of the folder that torch takes in TMPDIR."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"uid_{os.getuid()}"
    return "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)


def _noted(notes: Path) -> list[Segment]:
    try:
        lines = notes.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [one for one in map(Segment.of_note, lines) if one]


def worker_environment(
    base: Mapping[str, str], *, method: MethodSpec, slot: Slot, endpoint: str, token: str, keys: Keys, room: Path
) -> dict[str, str]:
    """The whole environment of a worker; the method's own variables win over ours."""
    caches = {name: str(room / CACHE / folder) for name, folder in CACHES.items()}
    caches |= {name: str(room / folder) for name, folder in _MODULES.items()}
    ours = {
        "AIRLOCK_ENDPOINT": endpoint,
        "AIRLOCK_TOKEN": token,
        **keys.variables,
        "AIRLOCK_ENGINE": method.engine,
        "CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in slot.devices),
        "TMPDIR": str(room),
    }
    engine = {name: value.format(room=room) for name, value in _BY_ENGINE[method.engine].items()}
    kept = {name: value for name, value in base.items() if name not in _PORTS}
    return {**kept, **_COMMON, **caches, **engine, **ours, **method.env_vars}
