"""Exit codes, and what they tell of a run."""

from typing import Literal

EXIT_OK, EXIT_PARTIAL, EXIT_INPUT, EXIT_INTERRUPTED, EXIT_TERMINATED = 0, 1, 2, 130, 143
#: EX_SOFTWARE and EX_IOERR of sysexits.h
EXIT_FAULT, EXIT_OUTPUT = 70, 74
#: The run ended before its plan: no slot or no room is left. Beside 0, 1, 2, 130 and 143.
EXIT_STOPPED_EARLY = 3
#: Exit codes from here on mean "ended by signal (code - 128)".
_SIGNALLED = 128


def ended_as(exit_code: int) -> Literal["finished", "stopped", "interrupted"]:
    """What became of a run that came to say how it ended."""
    if exit_code >= _SIGNALLED:
        return "interrupted"
    return "stopped" if exit_code == EXIT_STOPPED_EARLY else "finished"
