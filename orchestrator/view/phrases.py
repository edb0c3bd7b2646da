"""What events hold, in words that the report, the console and messages share. Pure."""

from __future__ import annotations

import re

from orchestrator import events as ev
from orchestrator.outcomes import Cause
from orchestrator.reclaim import Reclaim
from orchestrator.view.wording import bytes_text, clean, first_line, seconds_text


def cause_text(cause: Cause) -> str:
    """One line: the class, the message, and how the process ended where that tells more."""
    status = f"exit status {cause.exit_status}" if cause.exit_status is not None else ""
    message = first_line(cause.message) or "no message"
    end = cause.signal or status
    said = bool(end) and re.search(rf"\b{re.escape(end)}\b", message)
    extra = ", ".join(part for part in (cause.phase and f"while {cause.phase}", "" if said else end) if part)
    text = f"{cause.cls}: {message}"
    return clean(f"{text} ({extra})" if extra else text)


def waited_text(event: ev.Waited) -> str:
    """ "waited 12 s for room: … has 3 MiB free" """
    what = "suspended for" if event.what == "suspended" else "waited"
    goal = "" if event.what == "suspended" else f" for {'a slot' if event.what == 'slot' else 'room'}"
    return f"{what} {seconds_text(event.wait_s)}{goal}{'' if event.over else ' in vain'}: {event.reason}"


def artefacts_text(event: ev.Artefacts) -> str:
    """ "compiled artefacts kept, 12.3 MiB" """
    what = event.what.replace("_", " ")
    tail = f", {bytes_text(event.bytes)}" if event.what == "kept" else f": {event.reason}"
    return f"compiled artefacts {what}{tail}"


def given_back_text(proof: Reclaim) -> str:
    """ "3.2 GiB back in 0.4 s" """
    freed = given_back_bytes(proof)
    amount = "memory" if freed is None else bytes_text(freed)
    return f"{amount} back in {seconds_text(proof.wait_s)}"


def given_back_bytes(proof: Reclaim) -> int | None:
    """What the worker held just before teardown minus what is left of it; None where either is unknown."""
    if proof.held_bytes is None or proof.after_bytes is None:
        return None
    return max(proof.held_bytes - proof.after_bytes, 0)
