"""Runs one tool: reads its request, always writes a response, and never half of one.

Standard library only: a tool may be the very thing that finds out what is missing.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import tempfile
from typing import Any

import workers.tools
from workers.text import message_of, traceback_of

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 64


class UnknownTool(Exception):
    """There is no tool of that name."""


class BadRequest(Exception):
    """The request file can't be read as a JSON object."""


def run_tool(name: str, request_path: str, response_path: str) -> int:
    """0 if the tool gave a result, 1 if the response holds an error. Raises OSError if no response can be written."""
    try:
        result = _module(name).run(_request(request_path))
        text = json.dumps({"ok": True, "result": result}, allow_nan=False)
        status = EXIT_OK
    except BaseException as exc:  # an import of an engine may well call sys.exit
        text = json.dumps({"ok": False, "error": _error(exc)})
        status = EXIT_FAILED
    _write(response_path, text)
    return status


def tool_names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(workers.tools.__path__) if m.name != "runner")


def _module(name: str) -> Any:
    if name not in tool_names():
        raise UnknownTool(f"no tool {name!r}; there are {', '.join(tool_names())}")
    return importlib.import_module(f"workers.tools.{name}")


def _request(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            request = json.load(file)
    except (OSError, ValueError) as exc:
        raise BadRequest(f"{path}: {exc}") from exc
    if not isinstance(request, dict):
        raise BadRequest(f"{path}: not a JSON object")
    return request


def _error(exc: BaseException) -> dict[str, str]:
    return {"type": type(exc).__name__, "message": message_of(exc), "traceback": traceback_of(exc)}


def _write(path: str, text: str) -> None:
    """Whole or not at all, so that a reader never sees half a response."""
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".response-")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
