"""The files that a method names, by content: a worker program of one's own, adapters, draft models, tokenizers,
templates, plugins, configurations. Its settings say where they lie, which stays the same when they change. And what
stands in an environment under a version that stays the same, or loads itself into its engine.

Only whole paths count, as a worker runs in a folder of its own; and only files as they are seen from here.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from orchestrator.stores.envstate import EngineEnv
from orchestrator.stores.modelfiles import digest_of, digest_of_code, digest_of_file, hub_folder
from protocol.specs import MethodSpec

#: Lists, name=path, path:Class and JSON all stand in single values.
_BETWEEN: Final = re.compile(r"[\s,;:=\"'{}\[\]]+")
_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
#: Words in a setting's name by which an engine writes there: not what decides what it does, and never the same twice.
_WRITTEN: Final = frozenset(
    {"cache", "download", "dump", "export", "log", "logs", "offload", "once", "output", "profile", "profiler", "save"}
    | {"storage", "temp", "tmp", "tmpdir", "touch", "trace", "traces"}
)
#: Words in a variable's name by which its folder is read and belongs to the engine: most folders hold anything.
_FOLDER_READ: Final = frozenset(
    {"adapter", "config", "configs", "draft", "kernels", "lora", "model", "plugin", "plugins", "template", "tokenizer"}
)


def files_of(method: MethodSpec) -> dict[str, str]:
    """Path, or name on the hub → digest of what is there. What is not there is left out: a path may be one that the
    engine writes."""
    found = dict(_of_program(method.worker))
    for name, value in _leaves("", method.engine_args):
        found |= dict(_named(value, folders=True, hub=True)) if not _words(name) & _WRITTEN else {}
    return found | files_named_by(method.env_vars)


def files_named_by(variables: Mapping[str, str]) -> dict[str, str]:
    """The same of variables."""
    found: dict[str, str] = {}
    for name, value in variables.items():
        words = _words(name)
        found |= dict(_named(value, folders=bool(words & _FOLDER_READ))) if not words & _WRITTEN else {}
    return found


def files_in(env: EngineEnv) -> dict[str, str]:
    """Folder of a package that can be edited → digest of its code, and plugin → version, where the environment's
    fingerprint does not have it."""
    folders = {folder: _digest(Path(folder), digest_of_code) for folder in env.editable.values()}
    return folders | {name: env.installed[name] for name in env.plugins if name not in env.fingerprint.packages}


def changed(
    then: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]], run_dir: Path
) -> Iterator[str]:
    """A sentence for each file that is not as it was. `then`, `now`: method or environment → its files. What was not
    there then says nothing, nor does what the run itself writes, in `run_dir`."""
    ours = os.path.realpath(run_dir) + os.sep
    users: dict[tuple[str, str, str], list[str]] = {}
    for method, files in now.items():
        for path, before in then.get(method, {}).items():
            if path.startswith("/") and os.path.realpath(path).startswith(ours):
                continue
            if (after := files.get(path, "not there")) != before:
                users.setdefault((path, before, after), []).append(method)
    for (path, before, after), methods in users.items():
        yield f"{path} of {', '.join(methods)} is not what this run began with ({before} then, {after} now)"


def _of_program(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A folder is only part of it if Python can run it: another may be one that it writes."""
    if words and (program := shutil.which(words[0])):
        yield program, _digest(Path(program))
    for word in words[1:]:
        for path in _paths(word):
            if path.is_file() or (path / "__main__.py").is_file():
                yield str(path), _digest(path)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every text below `value`, with the names that lead there."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}_{key}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(name, inner)
    elif isinstance(value, str):
        yield name, value


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z]+", name.lower()))


def _named(value: str, *, folders: bool, hub: bool = False) -> Iterator[tuple[str, str]]:
    for path in _paths(value):
        if path.is_file() or (folders and path.is_dir()):
            yield str(path), _digest(path)
    if hub and _HUB_NAME.fullmatch(value) and (commit := _commit(value)):
        yield value, commit


def _paths(value: str) -> Iterator[Path]:
    """Those that exist."""
    for one in dict.fromkeys((value, *_BETWEEN.split(value))):
        path = os.path.expanduser(one)
        if path.startswith("/") and os.path.exists(path):
            yield Path(path)


def _commit(name: str) -> str:
    """Where nothing else is asked for, it is main that is loaded."""
    try:
        return (hub_folder(name) / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _digest(path: Path, of_folder: Callable[[Path], str] = digest_of) -> str:
    try:
        return of_folder(path) if path.is_dir() else digest_of_file(path)
    except OSError as exc:
        return f"can't be read: {exc.strerror}"
