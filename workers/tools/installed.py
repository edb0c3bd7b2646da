"""Tool: what is installed in this interpreter, read from the distributions' metadata. Imports no engine."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import Any
from urllib.parse import unquote, urlsplit

#: Groups of entry points by which engines load other distributions into themselves, unasked.
PLUGINS = ("vllm.", "sglang.")


def run(_request: dict[str, Any]) -> dict[str, Any]:
    """{"python": "3.11.7", "packages": {name: version}, "editable": {name: folder}, "plugins": [name]}, names lower
    case with dashes. Editable: its code is that of the folder, whatever its version says."""
    found: dict[str, str] = {}
    editable: dict[str, str] = {}
    plugins: list[str] = []
    for distribution in metadata.distributions():
        # A broken installation may have metadata without a name; the first on sys.path is the one that is imported.
        name = distribution.metadata["Name"] if distribution.metadata else None
        name = name.lower().replace("_", "-").replace(".", "-") if name else None
        if name is None or name in found:
            continue
        found[name] = distribution.version
        if folder := _folder(distribution):
            editable[name] = folder
        if any(entry.group.startswith(PLUGINS) for entry in distribution.entry_points):
            plugins.append(name)
    return {"python": platform.python_version(), "packages": found, "editable": editable, "plugins": plugins}


def _folder(distribution: metadata.Distribution) -> str:
    """Where it was installed from, to be edited there; "" for a copy."""
    try:
        told = json.loads(distribution.read_text("direct_url.json") or "{}")
        return unquote(urlsplit(told["url"]).path) if told["dir_info"]["editable"] else ""
    except (ValueError, KeyError, TypeError):
        return ""
