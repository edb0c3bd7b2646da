"""What the workers of a row took to load, held and gave back: by their own word, and from outside."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.view.phrases import given_back_bytes
from orchestrator.view.runview import Worker
from protocol.records import LoadTimes, RuntimeMetadata

#: Of LoadTimes, in the order in which they pass. All but the first are inside total_s.
PARTS = ("import_s", "tokenizer_s", "weights_s", "kv_cache_s", "compile_s", "warmup_s", "total_s")
_CPU = "cpu"
_N = TypeVar("_N", int, float)


@dataclass(frozen=True)
class Load:
    """Means over the workers that tell; None where none does. `parts` by the names of LoadTimes.

    compiles           whether any of them compiled, or captured graphs, by the time it was ready
    cold_s, warm_s     total_s of workers that had to compile everything, and of those that were lent artefacts
    warmup_batches_s   one of the unmeasured batches before each point
    warmups_lost       how many of these failed
    """

    workers: int = 0
    parts: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(PARTS))
    compiles: bool | None = None
    cold_s: float | None = None
    warm_s: float | None = None
    warmup_batches_s: float | None = None
    warmups_lost: int = 0

    @property
    def total_s(self) -> float | None:
        return self.parts["total_s"]


@dataclass(frozen=True)
class Memory:
    """The highest that any worker of the row came to, in bytes. `peak` is device memory on a GPU, host memory on a
    CPU, from whoever saw more of it."""

    peak: int | None = None
    device_peak: int | None = None
    host_peak: int | None = None
    device_peak_allocated: int | None = None
    weights: int | None = None
    graphs: int | None = None
    kv_cache: int | None = None
    fragmentation: float | None = None


@dataclass(frozen=True)
class Returned:
    """`ok`: the memory of all its workers came back; None if no teardown is known. The rest is of the worker that
    took longest: of `held` bytes, just before teardown, `amount` came back."""

    ok: bool | None = None
    amount: int | None = None
    wait_s: float | None = None
    held: int | None = None


def load(workers: Sequence[Worker], warmups_s: Sequence[float], warmups_lost: int) -> Load:
    ready = [(worker.launched.artefacts, worker.ready.metadata.load) for worker in workers if worker.ready]
    cold_s, warm_s = ([one.total_s for artefacts, one in ready if artefacts == kind] for kind in ("cold", "warm"))
    return Load(
        workers=len(ready),
        parts={name: mean(_told((one for _, one in ready), name)) for name in PARTS},
        compiles=_compiles([worker.ready.metadata for worker in workers if worker.ready]),
        cold_s=mean(cold_s),
        warm_s=mean(warm_s),
        warmup_batches_s=mean(warmups_s),
        warmups_lost=warmups_lost,
    )


def _compiles(told: Sequence[RuntimeMetadata]) -> bool | None:
    graphs = (one.settings.cuda_graphs or "none" for one in told)
    found = [True if captured != "none" else one.compiled for one, captured in zip(told, graphs, strict=True)]
    return True if True in found else None if None in found or not found else False


def _told(times: Iterable[LoadTimes], name: str) -> list[float]:
    """An import of no time at all is one that nobody measured."""
    found = (getattr(one, name) for one in times)
    return [value for value in found if value is not None and (value or name != "import_s")]


def memory(workers: Sequence[Worker], told: Iterable[int | None]) -> Memory:
    """`told`: the peaks that came with the batches."""
    proofs = [worker.released.reclaim for worker in workers if worker.released]
    last = [found for worker in workers if (found := last_metadata(worker))]
    gpu = any(device != _CPU for device in (*(one.device for one in last), *(proof.device for proof in proofs)))
    seen = _most([*(proof.peak_bytes for proof in proofs), *told])
    return Memory(
        peak=seen,
        device_peak=_most([seen if gpu else None, *(one.memory.device_peak_bytes for one in last)]),
        host_peak=_most([None if gpu else seen, *(one.memory.host_peak_rss_bytes for one in last)]),
        device_peak_allocated=_most([one.memory.device_peak_allocated_bytes for one in last]),
        weights=_most([one.memory.weights_bytes for one in last]),
        graphs=_most([one.memory.graphs_bytes for one in last]),
        kv_cache=_most([one.kv_cache_bytes for one in last]),
        fragmentation=_most([one.memory.fragmentation for one in last]),
    )


def returned(workers: Sequence[Worker]) -> Returned:
    proofs = [worker.released.reclaim for worker in workers if worker.released]
    if not proofs:
        return Returned()
    slowest = max(proofs, key=lambda proof: proof.wait_s)
    whole = all(proof.returned and not proof.processes_left for proof in proofs)
    return Returned(whole, given_back_bytes(slowest), slowest.wait_s, slowest.held_bytes)


def _most(values: Sequence[_N | None]) -> _N | None:
    return max((value for value in values if value is not None), default=None)


def last_metadata(worker: Worker) -> RuntimeMetadata | None:
    """What it said at its end, or else when it was ready."""
    if worker.released and worker.released.metadata:
        return worker.released.metadata
    return worker.ready.metadata if worker.ready else None


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
