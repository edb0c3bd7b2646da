"""Finds and ends what should not be there any more, and measures what is.

The warden does the everyday killing. This is the backstop for when a warden was
killed itself, and for survivors of a coordinator that was. It goes by tag and
mark (see `proc`), and by descent from whatever carries one.

Limits. Where the mark can't be set (another kernel behind the system calls, a
hard limit on file locks), a process with a cleared environment is found only
while something attributable is its ancestor or led its session. What forks and
exits faster than /proc can be read is stopped by a warden only. A process of
another user that may not be signalled stays; ask survivors() afterwards.
Children of the caller that carry neither are bystanders: never signalled, never
waited for.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator import proc
from orchestrator.proc import ProcessRef, Stat
from protocol.pidfd import open_pidfd, send_signal

__all__ = ["ProcessRef", "Reaper", "Usage", "alive", "send", "shm_in_use", "subtree", "usage"]

WARDENS_FINISH_S = 4.0  # one that lost its coordinator needs 2 s of grace and a moment
SWEEP_S = 10.0
FREEZE_ROUNDS = 50
PR_SET_CHILD_SUBREAPER = 36
SHM = "/dev/shm/"


@dataclass(frozen=True)
class Usage:
    """Memory of some processes together. pss counts shared pages once over all their sharers.

    shm: the files in /dev/shm that they have mapped or open and that still have their name.
    """

    pss_bytes: int
    rss_bytes: int
    shm: frozenset[str]


def alive(ref: ProcessRef) -> bool:
    """A zombie is dead; so is a pid that was given to another process."""
    one = proc.stat(ref.pid)
    return one is not None and one.start_ticks == ref.start_ticks and not one.dead


def stopped(ref: ProcessRef) -> bool:
    one = proc.stat(ref.pid)
    return one is None or one.dead or one.state in "Tt" or one.start_ticks != ref.start_ticks


def subtree(pid: int) -> list[ProcessRef]:
    """The process and all its live descendants, nearest first."""
    processes = proc.table()
    roots = [processes[pid]] if pid in processes else []
    return [proc.ref(one) for one in roots + proc.descendants([pid], processes) if not one.dead]


def send(ref: ProcessRef, signum: int) -> bool:
    """Signals exactly this process; false if it is gone or may not be signalled.

    ValueError for the pids that no mistake of ours may ever hit: 0, 1, this process and its parent.
    """
    if ref.pid in (0, 1, os.getpid(), os.getppid()) or ref.pid < 0:
        raise ValueError(f"refusing to signal {ref}")
    with suppress(OSError):
        fd = open_pidfd(ref.pid)
        try:
            # The descriptor pins the process; only after that is its start time a proof.
            if alive(ref):
                send_signal(fd, signum)
                return True
        finally:
            os.close(fd)
    return False


class Reaper:
    """Sweeps one run. `owned` gives the pids of wardens whose exit status somebody else here waits for."""

    def __init__(self, run_tag: str, owned: Callable[[], Collection[int]] = tuple) -> None:
        self.run_tag = run_tag
        self._owned = owned

    def become_subreaper(self) -> None:
        """Orphans of this process's descendants become its children, where they can be told apart and reaped."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")

    def survivors(self) -> list[ProcessRef]:
        """Live processes of the run, by tag or mark; never us or what we descend from."""
        return [proc.ref(one) for one in self._tagged(proc.table(), None)]

    def alive_of(self, incarnation: str) -> list[ProcessRef]:
        return [proc.ref(one) for one in self._tagged(proc.table(), incarnation)]

    def sweep(self, incarnation: str | None = None, known: Iterable[ProcessRef] = ()) -> list[ProcessRef]:
        """Ends them all and says whom it found. Blocks until they are gone, at most SWEEP_S.

        known: further processes to count as the incarnation's own, alive or ended.
        Without an incarnation it takes the whole run, wardens in use included.
        """
        found = Found(known)
        deadline = time.monotonic() + SWEEP_S
        victims = set(self._attribute(incarnation, found))
        victims -= self._let_wardens_finish(victims)
        while living := self._attribute(incarnation, found):
            victims.update(living)
            if time.monotonic() >= deadline:
                break
            self._freeze(incarnation, found)
            for ref in found.alive():
                send(ref, signal.SIGKILL)
            wait_until_gone(found.alive(), deadline)
        self._reap(incarnation, found)
        return sorted(victims, key=lambda ref: ref.pid)

    def _tagged(self, processes: dict[int, Stat], incarnation: str | None) -> list[Stat]:
        spared = proc.ancestors(os.getpid(), processes) | {os.getpid(), 1}
        return [
            one
            for pid, one in processes.items()
            if pid not in spared and not one.dead and proc.belongs(pid, self.run_tag, incarnation)
        ]

    def _attribute(self, incarnation: str | None, found: Found) -> list[ProcessRef]:
        """All that is of the incarnation and lives, by tag or mark, by descent or by session; kept in `found`."""
        processes = proc.table()
        found.add(self._tagged(processes, incarnation))
        found.add(proc.descendants([ref.pid for ref in found.alive()], processes))
        sessions = found.sessions(processes)
        found.add(one for one in processes.values() if one.session in sessions)
        return found.alive()

    def _let_wardens_finish(self, living: Iterable[ProcessRef]) -> set[ProcessRef]:
        """A warden knows also those below it that no tag shows. Gives back those that ended by themselves."""
        owned = self._owned()  # on its way out a process has no command line any more
        wardens = {
            ref
            for ref in living
            if ref.pid in owned or any(arg.endswith("/warden.py") for arg in proc.cmdline(ref.pid))
        }
        wait_until_gone(wardens, time.monotonic() + WARDENS_FINISH_S)
        return {ref for ref in wardens if not alive(ref)}

    def _freeze(self, incarnation: str | None, found: Found) -> None:
        """Stops them all first: what can't fork can't get children that we have not seen."""
        frozen: set[ProcessRef] = set()
        for _ in range(FREEZE_ROUNDS):
            # Asked before the scan: a signal takes effect after it was sent, and a fork in between would be missed.
            still = all(map(stopped, found.alive()))
            fresh = [ref for ref in self._attribute(incarnation, found) if ref not in frozen]
            if still and not fresh:
                return
            for ref in fresh:
                send(ref, signal.SIGSTOP)
            frozen.update(fresh)

    def _reap(self, incarnation: str | None, found: Found) -> None:
        """Zombies that came to us as orphans, also those that ended before anybody looked: the mark outlives
        its process. By pid, never "any child": others' status is not ours to take."""
        owned = self._owned()
        for one in proc.table().values():
            orphan = one.dead and one.ppid == os.getpid() and one.pid not in owned
            if orphan and (proc.ref(one) in found.refs or proc.belongs(one.pid, self.run_tag, incarnation)):
                with suppress(ChildProcessError):
                    os.waitpid(one.pid, os.WNOHANG)


