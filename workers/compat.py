"""Cures for environments that are not as their engine wants them.

A package that is installed but broken (torchvision built for another torch,
say) counts as present for libraries that only look for its files, and they fail
later. Blocking it makes it absent for everyone in this process, whatever looks
for it and in whatever way, and touches no file. This must hold in an engine's
spawned children too, so it is driven by the environment.

What was imported before our first line, by a .pth file or a sitecustomize, can't
be made absent any more: some already hold it. It stays, and a note says so.
"""

from __future__ import annotations

import os
import re
import sys

#: By which the caller puts libraries in front of those that packages bring along.
LOADER_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD")
#: How the system's loader says that one library is not the one that another was built with.
_LINKING = re.compile(r"undefined symbol|cannot open shared object|version `[^']*' not found|symbol lookup error")
#: A line for each module that must look as if it were not installed: its name, or "name: why".
BLOCK_VARIABLE = "AIRLOCK_BLOCK_MODULES"

_blocked: dict[str, str] = {}
_too_late: list[str] = []


def block_modules(lines: str) -> None:
    """Blocks each module that is not imported yet: find_spec gives None for it, an import
    raises ModuleNotFoundError."""
    for line in lines.splitlines():
        name, _, why = (part.strip() for part in line.partition(":"))
        if sys.modules.get(name) is not None:
            _too_late.append(name)
        elif name:
            sys.modules[name] = None  # type: ignore[assignment]
            _blocked[name] = why


def patches() -> list[str]:
    """What was changed in this process, for RuntimeMetadata.patches."""
    return [f"blocked {name}: {why}" if why else f"blocked {name}" for name, why in _blocked.items()]


def notes() -> list[str]:
    return [f"{name} was imported before it could be blocked" for name in _too_late]


def explained(exc: BaseException, message: str) -> str:
    """`message`, which `exc` brings, with a remark in its first line where a package that it misses may be one that
    is blocked, or a library of another place one of the environment's. Not why it is blocked: that is an error of
    another time, which must not be taken for this one's."""
    chain = _chain(exc)
    missing = _blocked and any(isinstance(one, ImportError) for one in chain)
    remarks = [f"broken in this environment, and so blocked: {', '.join(_blocked)}"] if missing else []
    before = [name for name in LOADER_VARIABLES if os.environ.get(name)]
    if before and any(isinstance(one, (ImportError, OSError)) and _LINKING.search(str(one)) for one in chain):
        remarks.append(f"libraries that {' and '.join(before)} names are taken before the environment's own")
    if not remarks:
        return message
    first, newline, rest = message.lstrip().partition("\n")
    return f"{first} [{'; '.join(remarks)}]{newline}{rest}"


def _chain(exc: BaseException | None) -> list[BaseException]:
    """`exc` and all that it was raised from or while handling."""
    found: list[BaseException] = []
    while exc is not None and all(exc is not one for one in found):
        found.append(exc)
        exc = exc.__cause__ or exc.__context__
    return found
