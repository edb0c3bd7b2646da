"""The rows of a long run that its Markdown does not show, in words: how they ended, and what is said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from orchestrator.view.marks import MARK
from orchestrator.view.summary import Row
from orchestrator.view.unrest import WARNING
from orchestrator.view.wording import count_text, counted


def lines(found: Sequence[Row], shown: int) -> Iterator[str]:
    """Nothing where all are shown."""
    if len(found) <= shown:
        return
    outcomes, flags, marked, warned, outputs = Counter[str](), Counter[str](), 0, 0, Counter[str]()
    for number in range(shown, len(found)):
        row = found[number]
        outcomes[row.outcome] += 1
        flags += row.flags
        marked += bool(row.marks)
        warned += bool(row.warnings)
        outputs += Counter(failed=row.outputs_failed, missing=row.outputs_missing)
    told = ", ".join(f"{count_text(count)} {outcome}" for outcome, count in outcomes.items())
    every = counted(len(found), "row")
    yield f"the first {shown} of {every} are shown, `report --json` has all; those that are not: {told}"
    if marked or warned:
        odd = f"{count_text(marked)} may not be compared as they are ({MARK})"
        yield f"of these {odd}, and {count_text(warned)} are warned of ({WARNING})"
    if outputs:
        lost = (f"{counted(count, 'output')} {what}" for what, count in outputs.items() if count)
        yield f"in these: {', '.join(lost)}"
    yield from (f"in these: {flag} × {count_text(count)}" for flag, count in sorted(flags.items()))
