"""Errors of the coordinator, split by who is at fault.

AirlockError
├── InputError          the user's input is wrong; lists every problem found (exit 2)
├── EnvironmentFailed   an engine's environment can't be built, imported or used
├── JournalError        a run directory is damaged or in use (exit 2)
├── LaunchFailed        a process could not be started
├── ClusterError        a distributed engine refused, or could not be asked
└── OutputFailed        what was asked for could not be written, or a tracker could not be told (exit 74)

Interrupted             a signal asked us to stop; the run is resumable (exit 130 or 143).
                        As KeyboardInterrupt, it is no Exception, so nobody swallows it on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class AirlockError(Exception):
    """Root of all errors that the command line turns into a sentence and an exit code."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the input.

    where       file and line, "sweep.yaml:12", or the option it came from
    key         path of the value, "methods[1].engine_args"; "" for a whole file
    suggestion  what to do about it, or the nearest valid name; "" if there is none
    """

    where: str
    key: str
    message: str
    suggestion: str = ""

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.where, self.key) if part)
        hint = f" ({self.suggestion})" if self.suggestion else ""
        return f"{place}: {self.message}{hint}" if place else f"{self.message}{hint}"


class InputError(AirlockError):
    """Everything wrong with the input, found before anything started."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class EnvironmentFailed(AirlockError):
    """`cause` is one sentence; `log_tail` the last lines of what the build or the import printed."""

    def __init__(self, env: str, cause: str, log_tail: str = "") -> None:
        super().__init__(f"environment {env}: {cause}")
        self.env = env
        self.cause = cause
        self.log_tail = log_tail


class JournalError(AirlockError):
    """The run directory can't be used as it is; the message names the file and line."""


class LaunchFailed(AirlockError):
    """The operating system refused to start a process."""


class ClusterError(AirlockError):
    """In the back end's own words."""


class OutputFailed(AirlockError):
    """Standard output, or a file, is closed, full or broken, or a tracker does not answer. `reader_left`: a pipe's
    reader has seen enough (`| head`)."""

    def __init__(self, message: str, reader_left: bool) -> None:
        super().__init__(message)
        self.reader_left = reader_left


class Interrupted(BaseException):
    """Asked to stop by `signum`."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by signal {signum}")
        self.signum = signum
