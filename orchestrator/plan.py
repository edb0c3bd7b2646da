"""From a checked sweep file to the exact points and the order they run in. Pure.

Methods run in the order of the file, one worker start for each combination of
load-time fields. Inside a start the repeats are the outer loop and the cells
the inner one, so that a slow drift (heat, clocks) meets all cells alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo, fields, replace

from orchestrator.config import Limits, Measurement, Policies, SweepConfig
from orchestrator.definition import fits, sizes
from orchestrator.definition.inputs import ModelInfo, PromptSet
from orchestrator.definition.places import Places
from orchestrator.errors import InputError, Problem
from orchestrator.methods import Kind
from protocol.specs import BackendConfig, MethodSpec, call_fields, load_fields

#: Part of every id: raised when the same file comes to mean another measurement.
PLAN_SCHEMA: Final = 2
ID_CHARACTERS: Final = 16
NOT_TOKENISED: Final = (
    "the prompts are not tokenised yet: "
    "max_model_len and kv_cache_bytes are not decided, and the points' ids are provisional"
)


class SweepPoint(Struct, frozen=True):
    """One configuration of one method, measured once. `id` is a digest of all that can change
    the output; `repeat` counts from 0."""

    id: str
    method: str
    config: BackendConfig
    repeat: int


class WorkerStart(Struct, frozen=True):
    """Points that one loaded worker serves, in order.

    env     name of the environment
    config  the load-time fields of all its points; of the call-time fields, batch_size and
            max_new_tokens are the largest of its points, the others mean nothing
    """

    key: str
    env: str
    config: BackendConfig
    points: tuple[SweepPoint, ...]


class Plan(Struct, frozen=True):
    """What a run will do. `notes` say what was decided where the sweep file left it open."""

    name: str
    digest: str
    model: ModelInfo
    prompts_digest: str
    prompt_ids: tuple[str, ...]
    starts: tuple[WorkerStart, ...]
    repeats: int
    warmup: int
    limits: Limits
    policies: Policies = Policies()
    measurement: Measurement = Measurement()
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """All points, in the order they run."""
        return tuple(point for start in self.starts for point in start.points)


def build(
    config: SweepConfig, model: ModelInfo, prompts: PromptSet, device: Kind, *, lengths_known: bool = True
) -> Plan:
    """The plan of a sweep on a machine of this kind. `lengths_known`: the prompts are
    tokenised; without that nothing that depends on lengths is checked or decided.

    Raises InputError with everything that can't run.
    """
    lengths_known = lengths_known and prompts.tokenised
    problems = fits.refusals(config.methods, device, config.places)
    if lengths_known:
        problems += sizes.length_problems(config.cells, model, prompts, config.places)
    cells, notes = _resolved(config, model, prompts, device, lengths_known)
    problems += sizes.kv_problems(cells, model, config.places)
    configs = [_config(method, cell, config, model, device) for method in config.methods for cell in cells]
    problems += fits.misfit_problems(configs, config.places) + _twin_problems(cells, config.places)
    if problems:
        raise InputError(config.places.ordered(problems))
    starts = tuple(_starts(configs, config, model, prompts))
    points = [point.id for start in starts for point in start.points]
    return Plan(
        name=config.name,
        digest=_digest({"points": sorted(points), "warmup": config.warmup, "repeats": config.repeats}),
        model=model,
        prompts_digest=prompts.digest,
        prompt_ids=tuple(p.id for p in prompts.prompts),
        starts=starts,
        repeats=config.repeats,
        warmup=config.warmup,
        limits=config.limits,
        policies=config.policies,
        measurement=config.measurement,
        notes=(*notes, *_batch_notes(cells, prompts)),
    )


def changes(before: Plan, after: Plan) -> list[str]:
    """Why a run begun with `before` can't go on as `after`, a sentence each; empty if it can.
    Limits and policies may change: they measure nothing."""
    if before.digest == after.digest and before.prompt_ids == after.prompt_ids:
        return []
    pairs = {
        "the model": (before.model.digest, after.model.digest),
        "the prompts": (before.prompts_digest, after.prompts_digest),
        "the order or the ids of the prompts": (before.prompt_ids, after.prompt_ids),
        "repeats": (before.repeats, after.repeats),
        "warmup": (before.warmup, after.warmup),
    }
    found = [f"{what} changed since this run began" for what, (old, new) in pairs.items() if old != new]
    return found or _point_changes(before, after)


def _point_changes(before: Plan, after: Plan) -> list[str]:
    old, new = {p.id: p.method for p in before.points}, {p.id: p.method for p in after.points}
    gone = [method for point, method in old.items() if point not in new]
    added = [method for point, method in new.items() if point not in old]
    sentences = {
        "of this run not in the sweep any more": gone,
        "of the sweep not in this run": added,
    }
    return [
        f"{_count(len(methods), 'point')} {what} (methods {', '.join(dict.fromkeys(methods))}): their settings changed"
        for what, methods in sentences.items()
        if methods
    ]


def _resolved(
    config: SweepConfig, model: ModelInfo, prompts: PromptSet, device: Kind, lengths_known: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """The cells with nothing left open that engines would each decide in their own way; and what was decided."""
    cells, notes = [dict(cell) for cell in config.cells], []
    if not lengths_known:
        return cells, [NOT_TOKENISED]
    if any(sizes.of(c, "max_model_len") is None for c in cells):
        length = sizes.model_length(cells, model, prompts)
        cells = [_filled(c, "max_model_len", length) for c in cells]
        notes.append(f"max_model_len {length}: what the longest prompt and max_new_tokens need")
    if device == "cpu" and any(sizes.of(c, "kv_cache_bytes") is None for c in cells):
        size = sizes.kv_bytes(cells, model)
        cells = [_filled(c, "kv_cache_bytes", size) for c in cells]
        notes.append(f"kv_cache_bytes {size} ({size // sizes.MIB} MiB): what the largest batch needs at full length")
    return cells, notes


def _twin_problems(cells: Sequence[dict[str, Any]], places: Places) -> list[Problem]:
    """Null and a number may come to the same value once null is resolved."""
    if len(cells) == len({json.dumps(c, sort_keys=True) for c in cells}):
        return []
    hint = "leave out null, or the value that it comes to"
    return [places.problem("matrix", "two of its combinations come to the same settings", hint)]


def _filled(cell: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return cell if sizes.of(cell, name) is not None else {**cell, name: value}


def _batch_notes(cells: Sequence[dict[str, Any]], prompts: PromptSet) -> list[str]:
    count = len(prompts.prompts)
    over = sorted({size for c in cells if (size := sizes.of(c, "batch_size")) > count})
    return [f"batch_size {size}: with {_count(count, 'prompt')} no batch is ever that large" for size in over]


def _config(
    method: MethodSpec, cell: dict[str, Any], config: SweepConfig, model: ModelInfo, device: Kind
) -> BackendConfig:
    return BackendConfig(
        method=method,
        model_path=model.path,
        device=device,
        trust_remote_code=config.model.trust_remote_code,
        stop_token_ids=model.stop_token_ids,
        **cell,
    )


def _starts(
    configs: Sequence[BackendConfig], sweep: SweepConfig, model: ModelInfo, prompts: PromptSet
) -> Iterator[WorkerStart]:
    groups: dict[str, list[BackendConfig]] = {}
    for config in configs:
        groups.setdefault(_start_key(config, model), []).append(config)
    for key, group in groups.items():
        points = tuple(_point(c, n, model, prompts) for n in range(sweep.repeats) for c in group)
        engine = group[0].method.engine
        env = sweep.environments.get(engine, "own" if engine == "scripted" else engine)
        yield WorkerStart(key, env, _load_config(group), points)


def _load_config(group: Sequence[BackendConfig]) -> BackendConfig:
    """Engines size buffers and capture graphs at load, for the largest batch to come."""
    load = {name: getattr(group[0], name) for name in load_fields()}
    return BackendConfig(
        **load,
        batch_size=max(c.batch_size for c in group),
        max_new_tokens=max(c.max_new_tokens for c in group),
        stop_token_ids=group[0].stop_token_ids,
    )


def _start_key(config: BackendConfig, model: ModelInfo) -> str:
    load = {name: value for name, value in _identity(config).items() if name in load_fields()}
    return f"{config.method.name}-{_digest({'config': load, 'model': model.digest})}"


def _point(config: BackendConfig, repeat: int, model: ModelInfo, prompts: PromptSet) -> SweepPoint:
    identity = {
        "schema": PLAN_SCHEMA,
        "config": _identity(config),
        "model": model.digest,
        "prompts": prompts.digest,
        "repeat": repeat,
    }
    return SweepPoint(_digest(identity), config.method.name, config, repeat)


def _identity(config: BackendConfig) -> dict[str, Any]:
    """All of a config that can change the output: not where the model lies, nor what a method says of itself.
    What is at its default is left out, so that a field that is new leaves the ids of all that do not use it."""
    method = _beside_defaults(replace(config.method, summary=""))
    return {**_beside_defaults(replace(config, model_path="")), "method": method}


def _beside_defaults(value: Struct) -> dict[str, Any]:
    given = {field.name: getattr(value, field.name) for field in fields(value)}
    plain: dict[str, Any] = msgspec.to_builtins(
        {f.name: given[f.name] for f in fields(value) if given[f.name] != _default(f)}
    )
    return plain


def _default(field: FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _digest(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:ID_CHARACTERS]


def render(plan: Plan) -> list[str]:
    """What `plan` prints: the points by worker start, in the order they run."""
    prompts, points, starts = len(plan.prompt_ids), len(plan.points), len(plan.starts)
    head = [
        f"{plan.name}: {_count(points, 'point')}, {_count(prompts, 'prompt')} each, {_count(starts, 'worker start')}",
        f"model {plan.model.name}, prompts {plan.prompts_digest}, plan {plan.digest}",
        *plan.notes,
    ]
    varying = fits.varying([p.config for p in plan.points])
    return head + [line for n, start in enumerate(plan.starts, 1) for line in _start_lines(n, start, varying, plan)]


def _start_lines(number: int, start: WorkerStart, varying: Sequence[str], plan: Plan) -> Iterator[str]:
    load = [n for n in varying if n in load_fields()]
    call = [n for n in varying if n in call_fields()]
    settings = f"  {fits.label(start.config, load)}" if load else ""
    yield ""
    yield f"{number}. {start.config.method.name}  (environment {start.env}){settings}"
    for point in start.points:
        repeat = f"  repeat {point.repeat + 1} of {plan.repeats}" if plan.repeats > 1 else ""
        yield f"   {point.id}  {fits.label(point.config, call) or f'batch_size={point.config.batch_size}'}{repeat}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
