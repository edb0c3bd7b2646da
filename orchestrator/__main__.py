"""`python -m orchestrator` and the `airlock` command."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

from orchestrator.errors import Interrupted

ENDING = (signal.SIGTERM, signal.SIGHUP)
#: New objects between two looks for cycles, of which there are next to none: with Python's 700 a plan of 100,000 points
#: and a journal to match take an eighth longer to read.
GARBAGE_AFTER = 10_000


def main() -> int:
    """The whole process: nothing runs in it afterwards but its end."""
    occupy_standard_descriptors()
    gc.set_threshold(GARBAGE_AFTER)
    try:
        for signum in ENDING:
            if signal.getsignal(signum) == signal.SIG_DFL:
                signal.signal(signum, interrupt)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # blocked ones are inherited, and could not end us
        from orchestrator.cli import run

        code = run(sys.argv[1:])
        # All is told and the code is settled; the interpreter's own end takes a while, and one ^C more would change it.
        for signum in (*ENDING, signal.SIGINT, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_IGN)
    except KeyboardInterrupt:  # while the first modules were being read, or just now
        return 128 + signal.SIGINT
    except Interrupted:
        return 128 + signal.SIGTERM
    return code


def interrupt(signum: int, _frame: FrameType | None) -> None:
    """So that what is under way is taken down; a sweep has its own way (see `run.signals`)."""
    raise Interrupted(signum)


def occupy_standard_descriptors() -> None:
    """Where one was closed, the next file opened would get its number, and with it whatever a C library
    prints there: into the journal. Read-only, so that nothing written is taken for said."""
    while (fd := os.open(os.devnull, os.O_RDONLY)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
