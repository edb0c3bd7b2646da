"""The warden: a tiny process above one worker, and the only parent its orphans can get.

Started by path with `python -I -S`, standard library only, nothing of ours
imported: it must start fast, stay small and outlive whatever the worker does.

stdin   the first line is the order, JSON {argv, env, cwd, mark, cpus}; then lines "term"
        and "kill". End of file is the lifeline: the coordinator is gone, however it went.
stdout  events, a line of JSON each: started, then exited, then ended; or failed alone.
stderr  the worker's log; the worker's stdout and stderr go there too, so a
        descendant that keeps it open keeps nobody waiting. Of a log that grows
        without end the middle is taken out, and a line in it says how much.

It is the child subreaper of all that descends from it, so double forks, new
sessions and cleared environments stay below it; all of them carry its mark,
should it be killed itself. It ends when nothing is left.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

TERM_GRACE_S = 2.0  # from the lifeline's end to SIGKILL
STRAY_GRACE_S = 0.5  # for the leader's children to leave by themselves
RETRY_FIRST_S, RETRY_LAST_S = 0.001, 0.2  # between two attempts at killing what is left
NAMES_MAX = 50  # a fork loop would fill the status pipe with names
LOG_CHECK_S = 2.0
LOG_HEAD_BYTES = LOG_TAIL_BYTES = 64 << 20
LOG_COPY_BYTES = 8 << 20  # of the tail, where it has to be copied: that must not hold up a kill
COPY_STEP_BYTES = 1 << 20
LOG_NOTE = b"\n[airlock: this log grew too long; %15d bytes are gone from here]\n"

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SYS_PIDFD_SEND_SIGNAL, SYS_PIDFD_OPEN = 424, 434
RLIMIT_LOCKS = 10  # Python has no name for it
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
#: Faults of the warden itself stay deadly; the last two can't be handled at all.
DEADLY = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGABRT", "SIGSYS", "SIGKILL", "SIGSTOP"}

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class Process:
    """One line of /proc/<pid>/stat. A zombie whose other threads still run is not dead."""

    def __init__(self, line: bytes) -> None:
        opening, closing = line.index(b"("), line.rindex(b")")
        rest = line[closing + 1 :].split()
        self.pid = int(line[:opening])
        self.name = line[opening + 1 : closing].decode("utf-8", "replace")
        self.ppid = int(rest[1])
        self.start_ticks = int(rest[19])
        self.dead = rest[0] in (b"Z", b"X", b"x") and int(rest[17]) < 2


class Warden:
    def __init__(self, leader: int, wake: int) -> None:
        self.leader: int | None = leader  # None once reaped: its pid may be somebody else's now
        self.wake = wake
        self.heard = b""
        self.kill_at: float | None = None  # monotonic; None while nobody has to die
        self.early = False  # killing began while the leader lived: what dies then is no stray
        self.retry_s = RETRY_FIRST_S
        self.strays: dict[tuple[int, int], str] = {}
        self.killed: set[tuple[int, int]] = set()
        self.seen: set[tuple[int, int]] = set()  # by the last attempt to kill
        self.log = Log(2)

    def run(self, heard: bytes) -> None:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        self.obey(heard)
        while self.reap():
            for fd, _ in poll.poll(self.timeout_ms()):
                if fd == self.wake:
                    drain(self.wake)
                elif not self.listen():
                    poll.unregister(0)
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self.kill()
            self.log.trim()
        emit(event="ended", strays=sorted(self.strays.values()), killed=len(self.killed))

    def timeout_ms(self) -> float:
        until_s = LOG_CHECK_S if self.kill_at is None else self.kill_at - time.monotonic()
        return max(0.0, until_s) * 1000

    def reap(self) -> bool:
        """Collects all that ended; false once there is no child, so no descendant, left."""
        try:
            while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if found[0] == self.leader:
                    self.leader = None
                    emit(event="exited", **exit_fields(found[1]))
                    self.kill_by(time.monotonic() + STRAY_GRACE_S)
        except ChildProcessError:
            return False
        return True

    def kill_by(self, when: float) -> None:
        self.kill_at = when if self.kill_at is None else min(self.kill_at, when)

    def listen(self) -> bool:
        """Obeys what the coordinator says; false at the end of the lifeline."""
        text = os.read(0, 4096)
        if text:
            self.obey(text)
            return True
        self.terminate()
        self.kill_by(time.monotonic() + TERM_GRACE_S)
        return False

    def obey(self, text: bytes) -> None:
        *lines, self.heard = (self.heard + text).split(b"\n")
        if b"term" in lines:
            self.terminate()
        if b"kill" in lines:
            self.kill_by(time.monotonic())

    def terminate(self) -> None:
        # The whole group: the leader may be a wrapper that does not pass signals on.
        if self.leader is not None:
            with suppress(OSError):
                os.killpg(self.leader, signal.SIGTERM)

    def kill(self) -> None:
        """One attempt; comes again until reap() finds nobody. Whoever is killed leaves its children to us."""
        self.early = self.early or self.leader is not None
        seen: set[tuple[int, int]] = set()
        with suppress(OSError, MemoryError):  # a machine out of descriptors or memory: the next attempt may do better
            # Our own children first and without looking further: a fork-and-exit loop is
            # always one of them, and it is gone by the time that all of /proc has been read.
            for source in (own_children, descendants):
                for one in source():
                    seen.add((one.pid, one.start_ticks))
                    if kill_exactly(one) and not one.dead:
                        self.note(one)
        # An unkillable process (state D) must not cost a core; a loop shows up under a new pid each time.
        fresh, self.seen = bool(seen - self.seen), seen
        self.retry_s = RETRY_FIRST_S if fresh else min(2 * self.retry_s, RETRY_LAST_S)
        self.kill_at = time.monotonic() + (0.0 if fresh else self.retry_s)

    def note(self, one: Process) -> None:
        key = one.pid, one.start_ticks
        if not self.early and len(self.strays) < NAMES_MAX:
            self.strays[key] = one.name
        self.killed.add(key)


class Log:
    """Keeps a log from filling the disk: whoever writes is neither blocked nor asked.

    Where the file system can punch holes, the middle reads as zero bytes. Where it
    can't (NFS before 4.2), the end is copied down and the file cut behind it: those who
    write all append, so they go on there; only what came in that instant is lost as well.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.punches = True
        self.gone_bytes = 0
        self.next = time.monotonic() + LOG_CHECK_S

    def trim(self) -> None:
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + LOG_CHECK_S
        with suppress(OSError):
            size = os.fstat(self.fd).st_size
            holes = self.gone_bytes if self.punches else 0
            if size - holes > LOG_HEAD_BYTES + 2 * LOG_TAIL_BYTES:
                self.shorten(size)

    def shorten(self, size: int) -> None:
        # A descriptor of its own: on one that appends, pwrite would append as well.
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            note_bytes = len(LOG_NOTE % 0)  # stands where log stood
            begin = LOG_HEAD_BYTES + note_bytes
            hole = size - LOG_TAIL_BYTES - begin
            self.punches = self.punches and punch(fd, begin, hole)
            if self.punches:
                self.gone_bytes = note_bytes + hole
            else:
                self.gone_bytes = (self.gone_bytes or note_bytes) + fold(fd, begin, size - LOG_COPY_BYTES)
            os.pwrite(fd, LOG_NOTE % self.gone_bytes, LOG_HEAD_BYTES)
        finally:
            os.close(fd)


