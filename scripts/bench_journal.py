"""What it costs that a batch is on the disk before it counts. Run by scripts/bench."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from orchestrator.journal import Journal
from orchestrator.record.output import Record
from protocol.records import BatchStats
from scripts.figures import Figure, medians_s

RECORDS, TEXT_BYTES, NEW_TOKENS = 64, 2000, 256
ROUNDS = 200
POINT, WORKER = "3f9a01bc", "w1-abc"


def commit(folder: Path) -> Iterator[Figure]:
    """A batch committed, against the same bytes appended and forced to the same disk, in turns."""
    journal = Journal.create(folder / "run", sweep_text="", plan_json=b"{}", prompts=())
    numbers = itertools.count()

    def write() -> None:
        batch = f"{POINT}-{next(numbers)}"
        stats = BatchStats(wall_s=0.5, generated_tokens=RECORDS * NEW_TOKENS)
        journal.commit(point=POINT, batch=batch, incarnation=WORKER, records=records(batch), stats=stats)

    write()
    data, line = ((folder / "run" / name).read_bytes() for name in ("generations.jsonl", "journal.jsonl"))
    once, first, second = (_opened(folder / name) for name in ("once", "first", "second"))
    whole, bare, twice = medians_s(
        (
            write,
            lambda: _append(once, data + line),
            lambda: (_append(first, data), _append(second, line)),
        ),
        ROUNDS,
    )
    journal.close()
    for fd in (once, first, second):
        os.close(fd)
    name = f"commit of {RECORDS} records, {(len(data) + len(line)) // 1000} kB"
    yield Figure(name, whole * 1e3, "ms", "one bare append + fdatasync", bare * 1e3)
    yield Figure(name, whole * 1e3, "ms", "two: first the records, then the line", twice * 1e3)


def records(batch: str) -> list[Record]:
    return [
        Record(
            point=POINT,
            batch=batch,
            method="scripted",
            prompt_id=str(n),
            prompt_digest="0123456789abcdef",
            prompt_tokens=NEW_TOKENS,
            text=chr(ord("a") + n % 26) * TEXT_BYTES,
            token_ids=list(range(n, n + NEW_TOKENS)),
            generated_tokens=NEW_TOKENS,
            finish_reason="length",
            ttft_s=0.01,
            latency_s=0.5,
            batch_size=RECORDS,
            repeat=0,
            incarnation=WORKER,
        )
        for n in range(RECORDS)
    ]


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def _append(fd: int, data: bytes) -> int:
    if os.write(fd, data) != len(data):
        raise SystemExit("the disk is full")
    os.fdatasync(fd)
    return fd
