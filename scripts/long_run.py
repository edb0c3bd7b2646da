"""Sweeps of as many points as are wanted, and run directories as such sweeps leave them, without running anything.

Plan and files are made by the code that makes them in a run, so that no format can drift from it; only the waiting
for the disk is left out, which would take most of an hour.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from orchestrator.events import (
    PointEnded,
    PointStarted,
    RunEnded,
    RunStarted,
    WorkerLaunched,
    WorkerReady,
    WorkerReleased,
)
from orchestrator.journal import Journal
from orchestrator.plan import Plan, SweepPoint, WorkerStart
from orchestrator.reclaim import Reclaim
from orchestrator.record.output import Record
from orchestrator.run.environments import usable
from orchestrator.run.prepare import Prepared, prepare, survey
from orchestrator.stores import prompts
from protocol.records import BatchStats, LoadTimes, RuntimeMetadata

METHODS, REPEATS = 10, 10
PREFILL_S, TOKEN_S = 0.05, 0.01


@dataclass(frozen=True)
class Size:
    """Of a sweep: `cells` of each of METHODS methods, `repeats` times, over so many prompts."""

    cells: int
    repeats: int = REPEATS
    prompts: int = 2
    batch: int = 2
    least_tokens: int = 1

    @classmethod
    def of_points(cls, points: int) -> Size:
        return cls(points // (METHODS * REPEATS))

    @property
    def points(self) -> int:
        return METHODS * self.cells * self.repeats

    @property
    def generations(self) -> int:
        return self.points * self.prompts


def write_sweep(folder: Path, size: Size) -> Path:
    """The sweep file, with its prompts beside it."""
    lines = (json.dumps({"id": str(n), "prompt": f"prompt {n}"}) for n in range(size.prompts))
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    # A long axis and a short one, as grids have.
    short = min(size.cells, 10)
    sweep = {
        "name": "long",
        "model": "scripted",
        "prompts": "prompts.jsonl",
        "methods": [{"name": f"m{n}", "base": "scripted", "engine_args": {"salt": str(n)}} for n in range(METHODS)],
        "matrix": {
            "max_new_tokens": list(range(size.least_tokens, size.least_tokens + size.cells // short)),
            "batch_size": list(range(size.batch, size.batch + short)),
        },
        "repeats": size.repeats,
        "sampling": {"ignore_eos": True},
        "warmup": 0,
    }
    path = folder / "sweep.yaml"
    path.write_text(json.dumps(sweep))
    return path


def finish(file: Path, run_dir: Path) -> None:
    """What a sweep of this file leaves when all has gone well."""
    prepared = prepare(survey(file, (), lambda _: None), lambda _: None)
    with mock.patch("os.fdatasync"):
        journal = Journal.create(
            run_dir,
            sweep_text=prepared.ground.text,
            plan_json=msgspec.json.format(msgspec.json.encode(prepared.plan), indent=1),
            prompts=(prompts.as_line(prompt) for prompt in prepared.prompts.prompts),
            now=lambda: 0.0,
        )
        _Writer(journal, prepared).write()
        journal.close()


class _Writer:
    def __init__(self, journal: Journal, prepared: Prepared) -> None:
        self._journal = journal
        self._plan: Plan = prepared.plan
        self._environments = {env.name: env.fingerprint.digest for env in usable(prepared.environments)}
        self._digests = {prompt.id: (prompt.digest, len(prompt.token_ids)) for prompt in prepared.prompts.prompts}
        self._at = 1e9
        self._measured_s = 0.0

    def write(self) -> None:
        plan = self._plan
        self._emit(
            RunStarted,
            life=1,
            pid=1,
            airlock="0",
            host="nowhere",
            plan_digest=plan.digest,
            points=len(plan.points),
            environments=self._environments,
        )
        for number, start in enumerate(plan.starts):
            self._start(start, f"w{number + 1}-x")
        self._emit(RunEnded, exit_code=0, wall_s=self._at - 1e9, measured_s=self._measured_s)

    def _emit(self, kind: Any, **values: Any) -> None:
        self._journal.emit(kind(at=self._at, **values))

    def _start(self, start: WorkerStart, worker: str) -> None:
        method, fingerprint = start.config.method, self._environments[start.env]
        launch = {"method": method.name, "engine": method.engine, "env": start.env, "log": f"logs/{worker}.log"}
        self._emit(WorkerLaunched, incarnation=worker, fingerprint=fingerprint, slot="slot0", pid=1, **launch)
        metadata = RuntimeMetadata(
            engine=method.engine, engine_version="0", python_version="3", threads=1, load=LoadTimes(total_s=1.0)
        )
        self._emit(WorkerReady, incarnation=worker, metadata=metadata, fingerprint=fingerprint)
        for point in start.points:
            self._point(point, worker)
        self._emit(WorkerReleased, incarnation=worker, exit_status=0, signal=None, cause=None, reclaim=_RECLAIM)

    def _point(self, point: SweepPoint, worker: str) -> None:
        names, size = self._plan.prompt_ids, point.config.batch_size
        self._emit(PointStarted, point=point.id, incarnation=worker, prompts=len(names))
        for number, at in enumerate(range(0, len(names), size)):
            self._batch(point, f"{point.id[:8]}-{number}", worker, names[at : at + size])
        self._emit(PointEnded, point=point.id, outcome="ok")

    def _batch(self, point: SweepPoint, batch: str, worker: str, names: tuple[str, ...]) -> None:
        new = point.config.max_new_tokens
        wall_s = (PREFILL_S + TOKEN_S * new) * (1 + point.repeat % 3 / 100)
        records = [self._record(point, batch, worker, name, len(names), wall_s) for name in names]
        stats = BatchStats(wall_s=wall_s, generated_tokens=new * len(names), peak_memory_bytes=1 << 30)
        self._journal.commit(point=point.id, batch=batch, incarnation=worker, records=records, stats=stats)
        self._at += wall_s
        self._measured_s += wall_s

    def _record(self, point: SweepPoint, batch: str, worker: str, name: str, size: int, wall_s: float) -> Record:
        new, (digest, tokens) = point.config.max_new_tokens, self._digests[name]
        return Record(
            point=point.id,
            batch=batch,
            method=point.method,
            prompt_id=name,
            prompt_digest=digest,
            prompt_tokens=tokens,
            text="e" * new,
            token_ids=[101] * new,
            generated_tokens=new,
            finish_reason="length",
            ttft_s=PREFILL_S,
            latency_s=wall_s,
            batch_size=size,
            repeat=point.repeat,
            incarnation=worker,
            itl_s=[TOKEN_S] * (new - 1) or None,
        )


_RECLAIM = Reclaim(
    device="cpu",
    processes_left=0,
    strays_killed=[],
    held_bytes=1 << 30,
    peak_bytes=1 << 30,
    baseline_bytes=0,
    after_bytes=0,
    tolerance_bytes=0,
    returned=True,
    wait_s=0.01,
    teardown_s=0.1,
    rung="shutdown",
)
