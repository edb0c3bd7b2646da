"""Cures for environments that are not as their engine wants them.

A package that is installed but can't be imported (torchvision built for
another torch, say) counts as present for libraries that only look for it, and
they fail later. Blocking it makes it absent for everyone. This must hold in
an engine's spawned children too, so it is driven by the environment.
"""

from __future__ import annotations

import sys

#: Comma-separated names of modules that must look as if they were not installed.
BLOCK_VARIABLE = "AIRLOCK_BLOCK_MODULES"

_blocked: list[str] = []
_too_late: list[str] = []


def block_modules(names: str) -> None:
    """Blocks each of the comma-separated `names` that is not imported yet: find_spec
    gives None for it, an import raises ModuleNotFoundError."""
    for name in filter(None, (part.strip() for part in names.split(","))):
        if sys.modules.get(name) is not None:
            _too_late.append(name)
        else:
            sys.modules[name] = None  # type: ignore[assignment]
            _blocked.append(name)


def patches() -> list[str]:
    """What was changed in this process, for RuntimeMetadata.patches."""
    return [f"blocked {name}" for name in _blocked]


def notes() -> list[str]:
    return [f"{name} was imported before it could be blocked" for name in _too_late]
