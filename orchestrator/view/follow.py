"""A run that is being written, read as it grows. Writes nothing, takes no lock, and never disturbs who writes.

The journal is read once; afterwards only what was appended. What a live writer has half written is left for the
next look. A run that a resume has repaired is read anew, and so is another one that stands in the same folder by now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestrator.errors import JournalError
from orchestrator.events import Event
from orchestrator.plan import Plan
from orchestrator.progress import Progress
from orchestrator.record.cutoff import Rewound, cut_off
from orchestrator.record.framing import JOURNAL_NAME
from orchestrator.record.planfile import PLAN_NAME, read_plan
from orchestrator.record.replay import beginning
from orchestrator.run.history import Past, past
from orchestrator.run.standing import Standing
from orchestrator.view.runview import RunView

#: A holder on another machine is asked for seldom: the answer takes a lock for an instant.
ASK_ELSEWHERE_S = 10.0

#: Which run it is, and how far its journal goes: device and inode of both files, when the plan was written, bytes.
_Identity = tuple[int, int, int, int]


class Follower:
    """`listener` is told every event once, those from before the first look included; it is told a run's from the
    start again where another run has taken the place of the one that was followed.

    For one thread. All methods raise JournalError where there is no run, or a damaged one; a later call may succeed.
    """

    def __init__(
        self,
        run_dir: Path,
        listener: Callable[[Event], None] = lambda _event: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_dir = run_dir
        self._listener = listener
        self._clock = clock
        self._view: RunView | None = None
        self._standing: Standing | None = None
        self._identity: _Identity | None = None
        self._size_bytes = -1
        self._heard = self._told = 0
        self._asked_at = float("-inf")

    def view(self) -> RunView:
        """The run as it is now. The same value grows from call to call: use it up before the next one."""
        identity, size_bytes = self._look()
        if identity != self._identity:
            self._view, self._identity, self._told = None, identity, 0
        if self._view is None:
            self._view = self._read_anew()
        elif size_bytes != self._size_bytes or self._is_time(self._view):
            self._view = self._read_on(self._view, size_bytes)
        else:
            return self._view
        self._size_bytes, self._asked_at = size_bytes, self._clock()
        return self._view

    def progress(self) -> Progress:
        """What the live view shows, made from the journal; without a forecast once the run has ended."""
        view = self.view()
        assert self._standing is not None
        found = self._standing.progress()
        if view.state == "running":
            return found
        return Progress(
            points_done=found.points_done,
            points_failed=found.points_failed,
            points_skipped=found.points_skipped,
            points_total=found.points_total,
        )

    def _look(self) -> tuple[_Identity, int]:
        try:
            journal, plan = (self.run_dir / JOURNAL_NAME).stat(), (self.run_dir / PLAN_NAME).stat()
        except OSError as exc:
            self._view = None
            raise JournalError(f"{exc.filename}: {exc.strerror}: not a run directory, or one that is gone") from exc
        return (journal.st_dev, journal.st_ino, plan.st_ino, plan.st_mtime_ns), journal.st_size

    def _is_time(self, view: RunView) -> bool:
        """To ask who holds it, though nothing was written."""
        return view.holder is None or view.holder.visible or self._clock() - self._asked_at >= ASK_ELSEWHERE_S

    def _read_on(self, view: RunView, size_bytes: int) -> RunView:
        try:
            if size_bytes < view.replay.read_bytes:
                raise Rewound
            view.update(self._heed)
        except (Rewound, JournalError):
            return self._read_anew()
        return view

    def _read_anew(self) -> RunView:
        self._view = None
        plan, began = read_plan(self.run_dir), beginning(self.run_dir)
        earlier = list(past(self.run_dir, plan.model.digest, began.host)) if began else []
        try:
            return self._begin(plan, earlier)
        except Rewound:
            pass
        try:
            return self._begin(plan, earlier, cut_off(self.run_dir))
        except Rewound as exc:
            raise JournalError(f"{self.run_dir}: changed while it was read") from exc

    def _begin(self, plan: Plan, earlier: Sequence[Past], dropped: Mapping[int, int] | None = None) -> RunView:
        self._standing, self._heard = Standing(plan, earlier), 0
        return RunView.begin(self.run_dir, plan, dropped, self._heed)

    def _heed(self, event: Event) -> None:
        assert self._standing is not None
        self._standing.heed(event)
        self._heard += 1
        if self._heard > self._told:
            self._told = self._heard
            self._listener(event)
