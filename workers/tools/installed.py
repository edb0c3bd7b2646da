"""Tool: what is installed in this interpreter, read from the distributions' metadata. Imports no engine."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib import metadata
from typing import Any
from urllib.parse import unquote, urlsplit

#: Groups of entry points by which engines load other distributions into themselves, unasked.
PLUGINS = ("vllm.", "sglang.")
#: Their sources are in the digest of the recipe that installs them.
OURS = "airlock-"
INFO = ".dist-info/"
#: Of a commit or a digest.
CHARACTERS = 12


def run(_request: dict[str, Any]) -> dict[str, Any]:
    """{"python": "3.11.7", "packages": {name: version}, "editable": {name: folder}, "plugins": [name]}, names lower
    case with dashes. Editable: its code is that of the folder, whatever its version says. Of what else is no release of
    an index the version says which code it is: "5.20.0.dev0+git.0123456789ab"."""
    found: dict[str, str] = {}
    editable: dict[str, str] = {}
    plugins: list[str] = []
    for distribution in metadata.distributions():
        # A broken installation may have metadata without a name; the first on sys.path is the one that is imported.
        name = distribution.metadata["Name"] if distribution.metadata else None
        name = name.lower().replace("_", "-").replace(".", "-") if name else None
        if name is None or name in found:
            continue
        origin = _origin(distribution)
        mark = "" if name.startswith(OURS) else _mark(distribution, origin)
        found[name] = f"{distribution.version}{mark}"
        if folder := _folder(origin):
            editable[name] = folder
        if any(entry.group.startswith(PLUGINS) for entry in distribution.entry_points):
            plugins.append(name)
    return {"python": platform.python_version(), "packages": found, "editable": editable, "plugins": plugins}


def _origin(distribution: metadata.Distribution) -> dict[str, Any]:
    """Where it was installed from, as PEP 610 has it; {} for a release of an index."""
    try:
        told = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _folder(origin: dict[str, Any]) -> str:
    """That it was installed from, to be edited there; "" for a copy."""
    try:
        return unquote(urlsplit(origin["url"]).path) if origin["dir_info"]["editable"] else ""
    except (ValueError, KeyError, TypeError):
        return ""


def _mark(distribution: metadata.Distribution, origin: dict[str, Any]) -> str:
    """What is to be added to its version, which may stay the same from one commit or build to the next."""
    vcs = origin.get("vcs_info")
    if isinstance(vcs, dict):
        told = f"{vcs.get('vcs')}.{str(vcs.get('commit_id'))[:CHARACTERS]}"
    elif origin and not _folder(origin) and (code := _code(distribution)):
        told = f"copy.{hashlib.sha256(code.encode()).hexdigest()[:CHARACTERS]}"
    else:
        return ""
    return ("." if "+" in str(distribution.version) else "+") + told


def _code(distribution: metadata.Distribution) -> str:
    """The installer's list of its files with their digests, without what it made itself: scripts and metadata."""
    lines = (distribution.read_text("RECORD") or "").splitlines()
    return "\n".join(sorted(one for one in lines if ",sha256=" in one and not one.startswith("..") and INFO not in one))
