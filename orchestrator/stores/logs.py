"""A worker's log, read leniently and with bounded memory: engines print whatever they like."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.stores.tracebacks import FATAL, MARKS, MAX_LINE_CHARACTERS, Finder, Found, line_of

TAIL_LINES = 40
TAIL_BYTES = 64 * 1024
#: As much as the warden keeps of the beginning of a log that grows without end.
HEAD_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
#: An engine that leaves the path that was to be measured says so in its log only, torch after some recompilations.
_SLOW_PATH = re.compile(
    rb"torch\._dynamo hit config\.|[Ff]all(?:s|ing)? ?back|\bslow(?:er|ly| path)\b|[Rr]unning (?:in )?eager"
    rb"|CUDA ?graphs? (?:is|are|was|were|will be) disabled"
)
#: One of these is in whatever it matches, and looking for them takes a small part of its time.
_HINTS = (b"hit config.", b"all back", b"alls back", b"allback", b"alling back", b"slow", b"unning", b"disabled")
_SAID_AS_NEWS = frozenset({"DEBUG", "INFO"})
SLOW_PATHS_MAX = 10
SLOW_PATH_CHARACTERS = 300


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


def last_words(path: Path) -> list[str]:
    """The last TAIL_LINES before the stacks of a process that died in C; of the whole log where none did."""
    lines = last_lines(path)
    end = next((number for number, line in enumerate(lines) if FATAL in line), len(lines))
    return lines[:end][-TAIL_LINES:]


def text_since(path: Path, offset: int, limit_bytes: int) -> str:
    """What stands after byte `offset`, at most `limit_bytes`; "" if there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit_bytes).replace(b"\0", b"").decode("utf-8", errors="replace")
    except OSError:
        return ""


def size_of(path: Path) -> int:
    """Bytes, 0 if there is no log."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def first_traceback(path: Path) -> Found:
    """The first traceback of the log with all it is chained to, prefixes taken off.

    The first names the cause where the last is often an echo. What an engine
    logs as a warning only is taken where there is nothing else; what is known
    as harmless never.
    """
    finder = Finder()
    for block in _whole_lines(path):
        # Nearly all of a log is passed over without looking at its lines.
        lines = block.split(b"\n") if not finder.idle or any(mark in block for mark in _MARKS) else [_last(block)]
        for line in lines:
            finder.feed(line[: 2 * MAX_LINE_CHARACTERS].decode("utf-8", errors="replace"))
            if finder.done:
                return finder.found()
    return finder.found()


def slow_paths(path: Path) -> list[str]:
    """What the log says of a slower way that was taken: each line once, prefixes taken off, SLOW_PATHS_MAX at most."""
    found: dict[str, None] = {}
    for block in _whole_lines(path):
        for match in _SLOW_PATH.finditer(block if any(hint in block for hint in _HINTS) else b""):
            start, end = block.rfind(b"\n", 0, match.start()) + 1, block.find(b"\n", match.end())
            line = line_of(block[start : end if end >= 0 else None][:MAX_LINE_CHARACTERS].decode("utf-8", "replace"))
            if line.level not in _SAID_AS_NEWS:
                found[line.text.strip()[:SLOW_PATH_CHARACTERS]] = None
            if len(found) == SLOW_PATHS_MAX:
                return list(found)
    return list(found)


_MARKS = tuple(mark.encode() for mark in MARKS)


def _last(block: bytes) -> bytes:
    """What stands before a traceback may say that it is harmless."""
    return block[block.rfind(b"\n") + 1 :]


def _whole_lines(path: Path) -> Iterator[bytes]:
    """The head in blocks of about CHUNK_BYTES that end where a line does."""
    try:
        with path.open("rb") as file:
            rest = b""
            while file.tell() < HEAD_BYTES and (data := file.read(CHUNK_BYTES)):
                block, _, rest = (rest + data.replace(b"\0", b"")).rpartition(b"\n")
                rest = rest[:CHUNK_BYTES]  # a line without end
                yield block
            yield rest
    except OSError:
        return
