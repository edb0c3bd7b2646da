"""Pieces of Markdown that foreign text can't break out of. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from orchestrator.view.wording import clean, count_text, counted

#: Of a traceback or a log; the whole log is in the run directory.
SHOWN_LINES = 30
#: Of a table.
SHOWN_ROWS = 2000
#: An underscore inside a word is no markup, and names like hf_sdpa stay readable.
_ACTIVE = re.compile(r"([\\`*\[\]<>|~$]|&(?=#?\w{1,32};)|(?<![^\W_])_|_(?![^\W_]))")


def cell(value: object) -> str:
    """Foreign text in running Markdown or a table cell: on one line, with nothing that acts as markup."""
    return _ACTIVE.sub(r"\\\1", clean(str(value)))


def grid(head: Sequence[str], body: Iterable[Sequence[object]]) -> Iterator[str]:
    """A table; nothing if it has no rows. Of a long one the first SHOWN_ROWS, and how many more there are. Whole
    numbers in it are counts."""
    rows = iter(body)
    for number, row in enumerate(islice(rows, SHOWN_ROWS)):
        if not number:
            yield f"| {' | '.join(map(cell, head))} |"
            yield "|" + "---|" * len(head)
        yield f"| {' | '.join(cell(count_text(one) if type(one) is int else one) for one in row)} |"
    if more := sum(1 for _ in rows):
        yield ""
        yield f"And {counted(more, 'more row')}, not shown here: `--json` has all."


def fenced(text: str, limit: int = SHOWN_LINES) -> Iterator[str]:
    """The last `limit` lines, in a fence that the text can't close."""
    lines = [clean(line) for line in text.splitlines()]
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield fence
    if len(lines) > limit:
        yield f"… {counted(len(lines) - limit, 'line')} before"
    yield from lines[-limit:]
    yield fence
