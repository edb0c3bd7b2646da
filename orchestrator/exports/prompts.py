"""prompts.jsonl by id: of each prompt only where it stands is in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgspec

from orchestrator.errors import JournalError
from orchestrator.record.disk import reading
from orchestrator.record.promptlines import require_all


class _Id(msgspec.Struct):
    id: str


class _Line(_Id):
    token_ids: list[int]
    source: Any


class Prompt(NamedTuple):
    """All None for one that is not in the file."""

    source: Any = None
    token_ids: list[int] | None = None

    @property
    def expected(self) -> Any:
        return self.source.get("expected") if isinstance(self.source, dict) else None


_L = TypeVar("_L", bound=_Id)
_UNKNOWN = Prompt()


class PromptFile:
    """Read when asked for. Raises JournalError if it is missing or damaged, or lacks prompts of `planned`."""

    def __init__(self, path: Path, planned: Sequence[str]) -> None:
        self._path = path
        self._planned = planned
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

    def read(self, prompt_id: str) -> Prompt:
        offset = self._places.get(prompt_id)
        if offset is None:
            return _UNKNOWN
        self._file.seek(offset)
        line = self._decode(self._file.readline(), offset, _Line)
        return Prompt(line.source, line.token_ids)

    def _index(self) -> None:
        offset = 0
        for raw in self._file:
            self._places[self._decode(raw, offset, _Id).id] = offset
            offset += len(raw)
        require_all(self._path, self._planned, self._places)

    def _decode(self, raw: bytes, offset: int, kind: type[_L]) -> _L:
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as exc:
            raise JournalError(f"{self._path}: the line at byte {offset} is damaged: {exc}") from exc
