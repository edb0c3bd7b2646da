"""After a run: how what ran differs between methods, and between the workers of one method. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.judge.effective import KV_TOLERANCE, Ran, deviations
from orchestrator.judge.findings import Finding, Level, differ, merged, value_text
from protocol.records import RuntimeMetadata
from protocol.specs import load_fields

LoadCell = tuple[Any, ...]
_LOAD_CELL: Final = tuple(name for name in load_fields() if name != "method")


@dataclass(frozen=True)
class _Fact:
    """What the workers say, and what a difference between methods means.

    absent  what None stands for; empty where it stands for "not told", which is no difference

    What all are asked alike by a setting (prefix caching, parallel sizes, stop ids) is not among them: there a
    difference between methods is one from what was asked.
    """

    what: str
    read: Callable[[RuntimeMetadata], Any]
    level: Level
    why: str
    absent: str = ""
    advice: str = ""


def _models(devices: Sequence[str]) -> list[str] | None:
    """Names of devices, where the engine tells these and not which ones of a machine it got."""
    names = sorted(name for name in devices if not name.isdigit() and not name.startswith(("GPU-", "MIG-")))
    return names or None


_DESIGN: Final = "the methods differ in it by design"
_FACTS: Final = (
    _Fact("dtype", lambda m: m.dtype, "warning", "speed and outputs depend on the number format"),
    _Fact(
        "KV cache dtype",
        lambda m: m.dtype if m.settings.kv_cache_dtype in ("auto", None) else m.settings.kv_cache_dtype,
        "warning",
        "speed and outputs depend on the number format",
    ),
    _Fact("image processor", lambda m: m.settings.image_processor, "warning", "the model sees other pixels"),
    _Fact("quantization", lambda m: m.settings.quantization, "warning", "the weights are not the same numbers", "none"),
    _Fact("attention", lambda m: m.attention_backend, "note", _DESIGN),
    _Fact("batching", lambda m: m.settings.batching, "note", "a static batch ends with its longest row"),
    _Fact(
        "chunked prefill",
        lambda m: m.settings.chunked_prefill,
        "note",
        "prefill in chunks beside decode trades time to first token for time between tokens",
        "none",
    ),
    _Fact("scheduler", lambda m: m.settings.scheduler, "note", "it decides who waits", "none"),
    _Fact("sampler", lambda m: m.settings.sampler, "note", "drawing a token costs time of its own in each step"),
    _Fact("CUDA graphs", lambda m: m.settings.cuda_graphs, "note", _DESIGN, "none"),
    _Fact("compilation", lambda m: m.settings.compile_mode, "note", _DESIGN, "none"),
    _Fact("speculation", lambda m: m.settings.speculation, "note", _DESIGN, "none"),
    _Fact(
        "sequences at once",
        lambda m: m.settings.max_num_seqs,
        "note",
        "it bounds how many sequences a step takes",
    ),
    _Fact(
        "tokens per step",
        lambda m: m.settings.max_num_batched_tokens,
        "note",
        "prefill is cut into pieces of different size",
        advice="set max_num_batched_tokens",
    ),
    _Fact("max length", lambda m: m.max_model_len, "note", "buffers and graphs are sized by it"),
    _Fact("memory share", lambda m: m.settings.memory_share, "note", "each engine counts its share in its own way"),
    _Fact("end of sequence", lambda m: m.settings.eos, "warning", "outputs end elsewhere"),
    _Fact("device", lambda m: _models(m.devices), "warning", "another device is another speed"),
    _Fact(
        "torch",
        lambda m: m.torch_version,
        "note",
        "kernels change with it; engines pin their own, so it can't be helped",
    ),
)
_THREADS: Final = "threads"

_SETTINGS: Final = (
    *("batching", "max_num_seqs", "max_num_batched_tokens", "chunked_prefill", "prefix_caching"),
    *("cuda_graphs", "compile_mode", "speculation", "kv_cache_dtype", "quantization", "memory_share"),
    *("scheduler", "sampler"),
)


def _setting(name: str) -> Callable[[Ran], Any]:
    return lambda ran: getattr(ran.metadata.settings, name)


#: What must not change between two workers of one method.
_SAME: Final[dict[str, Callable[[Ran], Any]]] = {
    "engine": lambda r: r.metadata.engine_version,
    "torch": lambda r: r.metadata.torch_version,
    "environment": lambda r: r.fingerprint,
    "device": lambda r: _models(r.metadata.devices),
    "dtype": lambda r: r.metadata.dtype,
    "attention": lambda r: r.metadata.attention_backend,
    "max length": lambda r: r.metadata.max_model_len,
    "threads": lambda r: r.metadata.threads,
    **{name: _setting(name) for name in _SETTINGS},
    "patches": lambda r: sorted(r.metadata.patches),
}


def lint(ran: Sequence[Ran], reference: str | None) -> list[Finding]:
    """All that is not as asked, not the same in all methods, or not the same in all workers of one;
    warnings first. A difference is about the points of the methods that are not as `reference` is."""
    cells = load_cells(ran)
    between = (one for cell in cells for one in _between(cell, reference))
    within = (one for cell in cells for group in by_method(cell).values() for one in _within(group))
    return merged([*deviations(ran), *between, *within, *_own_word(ran)])


def load_cells(ran: Iterable[Ran]) -> list[list[Ran]]:
    """Workers with the same load-time settings, which alone may be compared."""
    cells: dict[LoadCell, list[Ran]] = {}
    for worker in ran:
        cells.setdefault(tuple(getattr(worker.config, name) for name in _LOAD_CELL), []).append(worker)
    return list(cells.values())


def by_method(cell: Iterable[Ran]) -> dict[str, list[Ran]]:
    found: dict[str, list[Ran]] = {}
    for worker in cell:
        found.setdefault(worker.method, []).append(worker)
    return found


#: Facts that any worker can tell, and Airlock's own adapters do.
_TELLABLE: Final = ("dtype", "attention", "batching", "end of sequence")


def _own_word(ran: Iterable[Ran]) -> Iterator[Finding]:
    """Of workers that are programs of their own: nobody but their authors has checked what they say."""
    for worker in (one for one in ran if one.config.method.worker):
        untold = [f.what for f in _FACTS if f.what in _TELLABLE and f.read(worker.metadata) is None]
        yield Finding(
            level="note",
            what="by its own worker's word",
            who={worker.method: f"not told: {', '.join(untold)}" if untold else "all that matters is told"},
            why="what it was asked and does not say that it honours is for its author to check",
            points=worker.points,
        )


# --- between methods --------------------------------------------------------------


def _between(cell: Sequence[Ran], reference: str | None) -> Iterator[Finding]:
    methods = by_method(cell)
    for fact in (*_FACTS, _threads(cell)):
        who = {name: _said(workers, fact) for name, workers in methods.items()}
        told = {name: value for name, value in who.items() if value}
        if differ(told):
            yield Finding(
                level=fact.level,
                what=fact.what,
                who=told,
                why=fact.why,
                advice=fact.advice,
                points=_unlike(methods, told, reference),
            )
    yield from _drafts(methods, reference)
    yield from _capacity(methods)


def _said(workers: Sequence[Ran], fact: _Fact) -> str:
    """Of the first worker; a change between workers is told on its own. Empty if it is not known."""
    value = fact.read(workers[0].metadata)
    return fact.absent if value is None else value_text(value)


def _threads(cell: Sequence[Ran]) -> _Fact:
    on_cpu = any(worker.config.device == "cpu" for worker in cell)
    return _Fact(
        _THREADS,
        lambda m: m.threads,
        "warning" if on_cpu else "note",
        "one method computes with more threads than another",
        advice="set OMP_NUM_THREADS in env_vars of each method" if on_cpu else "",
    )


def _unlike(methods: Mapping[str, Sequence[Ran]], told: Mapping[str, str], reference: str | None) -> tuple[str, ...]:
    """Points of the methods that are not as the reference is, or as the first where it is not here."""
    usual = told.get(reference or "", next(iter(told.values())))
    return tuple(p for name, value in told.items() if value != usual for worker in methods[name] for p in worker.points)


def _drafts(methods: Mapping[str, Sequence[Ran]], reference: str | None) -> Iterator[Finding]:
    """Of those that speculate alone."""
    settings = {name: workers[0].metadata.settings for name, workers in methods.items()}
    drafting = {
        n: s.draft_tokens for n, s in settings.items() if s.speculation not in (None, "none") and s.draft_tokens
    }
    told = {name: f"{tokens} tokens" for name, tokens in drafting.items()}
    if differ(told):
        why = "what they draft differs, and so how much speculation can help"
        points = _unlike(methods, told, reference)
        yield Finding(level="warning", what="draft", who=told, why=why, points=points)


def _capacity(methods: Mapping[str, Sequence[Ran]]) -> Iterator[Finding]:
    """KV caches of different size matter only where one of them can't hold the largest batch at full length."""
    sizes = {name: workers[0].metadata.kv_cache_tokens for name, workers in methods.items()}
    known = {name: size for name, size in sizes.items() if size}
    if not known or max(known.values()) <= min(known.values()) * (1 + KV_TOLERANCE):
        return
    small = {name for name, size in known.items() if size < _needed(methods[name][0])}
    why = (
        "the smaller one can't hold the largest batch at its full length: sequences wait, or are computed twice"
        if small
        else "each holds the largest batch at its full length, so nothing waits for it"
    )
    yield Finding(
        level="warning" if small and len(small) < len(known) else "note",
        what="KV cache",
        who={name: f"{size} tokens" for name, size in known.items()},
        why=why,
        advice="set kv_cache_bytes" if small else "",
        points=tuple(point for name in small for worker in methods[name] for point in worker.points),
    )


def _needed(ran: Ran) -> int:
    length = ran.config.max_model_len or ran.metadata.max_model_len
    return ran.config.batch_size * length if length else 0


# --- between workers of one method --------------------------------------------------


def _within(workers: Sequence[Ran]) -> Iterator[Finding]:
    for what, read in _SAME.items():
        values = [value_text(value) for worker in workers if (value := read(worker)) not in (None, "", [])]
        if len(set(values)) > 1:
            yield _changed(workers, what, " and ".join(dict.fromkeys(values)))
    sizes = [size for worker in workers if (size := worker.metadata.kv_cache_tokens)]
    if sizes and max(sizes) > min(sizes) * (1 + KV_TOLERANCE):
        yield _changed(workers, "KV cache", f"{min(sizes)} and {max(sizes)} tokens")


def _changed(workers: Sequence[Ran], what: str, values: str) -> Finding:
    return Finding(
        level="warning",
        what=f"{what} changed between its workers",
        who={workers[0].method: values},
        why="its repeats and cells did not run the same thing",
        points=tuple(dict.fromkeys(point for worker in workers for point in worker.points)),
    )
