"""Tracebacks in what engines print: found, taken out of their logs' prefixes, and read. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

MAX_CHARACTERS = 16_000
MAX_LINE_CHARACTERS = 2_000
MAX_LINES = 5_000
MAX_PROCESSES = 1_000
#: Of an exception's message; CUDA's and pydantic's have many lines, and blank ones among them.
MESSAGE_LINES, GAP_LINES = 24, 8
#: Of other processes, in between the lines of one.
FOREIGN_LINES = 500

BEGIN = "Traceback (most recent call last):"
FATAL = "Fatal Python error: "
MARKS = (BEGIN, FATAL)
_CHAINED = frozenset(
    {
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    }
)
#: Said by an engine right before a traceback that costs nothing.
_HARMLESS = ("Chat template warmup failed",)

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: vLLM puts it before every line of a message; torch.distributed and Ray put theirs before every line they print.
_EVERY_LINE = re.compile(
    r"(?P<who>\([^()\n]*\bpid=\d+[^()\n]*\) ?|\[rank\d+\]: ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]\n]*\] ?)?"
)
#: SGLang's and plain logging's stand before the first line of a message only.
_FIRST_LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[^\]\n]*\]|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d|[IWEF]\d{4} \d\d:\d\d:\d\d"
)
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
#: Of what an engine does not call an error itself.
MILD = frozenset({"DEBUG", "INFO", "WARNING"})
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*|:)?$")
#: What faulthandler prints below its first line.
_DUMP_LINE = re.compile(r"$|\s|Current thread |Thread |Python runtime state|Extension modules:|<|Stack \(")


@dataclass(frozen=True)
class Line:
    """`head`: the prefix; `who`: the process that it names; `level`: of the log line; `text`: the rest."""

    text: str
    head: str = ""
    who: str = ""
    level: str = ""


def line_of(raw: str) -> Line:
    """As a terminal would show it: a progress bar writes over itself, and what comes next stands behind its last
    state. A prefix stands where the line begins all the same."""
    begin, _, shown = _COLOURS.sub("", raw.rstrip("\r\n")).rpartition("\r")
    plain = shown[:MAX_LINE_CHARACTERS]
    found = _prefix(plain)
    head = found if found[0] else _prefix(begin)
    return Line(plain[found.end() :], head[0].rstrip(), (head["who"] or "").strip(), head["level"] or "")


def _prefix(text: str) -> re.Match[str]:
    found = _EVERY_LINE.match(text)
    assert found is not None  # every part of it may be empty
    return found


class Found(NamedTuple):
    """`text`: a traceback, "" if there is none; `mild`: to the engine itself it is less than an error."""

    text: str
    mild: bool


class Block:
    """One traceback with all that it is chained to, as it is being read.

    head  the prefix of its lines; those of other threads have another
    mild  the engine itself called it less than an error
    """

    def __init__(self, line: Line, *, mild: bool, read: str) -> None:
        self.head, self.who, self.mild = line.head, line.who, mild
        self.lines = [line.text]
        self.ended = False
        self._read: Read = getattr(self, read)
        self._pending: list[str] = []
        self._message_lines = self._foreign = 0

    def __str__(self) -> str:
        text = "\n".join([self.who, *self.lines] if self.who else self.lines).rstrip()
        if len(text) <= MAX_CHARACTERS:
            return text
        # The frame that failed stands at the end of the first part, the last word at the very end.
        half = MAX_CHARACTERS // 2
        return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"

    def take(self, line: Line) -> bool:
        """Whether the line is of this block. It ends with the first of its own process that is not."""
        in_frames = self._read == self.frame
        if line.head == self.head and not (in_frames and _FIRST_LINE.match(line.text)):
            self._foreign = 0
            self.ended = not self._read(line.text) or len(self.lines) >= MAX_LINES
            return not self.ended
        self._foreign += 1  # of another process or thread, in between; or the log goes on with something else
        here = line.who != self.who or in_frames
        self.ended = not here or self._foreign >= (FOREIGN_LINES if in_frames else GAP_LINES)
        return False

    # --- its parts; each says whether the text is still of it ---

    def frame(self, text: str) -> bool:
        if not text.startswith(" "):
            self._read, self._message_lines = self._message, 0
        self.lines.append(text)
        return True

    def _message(self, text: str) -> bool:
        """Also what may be behind it: a blank line, and then the next of the chain or nothing of ours."""
        if _FIRST_LINE.match(text) or BEGIN in text or len(self._pending) == GAP_LINES:
            return False
        self._pending.append(text)
        self._message_lines += 1
        chained = text.strip() in _CHAINED
        if chained or (all(line.strip() for line in self._pending) and self._message_lines < MESSAGE_LINES):
            self.lines += self._pending
            self._pending = []
        if chained:
            self._read = self._link
        return True

    def _link(self, text: str) -> bool:
        """Between "… the following exception:" and its traceback."""
        self.lines.append(text)
        if BEGIN in text:
            self._read = self.frame
        return BEGIN in text or not text.strip()

    def dump(self, text: str) -> bool:
        """Of faulthandler."""
        self.lines += [text] if _DUMP_LINE.match(text) else []
        return _DUMP_LINE.match(text) is not None

    def group(self, text: str) -> bool:
        self.lines += [text] if text.startswith(" ") else []
        return text.startswith(" ")


class Finder:
    """Fed with a log's lines in their order. Looks for the first traceback that is more than a warning to
    the engine itself; without one, the first of the others that is not known as harmless."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []  # at most one that is no warning, and those warnings that are open
        self._mild: Block | None = None
        self._previous: dict[str, str] = {}

    @property
    def done(self) -> bool:
        return any(block.ended and not block.mild for block in self._blocks)

    @property
    def idle(self) -> bool:
        """Nothing is open: lines without one of MARKS mean nothing, but the last before one may."""
        return not self._blocks

    def feed(self, raw: str) -> None:
        line = line_of(raw)
        taken = [block.take(line) for block in self._blocks]
        self._blocks = [block for block in self._blocks if not (block.mild and block.ended)]
        if not any(taken) and not any(not block.mild for block in self._blocks):
            self._begin(line)
        if text := line.text.strip():
            if len(self._previous) > MAX_PROCESSES:
                self._previous.clear()
            self._previous[line.who] = text

    def found(self) -> Found:
        """To be asked at the end of the log, or once `done`."""
        block = next((block for block in self._blocks if not block.mild), self._mild)
        return Found(str(block), block.mild) if block else Found("", mild=False)

    def _begin(self, line: Line) -> None:
        if FATAL in line.text:
            text = line.text[line.text.index(FATAL) :]
            self._blocks.append(Block(Line(text, line.head, line.who), mild=False, read="dump"))
        elif BEGIN in line.text:
            lead, _, _ = line.text.partition(BEGIN)
            if any(said in lead or said in self._previous.get(line.who, "") for said in _HARMLESS):
                return
            level = line.level or next(iter(_LEVEL.findall(lead)), "")
            read = "group" if lead.lstrip().startswith("+") else "frame"
            block = Block(line, mild=level in MILD, read=read)
            self._blocks.append(block)
            self._mild = self._mild or (block if block.mild else None)


Read = Callable[[str], bool]


def exceptions(text: str) -> list[str]:
    """The messages "Type: words" of a traceback, the first cause first: without frames and source lines,
    which name exceptions that never happened."""
    found: list[list[str]] = []
    reading: list[str] | None = None
    in_frames = False
    for raw in text.splitlines():
        line = line_of(raw).text
        if BEGIN in line:
            in_frames, reading = True, None
        elif in_frames and line and not line.startswith(" "):
            in_frames, reading = False, [line]
            found.append(reading)
        elif not line.strip():
            reading = None
        elif reading is not None:
            reading.append(line)
    return ["\n".join(lines) for lines in found if _EXCEPTION.match(lines[0])]
