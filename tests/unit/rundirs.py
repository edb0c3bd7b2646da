"""Builders of events, records and whole run directories, written by the real Journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from orchestrator.config import Limits
from orchestrator.definition.inputs import ModelInfo
from orchestrator.events import (
    PointEnded,
    PointStarted,
    RunEnded,
    RunStarted,
    StateChanged,
    WorkerLaunched,
    WorkerReady,
    WorkerReleased,
)
from orchestrator.journal import Journal
from orchestrator.outcomes import Cause, OutcomeKind
from orchestrator.plan import Plan, SweepPoint, WorkerStart
from orchestrator.reclaim import Reclaim
from orchestrator.record.output import Record
from protocol.records import BatchStats, LoadTimes, RuntimeMetadata
from protocol.specs import BackendConfig, MethodSpec

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


# --- whole runs ---------------------------------------------------------------

PROMPTS = ("a", "b", "c")
HF = MethodSpec(name="hf_sdpa", engine="hf", attention="sdpa")
VLLM = MethodSpec(name="vllm_fa", engine="vllm", engine_args={"x": [1, 2]})


def a_plan(methods: Sequence[MethodSpec] = (HF, VLLM), sizes: Sequence[int] = (1, 2), repeats: int = 2) -> Plan:
    """Point ids read "hf_sdpa/2/0": method, batch size, repeat."""

    def config(method: MethodSpec, size: int) -> BackendConfig:
        return BackendConfig(method=method, model_path="/models/m", batch_size=size)

    def start(method: MethodSpec) -> WorkerStart:
        points = tuple(
            SweepPoint(f"{method.name}/{size}/{repeat}", method.name, config(method, size), repeat)
            for repeat in range(repeats)
            for size in sizes
        )
        return WorkerStart(f"{method.name}-k", f"{method.engine}-cpu", config(method, max(sizes)), points)

    model = ModelInfo("tiny", "/models/m", "m-digest", 512, (0,), 64, "float32")
    return Plan(
        "demo", "plan-digest", model, "prompts-digest", PROMPTS, tuple(map(start, methods)), repeats, 1, Limits()
    )


def prompt_lines(names: Sequence[str] = PROMPTS) -> list[dict[str, Any]]:
    return [
        {"id": name, "token_ids": [n, n + 1], "digest": f"d{n}", "source": {"text": f'say "{name}",\nplease'}}
        for n, name in enumerate(names)
    ]


def begin(run_dir: Path, plan: Plan) -> Journal:
    journal = new_run(run_dir, plan_json=msgspec.json.encode(plan), prompts=prompt_lines(plan.prompt_ids))
    journal.emit(started(points=len(plan.points)))
    return journal


def launch(
    journal: Journal,
    start: WorkerStart,
    incarnation: str,
    *,
    fingerprint: str = "f1",
    artefacts: Literal["", "cold", "warm"] = "",
    **metadata: Any,
) -> None:
    method = start.config.method
    journal.emit(
        WorkerLaunched(
            at=1000.5,
            incarnation=incarnation,
            method=method.name,
            engine=method.engine,
            env=start.env,
            fingerprint=fingerprint,
            slot="slot0",
            pid=11,
            log=f"logs/{incarnation}.log",
            artefacts=artefacts,
        )
    )
    values: dict[str, Any] = {
        "engine": method.engine,
        "engine_version": "9.9",
        "python_version": "3.11.7",
        "torch_version": "2.13.0",
        "attention_backend": "sdpa",
        "kv_cache_tokens": 4096,
        "dtype": "float32",
        "threads": 2,
        "load": LoadTimes(total_s=12.0),
    }
    ready = RuntimeMetadata(**(values | metadata))
    journal.emit(WorkerReady(at=1001.0, incarnation=incarnation, metadata=ready, fingerprint=fingerprint))
    journal.emit(state("ready", incarnation))


def run_point(
    journal: Journal, point: SweepPoint, incarnation: str, *, wall_s: float = 0.5, prompts: Sequence[str] = PROMPTS
) -> None:
    """Batches of the point's size; three tokens a prompt, TTFT 0.1 s, TPOT 0.1 s."""
    journal.emit(PointStarted(at=1002.0, point=point.id, incarnation=incarnation, prompts=len(prompts)))
    size = point.config.batch_size
    for n in range(0, len(prompts), size):
        records = [
            record(
                name,
                point=point.id,
                batch=f"b{n}",
                method=point.method,
                incarnation=incarnation,
                batch_size=size,
                repeat=point.repeat,
            )
            for name in prompts[n : n + size]
        ]
        figures = stats(wall_s=wall_s, tokens=3 * len(records))
        journal.commit(point=point.id, batch=f"b{n}", incarnation=incarnation, records=records, stats=figures)


def release(journal: Journal, incarnation: str, cause: Cause | None = None, **proof: Any) -> None:
    journal.emit(
        WorkerReleased(
            at=1011.0,
            incarnation=incarnation,
            exit_status=0,
            signal=None,
            cause=cause,
            reclaim=reclaim(**proof),
        )
    )


def run_start(
    journal: Journal, start: WorkerStart, incarnation: str, *, prompts: Sequence[str] = PROMPTS, **metadata: Any
) -> None:
    """A worker that measured all its points, each well, and was torn down."""
    launch(journal, start, incarnation, **metadata)
    for point in start.points:
        run_point(journal, point, incarnation, prompts=prompts)
        journal.emit(ended(point=point.id))
    release(journal, incarnation)


def end(journal: Journal, exit_code: int = 0, reason: str = "") -> None:
    journal.emit(RunEnded(at=1020.0, exit_code=exit_code, wall_s=20.0, measured_s=8.0, reason=reason))
    journal.close()


def finished_run(run_dir: Path) -> Plan:
    """Both methods ran all points; repeat 1 twice as fast as repeat 0."""
    plan = a_plan()
    journal = begin(run_dir, plan)
    for number, one in enumerate(plan.starts):
        incarnation = f"w{number}-x"
        launch(journal, one, incarnation)
        for point in one.points:
            run_point(journal, point, incarnation, wall_s=0.5 / (point.repeat + 1))
            journal.emit(ended("ok", point=point.id))
        release(journal, incarnation)
    end(journal)
    return plan
