"""Methods that other distributions bring: entry points of the group `airlock.methods`.

An entry point names a MethodSpec, a list of them, or a function that gives either. It is loaded
only where methods are needed, and in a process of its own (`entryload`), which may end or hang as it
likes. What it brings is held to the rules of a user's own methods, and a name never changes its
meaning: one that is taken is refused, whoever has it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.definition.fields import unfit
from orchestrator.definition.ownmethods import conflicts
from orchestrator.errors import InputError, LaunchFailed, Problem
from orchestrator.launcher import Launcher, LaunchSpec
from orchestrator.methods import NAME_RULE, builtin, is_name
from orchestrator.stores.home import airlock_home, tag_of
from orchestrator.stores.scratch import Scratch, remove_abandoned, scratch
from orchestrator.stores.tools import how_it_ended
from protocol.specs import MethodSpec

GROUP = "airlock.methods"
LOAD_TIMEOUT_S = 60.0


class Registered(Struct, frozen=True):
    """origin: "" for what comes with Airlock, else the distribution and its version."""

    spec: MethodSpec
    origin: str = ""


def registry() -> dict[str, MethodSpec]:
    """All methods by name: the built-in ones, then those of other distributions. Raises InputError."""
    return {name: one.spec for name, one in registered().items()}


def registered() -> dict[str, Registered]:
    """As `registry`, with where each comes from. Raises InputError with all that is wrong with any of them."""
    found, problems = collected()
    if problems:
        raise InputError(problems)
    return found


def collected(timeout_s: float = LOAD_TIMEOUT_S) -> tuple[dict[str, Registered], list[Problem]]:
    """What is right, and what is wrong with the rest. `timeout_s`: for each entry point."""
    found = {name: Registered(spec) for name, spec in builtin().items()}
    problems: list[Problem] = []
    for origin, entry in sorted(_entries(problems), key=lambda found: (found[0], found[1].name)):
        try:
            for plain in _brought(entry, origin, timeout_s):
                spec = _checked(plain, found)
                found[spec.name] = Registered(spec, origin)
        except _Refused as exc:
            problems.append(Problem(origin, f"entry point {entry.name}", str(exc), exc.hint))
    return found, problems


class _Refused(Exception):
    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _entries(problems: list[Problem]) -> Iterator[tuple[str, metadata.EntryPoint]]:
    """Each with its distribution. `metadata.entry_points` would end with the first file in the environment that is
    damaged, whoever's it is."""
    seen: set[str] = set()
    for distribution in metadata.distributions():
        origin, text = _about(distribution)
        if GROUP not in text or origin in seen:  # of two of one name the first on the path is imported
            continue
        seen.add(origin)
        try:
            yield from ((origin, entry) for entry in distribution.entry_points if entry.group == GROUP)
        except Exception as exc:  # its parser meets what was never foreseen
            problems.append(Problem(origin, "entry_points.txt", f"can't be read: {exc}", f"install {origin} again"))


def _about(distribution: metadata.Distribution) -> tuple[str, str]:
    """Name and version, and the text of its entry points; "" for what can't be read, as for what is not there."""
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except (OSError, ValueError):
        text = ""
    if GROUP not in text:
        return "", text
    # A broken installation may have metadata without a name.
    named = distribution.metadata and distribution.metadata["Name"]
    return f"{named} {distribution.version}" if named else "a distribution without a name", text


def _brought(entry: metadata.EntryPoint, origin: str, timeout_s: float) -> Iterable[dict[str, Any]]:
    """Raises _Refused."""
    remove = f"remove {origin}"
    remove_abandoned(tag_of(airlock_home()))
    with scratch() as own:
        answer, log = own.folder / "answer.json", own.folder / "log"
        try:
            completed = Launcher().run(_loading(entry.value, own), timeout_s)
            answered: dict[str, Any] = json.loads(answer.read_bytes())
        except LaunchFailed as exc:
            raise _Refused(f"{entry.value} can't be loaded: {exc}", remove) from exc
        except (OSError, ValueError) as exc:
            ended = how_it_ended(completed, log, timeout_s)
            raise _Refused(f"{entry.value} can't be loaded: its process {ended}", remove) from exc
    if "refused" in answered:
        raise _Refused(answered["refused"], remove)
    methods: list[dict[str, Any]] = answered["methods"]
    return methods


def _loading(value: str, own: Scratch) -> LaunchSpec:
    """It finds modules where this process does."""
    paths = [os.path.abspath(path) for path in sys.path]
    return LaunchSpec(
        argv=(sys.executable, "-P", "-m", "orchestrator.stores.entryload", value, str(own.folder / "answer.json")),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=os.getcwd(),
        log=str(own.folder / "log"),
        run_tag=tag_of(airlock_home()),
        incarnation=own.incarnation,
    )


def _checked(plain: Mapping[str, Any], taken: Mapping[str, Registered]) -> MethodSpec:
    """With each field of its type. Raises _Refused."""
    try:
        spec = msgspec.convert(plain, MethodSpec)
        msgspec.json.encode(spec)
    except UnicodeEncodeError as exc:
        raise _Refused(f"method {plain['name']!r}: holds text that is no Unicode") from exc
    except msgspec.ValidationError as exc:
        raise _Refused(f"method {plain['name']!r}: {exc}".replace("`", "")) from exc
    if not is_name(spec.name):
        raise _Refused(f"a method can't be called {spec.name!r}", NAME_RULE)
    if other := taken.get(spec.name):
        owner = other.origin or "Airlock"
        raise _Refused(f"{spec.name} is a method of {owner}, and a name always means the same thing", "choose another")
    wrong = [f"{'.'.join(path)}: {message}" for path, message, _ in conflicts(spec)] + [w for w in [unfit(plain)] if w]
    if wrong:
        raise _Refused(f"method {spec.name}: {'; '.join(wrong)}")
    return spec