class Found:
    """What a sweep has attributed so far; it stays attributed when its parent dies."""

    def __init__(self, known: Iterable[ProcessRef]) -> None:
        self.refs = set(known)

    def add(self, stats: Iterable[Stat]) -> None:
        self.refs.update(map(proc.ref, stats))

    def alive(self) -> list[ProcessRef]:
        return [ref for ref in self.refs if alive(ref)]

    def sessions(self, processes: dict[int, Stat]) -> set[int]:
        """Ids of sessions they may lead. The number of a session with members is not given away as a pid,
        so one that now belongs to another process names another session."""
        return {
            ref.pid
            for ref in self.refs
            if ref.pid not in processes or processes[ref.pid].start_ticks == ref.start_ticks
        }


def wait_until_gone(refs: Iterable[ProcessRef], deadline: float) -> None:
    """Until each has ended (a zombie has), or monotonic time `deadline`."""
    poll = select.poll()
    waiting: set[int] = set()
    with ExitStack() as fds:
        for ref in refs:
            with suppress(OSError):
                fd = open_pidfd(ref.pid)
                fds.callback(os.close, fd)
                if alive(ref):
                    poll.register(fd, select.POLLIN)
                    waiting.add(fd)
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(left_s * 1000):
                poll.unregister(fd)
                waiting.discard(fd)


def usage(refs: Iterable[ProcessRef]) -> Usage:
    living = [ref for ref in refs if alive(ref)]
    memory = [memory_of(ref.pid) for ref in living]
    inodes = frozenset[int]().union(*(shm_of(ref.pid) for ref in living))
    return Usage(sum(pss for pss, _ in memory), sum(rss for _, rss in memory), shm_paths(inodes))


def memory_of(pid: int) -> tuple[int, int]:
    """PSS and RSS in bytes. Where PSS may not be read, RSS stands for it."""
    fields = dict(line.split()[:2] for line in (proc.read_bytes(pid, "smaps_rollup") or b"").splitlines()[1:])
    if b"Pss:" in fields:
        return int(fields[b"Pss:"]) * 1024, int(fields[b"Rss:"]) * 1024
    pages = (proc.read_bytes(pid, "statm") or b"0 0").split()[1]
    rss = int(pages) * os.sysconf("SC_PAGE_SIZE")
    return rss, rss


def shm_of(pid: int) -> frozenset[int]:
    """Inodes of what it has mapped or open in /dev/shm.

    Not names: a semaphore is mapped under the name it had before it got its own,
    and a removed name may be another program's by now.
    """
    mapped = (line.split(maxsplit=5) for line in (proc.read_bytes(pid, "maps") or b"").splitlines())
    inodes = {int(fields[4]) for fields in mapped if len(fields) > 5 and fields[5].startswith(SHM.encode())}
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(link).startswith(SHM):
                    inodes.add(link.stat().st_ino)
    return frozenset(inodes)


def shm_files() -> Iterator[Path]:
    """What has a name in /dev/shm, folders aside. Not by `rglob`: others' folders may vanish while it is in them, and
    that ends it."""
    for folder, _, names in os.walk(SHM):
        yield from (Path(folder, name) for name in names)


def shm_paths(inodes: Collection[int]) -> frozenset[str]:
    """The files in /dev/shm that have these inodes."""
    found = set()
    for path in shm_files():
        with suppress(OSError):
            if path.lstat().st_ino in inodes:
                found.add(str(path))
    return frozenset(found)


def shm_in_use(paths: Iterable[str]) -> frozenset[str]:
    """Those of the paths that any process on the machine has mapped or open (as far as we may look)."""
    return frozenset(paths) & shm_paths(frozenset[int]().union(*map(shm_of, proc.table())))