def punch(fd: int, start: int, length: int) -> bool:
    mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    return bool(libc.fallocate(fd, mode, ctypes.c_longlong(start), ctypes.c_longlong(length)) == 0)


def fold(fd: int, target: int, source: int) -> int:
    """Copies what stands from `source` on down to `target` and cuts the file there; bytes taken out."""
    last = target + LOG_TAIL_BYTES  # somebody may write faster than we copy
    while target < last and (part := os.pread(fd, COPY_STEP_BYTES, source)):
        os.pwrite(fd, part, target)
        source, target = source + len(part), target + len(part)
    gone = os.fstat(fd).st_size - target
    os.ftruncate(fd, target)
    return gone


def kill_exactly(one: Process) -> bool:
    """Our own children keep their pid until we reap them; one further down may be gone and its pid given away."""
    try:
        if one.ppid == os.getpid():
            os.kill(one.pid, signal.SIGKILL)
            return True
        fd = open_pidfd(one.pid)
    except OSError:
        return False
    try:
        again = look(one.pid)
        if again is None or again.start_ticks != one.start_ticks:
            return False
        kill_by_pidfd(fd)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def open_pidfd(pid: int) -> int:
    """As `protocol.pidfd`: conda's Python has no name for it."""
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else call(SYS_PIDFD_OPEN, pid, 0)


def kill_by_pidfd(fd: int) -> None:
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    else:
        call(SYS_PIDFD_SEND_SIGNAL, fd, int(signal.SIGKILL), None, 0)


