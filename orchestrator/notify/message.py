"""What is told of a run: one value for all ways to tell it, and its words. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from orchestrator.definition.notifyuse import Format, Occasion
from orchestrator.view.wording import clean, count_text, counted, rate_text, seconds_text

#: Of failures so many are told; a message is no report.
MOST_FAILURES: Final = 5
#: What Discord takes at most.
_DISCORD_CHARACTERS: Final = 2000
_PRIORITIES: Final = {"failure": "high", "quarantine": "high", "low_disk": "high"}


class Points(Struct, frozen=True, kw_only=True):
    done: int = 0
    failed: int = 0
    skipped: int = 0
    total: int = 0


class FailedPoint(Struct, frozen=True, kw_only=True):
    label: str
    cause: str


class Leader(Struct, frozen=True, kw_only=True):
    """The method and settings with the most generated tokens/s so far; nothing is said of whether it may be
    compared."""

    label: str
    tokens_per_s: float


class Message(Struct, frozen=True, kw_only=True):
    """The summary, as it goes out as JSON. Its texts are clean. Times in seconds; `at` is Unix time; None: not known.

    state              running, finished, stopped, interrupted or crashed
    what               what happened: the reason of an end, of a quarantine, what has no room
    failures           points that did not end well since the last message of failures; at the end the last of all
    failures_not_told  how many more there are
    elapsed_s          in this start of the run
    eta_s              until its end
    """

    event: Occasion
    run: str
    run_dir: str
    host: str
    at: float
    state: str = "running"
    exit_code: int | None = None
    what: str = ""
    points: Points = field(default_factory=Points)
    failures: list[FailedPoint] = field(default_factory=list)
    failures_not_told: int = 0
    elapsed_s: float = 0.0
    eta_s: float | None = None
    leader: Leader | None = None

    @property
    def placeholders(self) -> dict[str, str]:
        """For the words of a command."""
        code = "" if self.exit_code is None else str(self.exit_code)
        return {
            "event": self.event,
            "run": self.run,
            "run_dir": self.run_dir,
            "state": self.state,
            "exit_code": code,
        }


def title(message: Message) -> str:
    """One line."""
    return clean(f"{message.run}: {_happened(message)}")


def _happened(message: Message) -> str:
    match message.event:
        case "start":
            return f"started on {message.host}, {counted(message.points.total, 'point')}"
        case "failure":
            return f"{counted(len(message.failures) + message.failures_not_told, 'point')} did not end well"
        case "low_disk":
            return "no room is left on a disk"
        case "quarantine":
            return "a slot is out of use"
    code = "" if message.exit_code is None else f", exit code {message.exit_code}"
    return f"{message.state}{code}"


def lines(message: Message) -> Iterator[str]:
    """What stands below the title."""
    if message.what:
        yield clean(message.what)
    for one in message.failures:
        yield clean(f"- {one.label}: {one.cause}" if one.cause else f"- {one.label}")
    if message.failures_not_told:
        yield f"- and {count_text(message.failures_not_told)} more"
    yield _points(message)
    if message.leader:
        yield clean(f"fastest so far: {message.leader.label}, {rate_text(message.leader.tokens_per_s)} tokens/s")
    yield clean(message.run_dir)


def _points(message: Message) -> str:
    points = message.points
    failed = f", {count_text(points.failed)} failed" if points.failed else ""
    skipped = f", {count_text(points.skipped)} not needed" if points.skipped else ""
    left = "" if message.eta_s is None else f", about {seconds_text(message.eta_s)} left"
    after = f" after {seconds_text(message.elapsed_s)}" if message.elapsed_s else ""
    return f"points {count_text(points.done)}/{count_text(points.total)} done{failed}{skipped}{after}{left}"


class Request(Struct, frozen=True, kw_only=True):
    """What is posted."""

    body: str
    headers: dict[str, str]


def request(message: Message, kind: Format) -> Request:
    text = "\n".join((title(message), *lines(message)))
    match kind:
        case "slack":
            return _json({"text": _for_slack(text)})
        case "discord":
            # Nobody is to be called by what an engine said.
            return _json({"content": text[:_DISCORD_CHARACTERS], "allowed_mentions": {"parse": []}})
        case "ntfy":
            headers = {"Title": title(message).encode("ascii", "replace").decode(), "Content-Type": "text/plain"}
            priority = _PRIORITIES.get(message.event, "default")
            return Request(body="\n".join(lines(message)), headers=headers | {"Priority": priority})
    return _json(msgspec.to_builtins(message))


def _json(value: dict[str, Any]) -> Request:
    return Request(body=msgspec.json.encode(value).decode(), headers={"Content-Type": "application/json"})


def _for_slack(text: str) -> str:
    """Its signs for links and calls, <!channel> for one, are no signs here."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
