"""Whether the model's files are still those that the run began with, asked at each load."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.definition.inputs import SCRIPTED, ModelInfo, scheme_of
from orchestrator.outcomes import Cause
from orchestrator.run.course import Course
from orchestrator.run.life import State
from orchestrator.stores.modelfiles import LISTED_FILES, Marks, digest_of, marks_of

#: A look takes less, so most are over at once.
SOON_S = 0.2
#: A file system that does not answer hangs the load as well, which has a limit of its own.
MOST_S = 10.0


class _Look(threading.Thread):
    """In a thread, as the loop must not hang with a file system.

    digesting  the files look different, so they are being read
    said       why it is another model, "" if it is not
    """

    def __init__(self, model: ModelInfo, known: Marks) -> None:
        super().__init__(name="model-look", daemon=True)
        self._model, self._known = model, known
        self.marks, self.digesting, self.said = known, False, ""

    def run(self) -> None:
        folder, then = Path(self._model.path), self._model.digest
        try:
            self.marks = marks_of(folder)
            if self.marks == self._known:
                return
            self.digesting = True
            found = digest_of(folder, scheme_of(then))
        except OSError as exc:
            found = f"can't be read ({exc.filename or folder}: {exc.strerror or exc})"
        if found != then:
            self.said = f"{self._changed()}: its digest was {then} when this run began, now {found}"

    def _changed(self) -> str:
        names = sorted(name for name, _ in self.marks.items() ^ self._known.items())
        named = list(dict.fromkeys(names))
        more = ", …" if len(named) > LISTED_FILES else ""
        return f"the model in {self._model.path} is another one now ({', '.join(named[:LISTED_FILES])}{more})"


@dataclass
class ModelWatch:
    model: ModelInfo
    clock: Callable[[], float] = time.monotonic
    _known: Marks = field(default_factory=dict)
    _look: _Look | None = None
    _since: float = 0.0
    _asked: float = 0.0

    def __post_init__(self) -> None:
        if self.model.digest != SCRIPTED.digest:
            self._known = marks_of(Path(self.model.path))

    def settled(self, course: Course) -> bool:
        """Whether that is known by now; ask again until it is. The course is given up where they are others."""
        if not self._known:
            return True
        now = self.clock()
        look = self._look if now - self._asked <= MOST_S else None  # an older one was of somebody who is gone
        self._asked = now
        if look is None:
            look, self._since = _Look(self.model, self._known), now
            look.start()
            look.join(SOON_S)
        self._look = look
        if look.is_alive():
            return not look.digesting and now - self._since > MOST_S
        self._look = None
        if look.said:
            course.give_up(Cause(cls="model", message=look.said, phase=State.LOADING.value))
        else:
            self._known = look.marks
        return True
