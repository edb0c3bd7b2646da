"""The part of the report that says what the engines were, by their own word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orchestrator.view import burden
from orchestrator.view.markup import grid
from orchestrator.view.runview import RunView, Worker
from orchestrator.view.wording import UNKNOWN, bytes_text, engine_text, listed, or_unknown, seconds_text, setting_text
from protocol.records import EngineSettings

TIMES = """\
Import: the engine's libraries, in a worker that then waits for its order to load. Load: from that order until ready;
the import is not in it, but what an engine imports again in processes of its own is. Means over the workers named."""

#: Of workers that ran the same; all are under `workers` of `report --json`.
_LISTED = 50

_METADATA: dict[str, Callable[[Any], object]] = {
    "engine": lambda m: engine_text(m.engine, m.engine_version),
    "torch": lambda m: m.torch_version,
    "transformers": lambda m: m.transformers_version,
    "Python": lambda m: m.python_version,
    "device": lambda m: ", ".join(m.devices) or m.device,
    "dtype": lambda m: m.dtype,
    "attention": lambda m: m.attention_backend,
    "KV tokens": lambda m: m.kv_cache_tokens,
    "KV bytes": lambda m: or_unknown(m.kv_cache_bytes, bytes_text),
    "max length": lambda m: m.max_model_len,
    "compiled": lambda m: None if m.compiled is None else setting_text(m.compiled),
    "threads": lambda m: m.threads,
    "ranks": lambda m: _ranks(m.settings),
}


def _ranks(settings: EngineSettings) -> str | None:
    """ "3 (tensor)", "2 × 2 (tensor × pipeline)"; "1" where nothing is cut"""
    sizes = {"tensor": settings.tensor_parallel_size, "pipeline": settings.pipeline_parallel_size}
    if not any(sizes.values()):
        return None
    cut = {name: size for name, size in sizes.items() if size is not None and size > 1}
    return f"{' × '.join(map(str, cut.values()))} ({' × '.join(cut)})" if cut else "1"


def environments(view: RunView) -> list[dict[str, Any]]:
    """Each environment and fingerprint that workers were started in, with their methods; plain JSON values."""
    used: dict[tuple[str, str], set[str]] = {}
    for worker in view.workers.values():
        launched = worker.launched
        used.setdefault((launched.env, launched.fingerprint), set()).add(launched.method)
    return [
        {"environment": env, "fingerprint": digest, "methods": sorted(methods)}
        for (env, digest), methods in used.items()
    ]


def what_ran(view: RunView) -> Iterator[str]:
    """Read back from the engines, never from what was asked. Workers that ran the same share a line."""
    seen: dict[tuple[str, ...], list[Worker]] = {}
    for worker in view.workers.values():
        if worker.ready:
            values = [read(worker.ready.metadata) for read in _METADATA.values()]
            line = (worker.launched.method, *(UNKNOWN if v is None else str(v) for v in values))
            seen.setdefault(line, []).append(worker)
    body = [(*line, *_times(workers), _names(workers)) for line, workers in seen.items()]
    yield from grid(["method", *_METADATA, "import", "load", "workers"], body)
    if body:
        yield ""
        yield TIMES


def _times(workers: Sequence[Worker]) -> tuple[str, str]:
    """Import and load."""
    parts = burden.load(workers, (), 0).parts
    return or_unknown(parts["import_s"], seconds_text), or_unknown(parts["total_s"], seconds_text)


def _names(workers: Sequence[Worker]) -> str:
    return listed([worker.launched.incarnation for worker in workers], _LISTED)
