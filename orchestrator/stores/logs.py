"""The end of a log file, read leniently: engines print whatever they like."""

from __future__ import annotations

import os
from pathlib import Path

TAIL_LINES = 40
TAIL_BYTES = 64 * 1024


def last_lines(path: Path) -> list[str]:
    """Up to the last TAIL_BYTES as lines; the warden's holes (NUL bytes) left out. Empty if there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().replace(b"\0", b"").decode("utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()


def log_tail(path: Path) -> str:
    """The last TAIL_LINES lines, "" if there are none."""
    return "\n".join(last_lines(path)[-TAIL_LINES:])
