"""The lines of a file, in UTF-8, whoever wrote it. Pure: it is given what reads.

A line ends with LF or CRLF, or with CR in a file that has nothing else. Other characters that some count as ends of
lines (form feed, U+2028) are text. A byte order mark at the start is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from orchestrator.readers.found import Fault, Unreadable

#: Read so much at most: `file.read` or `file.readline`.
Read = Callable[[int], bytes]

MAX_LINE_BYTES = 256 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_WIDE = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
SAVE_AS = "save it as UTF-8"
NOT_UTF8 = "save the file as UTF-8; iconv -f LATIN1 -t UTF-8 does, if that is what it is"


def opening(data: bytes) -> bytes:
    """The first bytes of a file without a mark. Raises Unreadable for other encodings that begin with one."""
    for mark, name in _WIDE:
        if data.startswith(mark):
            raise Unreadable(0, f"is {name}", SAVE_AS)
    if b"\0" in data[:4]:
        raise Unreadable(0, "begins with a NUL among its first characters, as UTF-16 and UTF-32 do", SAVE_AS)
    return data.removeprefix(_BOM)


def numbered(readline: Read, most: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """From 1, with their ends. Raises Unreadable for a line of more than `most` bytes."""
    first = opening(_line(readline, 1, most))
    if not first.endswith(b"\n") and b"\r" in first:
        yield from enumerate(first.splitlines(keepends=True), 1)
        return
    number, line = 1, first
    while line or number == 1:
        yield number, line
        number += 1
        line = _line(readline, number, most)


def _line(readline: Read, number: int, most: int) -> bytes:
    line = readline(most + 1)
    if len(line) > most:
        raise Unreadable(number, f"is longer than {most // 1024**2} MiB", "is it a file of lines?")
    return line


def text(number: int, line: bytes) -> str | Fault:
    """The line as text, its end included."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as exc:
        return Fault(number, f"is not UTF-8: byte {exc.start + 1} of the line: {exc.reason}", NOT_UTF8)


def bare(line: str) -> str:
    """Without its end."""
    return line.removesuffix("\n").removesuffix("\r")
