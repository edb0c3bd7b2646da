"""The columns of every table as Markdown, for docs/exports.md: `python -m orchestrator.exports.documented FILE` renews
what stands there between two marks, and a test says when that is due. Pure but for the last lines."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.exports.columns import ASKED, WORKER, Column
from orchestrator.exports.rows import FIGURE
from orchestrator.exports.tables import TABLES

_MARKED = re.compile(r"(?<=<!-- columns: made by the code -->\n).*?(?=<!-- end -->)", re.DOTALL)


def lines() -> Iterator[str]:
    for table in TABLES.values():
        yield f"### {table.name}"
        yield ""
        yield f"{table.meaning[0].upper()}{table.meaning[1:]}."
        yield ""
        yield from _grid(column for column in table.own if column.meaning != FIGURE)
        yield ""
        if any(column.meaning == FIGURE for column in table.own):
            yield "And the figures, as [metrics](metrics.md) has them:"
            yield ""
            yield from _by_kind(column for column in table.own if column.meaning == FIGURE)
            yield ""
        more = {WORKER: "[the worker](#the-worker)", ASKED: "[what was asked](#what-was-asked)"}
        if told := [words for columns, words in more.items() if set(columns) <= set(table.shared)]:
            yield f"And the columns of {' and '.join(told)}."
            yield ""
    for title, columns in (("The worker", WORKER), ("What was asked", ASKED)):
        yield f"### {title}"
        yield ""
        yield from _grid(columns)
        yield ""


def _grid(columns: Iterable[Column]) -> Iterator[str]:
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    yield from (f"| `{one.name}` | {one.kind} | {one.meaning.replace('|', chr(92) + '|')} |" for one in columns)


def _by_kind(columns: Iterable[Column]) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for column in columns:
        found.setdefault(column.kind, []).append(f"`{column.name}`")
    yield "| type | columns |"
    yield "|---|---|"
    yield from (f"| {kind} | {', '.join(names)} |" for kind, names in found.items())


def renewed(text: str) -> str:
    """A page with its tables as they are now."""
    return _MARKED.sub(lambda _: "\n" + "\n".join(lines()), text)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
