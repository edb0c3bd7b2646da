"""The rows of a long run that its Markdown does not show, in words: how they ended, and what is said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from orchestrator.view.marks import MARK
from orchestrator.view.summary import Row
from orchestrator.view.unrest import WARNING


def lines(found: Sequence[Row], shown: int) -> Iterator[str]:
    """Nothing where all are shown."""
    if len(found) <= shown:
        return
    outcomes, flags, marked, warned, prompts = Counter[str](), Counter[str](), 0, 0, Counter[str]()
    for number in range(shown, len(found)):
        row = found[number]
        outcomes[row.outcome] += 1
        flags += row.flags
        marked += bool(row.marks)
        warned += bool(row.warnings)
        prompts += Counter(failed=row.prompts_failed, missing=row.prompts_missing)
    told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    yield f"the first {shown} of {len(found)} rows are shown, `report --json` has all; those that are not: {told}"
    if marked or warned:
        yield f"of these {marked} may not be compared as they are ({MARK}), and {warned} are warned of ({WARNING})"
    if prompts:
        yield f"in these: {', '.join(f'{count} prompts {what}' for what, count in prompts.items())}"
    yield from (f"in these: {flag} × {count}" for flag, count in sorted(flags.items()))
