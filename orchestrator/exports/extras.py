"""Libraries that only some need: imported when they are, by whoever needs them."""

from __future__ import annotations

import importlib
from typing import Any

from orchestrator.errors import InputError, Problem


def needed(module: str, what_for: str, extra: str = "data", of: str = "") -> Any:
    """The module. Raises InputError that says what to install. `of`: the package, where it is of no extra of ours."""
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        why = f"{what_for} needs {module}, which can't be imported: {exc}"
        install = of or f"'engine-airlock[{extra}]'"
        raise InputError([Problem("", "", why, f"pip install {install}")]) from exc
