"""What is told of a worker: its events for the journal, its snapshot for the live view."""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator.events import StateChanged, WorkerLaunched, WorkerReady, WorkerReleased
from orchestrator.outcomes import Cause
from orchestrator.progress import WorkerProgress
from orchestrator.run.course import Course
from orchestrator.run.cpusets import listed
from orchestrator.run.incarnation import Incarnation
from orchestrator.run.life import Life, State
from orchestrator.run.reclaim import total
from orchestrator.stores.logs import slow_paths
from protocol.records import RuntimeMetadata


def launched(worker: Incarnation, run_dir: Path) -> WorkerLaunched:
    method = worker.start.config.method
    return WorkerLaunched(
        at=time.time(),
        incarnation=worker.name,
        method=method.name,
        engine=method.engine,
        env=worker.env.name,
        fingerprint=worker.env.fingerprint.digest,
        slot=worker.watch.slot.name,
        pid=worker.handle.pid or 0,
        log=str(worker.log.relative_to(run_dir)),
        artefacts=worker.loan.state,
        cpus=listed(worker.watch.slot.cpus),
        early=worker.early,
        start=worker.start.key,
    )


def state_changed(worker: Incarnation, before: Life, after: Life, now: float) -> StateChanged:
    spent_s = round(now - before.since, 6)
    return StateChanged(at=time.time(), incarnation=worker.name, state=after.state.value, after_s=spent_s)


def ready(worker: Incarnation, metadata: RuntimeMetadata) -> WorkerReady:
    fingerprint = worker.env.fingerprint.digest
    return WorkerReady(at=time.time(), incarnation=worker.name, metadata=metadata, fingerprint=fingerprint)


def released(worker: Incarnation, cause: Cause | None) -> WorkerReleased:
    """The proof of teardown. Removes the segments that the worker left in /dev/shm."""
    life = worker.life
    proof = worker.watch.proof(
        left=len(worker.processes.left),
        strays=worker.processes.strays,
        returned=life.state is State.RELEASED,
        teardown_s=worker.teardown_s,
        rung=life.rung,
    )
    return WorkerReleased(
        at=time.time(),
        incarnation=worker.name,
        exit_status=life.exited.status if life.exited else None,
        signal=life.exited.signal if life.exited else None,
        cause=cause,
        reclaim=proof,
        metadata=worker.metadata,
        dropped=dict(worker.hearing.dropped),
        slow_paths=slow_paths(worker.log),
    )


def progress(worker: Incarnation, course: Course, *, at_work: bool) -> WorkerProgress:
    """`at_work`: not only standing by."""
    point, watch = course.point if at_work else None, worker.watch
    held_bytes = worker.last_beat.memory.host_rss_bytes if worker.last_beat else None
    sizes = [device.total_bytes for device in watch.slot.devices]
    return WorkerProgress(
        slot=watch.slot.name,
        incarnation=worker.name,
        method=worker.start.config.method.name,
        state=worker.life.state.value,
        point=point.id if point else "",
        settings={"batch_size": point.config.batch_size} if point else {},
        batches_done=course.batches_done,
        batches_total=course.batches_total,
        tokens_per_s=course.tokens_per_s or None,
        memory_bytes=(watch.peak_bytes if at_work else None) if sizes else held_bytes,
        memory_total_bytes=total(sizes) if sizes else None,
    )
