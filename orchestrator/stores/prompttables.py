"""Parquet files and saved Hugging Face datasets, row by row.

They are read in a process of their own (`promptarrow`): pyarrow is large, starts threads, and a damaged file may be
the end of its process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.definition.promptuse import PromptSource
from orchestrator.definition.spelling import nearest
from orchestrator.errors import InputError, LaunchFailed, Problem
from orchestrator.launcher import Launcher, LaunchSpec
from orchestrator.readers.found import Fault, Record
from orchestrator.readers.jsontext import json_lines
from orchestrator.stores.envbuild import OnWait
from orchestrator.stores.home import airlock_home, tag_of
from orchestrator.stores.named import open_file
from orchestrator.stores.scratch import Scratch, remove_abandoned, scratch
from orchestrator.stores.tools import how_it_ended

READ_TIMEOUT_S = 1800.0
_SPLITS, _STATE = "dataset_dict.json", "state.json"


def is_dataset(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (_SPLITS, _STATE))


@contextmanager
def table(path: Path, source: PromptSource, on_wait: OnWait) -> Iterator[Iterator[Record | Fault]]:
    """The rows of `path`, from 1. Raises InputError, OSError and ValueError."""
    files = _arrow_files(path, source) if path.is_dir() else [path]
    for file in files:
        _check(file, path)
    remove_abandoned(tag_of(airlock_home()))
    with scratch() as own:
        answer = _converted(files, own, on_wait)
        if "refused" in answer:
            raise ValueError(answer["refused"])
        with (own.folder / "rows").open("rb") as rows:
            yield json_lines(rows.readline)


def _check(file: Path, whole: Path) -> None:
    """So that what is wrong with it is told in one way. Raises OSError, and ValueError for a part of the whole."""
    try:
        open_file(file).close()
    except OSError as exc:
        if file == whole:
            raise
        raise ValueError(f"{file.relative_to(whole)} is a part of it: {exc.strerror}") from exc


def _converted(files: list[Path], own: Scratch, on_wait: OnWait) -> dict[str, Any]:
    """Raises ValueError."""
    answer, log = own.folder / "answer.json", own.folder / "log"
    paths = [os.path.abspath(path) for path in sys.path]
    module = "orchestrator.stores.promptarrow"
    spec = LaunchSpec(
        argv=(sys.executable, "-P", "-m", module, str(answer), str(own.folder / "rows"), *map(str, files)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=os.getcwd(),
        log=str(log),
        run_tag=tag_of(airlock_home()),
        incarnation=own.incarnation,
    )
    try:
        completed = Launcher().run(spec, READ_TIMEOUT_S, on_wait)
        found: dict[str, Any] = json.loads(answer.read_bytes())
    except LaunchFailed as exc:
        raise ValueError(str(exc)) from exc
    except (OSError, ValueError) as exc:
        raise ValueError(f"the process that reads it {how_it_ended(completed, log, READ_TIMEOUT_S)}") from exc
    return found


# --- the folder of a dataset ------------------------------------------------------


def _arrow_files(folder: Path, source: PromptSource) -> list[Path]:
    """Raises InputError and ValueError."""
    split = source.reading.split
    if (folder / _SPLITS).is_file():
        folder = folder / _chosen(_names(folder / _SPLITS, "splits"), source)
    elif split is not None:
        raise InputError([Problem(source.where, "prompts.split", f"is {split}, and the dataset has no splits")])
    if not (folder / _STATE).is_file():
        raise ValueError(f"it is a folder without {_STATE}, and no dataset that save_to_disk wrote")
    if _mapping(folder / _STATE).get("_indices_data_files"):
        raise ValueError("its rows are chosen by indices, as old versions of datasets wrote it: save it anew")
    named = [one.get("filename") if isinstance(one, dict) else None for one in _part(folder / _STATE, "_data_files")]
    if any(not isinstance(name, str) or os.path.basename(name) != name for name in named):
        raise ValueError(f"{_STATE} names files that are not in its folder")
    return [folder / str(name) for name in named]


def _chosen(splits: list[str], source: PromptSource) -> str:
    """Raises InputError."""
    asked = source.reading.split
    if asked is None and len(splits) == 1:
        return splits[0]
    if asked is None or asked not in splits:
        message = "which of them?" if asked is None else f"there is no {asked}"
        hint = f"write split: {splits[0]}" if asked is None and splits else nearest(asked or "", splits)
        told = f"the dataset has the splits {', '.join(splits)}: {message}"
        raise InputError([Problem(source.where, "prompts.split", told, hint)])
    return asked


def _names(file: Path, key: str) -> list[str]:
    return [one for one in _part(file, key) if isinstance(one, str) and os.path.basename(one) == one]


def _part(file: Path, key: str) -> list[Any]:
    """Raises ValueError."""
    part = _mapping(file).get(key)
    if not isinstance(part, list):
        raise ValueError(f"{file.name} has no list {key}")
    return part


def _mapping(file: Path) -> dict[str, Any]:
    """Empty where it is none. Raises ValueError."""
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"{file.name} is not valid JSON: {exc}") from exc
    return found if isinstance(found, dict) else {}
