"""What the verb `report` does: the report as Markdown, JSON or a page, on standard output or in a file."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from orchestrator.errors import InputError, Problem
from orchestrator.report import markdown_pieces, results_pieces
from orchestrator.view.answer import Answer
from orchestrator.view.delivery import opened
from orchestrator.view.rows import rows
from orchestrator.view.runview import RunView
from orchestrator.view.wording import bytes_text, clean

STDOUT: Final = "-"
#: Where no file is named for the page, in the run directory.
NAME: Final = "report.html"
#: How a report begins, as a page, as Markdown and as JSON.
_OURS: Final = re.compile(
    rb'<!doctype html>.*<meta name="generator" content="Airlock |# .*\nThe run:\n\n- |\{\n  "name": .*\n  "run_dir": ',
    re.DOTALL,
).match
_HEAD_BYTES: Final = 1 << 16


def run(args: argparse.Namespace, view: RunView, say: Callable[[str], None]) -> None:
    """Raises InputError before anything is made, JournalError, OutputFailed."""
    if args.html and args.json:
        raise InputError([Problem("", "--html", "and --json are two reports", "ask for one after the other")])
    path = target(view, args.output, args.html)
    if path is None and not args.html:  # in the encoding of the terminal
        answer = Answer()
        for piece in _pieces(view, args):
            answer.write(piece)
        return
    size_bytes = 0
    with opened(path) as out:
        for piece in _pieces(view, args):
            size_bytes += out.write(piece.encode("utf-8", errors="replace"))
    if path is not None:
        page = ", one file that opens in any browser, offline" if args.html else ""
        say(clean(f"{path}: {bytes_text(size_bytes)}{page}"))


def _pieces(view: RunView, args: argparse.Namespace) -> Iterator[str]:
    if args.html:
        from orchestrator.page.html import page

        yield page(view, rows(view))
    elif args.json:
        yield from results_pieces(view)
        yield "\n"
    else:
        yield from markdown_pieces(view)


def target(view: RunView, asked: str | None, html: bool) -> Path | None:
    """Where the report goes; None is standard output. Raises InputError if it can't go there."""
    if asked == STDOUT or (asked is None and not html):
        return None
    path = view.run_dir / NAME if asked is None else Path(asked)
    if path.is_dir():
        raise _refused(path, "is a folder", f"{path / NAME}" if html else "name a file")
    if not path.parent.is_dir():
        raise _refused(path, f"there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise _refused(path, "is no regular file", "-: on standard output")
    if path.exists() and not _is_ours(path):
        raise _refused(path, "is there, and is no report of Airlock", "name another file")
    return path


def _refused(path: Path, why: str, hint: str = "") -> InputError:
    return InputError([Problem(str(path), "--output", why, hint)])


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return _OURS(file.read(_HEAD_BYTES)) is not None
