"""Builders of events, records and whole run directories, written by the real Journal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.events import Cause, OutcomeKind, PointEnded, Reclaim, Record, RunStarted, StateChanged
from orchestrator.journal import Journal
from protocol.records import BatchStats

POINT = "p-1"
INCARNATION = "w1-abc"


def record(prompt: str, *, point: str = POINT, batch: str = "b1", text: str = "grüß ☃", **changes: Any) -> Record:
    values: dict[str, Any] = {
        "point": point,
        "batch": batch,
        "method": "hf_sdpa",
        "prompt_id": prompt,
        "prompt_digest": "0123456789abcdef",
        "prompt_tokens": 3,
        "text": text,
        "token_ids": [5, 6, 7],
        "generated_tokens": 3,
        "finish_reason": "length",
        "ttft_s": 0.1,
        "latency_s": 0.3,
        "batch_size": 2,
        "repeat": 0,
        "incarnation": INCARNATION,
    }
    return Record(**(values | changes))


def stats(wall_s: float = 0.5, tokens: int = 6, peak: int | None = 1 << 30) -> BatchStats:
    return BatchStats(wall_s=wall_s, generated_tokens=tokens, peak_memory_bytes=peak)


def started(life: int = 1, points: int = 1) -> RunStarted:
    return RunStarted(
        at=1000.0,
        life=life,
        pid=7,
        airlock="0.1.0",
        host="lab",
        plan_digest="d1",
        points=points,
        environments={"hf-cpu": "f1"},
    )


def ended(outcome: OutcomeKind = "ok", *, point: str = POINT, cause: Cause | None = None) -> PointEnded:
    return PointEnded(at=1010.0, point=point, outcome=outcome, cause=cause)


def state(name: str, incarnation: str = INCARNATION) -> StateChanged:
    return StateChanged(at=1001.0, incarnation=incarnation, state=name, after_s=0.2)


def reclaim(**changes: Any) -> Reclaim:
    values: dict[str, Any] = {
        "device": "cpu",
        "processes_left": 0,
        "strays_killed": [],
        "held_bytes": 3 << 30,
        "peak_bytes": 4 << 30,
        "baseline_bytes": 0,
        "after_bytes": 0,
        "tolerance_bytes": 1 << 28,
        "returned": True,
        "wait_s": 0.4,
        "teardown_s": 0.9,
        "rung": "shutdown",
    }
    return Reclaim(**(values | changes))


def new_run(run_dir: Path, *, plan_json: bytes = b"{}", prompts: Iterable[dict[str, Any]] = ()) -> Journal:
    return Journal.create(run_dir, sweep_text="name: x\n", plan_json=plan_json, prompts=prompts)


def commit(journal: Journal, prompts: Iterable[str], *, batch: str = "b1", point: str = POINT, **changes: Any) -> None:
    records = [record(prompt, point=point, batch=batch, **changes) for prompt in prompts]
    journal.commit(point=point, batch=batch, incarnation=INCARNATION, records=records, stats=stats())
