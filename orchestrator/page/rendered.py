"""The report's own Markdown as HTML: what `view` writes and no more of the language. Pure.

One source for both, so that the page can't say anything else than the report. Foreign text has come through
`markup.cell`, which escapes all that acts as Markdown; here that is undone and the text escaped for HTML.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import count, islice, zip_longest
from typing import Final

from orchestrator.view.wording import are_figures

#: Characters of a line that is shown as it was printed.
MOST_CHARACTERS: Final = 2000
_INLINE: Final = re.compile(r"\\(.)|(\*\*)|`([^`]*)`", re.DOTALL)
_NUMBER: Final = ' class="number"'
_HEADING: Final = "<h3>"
_ITEM: Final = re.compile(r"( *)- ")


def html(lines: Iterable[str], caption: str = "") -> str:
    """`caption`: of its tables, which are told apart by number. What has a heading is folded under it, with the
    paragraph that follows."""
    parts, folded = [], False
    blocks = deque(_blocks([line.rstrip("\n") for line in lines], caption))
    while blocks:
        block = blocks.popleft()
        if block.startswith(_HEADING):
            said = blocks.popleft() if blocks and blocks[0].startswith("<p>") else ""
            end = "</details>" if folded else ""
            block = f"{end}<details><summary>{block}{said}</summary>"
            folded = True
        parts.append(block)
    return "".join(parts) + ("</details>" if folded else "")


def inline(text: str) -> str:
    """One line of running text or of a cell."""
    parts, at, strong = [], 0, False
    for found in _INLINE.finditer(text):
        parts.append(escape(text[at : found.start()]))
        at = found.end()
        if found[1] is not None:
            parts.append(escape(found[1]))
        elif found[2]:
            strong = not strong
            parts.append("<strong>" if strong else "</strong>")
        else:
            parts.append(f"<code>{escape(found[3])}</code>")
    parts.append(escape(text[at:]) + ("</strong>" if strong else ""))
    return "".join(parts)


def _blocks(lines: Sequence[str], caption: str) -> Iterator[str]:
    at, tables = 0, count(1)
    while at < len(lines):
        line, begin = lines[at], at
        if not line.strip():
            at += 1
        elif line.startswith("```"):
            at = next((end for end in range(begin + 1, len(lines)) if lines[end] == line), len(lines)) + 1
            yield fenced(lines[begin + 1 : at - 1])
        elif line.startswith("#"):
            at += 1
            yield f"{_HEADING}{inline(line.lstrip('#').strip())}</h3>"
        elif line.startswith("| "):
            at = _end(lines, begin, lambda one: one.startswith("|"))
            number = next(tables)
            yield table(lines[begin:at], caption if number == 1 else f"{caption}, {number}")
        elif _ITEM.match(line):
            at = _end(lines, begin, lambda one: _ITEM.match(one) is not None)
            yield _list(lines[begin:at])
        else:
            at = _end(lines, begin, _runs_on)
            yield f"<p>{inline(' '.join(lines[begin:at]))}</p>"


def _runs_on(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(("```", "#", "| ")) and not _ITEM.match(line)


def _end(lines: Sequence[str], begin: int, belongs: Callable[[str], bool]) -> int:
    return next((at for at in range(begin + 1, len(lines)) if not belongs(lines[at])), len(lines))


def fenced(lines: Sequence[str]) -> str:
    """As it was printed, long lines cut."""
    return f'<pre tabindex="0">{escape(chr(10).join(map(shortened, lines)))}</pre>'


def shortened(line: str) -> str:
    more = len(line) - MOST_CHARACTERS
    return line if more <= 0 else f"{line[:MOST_CHARACTERS]}… ({more} more characters)"


def table(lines: Sequence[str], caption: str) -> str:
    """A head, a rule, and rows; the first cell of each names it."""
    head, _, *body = lines
    body_cells = [_cells(line) for line in body]
    # A name that is a number stays where names are.
    columns = islice(zip_longest(*body_cells, fillvalue=""), 1, None)
    classes = ["", *(_NUMBER if are_figures(column) else "" for column in columns)]
    told = zip_longest(_cells(head), classes, fillvalue="")
    names = "".join(f'<th scope="col"{kind}>{inline(one)}</th>' for one, kind in told)
    rows = "".join(f"<tr>{_row(cells, classes)}</tr>" for cells in body_cells)
    title = escape(caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{title}"><table><caption>{title}</caption>'
        f"<thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cells(line: str) -> list[str]:
    """A bar inside a cell is escaped, so this one between spaces divides."""
    return line[2:-2].split(" | ")


def _row(cells: Sequence[str], classes: Sequence[str]) -> str:
    first, *rest = (inline(shortened(one)) for one in cells)
    told = zip_longest(rest, classes[1:], fillvalue="")
    return f'<th scope="row">{first}</th>' + "".join(f"<td{kind}>{one}</td>" for one, kind in told)


def _list(lines: Sequence[str]) -> str:
    """Items, and those of one level more inside them."""
    parts, inner = [], False
    for line in lines:
        found = _ITEM.match(line)
        deep = bool(found and found[1])
        if deep != inner:
            parts.append("<ul>" if deep else "</ul>")
            inner = deep
        parts.append(f"<li>{inline(shortened(line[found.end() if found else 0 :]))}</li>")
    return f"<ul>{''.join(parts)}{'</ul>' if inner else ''}</ul>"
