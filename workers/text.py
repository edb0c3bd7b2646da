"""Text that any codec and any file takes. Standard library only: tools run where msgspec may be missing."""

from __future__ import annotations

import re
import traceback

REPLACEMENT = "\ufffd"
MAX_MESSAGE_CHARACTERS = 8_000
MAX_TRACEBACK_CHARACTERS = 64_000
_UNCLEAN = re.compile("[\ud800-\udfff\0]")


def clean_text(text: str) -> tuple[str, bool]:
    """`text` with lone surrogates and NUL replaced by U+FFFD, and whether there were any."""
    cleaned, changes = _UNCLEAN.subn(REPLACEMENT, text)
    return cleaned, changes > 0


def shorten(text: str, limit: int) -> str:
    """At most about `limit` characters: the first cause stands at the top of a
    traceback and the last word at its end, so the middle goes."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def message_of(exc: BaseException) -> str:
    """What `exc` says, with what it was raised from, cleaned and shortened. An engine's exception may fail to print."""
    said = [_said(exc)]
    if exc.__cause__ is not None:
        said.append(f"{type(exc.__cause__).__name__}: {_said(exc.__cause__)}")
    return shorten(clean_text("; caused by ".join(said))[0], MAX_MESSAGE_CHARACTERS)


def traceback_of(exc: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    except Exception as failure:
        text = f"no traceback: formatting it raised {type(failure).__name__}"
    return shorten(clean_text(text)[0], MAX_TRACEBACK_CHARACTERS)


def _said(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception as failure:
        return f"(its message can't be printed: {type(failure).__name__})"
