"""`python -m orchestrator` and the `airlock` command."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """The whole process: nothing runs in it afterwards but its end."""
    occupy_standard_descriptors()
    try:
        from orchestrator.cli import run

        code = run(sys.argv[1:])
        # All is told and the code is settled; the interpreter's own end takes a while, and one ^C more would change it.
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_IGN)
    except KeyboardInterrupt:  # while the first modules were being read, or just now
        return 128 + signal.SIGINT
    return code


def occupy_standard_descriptors() -> None:
    """Where one was closed, the next file opened would get its number, and with it whatever a C library
    prints there: into the journal. Read-only, so that nothing written is taken for said."""
    while (fd := os.open(os.devnull, os.O_RDONLY)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
