"""What stands in generations.jsonl behind the last commit.

An interrupted write leaves the records of one batch there, whole or not: the next batch is written only once that one
is committed. Those of more batches are not left over: the journal has lost lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from orchestrator.errors import JournalError
from orchestrator.record.framing import JOURNAL_NAME, RECORDS_NAME, opened


class _Of(msgspec.Struct):
    """A record, as far as it tells what was committed with it."""

    point: str
    batch: str
    incarnation: str


def require_one_batch(run_dir: Path, end: int) -> None:
    """`end`: the byte behind the last commit. Raises JournalError with what to do."""
    batches = dict.fromkeys((one.point, one.batch, one.incarnation) for one in _records(run_dir / RECORDS_NAME, end))
    if len(batches) > 1:
        raise JournalError(
            f"{run_dir / JOURNAL_NAME}: has lost lines: it commits {end} bytes of {RECORDS_NAME}, behind which stand "
            f"records of {len(batches)} more batches, and an interrupted write leaves one; put it back from a copy; to "
            f"measure those batches again instead, keep a copy of {RECORDS_NAME} and cut it: "
            f"truncate -s {end} '{run_dir / RECORDS_NAME}'"
        )


def _records(path: Path, begin: int) -> Iterator[_Of]:
    decode = msgspec.json.Decoder(_Of).decode
    with opened(path) as file:
        file.seek(begin)
        for raw in file:
            try:
                yield decode(raw)
            except msgspec.DecodeError:
                continue
