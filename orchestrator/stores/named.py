"""A file or folder as the user names it: where it is looked for, and what may have been meant if it is not there."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orchestrator.definition.sources import NOT_FILLED_IN
from orchestrator.record.disk import reading


def open_file(path: Path) -> BinaryIO:
    """To read from. Raises OSError, and ValueError for what is no regular file: a pipe would be waited for, and a
    device read without end."""
    try:
        return reading(path)
    except OSError as exc:
        if exc.errno == errno.EINVAL:
            raise ValueError("is no regular file") from exc
        raise


@dataclass(frozen=True)
class Named:
    """base: the folder that a relative path begins at; it is `whose` folder, for messages: "the sweep file's"."""

    written: str
    base: Path
    whose: str = "the sweep file's"

    @property
    def path(self) -> Path:
        """Absolute. No link is followed."""
        return Path(os.path.abspath(self.base / os.path.expanduser(self.written)))

    def __str__(self) -> str:
        """ "data/p.jsonl, that is /home/me/data/p.jsonl," """
        return self.written if self.written == str(self.path) else f"{self.written}, that is {self.path},"

    def instead(self, like: Callable[[Path], bool]) -> str:
        """What to write if nothing is at `path`. `like` says of something beside it whether it could be meant."""
        if os.path.exists(self.path):
            return ""
        if "$" in self.written:
            return NOT_FILLED_IN
        here = os.path.abspath(self.written)
        if os.path.exists(here):
            begins = f"a relative path begins at {self.whose} folder"
            return f"{begins}: write {os.path.relpath(here, os.path.abspath(self.base))}"
        try:
            names = [beside.name for beside in self.path.parent.iterdir() if like(beside)]
        except (OSError, ValueError):
            return f"there is no folder {self.path.parent}"
        near = difflib.get_close_matches(self.path.name, names, n=1)
        if near:
            return f"did you mean {near[0]}?"
        return "" if self.written.startswith(("/", "~")) else f"a relative path begins at {self.whose} folder"
