"""Children that a scripted worker makes and does not look after.

Each is a Python of its own that holds `bytes` of memory, tells its pid and
stays until it is killed. The styles differ in what they do to hide.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

_SOURCE = """
import os, signal, sys
report, size, style, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
if style == "orphan" and os.fork():
    os._exit(0)
if style in ("orphan", "setsid"):
    os.setsid()
if style == "setpgid":
    os.setpgid(0, 0)
if style == "ignore_term":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if style == "renamed":  # as setproctitle with a long title: over the arguments and the environment behind them
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[48])
    import ctypes
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, b"innocent", 8)
    ctypes.CDLL(None).prctl(15, b"innocent", 0, 0, 0)
held = bytearray(b"x") * size
os.write(report, b"%d" % os.getpid())
os.close(report)
if style == "hold_lock":
    import fcntl
    fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)
while style == "hold_log":
    import select
    os.write(1, b"the child is still here\\n")
    os.write(2, b"and here\\n")
    select.select([], [], [], 0.01)
while True:
    signal.pause()
"""
#: What to do → style of the child, whether it keeps our environment.
CHILDREN: dict[str, tuple[str, bool]] = {
    "child_plain": ("plain", True),
    "child_ignore_term": ("ignore_term", True),
    "child_setpgid": ("setpgid", True),
    "child_setsid": ("setsid", True),
    "child_double_fork": ("orphan", True),
    "child_renamed": ("renamed", True),
    "child_clear_env": ("orphan", False),
    "child_hold_log": ("hold_log", True),
    "child_hold_lock": ("hold_lock", True),
    "child_dies": ("dies", True),
}
_kept: list[subprocess.Popen[bytes]] = []


def start_child(do: str, size_bytes: int, path: str) -> int:
    """Starts it and gives its pid once it runs; of one that dies, once it is dead and nobody has waited for it."""
    style, keeps_environment = CHILDREN[do]
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", "-c", _SOURCE, str(writing), str(size_bytes), style, path]
    _kept.append(subprocess.Popen(command, pass_fds=[writing], env=None if keeps_environment else {}))
    os.close(writing)
    with open(reading, "rb") as answer:
        pid = int(answer.read())
    if style == "orphan":
        _kept.pop().wait()
    if style == "dies":
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid
