"""One run as the dashboard sees it: what is read of it, kept until its journal grows, and shared by all who ask.

`quick` is for what moves every other second, `slow` for what takes reading all records. A run that can't be
read is not an error here but an answer, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from orchestrator.errors import JournalError
from orchestrator.plan import Plan
from orchestrator.serve import figures, logs, told
from orchestrator.serve.errands import Errands
from orchestrator.serve.lane import Lane, Shared
from orchestrator.serve.sheet import Sheet, compressed, sheet
from orchestrator.serve.shelf import Stamp, stamp_of
from orchestrator.view.follow import Follower
from orchestrator.view.runview import RunView
from orchestrator.view.summary import labels
from orchestrator.view.wording import clean

T = TypeVar("T")
#: Of a list that is read in, behind whatever somebody looks at.
BACKGROUND: Final = 1


@dataclass(frozen=True)
class Lanes:
    """`drawing`: only waits for errands."""

    quick: Lane
    slow: Lane
    drawing: Lane
    errands: Errands


@dataclass(frozen=True)
class Known:
    """What was read, as of `stamp`: `values` for us, `sheet` for whoever asks."""

    stamp: Stamp
    values: dict[str, Any]
    sheet: Sheet

    def stands(self, stamp: Stamp) -> bool:
        """Nothing new is to be read. What is broken may be mended in any way."""
        return self.stamp == stamp and self.values.get("state") != "broken"


class Watched:
    def __init__(self, key: str, run_dir: Path, lanes: Lanes) -> None:
        self.key, self.run_dir = key, run_dir
        self.name = clean(run_dir.name)
        self.live = Shared(lanes.quick, self._live, grows=True)
        self.brief = Shared(lanes.slow, self._brief, urgency=BACKGROUND)
        self.figures = Shared(lanes.slow, self._figures)
        self.page = Shared(lanes.drawing, self._page)
        self._errands = lanes.errands
        self._follower: Follower | None = None
        self._labels: tuple[Plan, dict[str, str]] | None = None

    def rest(self) -> None:
        """Gives up what is large."""
        self.live.forget()
        self.figures.forget()
        self.page.forget()
        self._follower = self._labels = None

    def _live(self, last: Known | None) -> Known:
        """Of a running one the memory of its workers moves though nothing is written."""
        if last is not None and last.values["state"] != "running":
            return self._known(last, self._followed)
        return self._known(None, self._followed)

    def _brief(self, last: Known | None) -> Known:
        return self._known(last, lambda: told.brief(RunView.load(self.run_dir)) | logs.size(self.run_dir))

    def _figures(self, last: Known | None) -> Known:
        return self._known(last, lambda: figures.figures(RunView.load(self.run_dir)))

    def _page(self, last: Known | None) -> Known:
        stamp = stamp_of(self.run_dir)
        if last is not None and last.stands(stamp):
            return last
        try:
            return Known(stamp, {}, compressed(Sheet(self._errands.run("page", self.run_dir), "text/html")))
        except (JournalError, OSError) as exc:
            return Known(stamp, told.broken(str(exc)), sheet({}))

    def _known(self, last: Known | None, read: Callable[[], dict[str, Any]]) -> Known:
        stamp = stamp_of(self.run_dir)
        if last is not None and last.stands(stamp):
            return last
        try:
            found = read()
        except (JournalError, OSError) as exc:
            self._follower = None
            found = told.broken(str(exc))
        values = {**found, "key": self.key, "name": self.name}
        return Known(stamp, values, sheet(values))

    def _followed(self) -> dict[str, Any]:
        follower = self._follower = self._follower or Follower(self.run_dir)
        view = follower.view()
        plan, named = self._labels or (None, {})
        if plan is not view.plan:
            named = labels(view.plan)
        running = view.state == "running"
        self._labels = (view.plan, named) if running else None
        self._follower = follower if running else None
        return told.live(view, follower.progress(), named)
