"""The only code that writes results. Data first, on the disk; then the line that commits it.

A run directory: sweep.yaml, plan.json, prompts.jsonl (the inputs, written once),
generations.jsonl and journal.jsonl (see `replay`), logs/, lock.

Every append is forced to the disk before the call returns. It costs a tenth of
a millisecond to a few, once per event, and buys a simple truth: only the very
last line can be torn.
"""

from __future__ import annotations

import math
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from orchestrator.errors import InputError, JournalError, Problem
from orchestrator.events import BatchCommitted, Event
from orchestrator.provenance import HostUse
from orchestrator.record.appender import Appender
from orchestrator.record.disk import set_aside, sync_folder, write_atomic
from orchestrator.record.leftover import require_one_batch
from orchestrator.record.lock import LOCK_NAME, Evict, RunLock
from orchestrator.record.output import Record
from orchestrator.record.replay import JOURNAL_NAME, RECORDS_NAME, Replay, frame, is_timed, replay
from protocol.records import FLAG_NO_TIMING, FLAG_UNCLEAN_TEXT, BatchStats

SWEEP_NAME, PLAN_NAME, PROMPTS_NAME, LOGS_NAME = "sweep.yaml", "plan.json", "prompts.jsonl", "logs"

#: What a start that was cut short may leave. The journal comes last: where it is, the run began.
_BEGINNINGS = {SWEEP_NAME, PLAN_NAME, PROMPTS_NAME, LOGS_NAME, RECORDS_NAME, LOCK_NAME}
_SURROGATE = re.compile("[\ud800-\udfff]")


class Journal:
    """The single writer of one run directory, which it locks. Methods raise JournalError."""

    def __init__(self, run_dir: Path, lock: RunLock, found: Replay, now: Callable[[], float]) -> None:
        self.run_dir = run_dir
        self.evicted = lock.evicted
        self._lock = lock
        self._now = now
        self._records = Appender(run_dir / RECORDS_NAME, found.records_bytes)
        self._events = Appender(run_dir / JOURNAL_NAME, found.journal_bytes)
        sync_folder(run_dir)

    @classmethod
    def create(
        cls,
        run_dir: Path,
        *,
        sweep_text: str,
        plan_json: bytes | Iterable[bytes],
        prompts: Iterable[dict[str, Any]],
        now: Callable[[], float] = time.time,
    ) -> Journal:
        """A new run. Raises InputError if `run_dir` has other contents, JournalError if it is in use."""
        _claim(run_dir)
        lock = RunLock(run_dir)
        try:
            require_free(run_dir)  # again: another start may have won the lock before us and be done
            (run_dir / LOGS_NAME).mkdir(exist_ok=True)
            write_atomic(run_dir / SWEEP_NAME, [sweep_text.encode("utf-8", "replace")])
            write_atomic(run_dir / PLAN_NAME, [plan_json] if isinstance(plan_json, bytes) else plan_json)
            write_prompts(run_dir, prompts)
            (run_dir / RECORDS_NAME).unlink(missing_ok=True)
            return cls(run_dir, lock, Replay(run_dir), now)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def resume(
        cls, run_dir: Path, *, now: Callable[[], float] = time.time, evict: Evict = list
    ) -> tuple[Journal, Replay]:
        """Lock, check all that was committed, set torn or uncommitted tails aside, go on behind them."""
        if not (run_dir / JOURNAL_NAME).exists():
            raise JournalError(f"{run_dir}: no {JOURNAL_NAME}, so there is no run to resume")
        lock = RunLock(run_dir, evict)
        try:
            found = replay(run_dir, check=True)
            _repair(found)
            return cls(run_dir, lock, found, now), found
        except BaseException:
            lock.release()
            raise

    def emit(self, event: Event) -> None:
        """Append one event. After an error the file is as it was, and a later call may succeed."""
        self._events.append(frame(encode_event(event)))

    def commit(
        self,
        *,
        point: str,
        batch: str,
        incarnation: str,
        records: Sequence[Record],
        stats: BatchStats | None,
        flags: Sequence[str] = (),
        host: HostUse | None = None,
        neighbours: Sequence[str] = (),
    ) -> BatchCommitted:
        """All records of a batch or none. Once this returns they survive a power cut.

        Raises ValueError unless the records are of this batch, each prompt once.
        """
        _check(point, batch, records)
        stats, flags = _sound(stats, flags)
        data = b"".join(encode_record(record) + b"\n" for record in records)
        event = BatchCommitted(
            at=self._now(),
            point=point,
            batch=batch,
            incarnation=incarnation,
            prompts=[record.prompt_id for record in records],
            offset=self._records.size,
            length=len(data),
            crc=zlib.crc32(data),
            stats=stats,
            errors=sum(record.error is not None for record in records),
            flags=list(flags),
            host=host,
            neighbours=list(neighbours),
        )
        self._records.append(data)
        try:
            self.emit(event)
        except BaseException:
            self._records.cut(event.offset)
            raise
        return event

    def close(self) -> None:
        """Gives the lock back. Safe to call again."""
        self._events.close()
        self._records.close()
        self._lock.release()


