"""What a model's folder holds, read without any library: is it complete, and which one is it."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.definition.inputs import DIGEST_SCHEME, FIRST_SCHEME

WHOLE_BYTES = 16 * 1024 * 1024  # a smaller file is read whole
END_BYTES = 1024 * 1024  # of a larger one, this much at both ends
#: And so much at even distances. Of a shard of 5 GB: every 5 MB, and most matrices are larger than that.
SAMPLES, SAMPLE_BYTES = 1024, 4096
DIGEST_CHARACTERS = 16
LISTED_FILES = 5
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
#: Beside weights and tokenizers, what engines read of a model. A trainer's state lies there too.
_SETTINGS = (
    *("config.json", "generation_config.json", "*.index.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "merges.txt", "*preprocessor_config.json", "processor_config.json", "chat_template*"),
    *("*.py", "*.jinja"),
)
_TRAINERS = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")
#: Of each file, by name: size, time of the last change, inode.
Marks = dict[str, tuple[int, int, int]]
#: How files of the makers' own format begin, the same weights once more.
_OWN_FORMAT = "consolidated"
_TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.bpe.model"),
    *("*.tiktoken", "tiktoken.model", "tokenization_*.py"),
)
#: Written last into a folder that we made. No part of the model: it tells with what it was made.
MANIFEST = "model.json"
_NOT_THE_MODEL = {".md", ".png", ".jpg", ".pdf"}
_READ_BELOW = (".py", ".jinja")  # what a model's code imports, and its other chat templates
_CODE = (".py", ".so", ".cu", ".cuh", ".h", ".jinja")  # data may be what runs leave in a checkout
_NO_CODE = frozenset({"__pycache__", "node_modules", "tests", "docs"})
_LFS = b"version https://git-lfs"
_HEADER_MAX_BYTES = 100_000_000  # the limit of the safetensors format itself


def problems_of(folder: Path) -> list[str]:
    """All that keeps `folder` from being a model that can be loaded; empty if it looks complete."""
    if not os.path.exists(folder):  # Path's own raises for a name that is too long
        return ["does not exist"]
    if not os.path.isdir(folder):
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


def digest_of(folder: Path, scheme: str = DIGEST_SCHEME) -> str:
    """ "v2-" and 16 hex digits over names, sizes and content: of large files both ends and SAMPLES places between, so
    that each tensor larger than a thousandth of its file counts. Not the time of a change, which differs between
    copies of one model. Of subfolders only code and templates count; hidden files and notes don't.

    scheme  of an earlier digest that this one is to be held against, by `inputs.scheme_of`. FIRST_SCHEME reads both
            ends alone and leaves all subfolders out.
    """
    first = scheme == FIRST_SCHEME
    digest = hashlib.sha256()
    for path in sorted({*folder.iterdir(), *([] if first else _below(folder, _READ_BELOW))}):
        if path.name.startswith(".") or path.name == MANIFEST or path.suffix in _NOT_THE_MODEL or not path.is_file():
            continue
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape"))
        _read_into(digest.update, path, 0 if first else SAMPLES)
    found = digest.hexdigest()[:DIGEST_CHARACTERS]
    return found if first else f"{DIGEST_SCHEME}-{found}"


def marks_of(folder: Path) -> Marks:
    """What tells cheaply that the weights, settings or tokenizer in it may have changed; not its other files, logs
    say. Raises OSError."""
    weights = _WEIGHTS[:1] if any(folder.glob(_WEIGHTS[0])) else _WEIGHTS
    patterns = (*weights, *_SETTINGS, *_TOKENIZERS)
    files = {path for pattern in patterns for path in folder.glob(pattern) if not path.name.startswith(_TRAINERS)}
    marks: Marks = {}
    for file in files:
        with suppress(FileNotFoundError):  # gone meanwhile, or a link to nothing
            found = file.stat()
            marks[file.name] = (found.st_size, found.st_mtime_ns, found.st_ino)
    return marks


def digest_of_file(path: Path) -> str:
    """16 hex digits over a file's content and, if it is large, its size. Raises OSError."""
    digest = hashlib.sha256()
    _read_into(digest.update, path, SAMPLES)
    size = path.stat().st_size
    if size >= WHOLE_BYTES:
        digest.update(str(size).encode())
    return digest.hexdigest()[:DIGEST_CHARACTERS]


def digest_of_code(folder: Path) -> str:
    """16 hex digits over all code in it and below, by name and content. Raises OSError."""
    digest = hashlib.sha256()
    for path in sorted(_below(folder, _CODE)):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode("utf-8", "surrogateescape"))
        digest.update(digest_of_file(path).encode())
    return digest.hexdigest()[:DIGEST_CHARACTERS]


def _below(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NO_CODE]
        paths = (Path(root, name) for name in files if name.endswith(suffixes))
        yield from (path for path in paths if path.is_file())


def _read_into(take: Callable[[bytes], object], path: Path, samples: int) -> None:
    with path.open("rb", buffering=SAMPLE_BYTES) as file:
        size = os.fstat(file.fileno()).st_size
        if size < WHOLE_BYTES:
            take(file.read())
            return
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # else each place costs what is read ahead of it
        take(file.read(END_BYTES))
        for number in range(1, samples):
            file.seek(size * number // samples)
            take(file.read(SAMPLE_BYTES))
        file.seek(-END_BYTES, os.SEEK_END)
        take(file.read(END_BYTES))


def hub_folder(name: str) -> Path:
    """Where the hub's own cache keeps "owner/name", if it has it; nowhere for a user without a home who names none."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expanduser(cache), f"models--{name.replace('/', '--')}")


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
    """Of what engines read: where there are safetensors, these alone, and of a sharded model those of its index."""
    safe, indexes = [*folder.glob("*.safetensors")], [*folder.glob("*.safetensors.index.json")]
    indexes = [path for path in indexes if not path.name.startswith(_OWN_FORMAT)]
    if not (indexes or any(not path.name.startswith(_OWN_FORMAT) for path in safe)):
        indexes = [*folder.glob("*.bin.index.json")]
    named: set[Path] = set()
    for index in sorted(indexes):
        shards, problem = _shards(index)
        if problem:
            yield problem
        named |= {path for name in shards if (path := folder / name).exists()}
        missing = sorted(name for name in shards if not (folder / name).exists())
        if missing:
            listed = ", ".join(missing[:LISTED_FILES])
            yield f"lacks {len(missing)} of {len(shards)} weight files that {index.name} names: {listed}"
    files = named or {*safe} or {path for pattern in _WEIGHTS for path in folder.glob(pattern)}
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
