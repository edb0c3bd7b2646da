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
#: Of a line that a progress bar wrote over: how it begins, which may say whose it is.
BEGIN_BYTES = 400
#: An engine that leaves the path that was to be measured says so in its log only, torch after some recompilations.
_SLOW_PATH = re.compile(
    rb"torch\._dynamo hit config\.|[Ff]all(?:s|ing)? ?back|\bslow(?:er|ly| path| inference)\b|[Rr]unning (?:in )?eager"
    rb"|(?:(?:CUDA|[Cc]uda) ?[Gg]raphs?|[Aa]ll-?[Rr]educe|[Oo]verlap scheduler?|[Aa]sync(?:hronous)? scheduling)"
    rb" (?:is|are|was|were|will be) disabled|[Ss]ub-?optimal|not be optimal|fast path is not available"
    rb"|(?:reduced|low|lower|poor|degraded) performance|performance (?:degradation|(?:\w+ )?be degraded)"
    rb"|degrade (?:the )?performance|skipping cudagraphs|Not enough SMs to use|offloaded to the (?:cpu|disk)"
    rb"|[Uu]nknown vLLM environment variable|[Dd]equantiz(?:e|ing) the model"
)
#: One of these is in whatever it matches, and looking for them takes a small part of its time.
_HINTS = (
    *(b"hit config.", b"all back", b"alls back", b"allback", b"alling back", b"slow", b"unning", b"disabled"),
    *(b"ptimal", b"fast path", b"erformance", b"skipping", b"Not enough", b"offloaded", b"nknown vLLM", b"equantiz"),
)
_SAID_AS_NEWS = frozenset({"DEBUG", "INFO"})
SLOW_PATHS_MAX = 10
SLOW_PATH_CHARACTERS = 300


def last_lines(path: Path) -> list[str]:
    """Up to TAIL_BYTES of the end as lines, as a terminal would show them; the warden's holes (NUL bytes) left out.
    Empty if there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - CHUNK_BYTES))
            data = file.read().replace(b"\0", b"")
    except OSError:
        return []
    shown = b"\n".join(line.rstrip(b"\r").rpartition(b"\r")[2] for line in data.split(b"\n"))
    return shown[-TAIL_BYTES:].decode("utf-8", errors="replace").splitlines()


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
            finder.feed(_looked_at(line))
            if finder.done:
                return finder.found()
    return finder.found()


def slow_paths(path: Path) -> list[str]:
    """What the log says of a slower way that was taken: each line once, prefixes taken off, SLOW_PATHS_MAX at most."""
    found: dict[str, None] = {}
    for block in _whole_lines(path):
        for match in _SLOW_PATH.finditer(block if any(hint in block for hint in _HINTS) else b""):
            line = line_of(_round(block, match))
            if line.level not in _SAID_AS_NEWS:
                found[line.text.strip()[:SLOW_PATH_CHARACTERS]] = None
            if len(found) == SLOW_PATHS_MAX:
                return list(found)
    return list(found)


_MARKS = tuple(mark.encode() for mark in MARKS)
_END = re.compile(rb"[\r\n]")


def _looked_at(line: bytes) -> str:
    """Of what was written over only the beginning."""
    over, _, shown = line.rstrip(b"\r").rpartition(b"\r")
    bytes_most = 2 * MAX_LINE_CHARACTERS
    kept = b"\r".join([over[:BEGIN_BYTES], shown[:bytes_most]]) if over else shown[:bytes_most]
    return kept.decode("utf-8", errors="replace")


def _round(block: bytes, match: re.Match[bytes]) -> str:
    """The line that holds it, of which one may be as long as the block, and hold many."""
    start, end = block.rfind(b"\n", 0, match.start()) + 1, _END.search(block, match.end())
    shown = max(start, block.rfind(b"\r", start, match.start()) + 1)
    begin = block[start : min(shown, start + BEGIN_BYTES)]
    return _looked_at((begin + b"\r" if begin else b"") + block[shown : end.start() if end else None])


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
                if len(rest) > CHUNK_BYTES:  # a line without end, which only a progress bar goes on in
                    rest = rest[: CHUNK_BYTES // 2] + rest[-CHUNK_BYTES // 2 :]
                yield block
            yield rest
    except OSError:
        return
