"""Wheels made from what is installed here, so that a test can build a real environment without an index."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path

from orchestrator.stores.recipes import WORKER_MODULES


def worker_wheels(folder: Path) -> tuple[str, ...]:
    """Fills `folder` with wheels of all that a worker needs; returns their pinned requirements."""
    folder.mkdir()
    return tuple(_repack(name, folder) for name in WORKER_MODULES.values())


def empty_wheel(folder: Path, name: str, version: str) -> str:
    """A distribution that is nothing but its metadata; returns its requirement."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return f"{name}=={version}"


def _repack(name: str, folder: Path) -> str:
    found = metadata.distribution(name)
    tag = (found.read_text("WHEEL") or "").split("Tag: ")[1].split("\n")[0].strip()
    stem = f"{found.metadata['Name'].replace('-', '_')}-{found.version}"
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w", zipfile.ZIP_STORED) as wheel:
        for path in found.files or []:
            if ".." not in path.parts and path.suffix != ".pyc" and path.name not in ("INSTALLER", "REQUESTED"):
                wheel.write(str(path.locate()), str(path))
    return f"{name}=={found.version}"
