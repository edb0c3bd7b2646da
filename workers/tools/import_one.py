"""Tool: does one optional package import? In a process of its own, since a broken one may take the process down."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def run(request: dict[str, Any]) -> dict[str, Any]:
    """{"module": name} → {"present": bool, "error": sentence or None}."""
    name = request["module"]
    if importlib.util.find_spec(name) is None:
        return {"present": False, "error": None}
    try:
        importlib.import_module(name)
    except BaseException as exc:  # what a broken package raises is anyone's guess, SystemExit included
        return {"present": True, "error": f"{type(exc).__name__}: {' '.join(str(exc).split())[:300]}"}
    return {"present": True, "error": None}
