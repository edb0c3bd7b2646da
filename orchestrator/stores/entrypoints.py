"""Methods that other distributions bring: entry points of the group `airlock.methods`.

An entry point names a MethodSpec, a list of them, or a function that gives either. It is imported
only where methods are needed. What it brings is held to the rules of a user's own methods, and a
name never changes its meaning: one that is taken is refused, whoever has it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import metadata
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.definition.fields import unfit
from orchestrator.definition.ownmethods import conflicts
from orchestrator.errors import InputError, Interrupted, Problem
from orchestrator.methods import NAME_RULE, builtin, is_name
from orchestrator.view.wording import clean
from protocol.specs import MethodSpec

GROUP = "airlock.methods"


class Registered(Struct, frozen=True):
    """origin: "" for what comes with Airlock, else the distribution and its version."""

    spec: MethodSpec
    origin: str = ""


def registry() -> dict[str, MethodSpec]:
    """All methods by name: the built-in ones, then those of other distributions. Raises InputError."""
    return {name: one.spec for name, one in registered().items()}


def registered() -> dict[str, Registered]:
    """As `registry`, with where each comes from. Raises InputError with all that is wrong with any of them."""
    found = {name: Registered(spec) for name, spec in builtin().items()}
    problems: list[Problem] = []
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda e: (_origin(e), e.name)):
        origin = _origin(entry)
        try:
            for spec in _brought(entry):
                found[spec.name] = Registered(_checked(spec, found), origin)
        except _Refused as exc:
            problems.append(Problem(origin, f"entry point {entry.name}", str(exc), exc.hint))
    if problems:
        raise InputError(problems)
    return found


class _Refused(Exception):
    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _origin(entry: metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"


def _brought(entry: metadata.EntryPoint) -> Iterator[MethodSpec]:
    """Raises _Refused."""
    try:
        with _output_aside():
            value = entry.load()
            value = value() if callable(value) else value
    except (KeyboardInterrupt, Interrupted):
        raise
    except BaseException as exc:  # another's code may raise whatever it likes
        raise _Refused(f"{entry.value} can't be loaded: {_told(exc)}", f"remove {_origin(entry)}") from exc
    for one in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(one, MethodSpec):
            what = "a MethodSpec, a list of them, or a function that gives either"
            raise _Refused(f"{entry.value} gives {type(one).__name__}, not {what}")
        yield one


def _told(exc: BaseException) -> str:
    try:
        said = f": {clean(' '.join(str(exc).split()))}"
    except Exception:  # an exception of another's own that can't even be told
        said = ""
    return f"{type(exc).__name__}{said}"


@contextmanager
def _output_aside() -> Iterator[None]:
    """What another's code prints, a C library of it too, goes where errors go: who asked for JSON gets JSON."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    own = os.dup(1)
    try:
        with redirect_stdout(sys.stderr):
            os.dup2(2, 1)
            yield
    finally:
        os.dup2(own, 1)
        os.close(own)


def _checked(spec: MethodSpec, taken: Mapping[str, Registered]) -> MethodSpec:
    """A copy that nobody else holds, each field of its type. Raises _Refused."""
    try:
        plain: dict[str, Any] = msgspec.to_builtins(spec)
        copy = msgspec.convert(plain, MethodSpec)
        msgspec.json.encode(copy)
    except UnicodeEncodeError as exc:
        raise _Refused(f"method {spec.name!r}: holds text that is no Unicode") from exc
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as exc:
        raise _Refused(f"method {spec.name!r}: {exc}".replace("`", "")) from exc
    if not is_name(copy.name):
        raise _Refused(f"a method can't be called {copy.name!r}", NAME_RULE)
    if other := taken.get(copy.name):
        owner = other.origin or "Airlock"
        raise _Refused(f"{copy.name} is a method of {owner}, and a name always means the same thing", "choose another")
    wrong = [f"{field}: {message}" for field, message, _ in conflicts(copy)] + [w for w in [unfit(plain)] if w]
    if wrong:
        raise _Refused(f"method {copy.name}: {'; '.join(wrong)}")
    return copy
