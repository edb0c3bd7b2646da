"""The fault matrix: every fault in every state of a worker, and what came of it. See scripts/faults."""

from __future__ import annotations

import argparse
import fnmatch
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import NoReturn

import msgspec

from tests.faults import elsewhere, matrix
from tests.faults.cells import CELLS, Cell
from tests.faults.expected import expected, failures
from tests.faults.found import Found
from tests.faults.table import LEGEND, summary, table

REFUSED = 2


def main() -> int:
    args = _arguments()
    if args.list:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "--list | head" ends in silence
        sys.stdout.writelines(f"{cell}\n" for cell in CELLS)
        return 0
    chosen = _chosen(args.cells)
    prefix = _prefix(args)
    began = time.monotonic()
    found: dict[Cell, Found] = {}
    for one in matrix.run(chosen, prefix=prefix, jobs=args.jobs, keep=args.keep):
        found[Cell.named(one.cell)] = one
        _progress(len(found), len(chosen), one)
    wrong = {cell: _failures(cell, one, args) for cell, one in found.items()}
    gaps = len(chosen) - len(found)
    if args.json:
        _print_json(found, wrong)
    else:
        _print_table(chosen, found, wrong)
        sys.stdout.write(summary(found, gaps, time.monotonic() - began) + "\n")
    return int(gaps > 0 or any(wrong.values()))


def _arguments() -> argparse.Namespace:
    others = "scripts/faults --engines [NAME ...]: the deaths of real engines' processes instead"
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__, epilog=others)
    parser.add_argument("cells", nargs="*", metavar="STATE-FAULT", help="with * and ? as in file names; default: all")
    parser.add_argument("--list", action="store_true", help="the cells' names")
    parser.add_argument("--json", action="store_true", help="all that was found, as JSON")
    parser.add_argument("--pid1", action="store_true", help="each coordinator is process 1 of a PID namespace")
    parser.add_argument("--user", metavar="NAME|UID", help="as this user")
    parser.add_argument("--jobs", type=int, default=matrix.JOBS, help=f"cells at once, {matrix.JOBS}")
    parser.add_argument("--keep", action="store_true", help="leave the folders of the cells, al-f* in TMPDIR")
    return parser.parse_args()


def _chosen(patterns: Sequence[str]) -> list[Cell]:
    chosen = [cell for cell in CELLS if not patterns or any(fnmatch.fnmatch(str(cell), one) for one in patterns)]
    return chosen or _refuse(f"no cell is called {' or '.join(patterns)}; --list names them")


def _failures(cell: Cell, one: Found, args: argparse.Namespace) -> list[str]:
    """What is wrong with the cell, and whether its coordinator was who it was asked to be."""
    wrong = failures(cell, one)
    if args.pid1 and one.pid != 1 and not one.trouble:
        wrong.append(f"its coordinator was process {one.pid}, not 1")
    if args.user and one.uid == 0:
        wrong.append("its coordinator was root")
    return wrong


def _prefix(args: argparse.Namespace) -> list[str]:
    """What the coordinators are started through."""
    asked = {"--pid1": elsewhere.as_pid1 if args.pid1 else None}
    asked["--user"] = (lambda: elsewhere.as_user(args.user)) if args.user else None
    prefix: list[str] = []
    for option, make in asked.items():
        try:
            prefix = elsewhere.usable([*prefix, *make()]) if make else prefix
        except elsewhere.Refused as why:
            _refuse(f"{option}: {why}")
    return prefix


def _refuse(why: str) -> NoReturn:
    sys.stderr.write(f"faults: {why}\n")
    sys.exit(REFUSED)


# --- what is told -------------------------------------------------------------


def _progress(done: int, of: int, one: Found) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{done} of {of}  {one.cell}" + ("\r\x1b[K" if done == of else ""))
        sys.stderr.flush()


def _print_table(chosen: Sequence[Cell], found: dict[Cell, Found], wrong: dict[Cell, list[str]]) -> None:
    sys.stdout.write(f"{table(chosen, found)}\n{LEGEND}\n")
    for cell, sentences in wrong.items():
        sys.stdout.writelines(f"{cell}: {sentence}\n" for sentence in sentences)


def _print_json(found: dict[Cell, Found], wrong: dict[Cell, list[str]]) -> None:
    rows = [
        {
            "state": cell.state,
            "fault": cell.fault,
            "failures": wrong[cell],
            "expected": asdict(expected(cell, kernel=one.kernel)),
        }
        | {"found": msgspec.to_builtins(one)}
        for cell, one in found.items()
    ]
    json.dump(rows, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    sys.exit(main())
