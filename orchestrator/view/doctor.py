"""The verb `doctor`: examine what a sweep needs, each finding with what to do about it."""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.devices import (
    NO_GPU,
    Device,
    DeviceReader,
    Machine,
    discover,
    host_available_bytes,
    memory_limit_bytes,
    reader,
)
from orchestrator.envs import EngineEnv, EnvStore
from orchestrator.errors import EnvironmentFailed, InputError
from orchestrator.launcher import Launcher
from orchestrator.run.machines import CPU_HINT
from orchestrator.run.room import lost_at_logout
from orchestrator.run.workplace import check_sockets, check_tmpdir
from orchestrator.stores.home import airlock_home
from orchestrator.stores.recipes import engines
from orchestrator.view.wording import bytes_text
from protocol.pidfd import open_pidfd

GIB = 1024**3
#: Below these a sweep is likely to fail half-way.
LOW_RUN_DISK_BYTES = 1 * GIB
LOW_TMP_BYTES = 2 * GIB
LOW_SHM_BYTES = 1 * GIB
LOW_FILES = 1024

Say = Callable[[str], None]


@dataclass(frozen=True)
class Finding:
    """`advice` is empty where there is nothing to do."""

    level: Literal["ok", "warn", "bad"]
    subject: str
    message: str
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        hint = f"\n      → {self.advice}" if self.advice else ""
        return f"{self.level:<4}  {self.subject}: {self.message}{hint}"


def examine(say: Say) -> list[Finding]:
    """Every finding. Imports each engine once, which takes seconds, and says so."""
    machine = discover()
    return [*_interpreter(), *_kernel(), *_devices(machine), *_room(), *_logout(), *_limits(), *_engines(machine, say)]


def _interpreter() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok", "python", f"{version}, {sys.executable}")
    uv = shutil.which("uv")
    yield Finding("ok", "installer", f"uv, {uv}" if uv else "pip of the standard library's venv")


def _kernel() -> Iterator[Finding]:
    try:
        os.close(open_pidfd(os.getpid()))
    except OSError as exc:
        yield Finding(
            "bad",
            "kernel",
            f"has no pidfd: {exc}",
            "Airlock needs Linux 5.4 or newer, and a container that does not forbid it",
        )
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        yield Finding("warn", "signals", "SIGCHLD is ignored here", "exit statuses get lost: start from a plain shell")
    try:
        check_tmpdir()
        check_sockets()
    except InputError as exc:
        for problem in exc.problems:
            yield Finding("bad", problem.key, problem.message, problem.suggestion)


def _devices(machine: Machine) -> Iterator[Finding]:
    memory = f"{bytes_text(host_available_bytes())} of {bytes_text(memory_limit_bytes())} available"
    yield Finding("ok", "host", f"{machine.cpus} CPUs, {memory}")
    if machine.fault:
        yield Finding("bad", "devices", f"{NO_GPU}: {machine.fault}", CPU_HINT)
    for note in () if machine.fault else machine.notes:
        hint = "" if machine.devices else "without a GPU the CPU recipes and methods are used"
        yield Finding("ok" if machine.kind == "cpu" else "warn", "devices", note, hint)
    read = reader(machine)
    for device in machine.devices:
        yield from _device(device, read)


def _device(device: Device, read: DeviceReader | None) -> Iterator[Finding]:
    """Index and UUID as CUDA_VISIBLE_DEVICES takes them, and what is free there now."""
    subject = f"GPU {device.index}"
    free = read.free_bytes(device.uuid) if read else None
    room = f"{bytes_text(free)} free of" if free is not None else "free memory not told, of"
    total = bytes_text(device.total_bytes) if device.total_bytes else "unknown size"
    yield Finding("ok", subject, f"{device.name}, {device.uuid}, {room} {total}")
    for one in (read.holders(device.uuid) if read else None) or []:
        size = bytes_text(one.used_bytes) if one.used_bytes else "memory"
        what = f"{one.name or 'a process that is not visible here'} (pid {one.pid}) holds {size}"
        advice = "" if one.graphics else "results are not comparable while others use the device"
        yield Finding("ok" if one.graphics else "warn", subject, what, advice)
    if read and device.uuid in read.lost:
        yield Finding("bad", subject, f"is lost: {read.why_not(device.uuid)}", "nothing runs there before a reset")


