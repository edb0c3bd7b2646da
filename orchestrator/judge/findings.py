"""One difference between methods, or between what was asked and what ran, in a form that can be printed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

#: warning  figures of the methods named can't be compared as they are
#: note     they differ as the methods are meant to, or where it can't be helped
Level = Literal["note", "warning"]


class Finding(Struct, frozen=True, kw_only=True):
    """who        method → what it has; methods that have the same stand together in `text`
    why        what follows for the figures
    advice     what to set, empty where nothing can be
    points     those whose figures it is about; empty before a run
    read_back  of one from before a run: what workers tell that decides it, empty where nothing does
    ran        of a warning from before a run, after it: what ran
    """

    level: Level
    what: str
    who: dict[str, str]
    why: str
    advice: str = ""
    points: tuple[str, ...] = ()
    read_back: str = ""
    ran: str = ""

    @property
    def text(self) -> str:
        """ "chunked prefill: hf_sdpa none; vllm_eager, vllm_default on" """
        parts = (f"{', '.join(names)} {value}" for value, names in self.groups)
        return f"{self.what}: {'; '.join(parts)}"

    @property
    def groups(self) -> list[tuple[str, list[str]]]:
        found: dict[str, list[str]] = {}
        for method, value in self.who.items():
            found.setdefault(value, []).append(method)
        return list(found.items())

    @property
    def line(self) -> str:
        """All of it in one line."""
        advice = f" ({self.advice})" if self.advice else ""
        return f"{self.level}: {self.text}: {self.why}{advice}"


def differ(who: Mapping[str, str]) -> bool:
    return len(set(who.values())) > 1


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Each difference once, with the points of all its places; warnings first."""
    found: dict[str, Finding] = {}
    for one in findings:
        same = found.get(one.line)
        points = (*same.points, *one.points) if same else one.points
        found[one.line] = replace(one, points=tuple(dict.fromkeys(points)))
    return sorted(found.values(), key=lambda one: one.level != "warning")


def warnings(findings: Iterable[Finding]) -> list[Finding]:
    return [one for one in findings if one.level == "warning"]


def value_text(value: object) -> str:
    """None → "none", True → "on", 0.5 → "0.5"."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
