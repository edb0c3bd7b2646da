"""Lengths and memory that every engine of a sweep must share. Pure.

Left alone, each engine picks its own context length and KV cache size, and the
comparison would partly be one of defaults. What the sweep leaves open is
resolved here once, from what the sweep needs, and written into every config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from msgspec.structs import fields

from orchestrator.definition.inputs import ModelInfo, PromptSet
from orchestrator.definition.memory import KV_VALUE_BYTES, VALUE_BYTES, kv_dtype_of, rank_share, window_share
from orchestrator.definition.places import Places
from orchestrator.errors import Problem
from orchestrator.view.wording import listed
from protocol.buckets import batch_sizes, choose
from protocol.specs import BackendConfig, MethodSpec, Task

#: vLLM's largest default block: a length that is a multiple wastes no block.
BLOCK_TOKENS: Final = 128
MIB: Final = 1024 * 1024
KV_STEP_BYTES: Final = 64 * MIB
KV_LEAST_BYTES: Final = 256 * MIB
LISTED_PROMPTS: Final = 20
#: Engines need room for one more token than they score: some make one all the same, and it is thrown away.
SCORING_NEW_TOKENS: Final = 1

Cell = Mapping[str, Any]
_DEFAULTS: Final = {f.name: f.default for f in fields(BackendConfig)}
_TOO_LONG: Final[dict[Task, tuple[str, str]]] = {
    "generate": ("{} new tokens", "shorten them, or lower max_new_tokens"),
    "score": ("their continuations and {} more token", "shorten them"),
}


def of(cell: Cell, name: str) -> Any:
    """A field's value in a cell: BackendConfig's default where the cell does not give it."""
    return cell.get(name, _DEFAULTS[name])


def distinct(cells: Iterable[Cell], *names: str) -> list[Cell]:
    """The cells as far as these fields go, each once: what depends on no others is the same in all of a kind."""
    cells = list(cells)
    given = [(name, _DEFAULTS[name]) for name in names if any(name in cell for cell in cells)]
    found = dict.fromkeys(tuple([cell.get(name, default) for name, default in given]) for cell in cells)
    return [dict(zip((name for name, _ in given), values, strict=True)) for values in found]


def length_need(cells: Iterable[Cell], prompts: PromptSet) -> int:
    """Tokens: the longest prompt and the most new tokens of the sweep, or its longest continuation to score."""
    most_new: dict[Task, int] = {}
    for cell in distinct(cells, "task", "max_new_tokens"):
        task = of(cell, "task")
        most_new[task] = max(most_new.get(task, 0), _new_tokens(cell))
    return max(_longest(prompts, task) + new for task, new in most_new.items())


def model_length(need: int, model: ModelInfo) -> int:
    """The max_model_len of all cells that give none: what is needed in whole blocks, within the model's context."""
    blocks = -(-need // BLOCK_TOKENS) * BLOCK_TOKENS
    return blocks if model.context_length is None else min(blocks, model.context_length)


def kv_need(cells: Iterable[Cell], model: ModelInfo) -> int:
    """The sweep's largest batch at full length, plus the block that vLLM keeps for itself. Bytes on one rank: engines
    are told the size of a rank's cache."""
    kinds = distinct(cells, "batch_size", "max_model_len", *_TOKEN_FIELDS)
    token_bytes = _all_token_bytes(kinds, model)
    need: int = max((of(c, "batch_size") * _blocks(c) + BLOCK_TOKENS) * token_bytes(c) for c in kinds)
    return need


def kv_bytes(need: int) -> int:
    """The kv_cache_bytes of all cells that give none: what is needed in whole steps, or the least that is set."""
    return max(KV_LEAST_BYTES, -(-need // KV_STEP_BYTES) * KV_STEP_BYTES)


def length_problems(cells: Sequence[Cell], model: ModelInfo, prompts: PromptSet, places: Places) -> list[Problem]:
    """Prompts that with the new tokens exceed a limit; one rule for all engines, nothing is truncated."""
    found: list[Problem] = []
    most_new: dict[tuple[str, int, Task], int] = {}
    for cell in distinct(cells, "task", "max_model_len", "max_new_tokens"):
        for name, limit in _limits(cell, model):
            bound = name, limit, of(cell, "task")
            most_new[bound] = max(most_new.get(bound, 0), _new_tokens(cell))
    for (name, limit, task), new in most_new.items():
        lengths = ((p, p.sent_tokens(task)) for p in prompts.prompts)
        over = [f"{p.id} ({n} tokens{p.where and f', {p.where}'})" for p, n in lengths if n + new > limit]
        if over:
            what, hint = _TOO_LONG[task]
            message = f"too long with {what.format(new)} for {name} of {limit}: {listed(over, LISTED_PROMPTS)}"
            found.append(places.problem("prompts", message, hint))
    return found + _context_problems(cells, model, places)


def bucket_problems(
    methods: Sequence[MethodSpec], cells: Sequence[Cell], model: ModelInfo, prompts: PromptSet, places: Places
) -> list[Problem]:
    """Padded lengths that no prompt may have, and prompts longer than all of them, where Transformers rounds up to
    them; the other engines pad no prompts."""
    if not any(method.engine == "hf" and method.rocket_bucket for method in methods):
        return []
    found = _needless_buckets(cells, model, places)
    for most in sorted({max(lengths) for cell in cells if (lengths := of(cell, "bucket_lengths"))}):
        lengths = ((p, p.sent_tokens("generate")) for p in prompts.prompts)
        over = [f"{p.id} ({n} tokens{p.where and f', {p.where}'})" for p, n in lengths if n > most]
        if over:
            message = f"no bucket is longer than {most}, and these prompts are: {listed(over, LISTED_PROMPTS)}"
            found.append(places.of_field("bucket_lengths", message, "add a length that holds the longest"))
    return found


def bucket_notes(configs: Iterable[BackendConfig]) -> list[str]:
    """Which buckets there will be: by default, or those of the given ones that can occur."""
    return list(dict.fromkeys(_bucket_note(one) for one in configs if one.method.rocket_bucket))


def _bucket_note(config: BackendConfig) -> str:
    name = config.method.name
    if config.method.engine != "hf":
        return f"{name} captures graphs for batches of {_series(batch_sizes(config))}"
    if config.max_model_len is None:
        return f"{name} pads to batches of {_series(batch_sizes(config))}"
    found = choose(config, config.max_model_len)
    return f"{name} pads to batches of {_series(found.batch_sizes)} and prompts of {_series(found.lengths)} tokens"


def _series(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))


def _needless_buckets(cells: Sequence[Cell], model: ModelInfo, places: Places) -> list[Problem]:
    """Within a limit the engine pads to the first length that holds all prompts; one beyond it is a slip."""
    found: dict[tuple[str, int], set[int]] = {}
    for cell in distinct(cells, "bucket_lengths", "max_model_len"):
        for limit in _limits(cell, model):
            over = {length for length in of(cell, "bucket_lengths") or () if length > limit[1]}
            found.setdefault(limit, set()).update(over)
    return [
        places.of_field(
            "bucket_lengths",
            f"no prompt can be so long: {_series(sorted(over))} with {name} of {limit}",
            f"{limit} is the most",
        )
        for (name, limit), over in found.items()
        if over
    ]


def kv_problems(
    methods: Sequence[MethodSpec], cells: Sequence[Cell], model: ModelInfo, places: Places
) -> list[Problem]:
    """KV caches too small for a single sequence of full length: engines refuse them, after minutes of loading. Of
    layers with a window no more is counted than the window, and what a method makes narrower is so."""
    found = []
    kinds = distinct(cells, "kv_cache_bytes", "max_model_len", *_TOKEN_FIELDS)
    token_bytes = _all_token_bytes(kinds, model)
    for cell in kinds:
        given, length = of(cell, "kv_cache_bytes"), of(cell, "max_model_len") or 0
        ranks = of(cell, "tensor_parallel_size"), of(cell, "pipeline_parallel_size")
        share = window_share(model.shape, length, *ranks) * _width(methods, cell, model)
        need = int(length * token_bytes(cell) * share)
        if given is not None and given < need:
            message = f"{given} can't hold one sequence of max_model_len {length}, which takes {need}"
            found.append(places.of_field("kv_cache_bytes", message, f"{need} or more"))
    return list(dict.fromkeys(found))


def _width(methods: Sequence[MethodSpec], cell: Cell, model: ModelInfo) -> Fraction:
    """Of the widest cache that a method makes, by the model's; nothing is known of names that are not."""
    dtype = of(cell, "dtype")
    own = VALUE_BYTES.get(model.dtype or "" if dtype == "auto" else dtype)
    names = [kv_dtype_of(method) for method in methods]
    widths = [Fraction(KV_VALUE_BYTES.get(name, 0)) / Fraction(own) for name in names if name != "auto" and own]
    return max([*widths, *[Fraction(1)] * (len(widths) < len(names))], default=Fraction(1))


def head_problems(
    methods: Sequence[MethodSpec], cells: Sequence[Cell], model: ModelInfo, places: Places
) -> list[Problem]:
    """Heads that tensor parallelism can't share out evenly; engines find out when they load. Where there are fewer
    heads of keys and values than devices, vLLM and SGLang give each device a copy of one; Transformers does not."""
    if model.shape is None:
        return []
    queries = {model.shape.attention_heads or 0}
    keys = {part.heads for part in model.shape.layers if part.kind in ("full", "sliding")}
    found = []
    for size in sorted({of(cell, "tensor_parallel_size") for cell in cells}):
        for method in methods:
            odd = sorted(heads for heads in queries | (keys if method.engine == "hf" else set()) if heads % size)
            if odd:
                message = f"{size} does not divide the model's {_series(odd)} attention heads, as {method.name} needs"
                found.append(places.of_field("tensor_parallel_size", message))
    return found


def _limits(cell: Cell, model: ModelInfo) -> list[tuple[str, int]]:
    both = (("the model's context", model.context_length), ("max_model_len", of(cell, "max_model_len")))
    return [(name, limit) for name, limit in both if limit is not None]


def _context_problems(cells: Sequence[Cell], model: ModelInfo, places: Places) -> list[Problem]:
    context = model.context_length
    over = {n for c in cells if (n := of(c, "max_model_len")) is not None and context is not None and n > context}
    message = f"the model's context is {context} tokens"
    return [places.of_field("max_model_len", f"{n} is too much: {message}") for n in sorted(over)]


def _blocks(cell: Cell) -> int:
    """Tokens that one sequence may take, in whole blocks."""
    return -(-(of(cell, "max_model_len") or 0) // BLOCK_TOKENS) * BLOCK_TOKENS


_TOKEN_FIELDS: Final = ("dtype", "tensor_parallel_size", "pipeline_parallel_size")


def _all_token_bytes(cells: Iterable[Cell], model: ModelInfo) -> Callable[[Cell], int]:
    """`_token_bytes` of any of these cells."""

    def kind(cell: Cell) -> tuple[Any, ...]:
        return tuple([of(cell, name) for name in _TOKEN_FIELDS])

    known = {kind(cell): _token_bytes(cell, model) for cell in distinct(cells, *_TOKEN_FIELDS)}
    return lambda cell: known[kind(cell)]


def _token_bytes(cell: Cell, model: ModelInfo) -> int:
    """KV bytes of a token on one rank, in the cell's dtype; 0 where the model does not tell."""
    stored = VALUE_BYTES.get((model.dtype or "").removeprefix("torch."))
    factor = VALUE_BYTES.get(of(cell, "dtype"), stored) / stored if stored else 1
    held = rank_share(model.shape, of(cell, "tensor_parallel_size"), of(cell, "pipeline_parallel_size"))
    return int((model.kv_bytes_per_token or 0) * Fraction(factor) * held)


def _new_tokens(cell: Cell) -> int:
    return SCORING_NEW_TOKENS if of(cell, "task") == "score" else int(of(cell, "max_new_tokens"))


def _longest(prompts: PromptSet, task: Task) -> int:
    return max((p.sent_tokens(task) for p in prompts.prompts), default=0)
