"""Tool: what is installed in this interpreter, read from the distributions' metadata. Imports no engine."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any


def run(_request: dict[str, Any]) -> dict[str, Any]:
    """{"python": "3.11.7", "packages": {name: version}}, names lower case with dashes."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        # A broken installation may have metadata without a name; the first on sys.path is the one that is imported.
        name = distribution.metadata["Name"] if distribution.metadata else None
        if name:
            found.setdefault(name.lower().replace("_", "-").replace(".", "-"), distribution.version)
    return {"python": platform.python_version(), "packages": found}
