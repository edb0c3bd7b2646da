"""What a model's folder holds, read without any library: is it complete, and which one is it."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WHOLE_BYTES = 16 * 1024 * 1024  # a smaller file is read whole
END_BYTES = 1024 * 1024  # of a larger one, this much at both ends
DIGEST_CHARACTERS = 16
LISTED_FILES = 5
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.tiktoken")
#: Written last into a folder that we made. No part of the model: it tells with what it was made.
MANIFEST = "model.json"
_NOT_THE_MODEL = {".md", ".png", ".jpg", ".pdf"}
_LFS = b"version https://git-lfs"
_HEADER_MAX_BYTES = 100_000_000  # the limit of the safetensors format itself


def problems_of(folder: Path) -> list[str]:
    """All that keeps `folder` from being a model that can be loaded; empty if it looks complete."""
    if not folder.exists():
        return ["does not exist"]
    if not folder.is_dir():
        return ["is a file; a folder with config.json, weights and tokenizer is needed"]
    found = [*_config_problems(folder / "config.json"), *_weight_problems(folder)]
    if not any(True for pattern in _TOKENIZERS for _ in folder.glob(pattern)):
        found.append("has no tokenizer (tokenizer.json, tokenizer.model or the like)")
    return found


def text_only(folder: Path) -> bool:
    """Whether its config.json is there and has no vision_config, without which no model takes images."""
    try:
        config = _read_json(folder / "config.json")
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and not config.get("vision_config")


def digest_of(folder: Path) -> str:
    """16 hex digits over names, sizes and content: of large files both ends only, which hold the
    header and so each tensor's name, shape and place. Subfolders, hidden files and notes don't count."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == MANIFEST or path.suffix in _NOT_THE_MODEL or not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode("utf-8", "surrogateescape"))
        with path.open("rb") as file:
            if size < WHOLE_BYTES:
                digest.update(file.read())
            else:
                digest.update(file.read(END_BYTES))
                file.seek(-END_BYTES, 2)
                digest.update(file.read(END_BYTES))
    return digest.hexdigest()[:DIGEST_CHARACTERS]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _config_problems(path: Path) -> Iterable[str]:
    try:
        config = _read_json(path)
    except FileNotFoundError:
        yield "has no config.json"
    except (OSError, ValueError) as exc:
        yield f"config.json can't be read: {exc}"
    else:
        if not isinstance(config, dict) or not (config.get("model_type") or config.get("architectures")):
            yield "config.json names neither model_type nor architectures"


def _weight_problems(folder: Path) -> Iterable[str]:
    indexes = [
        path
        for path in folder.glob("*.index.json")
        if path.name.endswith((".safetensors.index.json", ".bin.index.json"))
    ]
    files = {path for pattern in _WEIGHTS for path in folder.glob(pattern)}
    for index in sorted(indexes):
        shards, problem = _shards(index)
        if problem:
            yield problem
        missing = sorted(name for name in shards if not (folder / name).exists())
        if missing:
            listed = ", ".join(missing[:LISTED_FILES])
            yield f"lacks {len(missing)} of {len(shards)} weight files that {index.name} names: {listed}"
    if not files and not indexes:
        yield f"has no weights ({', '.join(_WEIGHTS)})"
    for file in sorted(files):
        yield from _file_problems(file)


def _shards(index: Path) -> tuple[set[str], str]:
    try:
        named = _read_json(index)["weight_map"].values()
        return {str(name) for name in named}, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        return set(), f"{index.name} can't be read: {exc!r}"


def _file_problems(file: Path) -> Iterable[str]:
    try:
        size = file.stat().st_size
        with file.open("rb") as content:
            head = content.read(len(_LFS))
    except OSError as exc:
        yield f"{file.name} can't be read: {exc.strerror or exc}"
        return
    if head == _LFS:
        yield f"{file.name} is a Git LFS pointer, not the weights: run `git lfs pull`"
    elif size == 0:
        yield f"{file.name} is empty"
    elif file.suffix == ".safetensors" and (whole := _safetensors_bytes(file, size)) != size:
        yield f"{file.name} is damaged: {size} bytes, its header says {whole or 'nothing that makes sense'}"


def _safetensors_bytes(file: Path, size: int) -> int:
    """How large the file has to be by its own header; 0 if the header is nonsense."""
    try:
        with file.open("rb") as content:
            (length,) = struct.unpack("<Q", content.read(8))
            if length > min(size, _HEADER_MAX_BYTES):
                return 0
            header: dict[str, Any] = json.loads(content.read(length))
        ends: list[int] = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return 8 + int(length) + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError, struct.error, AttributeError):
        return 0


def _read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())
