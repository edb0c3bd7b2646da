"""Every record of a run, joined with its prompt, its settings and what ran it; flat, for other tools.

Both formats have the same columns, always all of them. JSONL keeps lists and
objects; CSV writes lists of numbers and words separated by spaces ("nan" for a
number that is null) and all else that is no number or text as JSON.
One record is in memory at a time, and of the prompts only where they stand.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, TypeVar

import msgspec
from msgspec.structs import fields

from orchestrator.definition.variables import recorded
from orchestrator.errors import InputError, JournalError, Problem
from orchestrator.events import BatchCommitted, Record
from orchestrator.journal import PROMPTS_NAME
from orchestrator.plan import SweepPoint
from orchestrator.record.disk import reading
from orchestrator.record.replay import Range
from orchestrator.view.narrator import cause_text
from orchestrator.view.runview import RunView, Worker
from protocol.specs import BackendConfig, MethodSpec

Format = Literal["jsonl", "csv"]

_RECORD_COLUMNS = tuple(f.name for f in fields(Record) if f.name != "error")
_ERROR_COLUMNS = ("error_class", "error")
#: Of the batch, the same in all its records: batches and not records are what speed is made of.
_BATCH_COLUMNS = ("batch_wall_s", "batch_measured")
_PROMPT_COLUMNS = ("prompt_token_ids", "prompt_source")
_ENGINE_COLUMNS = ("engine_version", "torch_version", "transformers_version", "python_version", "device")
_ENVIRONMENT_COLUMNS = ("attention_backend", "env", "fingerprint")
#: "method" is a column of the record.
_LEFT_OUT = ("name", "summary")
_METHOD_COLUMNS = {f"method.{f.name}": f.name for f in fields(MethodSpec) if f.name not in _LEFT_OUT}
_SETTING_COLUMNS = {f"setting.{f.name}": f.name for f in fields(BackendConfig) if f.name != "method"}

#: As dicts of their settings: of all points these may be much.
_POINTS_AT_ONCE = 64

COLUMNS: tuple[str, ...] = (
    *_RECORD_COLUMNS,
    *_ERROR_COLUMNS,
    *_BATCH_COLUMNS,
    *_PROMPT_COLUMNS,
    *_ENGINE_COLUMNS,
    *_ENVIRONMENT_COLUMNS,
    *_METHOD_COLUMNS,
    *_SETTING_COLUMNS,
)


def export(run_dir: Path, format: Format | str, out: TextIO) -> None:
    """All committed records in file order. `out` must take any Unicode text; for CSV open it with newline="".

    Raises InputError for an unknown format, JournalError if the run is damaged.
    """
    if format not in _WRITERS:
        raise InputError([Problem("--format", "", f"{format!r} is not a format", f"one of {', '.join(_WRITERS)}")])
    view = RunView.load(run_dir)
    with PromptFile(run_dir / PROMPTS_NAME) as prompts:
        _WRITERS[format](flat_records(view, prompts), out)


def flat_records(view: RunView, prompts: PromptFile) -> Iterator[dict[str, Any]]:
    """One dict with all of COLUMNS for each record."""
    of_point = lru_cache(_POINTS_AT_ONCE)(
        lambda point: _settings(view.points[point]) if point in view.points else no_settings
    )
    engines = {name: _engine(worker) for name, worker in view.workers.items()}
    unknown = dict.fromkeys((*_ENGINE_COLUMNS, *_ENVIRONMENT_COLUMNS))
    no_settings = dict.fromkeys((*_METHOD_COLUMNS, *_SETTING_COLUMNS))
    no_batch = dict.fromkeys(_BATCH_COLUMNS)
    for ranges in view.replay.ranges():
        batches = {_batch_key(part.commit): _of_batch(part) for part in ranges}
        for record in view.replay.records_of(ranges):
            yield (
                _of_record(record)
                | batches.get(_batch_key(record), no_batch)
                | prompts.columns(record.prompt_id)
                | engines.get(record.incarnation, unknown)
                | of_point(record.point)
            )


class _Id(msgspec.Struct):
    id: str


class _Prompt(_Id):
    token_ids: list[int]
    source: Any


_L = TypeVar("_L", bound=_Id)


class PromptFile:
    """prompts.jsonl by id, read when asked for. Raises JournalError if it is missing or damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, int] = {}

    def __enter__(self) -> PromptFile:
        try:
            self._file: BinaryIO = reading(self._path)
        except OSError as exc:
            raise JournalError(f"{self._path}: {exc.strerror}") from exc
        try:
            self._index()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def columns(self, prompt_id: str) -> dict[str, Any]:
        """Of one prompt; None for one that is not in the file."""
        offset = self._places.get(prompt_id)
        if offset is None:
            return dict.fromkeys(_PROMPT_COLUMNS)
        self._file.seek(offset)
        prompt = self._decode(self._file.readline(), offset, _Prompt)
        return {"prompt_token_ids": prompt.token_ids, "prompt_source": prompt.source}

    def _index(self) -> None:
        offset = 0
        for raw in self._file:
            self._places[self._decode(raw, offset, _Id).id] = offset
            offset += len(raw)

    def _decode(self, raw: bytes, offset: int, kind: type[_L]) -> _L:
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as exc:
            raise JournalError(f"{self._path}: the line at byte {offset} is damaged: {exc}") from exc


def _of_record(record: Record) -> dict[str, Any]:
    found = {name: getattr(record, name) for name in _RECORD_COLUMNS}
    found["logprobs"] = msgspec.to_builtins(record.logprobs)
    error = record.error
    return found | {"error_class": error and error.cls, "error": error and cause_text(error)}


def _batch_key(one: BatchCommitted | Record) -> tuple[str, str, str]:
    """A retry may run the rest of a batch under the same name, in another worker."""
    return one.point, one.batch, one.incarnation


def _of_batch(part: Range) -> dict[str, Any]:
    """A batch without time, or of which a prompt ran again later, is not in the report's figures."""
    stats = part.commit.stats
    return {
        "batch_wall_s": None if stats is None else stats.wall_s,
        "batch_measured": part.measured,
    }


def _settings(point: SweepPoint) -> dict[str, Any]:
    config: dict[str, Any] = msgspec.to_builtins(point.config)
    config["method"]["env_vars"] = recorded(point.config.method.env_vars)
    of_method = {column: config["method"][name] for column, name in _METHOD_COLUMNS.items()}
    return of_method | {column: config[name] for column, name in _SETTING_COLUMNS.items()}


def _engine(worker: Worker) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys((*_ENGINE_COLUMNS, "attention_backend"))
    if worker.ready:
        metadata = worker.ready.metadata
        found = {name: getattr(metadata, name) for name in found}
    return found | {"env": worker.launched.env, "fingerprint": worker.launched.fingerprint}


def _write_jsonl(records: Iterable[dict[str, Any]], out: TextIO) -> None:
    for record in records:
        out.write(msgspec.json.encode(record).decode() + "\n")


def _write_csv(records: Iterable[dict[str, Any]], out: TextIO) -> None:
    # Quotes round every text: the writer itself would leave a lone carriage return bare.
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(COLUMNS)
    for record in records:
        writer.writerow([_csv_cell(record[column]) for column in COLUMNS])


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)) and all(item is None or isinstance(item, (int, float, str)) for item in value):
        return " ".join("nan" if item is None else str(item) for item in value)
    if isinstance(value, (dict, list, tuple)):
        return msgspec.json.encode(value).decode()
    return value


_WRITERS: dict[str, Callable[[Iterable[dict[str, Any]], TextIO], None]] = {"jsonl": _write_jsonl, "csv": _write_csv}
