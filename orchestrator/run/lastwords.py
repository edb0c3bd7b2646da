"""The end of a sweep: its exit code, and what is said of it."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from rich.text import Text

from orchestrator.called import COMMAND
from orchestrator.console import Console
from orchestrator.events import RunEnded
from orchestrator.plan import Plan
from orchestrator.report import RunView, rows, table
from orchestrator.run import scrutiny
from orchestrator.run.ledger import Ledger
from orchestrator.run.signals import StopFlag
from orchestrator.view import words
from orchestrator.view.markdown import SHOWN
from orchestrator.view.wording import counted


def results(run_dir: Path, code: int, console: Console, strict: bool) -> int:
    """Of a run that has just measured something. Reads every record."""
    view = RunView.load(run_dir)
    found = rows(view)
    told = table(found, words.brief(view, found, SHOWN))
    console.finish(told, f"results are in {run_dir}; `{_report(run_dir)}` tells more")
    return scrutiny.after(view, code, strict, console.say)


def _report(run_dir: Path) -> str:
    """As a shell takes it."""
    return f"{COMMAND} report {shlex.quote(str(run_dir))}"


def is_over(plan: Plan, ledger: Ledger) -> bool:
    """Whether earlier lives came to the end of every point."""
    return all(point.id in ledger.ended or point.id in ledger.skipped for point in plan.points)


def nothing_left(run_dir: Path, ledger: Ledger, console: Console, stop: StopFlag, strict: bool) -> int:
    """Of a run that was over before: its records, which may be millions, are read again only where they decide on the
    exit code."""
    code = stop.exit_code if stop.requested else int(ledger.points_failed > 0)
    reason = f"interrupted by {stop.name}" if stop.requested else ""
    ledger.emit(RunEnded(at=time.time(), exit_code=code, wall_s=0.0, measured_s=0.0, reason=reason))
    where = f"`{_report(run_dir)}` has the results, and what may not be compared among them"
    console.finish(Text(f"nothing is left to do: {_stand(ledger)}"), where)
    return scrutiny.after(RunView.load(run_dir), code, strict, console.say) if strict and code == 0 else code


def _stand(ledger: Ledger) -> str:
    failed, skipped = ledger.points_failed, len(ledger.skipped)
    told = [
        f"all {counted(len(ledger.ended) + skipped, 'point')} of this run had ended before",
        f"{skipped} of them not needed" if skipped else "",
        f"{failed} not well (--retry-failed measures those again)" if failed else "",
    ]
    return ", ".join(part for part in told if part)
