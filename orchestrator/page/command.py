"""`report --html`: the page beside the report, or in its place on standard output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from orchestrator.errors import InputError, Problem
from orchestrator.view.delivery import opened
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row
from orchestrator.view.wording import bytes_text, clean

STDOUT: Final = "-"
#: Where no file is named, in the run directory.
NAME: Final = "report.html"
_MARK: Final = b'<meta name="generator" content="Airlock '
_HEAD_BYTES: Final = 4096


def target(view: RunView, asked: str, as_json: bool) -> Path | None:
    """Where the page goes; None is standard output. Raises InputError if it can't go there."""
    if asked == STDOUT:
        if as_json:
            raise InputError([Problem("", "--html -", "--json goes to standard output too", "name a file")])
        return None
    path = Path(asked) if asked else view.run_dir / NAME
    if path.is_dir():
        raise InputError([Problem(str(path), "--html", "is a folder", f"{path / NAME}")])
    if not path.parent.is_dir():
        raise InputError([Problem(str(path), "--html", f"there is no folder {path.parent}")])
    if path.exists() and not path.is_file():
        raise InputError([Problem(str(path), "--html", "is no regular file", "-: on standard output")])
    if path.exists() and not _is_ours(path):
        raise InputError([Problem(str(path), "--html", "is there, and is no report of Airlock", "name another file")])
    return path


def deliver(view: RunView, every: Sequence[Row], path: Path | None, say: Callable[[str], None]) -> None:
    """Makes the page of `every`, the run's rows. Raises JournalError, OutputFailed."""
    from orchestrator.page.html import page

    data = page(view, every).encode("utf-8", errors="replace")
    with opened(path) as out:
        out.write(data)
    if path is not None:
        say(clean(f"{path}: {bytes_text(len(data))}, one file that opens in any browser, offline"))


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return _MARK in file.read(_HEAD_BYTES)
