"""A real writer of a journal, to be killed: `journal_writer.py RUN_DIR FIRST LIMIT_BYTES [HELD]`.

Commits batch after batch and acknowledges each on stdout only once it is
committed. LIMIT_BYTES > 0 lets the kernel take a write up to that byte of a
file and kill the process at the next (SIGXFSZ): a torn write at a chosen byte.
HELD starts a child that lives on and, with a lock that leaked, would hold it.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

from orchestrator.journal import Journal
from orchestrator.record.replay import JOURNAL_NAME
from tests.unit.rundirs import commit, new_run, started, state


def main(run_dir: Path, first: int, limit_bytes: int, held: bool) -> None:
    journal = Journal.resume(run_dir)[0] if (run_dir / JOURNAL_NAME).exists() else new_run(run_dir)
    journal.emit(started())
    if held:
        child = subprocess.Popen(["cat"], stdout=subprocess.DEVNULL)
        acknowledge(f"child {child.pid}")
    if limit_bytes:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    number = first
    while True:
        commit(journal, [f"{number}-a", f"{number}-b"], batch=f"b{number}", text="ß☃" * 40)
        acknowledge(str(number))
        journal.emit(state("ready"))
        number += 1


def acknowledge(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), len(sys.argv) > 4)
