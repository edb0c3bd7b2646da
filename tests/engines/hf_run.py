"""Runs in an interpreter of Transformers: several methods one after the other in one process, for one import.

Only for methods that compile nothing: dynamo's counters and graphs belong to a process.

    python hf_run.py REQUEST RESPONSE
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct, msgpack

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from protocol.records import BatchStats, Generation, RuntimeMetadata
from protocol.specs import BackendConfig, PromptBatch


class Job(Struct):
    """One load, and the batches that it is given."""

    config: BackendConfig
    batches: list[PromptBatch]


class Done(Struct):
    """What one batch gave, or the message of what it raised."""

    generations: list[Generation]
    stats: BatchStats | None = None
    error: str = ""


class Result(Struct):
    """None for `metadata`: the load raised `error`."""

    metadata: RuntimeMetadata | None
    done: list[Done]
    error: str = ""


def main(request: str, response: str) -> None:
    jobs = msgpack.decode(Path(request).read_bytes(), type=list[Job])
    Path(response).write_bytes(msgpack.encode([_work(job) for job in jobs]))


def _work(job: Job) -> Result:
    from workers.backends.hf_backend import HfBackend

    backend = HfBackend(job.config)
    try:
        backend.load()
        done = [_run(backend, batch) for batch in job.batches]
        return Result(backend.runtime_metadata(), done)
    except Exception as exc:
        return Result(None, [], f"{type(exc).__name__}: {exc}")
    finally:
        backend.shutdown()


def _run(backend: object, batch: PromptBatch) -> Done:
    from workers.backends.hf_backend import HfBackend

    assert isinstance(backend, HfBackend)
    try:
        return Done(*backend.generate(batch))
    except Exception as exc:
        return Done([], error=f"{type(exc).__name__}: {exc}")


if __name__ == "__main__":
    main(*sys.argv[1:])