def _room() -> Iterator[Finding]:
    home = airlock_home()
    places = (
        ("AIRLOCK_HOME", home, 0, "environments take up to 16 GiB there"),
        ("runs", Path.cwd(), LOW_RUN_DISK_BYTES, "free some space, or use --run-dir elsewhere"),
        ("TMPDIR", Path(tempfile.gettempdir()), LOW_TMP_BYTES, "compile caches go there: set TMPDIR elsewhere"),
        (
            "/dev/shm",
            Path("/dev/shm"),
            LOW_SHM_BYTES,
            "engines share memory there: raise it (a container's --shm-size)",
        ),
    )
    for name, path, low_bytes, advice in places:
        free = _free_bytes(path)
        if free is None or not _writable(path):
            yield Finding("bad", name, f"{path} can't be written to", f"set {name} elsewhere")
        else:
            level: Literal["ok", "warn"] = "warn" if free < low_bytes else "ok"
            yield Finding(level, name, f"{path}: {bytes_text(free)} free", advice if level == "warn" else "")


def _logout() -> Iterator[Finding]:
    with suppress(KeyError):  # a user without a name has no session either
        if warning := lost_at_logout(pwd.getpwuid(os.getuid()).pw_name, os.getuid()):
            yield Finding("warn", "logout", warning)


def _existing(path: Path) -> Path:
    """The folder itself or the nearest one above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _writable(path: Path) -> bool:
    place = _existing(path)
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def _free_bytes(path: Path) -> int | None:
    path = _existing(path)
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _limits() -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = files < LOW_FILES
    yield Finding("warn" if few else "ok", "open files", f"at most {files}", "ulimit -n 65536" if few else "")
    for name, limit in (("address space", resource.RLIMIT_AS), ("processes", resource.RLIMIT_NPROC)):
        soft, _ = resource.getrlimit(limit)
        if limit == resource.RLIMIT_AS and soft != resource.RLIM_INFINITY:
            yield Finding("warn", name, f"limited to {bytes_text(soft)}", "ulimit -v unlimited: engines map far more")


def _engines(machine: Machine, say: Say) -> Iterator[Finding]:
    store = EnvStore(airlock_home(), Launcher(), say, kind=machine.kind)
    found = store.list()
    for name in engines():
        if name not in found:
            yield Finding("ok", f"env {name}", "not built", f"a sweep builds it: {store.describe(name)}")
    for name in found:
        say(f"importing the engine of environment {name} …")
        yield _engine(store, name)


def _engine(store: EnvStore, name: str) -> Finding:
    try:
        seen = store.check(name)
    except EnvironmentFailed as exc:
        return Finding("bad", f"env {name}", exc.cause, f"`env build --rebuild {name}`, or see its log")
    if seen.outdated or seen.drift:
        return Finding("warn", f"env {name}", seen.outdated or "; ".join(seen.drift), f"`env build {name}`")
    told = f"{seen.env.engine} {seen.engine_version} imports, {seen.env.python}"
    if seen.env.broken:
        return Finding("warn", f"env {name}", "; ".join([told, *seen.env.repairs]), _advice(seen.env))
    return Finding("ok", f"env {name}", told)


def _advice(env: EngineEnv) -> str:
    """On the broken packages of an environment."""
    left = [module for module in env.broken if module not in env.blocked]
    if left:
        return f"{env.engine} does not import without {', '.join(left)}: install builds that fit its torch"
    return "nothing, unless a model needs them: then install builds that fit its torch"