def call(number: int, *arguments: int | None) -> int:
    given = (None if one is None else ctypes.c_long(one) for one in arguments)
    result = int(libc.syscall(ctypes.c_long(number), *given))
    if result < 0:
        raise OSError(ctypes.get_errno(), "system call failed")
    return result


def look(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return Process(file.read())
    except (OSError, ValueError):
        return None


def own_children() -> Iterator[Process]:
    """Straight from the kernel's list; nothing where it keeps none (CONFIG_PROC_CHILDREN)."""
    with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
        for pid in file.read().split():
            if found := look(int(pid)):
                yield found


def descendants() -> list[Process]:
    """Nearest first; the dead among them too, as they may still have children for a moment."""
    children: dict[int, list[Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := look(int(entry))):
            children.setdefault(found.ppid, []).append(found)
    layer, below = [os.getpid()], []
    while layer:
        nearest = [child for pid in layer for child in children.pop(pid, ())]
        below += nearest
        layer = [child.pid for child in nearest]
    return below


def exit_fields(status: int) -> dict[str, object]:
    if not os.WIFSIGNALED(status):
        return {"code": os.WEXITSTATUS(status), "signal": None}
    number = os.WTERMSIG(status)
    try:
        return {"code": None, "signal": signal.Signals(number).name}
    except ValueError:  # a real-time signal
        return {"code": None, "signal": f"SIG{number}"}


def emit(**event: object) -> None:
    with suppress(OSError):  # nobody listens any more; the work goes on all the same
        os.write(1, json.dumps(event).encode() + b"\n")


def drain(fd: int) -> None:
    with suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


def shrug_off_signals() -> int:
    """A signal aimed at the warden only wakes it, by the descriptor returned.

    Handlers, not SIG_IGN: exec turns handlers back into defaults, while ignored
    signals, also those that we inherited, would stay ignored in the worker.
    """
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in signal.valid_signals():
        if not (isinstance(number, signal.Signals) and number.name in DEADLY):
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return read


def become_subreaper() -> None:
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def read_order() -> tuple[bytes, bytes]:
    """The first line, and what came after it; an empty line if the coordinator went before it was written."""
    text = b""
    while b"\n" not in text:
        part = os.read(0, 1 << 16)
        if not part:
            return b"", b""
        text += part
    order, _, rest = text.partition(b"\n")
    return order, rest


def wake_when_orphaned() -> None:
    """Somebody may have stopped us when the coordinator dies: the kernel's SIGCONT lets us see the lifeline's end."""
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def carry(mark: int) -> None:
    """The mark is handed down to all that descends from us. Only the soft limit, so that others may set theirs."""
    with suppress(OSError, ValueError):  # refused where somebody has set a hard limit on this already
        resource.setrlimit(RLIMIT_LOCKS, (mark, resource.getrlimit(RLIMIT_LOCKS)[1]))


def dump_no_core(env: dict[str, str], cwd: str) -> None:
    """Of a worker it would be written into its own folder, which is removed when it has ended: the size of all its
    memory, and the minutes that takes, for nothing. Where the kernel puts them elsewhere they are the user's."""
    with suppress(OSError, ValueError), open("/proc/sys/kernel/core_pattern", "rb") as file:
        if env.get("TMPDIR") == cwd and file.read(1) not in (b"/", b"|"):
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def spawn(argv: list[str], env: dict[str, str], cwd: str) -> int:
    worker = subprocess.Popen(
        argv,
        env={**env, "AIRLOCK_WARDEN_PID": str(os.getpid())},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=2,
        stderr=2,
        start_new_session=True,
    )
    worker.returncode = 0  # waited for by our own loop only, so Popen must not try
    return worker.pid


def keep_to(cpus: list[int]) -> None:
    """Handed down as well. Raises OSError where none of them may be used."""
    if cpus:
        os.sched_setaffinity(0, cpus)


def main() -> int:
    wake = shrug_off_signals()
    wake_when_orphaned()
    order, rest = read_order()
    if not order:
        return 0
    try:
        become_subreaper()
        wanted = json.loads(order)
        carry(wanted.pop("mark"))
        keep_to(wanted.pop("cpus"))
        dump_no_core(wanted["env"], wanted["cwd"])
        pid = spawn(**wanted)
    except (OSError, ValueError) as error:
        emit(event="failed", error=f"{type(error).__name__}: {error}")
        return 1
    worker = look(pid)  # there even if it ended already: nobody has reaped it
    emit(event="started", pid=pid, start_ticks=worker.start_ticks if worker else 0)
    Warden(pid, wake).run(rest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
