"""Round the loop of a run: whoever is to be told of it is told, and the run waits a little for that at its end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.console import Console
from orchestrator.definition.notifyuse import NotifyUse
from orchestrator.errors import JournalError
from orchestrator.exits import EXIT_STOPPED_EARLY
from orchestrator.notify.message import Points
from orchestrator.notify.notifier import LOG_NAME, Helper, Notifier
from orchestrator.notify.occasions import Occasions, Stand
from orchestrator.notify.recipients import remarks
from orchestrator.run.ledger import Ledger
from orchestrator.run.signals import StopFlag
from orchestrator.supervisor import Supervisor


@contextmanager
def telling(
    use: NotifyUse, folder: Path, supervisor: Supervisor, ledger: Ledger, console: Console, stop: StopFlag
) -> Iterator[None]:
    """`folder`: where commands are started, that of the sweep file."""
    if not use.tells:
        yield
        return
    for remark in remarks(use, folder):
        console.say(f"warning: {remark}")
    notifier = _notifier(use, folder, supervisor, ledger, console)
    ledger.listeners = [*ledger.listeners, notifier.heed]
    supervisor.each_turn = notifier.turn
    try:
        yield
    except JournalError as exc:
        notifier.ended(EXIT_STOPPED_EARLY, str(exc))
        raise
    except BaseException as exc:
        notifier.crashed(f"{type(exc).__name__}: {exc}")
        raise
    finally:
        notifier.close(hurried=lambda: stop.count > 1)


def _notifier(use: NotifyUse, folder: Path, supervisor: Supervisor, ledger: Ledger, console: Console) -> Notifier:
    run_dir, outlook = supervisor.run_dir.absolute(), supervisor.outlook
    stand = Stand(lambda: _points(ledger), lambda: outlook.last.eta_s if outlook.last else None)
    occasions = Occasions(use, supervisor.plan, str(run_dir), socket.gethostname(), stand)
    helper = Helper(use, folder.absolute(), run_dir / "logs" / LOG_NAME, supervisor.reaper.run_tag)
    return Notifier(helper, occasions, ledger.emit, console.say)


def _points(ledger: Ledger) -> Points:
    return Points(
        done=ledger.points_ended - ledger.points_failed,
        failed=ledger.points_failed,
        skipped=len(ledger.skipped),
        total=len(ledger.plan.points),
    )