def write_prompts(run_dir: Path, prompts: Iterable[dict[str, Any]]) -> None:
    """prompts.jsonl, one a line. Raises JournalError."""
    write_atomic(run_dir / PROMPTS_NAME, (encode(prompt) + b"\n" for prompt in prompts))


def encode_event(event: Event) -> bytes:
    """JSON that is certain to be read back. A float that is no number becomes null, or 0 where null may not stand."""
    data = encode(event)
    if not _reads_back(data):
        data = msgspec.json.encode(_scrub(event))
    if not _reads_back(data):
        raise ValueError(f"{type(event).__name__} can't be written so that it can be read back: {event!r}")
    return data


def encode_record(record: Record) -> bytes:
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        flagged = msgspec.structs.replace(record, flags=sorted({*record.flags, FLAG_UNCLEAN_TEXT}))
        return encode(flagged)


def encode(value: Any) -> bytes:
    """JSON as UTF-8 on one line. Lone surrogates become U+FFFD: text of engines, logs and process
    names is not always Unicode, and must not cost a run."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, TypeError):
        return msgspec.json.encode(_scrub(value))


def _reads_back(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=Event)
    except msgspec.DecodeError:
        return False
    return True


def _scrub(value: Any, hint: Any = Any) -> Any:
    """`value` as JSON can hold it; `hint` is the type that the reader will ask for."""
    if isinstance(value, msgspec.Struct):
        tag = type(value).__struct_config__.tag
        named = {} if tag is None else {"type": tag}
        return named | {f.name: _scrub(getattr(value, f.name), f.type) for f in msgspec.structs.fields(value)}
    if isinstance(value, dict):
        of = (get_args(hint) or (Any, Any))[1]
        return {_scrub(str(key)): _scrub(item, of) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrub(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return 0.0 if (get_args(hint) or (hint,))[0] is float and not _optional(hint) else None
    if value is None or isinstance(value, (int, float)):
        return value
    return _SURROGATE.sub("\ufffd", str(value))


def _optional(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _sound(stats: BatchStats | None, flags: Sequence[str]) -> tuple[BatchStats | None, Sequence[str]]:
    """Figures that are no numbers are not kept as zeros, which would enter the averages. A time of zero is the
    worker's way to say that it has none."""
    if stats is None or (is_timed(stats) and all(map(math.isfinite, (stats.wall_s, *stats.extra.values())))):
        return stats, flags
    extra = {name: value for name, value in stats.extra.items() if math.isfinite(value)}
    kept = msgspec.structs.replace(stats, extra=extra) if math.isfinite(stats.wall_s) else None
    return kept, [*flags, FLAG_NO_TIMING]


def _check(point: str, batch: str, records: Sequence[Record]) -> None:
    strangers = [r.prompt_id for r in records if (r.point, r.batch) != (point, batch)]
    if strangers:
        raise ValueError(f"batch {batch} of point {point} was given records of others: {strangers[:5]}")
    if not records or len({r.prompt_id for r in records}) != len(records):
        raise ValueError(f"batch {batch} of point {point} has no records, or a prompt twice")


def _claim(run_dir: Path) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        sync_folder(run_dir.parent)
    except OSError as exc:
        raise InputError(
            [Problem(str(run_dir), "", f"can't be made: {exc.strerror}", "choose another --run-dir")]
        ) from exc
    require_free(run_dir)


def require_free(run_dir: Path) -> None:
    """Raises InputError unless a run may begin in this folder, which need not exist yet. Touches nothing."""
    if not run_dir.exists():
        return
    if not run_dir.is_dir():
        raise InputError([Problem(str(run_dir), "", "is not a folder", "choose another --run-dir")])
    names = {name for name in os.listdir(run_dir) if not (name.startswith(".") and name.endswith(".tmp"))}
    if JOURNAL_NAME in names:
        raise InputError([Problem(str(run_dir), "", "holds a run already", "--resume, or choose another --run-dir")])
    # With our lock among them, the names of a beginning are ours: a start that was cut short.
    if names and (LOCK_NAME not in names or names - _BEGINNINGS):
        raise InputError([Problem(str(run_dir), "", "is not empty", "choose another --run-dir")])


def _repair(found: Replay) -> None:
    if (found.run_dir / RECORDS_NAME).exists():
        require_one_batch(found.run_dir, found.records_bytes)
    ends = ((JOURNAL_NAME, found.journal_bytes), (RECORDS_NAME, found.records_bytes))
    notes = [found.torn] if found.torn else []
    for name, end in ends:
        path = found.run_dir / name
        side = set_aside(path, end) if path.exists() else None
        if side:
            notes.append(f"{side.stat().st_size} bytes after the last commit of {name} set aside as {side.name}")
    found.torn = "; ".join(notes) or None
