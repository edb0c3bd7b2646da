"""Which rows lost more of their outputs than others at the same settings: their speed is of other prompts, the easier
ones as a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from orchestrator.plan import SweepPoint
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row

#: A share of outputs that is lost without a word: one prompt of many hundred moves no speed by much.
MOST: Final = 0.01
#: Without any figure: of two runs the same words are the same deviation.
MORE: Final = "more of its outputs failed than with another method, so its speed is of other prompts"

_Counts = dict[tuple[str, bytes], tuple[int, int]]


class Losses:
    """`cell`: what rows are told apart by, beside their method."""

    def __init__(self, view: RunView, cell: Callable[[SweepPoint], bytes]) -> None:
        self._counts = _counts(view, cell)
        self._least: dict[bytes, float] = {}
        for (_, where), (lost, told) in self._counts.items():
            self._least[where] = min(lost / told, self._least.get(where, 1.0))

    def marks(self, method: str, where: bytes) -> Iterator[str]:
        """None where all lost as many, as of prompts that are too long for everybody."""
        lost, told = self._counts.get((method, where), (0, 0))
        if lost < told and lost / told - self._least[where] > MOST:
            yield MORE


def _counts(view: RunView, cell: Callable[[SweepPoint], bytes]) -> _Counts:
    """How many outputs failed, of how many; nothing where none did. What is not whole yet tells nothing: prompts that
    fail with everybody may be the first ones."""
    stands = view.replay.stands
    found: _Counts = {}
    for point in view.plan.points if any(stand.errors for stand in stands.values()) else ():
        stand = stands.get(point.id)
        if point.role == "measure" and stand and stand.records and point.id not in view.missing:
            # What was committed twice may have an output by now.
            failed = view.errors_of(point.id)[1] if stand.again else stand.errors
            lost, told = found.get(key := (point.method, cell(point)), (0, 0))
            found[key] = lost + failed, told + stand.records
    return found


def doubt(ours: Row, theirs: Row) -> str:
    """Why the speeds of two rows decide nothing; "" where it is not for that."""
    shares = [row.outputs_failed / told for row in (ours, theirs) if (told := row.outputs_ok + row.outputs_failed)]
    apart = len(shares) > 1 and abs(shares[0] - shares[1]) > MOST
    return "one of the two lost prompts that the other did not" if apart else ""
