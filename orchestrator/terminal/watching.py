"""A run seen from another terminal, while it goes on or after its end. Reads only: writes no file, takes no lock."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.called import COMMAND
from orchestrator.console import Console
from orchestrator.events import Event, RunStarted
from orchestrator.exits import EXIT_FAULT, EXIT_INTERRUPTED, EXIT_OK, EXIT_OUTPUT
from orchestrator.record.planfile import read_plan
from orchestrator.report import rows, table
from orchestrator.view.follow import Follower
from orchestrator.view.runview import RunView

LOOK_S: Final = 0.5
#: A coordinator that is not there at so many looks in a row is gone: at one it may be just beginning.
SURE_LOOKS: Final = 4


def watch(run_dir: Path, view: str = "auto", *, once: bool = False) -> int:
    """The run's own exit code; 0 while it goes on (`once`) or where nobody reads any more; 70 where its coordinator
    ended without a word; 74 where the file that it writes to has no room; 130 after ^C, which the run does not notice.
    Raises JournalError where there is no run."""
    console = Console(mode="plain" if once and view in ("auto", "live") else view)
    try:
        code = _Watch(run_dir, console, once).to_the_end()
    except KeyboardInterrupt:
        console.say(f"not watched any more; {run_dir} goes on as it was")
        code = EXIT_INTERRUPTED
    finally:
        console.close()
    return EXIT_OUTPUT if console.full else code


@dataclass
class _Watch:
    run_dir: Path
    console: Console
    once: bool
    _catching_up: bool = True
    _lost: int = 0

    def to_the_end(self) -> int:
        follower = Follower(self.run_dir, self._heard)
        while not self.console.gone:
            view = follower.view()
            first, self._catching_up = self._catching_up, False
            if first:
                self.console.catch_up()
            if self._is_over(view):
                return self._end(view)
            if first and not self.once:
                self.console.say(f"following {self.run_dir}; ^C ends this view, not the run")
            if self.once:
                self.console.glance(follower.progress())
                break
            self.console.progress(follower.progress())
            time.sleep(LOOK_S)
        return EXIT_OK

    def _heard(self, event: Event) -> None:
        if isinstance(event, RunStarted) and event.life == 1:
            self.console.know(read_plan(self.run_dir))
        if self._catching_up:
            self.console.recall(event)
        else:
            self.console.show(event)

    def _is_over(self, view: RunView) -> bool:
        """Its last word is its end, unless somebody else has just taken the run up to go on with it."""
        if view.ended_last:
            return view.holder is None or view.holder.pid == view.starts[-1].pid
        self._lost = 0 if view.holder else self._lost + 1
        return self._lost >= (1 if self.once else SURE_LOOKS)

    def _end(self, view: RunView) -> int:
        """Reads every record."""
        self.console.finish(table(rows(view)), _last_words(view))
        return EXIT_FAULT if view.exit_code is None else view.exit_code


def _last_words(view: RunView) -> str:
    more = f"`{COMMAND} report {shlex.quote(str(view.run_dir))}` tells more"
    if view.exit_code is None:
        return f"its coordinator ended without a word, and --resume goes on from there; {more}"
    ended = view.endings[-1]
    why = f" ({ended.reason})" if ended.reason else ""
    return f"ended with exit code {ended.exit_code}{why}; {more}"
