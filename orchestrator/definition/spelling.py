"""Values and names in messages: how they are shown, and what was probably meant by a wrong name. Pure."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

SHOWN_CHARACTERS: Final = 60
_CLOSE: Final = 0.6
#: What others call a thing, where no letter of it is like our name.
_ELSEWHERE: Final = {
    **dict.fromkeys(("gpus", "gpu_ids", "visible_devices", "cuda_visible_devices"), "use"),
    **dict.fromkeys(("partition", "queue", "qos", "account", "constraint"), "options"),
}


def nearest(name: str, valid: Iterable[str]) -> str:
    """What to write instead of `name`: the closest valid name, or all of them; and what in it only looks right."""
    choices = list(valid)
    close = likely(name, choices)
    names = f"did you mean {close}?" if close else f"valid: {', '.join(choices)}" if choices else ""
    return "; ".join(filter(None, (names, oddity(name))))


def likely(name: str, valid: Iterable[str]) -> str | None:
    """The closest valid name, None where none is close."""
    known = {_folded(choice): choice for choice in valid}
    if (meant := _ELSEWHERE.get(_folded(name))) in known:
        return known[meant]
    close = difflib.get_close_matches(_folded(name), list(known), n=1, cutoff=_CLOSE)
    return known[close[0]] if close else None


def oddity(text: str) -> str:
    """Names the first character that a reader may take for an ASCII one or for none, "" where all are ASCII."""
    odd = next((c for c in text if not c.isascii()), None)
    return f"it holds U+{ord(odd):04X}, {unicodedata.name(odd, 'a character without a name')}" if odd else ""


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).strip().lower()


def shown(value: Any) -> str:
    """A value as it looks in a YAML file, shortened, safe to print."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        text = ascii(value) if not value.isprintable() else f'"{value}"'
        return "the text " + short(text)
    words = {True: "true", False: "false"} if isinstance(value, bool) else {None: "null"}
    return words.get(value) or short(_number(value))


def short(text: str) -> str:
    printable = clean(text)
    return printable if len(printable) <= SHOWN_CHARACTERS else printable[: SHOWN_CHARACTERS - 1] + "…"


def clean(text: str) -> str:
    """Printable everywhere: a terminal can't encode lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _number(value: Any) -> str:
    # str() of an int with thousands of digits raises.
    return (
        f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 256 else str(value)
    )
