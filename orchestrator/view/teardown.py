"""What became of each worker, and the proof that nothing of it is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from msgspec import to_builtins

from orchestrator.reclaim import Reclaim
from orchestrator.view.markup import cell, grid
from orchestrator.view.phrases import waited_text
from orchestrator.view.runview import RunView, Worker
from orchestrator.view.wording import UNKNOWN, bytes_text, or_unknown, seconds_text

_HEAD = ("worker", "method", "exit", "rung", "processes left", "strays killed", "held before", "left after")
_TAIL = ("returned", "back after", "teardown", "notes")
_NO_PROOF = "no proof: still running, or its coordinator ended first"


def workers(view: RunView) -> Iterator[dict[str, Any]]:
    """All that each was and said, and its teardown; plain JSON values. What never came is null."""
    for worker in view.workers.values():
        yield {
            **to_builtins(worker.launched),
            "state": worker.state,
            "points": worker.points,
            "ready": None if worker.ready is None else to_builtins(worker.ready.metadata),
            "released": None if worker.released is None else to_builtins(worker.released),
        }


def incidents(view: RunView) -> dict[str, Any]:
    """What the run met beside its workers; plain JSON values."""
    return {
        "survivors_ended": to_builtins(view.survivors),
        "waits": to_builtins(view.waits),
        "slots_out_of_use": to_builtins(view.quarantined),
    }


def moment(at: float) -> str:
    """Unix seconds as the reader's clock shows them, with its zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at))


def markdown(view: RunView) -> Iterator[str]:
    yield from grid([*_HEAD, *_TAIL], [_proof(worker) for worker in view.workers.values()])
    for reaped in view.survivors:
        yield ""
        yield f"Before start at {moment(reaped.at)} ended: {', '.join(map(cell, reaped.processes))}."
    for wait in view.waits:
        yield f"- {cell(waited_text(wait))}"
    for slot in view.quarantined:
        after = f" (after {cell(slot.incarnation)})" if slot.incarnation else ""
        yield ""
        yield f"**{cell(slot.slot)} was taken out of use: {cell(slot.reason)}{after}.**"


def _proof(worker: Worker) -> list[object]:
    named = [worker.launched.incarnation, worker.launched.method]
    released = worker.released
    if released is None:
        return [*named, _NO_PROOF, *[UNKNOWN] * (len(_HEAD) + len(_TAIL) - len(named) - 1)]
    proof = released.reclaim
    end = released.signal or (UNKNOWN if released.exit_status is None else str(released.exit_status))
    strays = ", ".join(proof.strays_killed) or "none"
    held, after = (or_unknown(value, bytes_text) for value in (proof.held_bytes, proof.after_bytes))
    times = (seconds_text(proof.wait_s), seconds_text(proof.teardown_s))
    gone = [*named, end, proof.rung, proof.processes_left, strays, held, after]
    return [*gone, _returned(proof), *times, _notes(proof)]


def _returned(proof: Reclaim) -> str:
    return f"yes, within {bytes_text(proof.tolerance_bytes)}" if proof.returned else "NO"


def _notes(proof: Reclaim) -> str:
    shm = [f"removed from /dev/shm: {', '.join(proof.shm_removed)}"] if proof.shm_removed else []
    return "; ".join([*shm, *proof.notes]) or UNKNOWN
