"""What a hung worker is doing, asked before it is ended; and whether the kernel ended one for want of memory.

Python processes are asked one after the other, as all of them write into one
log and would write into each other's lines. Everything here is bounded in time
and size; what does not answer is said to not answer.
"""

from __future__ import annotations

import select
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator import proc
from orchestrator.errors import LaunchFailed
from orchestrator.launcher import Launcher, LaunchSpec, base_environment
from orchestrator.proc import ProcessRef
from orchestrator.reaper import send
from orchestrator.run import cgroups
from orchestrator.run.causes import Kills
from orchestrator.stores.logs import size_of, text_since
from orchestrator.view.wording import counted
from protocol.signals import STACKS

#: For all processes of a tree together; a worker that is to be ended must not live on for its own story.
STACKS_S = 0.5
#: From the signal to the first line, and between two lines: more than that is silence.
ANSWER_S, QUIET_S = 0.2, 0.03
LOOK_S = 0.005
MAX_PROCESSES = 16
MAX_STACKS_BYTES = 48 * 1024
PY_SPY_S = 0.5

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in an uninterruptible wait (disk or driver)",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended, not yet reaped",
    "I": "idle",
}


def inspect(
    tree: Sequence[ProcessRef],
    log: Path,
    launcher: Launcher,
    *,
    run_tag: str,
    incarnation: str,
    known: Iterable[ProcessRef] = (),
) -> str:
    """A text on a hung worker: its processes, and the stacks of their threads. Blocks for STACKS_S, and for
    PY_SPY_S more where a process can't answer and py-spy is there. `known`: who was there when it was ready."""
    parts = [tree_state(tree, known)]
    left_s = STACKS_S
    silent: list[ProcessRef] = []
    for ref in tree[:MAX_PROCESSES]:
        began = time.monotonic()
        told = stacks_of(ref, log, left_s)
        left_s -= time.monotonic() - began
        if told:
            parts.append(f"--- {ref.pid} {ref.name}\n{told}")
        elif listens(ref.pid):
            silent.append(ref)
    parts += py_spy(silent, launcher, run_tag=run_tag, incarnation=incarnation)
    return "\n".join(parts)


# --- processes --------------------------------------------------------------


def tree_state(tree: Sequence[ProcessRef], known: Iterable[ProcessRef] = ()) -> str:
    """A line for each process: what it does, where in the kernel it waits; then those that are gone."""
    lines = [_state(ref) for ref in tree]
    lines += [f"{ref.pid} {ref.name}: gone, though it was there before" for ref in known if ref not in set(tree)]
    return "\n".join(lines)


def _state(ref: ProcessRef) -> str:
    one = proc.stat(ref.pid)
    if one is None or one.start_ticks != ref.start_ticks:
        return f"{ref.pid} {ref.name}: gone"
    kernel = (proc.read_bytes(ref.pid, "wchan") or b"0").decode("ascii", "replace").strip("\0\n ")
    where = "" if kernel == "0" else f" in {kernel}"
    return f"{ref.pid} {one.name}: {_STATES.get(one.state, one.state)}{where}, {counted(one.threads, 'thread')}"


# --- stacks -----------------------------------------------------------------


def listens(pid: int) -> bool:
    """Whether it has a handler for STACKS: without one, the signal would end it."""
    for line in (proc.read_bytes(pid, "status") or b"").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (STACKS - 1) & 1)
    return False


def ask_for_stacks(tree: Iterable[ProcessRef]) -> list[ProcessRef]:
    """Those that were asked; returns at once. A stopped process answers when it goes on, if ever."""
    return [ref for ref in tree if listens(ref.pid) and send(ref, STACKS)]


def stacks_of(ref: ProcessRef, log: Path, patience_s: float) -> str:
    """What the process wrote when asked, "" if it does not answer in time or has no handler."""
    one = proc.stat(ref.pid)
    if patience_s <= 0 or one is None or one.state in "Tt":
        return ""
    offset = size_of(log)
    if not ask_for_stacks([ref]):
        return ""
    _until_quiet(log, offset, patience_s)
    return collect(log, offset)


def _until_quiet(log: Path, offset: int, patience_s: float) -> None:
    began = grown = time.monotonic()
    size = offset
    while (now := time.monotonic()) - began < patience_s:
        if now - grown >= (ANSWER_S if size == offset else QUIET_S):
            return
        select.select([], [], [], LOOK_S)
        if (length := size_of(log)) != size:
            size, grown = length, time.monotonic()


def collect(log: Path, from_offset: int) -> str:
    """What faulthandler wrote after the offset: whole stacks, other lines in between left out."""
    text = text_since(log, from_offset, MAX_STACKS_BYTES)
    return "\n".join(line for line in text.splitlines() if _of_a_stack(line))


def _of_a_stack(line: str) -> bool:
    return line.startswith(("Thread 0x", "Current thread 0x", '  File "', "  <", "  ...", "  Garbage-collecting"))


def py_spy(refs: Sequence[ProcessRef], launcher: Launcher, *, run_tag: str, incarnation: str) -> list[str]:
    """The stacks of processes that can't answer, as py-spy reads them out of their memory; nothing without it."""
    tool = shutil.which("py-spy")
    if tool is None:
        return []
    deadline = time.monotonic() + PY_SPY_S
    texts = []
    for ref in refs:
        left_s = deadline - time.monotonic()
        if left_s > 0:
            command = (tool, "dump", "--nonblocking", "--pid", str(ref.pid))
            told = _output(command, launcher, left_s, run_tag, f"{incarnation}-py-spy")
            texts.append(f"--- {ref.pid} {ref.name}, by py-spy\n{told}")
    return texts


def _output(command: tuple[str, ...], launcher: Launcher, timeout_s: float, run_tag: str, incarnation: str) -> str:
    with tempfile.TemporaryDirectory(prefix="al-py-spy-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "log"
        spec = LaunchSpec(command, base_environment(), folder, str(log), run_tag, incarnation)
        try:
            done = launcher.run(spec, timeout_s)
        except (LaunchFailed, OSError) as exc:
            return f"(it could not be run: {exc})"
        return text_since(log, 0, MAX_STACKS_BYTES).strip() or f"(no answer{' in time' if done.timed_out else ''})"


# --- memory that ran out ----------------------------------------------------


@dataclass(frozen=True)
class OomWatch:
    """The kernel's counts of out-of-memory kills at one moment, usually a worker's launch."""

    then: tuple[int | None, ...]

    @classmethod
    def now(cls) -> OomWatch:
        return cls(oom_kills())

    def kills(self) -> Kills:
        """Since that moment.

        Our control group's count knows of no neighbour, but neither of a process that left the
        group, as Slurm's and containers' do; the machine's knows of both.
        """
        pairs = zip(oom_kills(), self.then, strict=True)
        counts = [None if now is None or then is None else now - then for now, then in pairs]
        told = [count for count in counts if count is not None]
        return Kills(ours=max(filter(None, counts[:-1]), default=0), anywhere=max(told, default=None))


def oom_kills() -> tuple[int | None, ...]:
    """How many processes the kernel has ended for want of memory: in our control group, by its two
    versions, and on the machine. None for whoever does not tell."""
    groups = (
        cgroups.files("memory", "memory.events", version=2),
        cgroups.files("memory", "memory.oom_control", version=1),
    )
    return (*map(_first_count, groups), _first_count([Path("/proc/vmstat")]))


def _first_count(files: Iterable[Path]) -> int | None:
    for path in files:
        with suppress(OSError, ValueError, IndexError):
            for line in path.read_bytes().splitlines():
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    return None
