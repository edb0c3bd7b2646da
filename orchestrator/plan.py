"""From a checked sweep file to the exact points and the order they run in (see `definition.starts`). Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from orchestrator.config import ClusterUse, DeviceUse, LauncherKind, Limits, Measurement, Policies, Repairs, SweepConfig
from orchestrator.definition import acting, fits, modality, remarks, sizes
from orchestrator.definition.inputs import ModelInfo, PromptSet
from orchestrator.definition.judging import Answers
from orchestrator.definition.places import Places
from orchestrator.definition.starts import PLAN_SCHEMA, Load, SweepPoint, WorkerStart, again, digest, loads_of, ordered
from orchestrator.errors import InputError, Problem
from orchestrator.judge import answerkeys
from orchestrator.methods import Kind
from orchestrator.view.wording import counted
from protocol.specs import BackendConfig, MethodSpec

__all__ = ["NOT_TOKENISED", "PLAN_SCHEMA", "Plan", "SweepPoint", "WorkerStart", "build", "changes"]

NOT_TOKENISED: Final = (
    "the prompts are not tokenised yet: "
    "max_model_len and kv_cache_bytes are not decided, and the points' ids are provisional"
)


class Plan(Struct, frozen=True, dict=True):
    """What a run will do.

    measurement  as the file has it: a reference that it leaves open is another one for speed than for outputs
    answers      how outputs are judged; None: not at all
    notes        what was decided where the sweep file left it open
    chosen       settings that the file left open, with the value that was decided for all methods
    listing      ids of the points in the order of the sweep file, where they run in another: a random one, or with the
                 starts of a method rearranged
    """

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
    repairs: Repairs = Repairs()
    notes: tuple[str, ...] = ()
    chosen: dict[str, int] = {}
    listing: tuple[str, ...] = ()
    devices: DeviceUse = DeviceUse()
    stop_after_s: float | None = None
    launcher: LauncherKind = "local"
    cluster: ClusterUse = ClusterUse()
    answers: Answers | None = None

    @cached_property
    def points(self) -> tuple[SweepPoint, ...]:
        """All points, in the order they run."""
        return tuple(point for start in self.starts for point in start.points)

    @property
    def listed(self) -> tuple[SweepPoint, ...]:
        """All points, in an order to show them in: as the sweep file has methods and cells."""
        if not self.listing:
            return self.points
        place = {point: n for n, point in enumerate(self.listing)}
        return tuple(sorted(self.points, key=lambda point: place.get(point.id, len(place))))


def build(
    config: SweepConfig,
    model: ModelInfo,
    prompts: PromptSet,
    device: Kind,
    *,
    lengths_known: bool = True,
    cpus: int | None = None,
) -> Plan:
    """The plan of a sweep on a machine of this kind. `lengths_known`: the prompts are
    tokenised; without that nothing that depends on lengths is checked or decided.
    `cpus`: those that a worker may use, where that is known.

    Raises InputError with everything that can't run.
    """
    lengths_known = lengths_known and prompts.tokenised
    asked = fits.asked(config.methods, config.cells, device)
    problems = fits.refusals(config.methods, device, config.places)
    problems += acting.problems(asked, config.cells, config.places)
    if lengths_known:
        problems += sizes.length_problems(config.cells, model, prompts, config.places)
        problems += sizes.bucket_problems(config.methods, config.cells, model, prompts, config.places)
    cells, notes = [modality.resolved(cell, model) for cell in config.cells], [NOT_TOKENISED]
    chosen: dict[str, int] = {}
    if lengths_known:
        cells, chosen, notes = _resolved(cells, model, prompts, asked)
    problems += sizes.kv_problems(config.methods, cells, model, config.places)
    problems += sizes.head_problems(config.methods, cells, model, config.places)
    problems += modality.problems(config.cells, model, prompts.prompts, config.places)
    pictures = modality.most_images(prompts.prompts)
    configs = [_config(method, cell, config, model, device, pictures) for method in config.methods for cell in cells]
    problems += fits.misfit_problems(configs, config.places) + _twin_problems(cells, config.places)
    if problems:
        raise InputError(config.places.ordered(problems))
    loads = loads_of(configs, config.repeats, config.environments, model, prompts)
    measurement = config.measurement
    starts = ordered(loads, measurement)
    starts += [again(loads, measurement.reference, model, prompts)] if measurement.drift else []
    return Plan(
        name=config.name,
        digest=_digest(config, starts),
        model=model,
        prompts_digest=prompts.digest,
        prompt_ids=tuple(p.id for p in prompts.prompts),
        starts=tuple(starts),
        repeats=config.repeats,
        warmup=config.warmup,
        limits=config.limits,
        policies=config.policies,
        measurement=measurement,
        repairs=config.repairs,
        notes=(
            *prompts.notes,
            *notes,
            *acting.notes(asked, config.cells),
            *remarks.of_batches(cells, prompts),
            *sizes.bucket_notes([start.config for start in starts]),
            *remarks.of_repeats(config),
            *remarks.of_ranks(configs, cpus),
            *answerkeys.notes(config.answers, prompts.prompts, cells),
        ),
        chosen=chosen,
        listing=_listing(loads, starts, measurement),
        devices=config.devices,
        stop_after_s=config.stop_after_s,
        launcher=config.launcher,
        cluster=config.cluster,
        answers=config.answers,
    )


def _listing(loads: Sequence[Load], starts: Sequence[WorkerStart], measurement: Measurement) -> tuple[str, ...]:
    moved = any(load.key != start.key for load, start in zip(loads, starts, strict=False))
    if measurement.order == "random" or (measurement.order == "grouped" and moved):
        return tuple(point.id for load in loads for point in load.whole().points)
    return ()


def _digest(config: SweepConfig, starts: Sequence[WorkerStart]) -> str:
    """What the ids of the points leave out, and two runs must share all the same to be one."""
    points = sorted(point.id for start in starts for point in start.points)
    rest = {**config.measurement.sequence, **config.measurement.ending, **config.repairs.identity}
    return digest({"points": points, "warmup": config.warmup, "repeats": config.repeats, **rest})


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
        "the order of measurement": (before.measurement.sequence, after.measurement.sequence),
        "the rule that ends repeats early": (before.measurement.ending, after.measurement.ending),
        "what is measured again for drift": (_drifting(before), _drifting(after)),
        "which broken packages are blocked": (before.repairs, after.repairs),
    }
    found = [f"{what} changed since this run began" for what, (old, new) in pairs.items() if old != new]
    return found or _point_changes(before, after)


def unheeded(before: Plan, after: Plan) -> list[str]:
    """What a run that goes on does not take up, a sentence each: how its results are read stays as it began."""
    old, new = _reading(before), _reading(after)
    return [
        f"{name} is {json.dumps(new[name])} now, but this run began with {json.dumps(old[name])}, "
        "and its results are read with that"
        for name in new
        if old[name] != new[name]
    ]


def _reading(plan: Plan) -> dict[str, Any]:
    measurement = {f"measurement.{name}": value for name, value in asdict(plan.measurement).items()}
    return {**measurement, "answers": to_builtins(plan.answers)}


def _drifting(plan: Plan) -> str | None:
    return next((point.method for point in plan.points if point.role == "drift"), None)


def _point_changes(before: Plan, after: Plan) -> list[str]:
    old, new = {p.id: p.method for p in before.points}, {p.id: p.method for p in after.points}
    gone = [method for point, method in old.items() if point not in new]
    added = [method for point, method in new.items() if point not in old]
    sentences = {
        "of this run not in the sweep any more": gone,
        "of the sweep not in this run": added,
    }
    return [
        f"{counted(len(methods), 'point')} {what} (methods {', '.join(dict.fromkeys(methods))}): "
        f"their settings changed{_named(before, after)}"
        for what, methods in sentences.items()
        if methods
    ]


def _named(before: Plan, after: Plan) -> str:
    """ ": max_new_tokens was 32, is 8"; nothing where the points are told apart by what no setting shows."""
    old, new = ([point.config for point in plan.points] for plan in (before, after))
    names = (name for name in BackendConfig.__struct_fields__ if name not in ("method", "model_path"))
    both = ((name, _values(old, name), _values(new, name)) for name in names)
    found = [f"{name} was {was}, is {now}" for name, was, now in both if was != now]
    return f": {'; '.join(found)}" if found else ""


def _values(configs: Sequence[BackendConfig], name: str) -> str:
    return ", ".join(dict.fromkeys(json.dumps(to_builtins(getattr(config, name))) for config in configs))


def _resolved(
    cells: list[dict[str, Any]], model: ModelInfo, prompts: PromptSet, asked: Sequence[BackendConfig]
) -> tuple[list[dict[str, Any]], dict[str, int], list[str]]:
    """The cells with nothing left open that engines would each decide in their own way; what was decided, and why."""
    chosen: dict[str, int] = {}
    notes: list[str] = []
    if any(sizes.of(c, "max_model_len") is None for c in cells):
        need = sizes.length_need(cells, prompts)
        chosen["max_model_len"] = length = sizes.model_length(need, model)
        cells = [_filled(c, "max_model_len", length) for c in cells]
        notes.append(remarks.of_length(need, length))
    on_cpu = any(one.device == "cpu" for one in asked)
    if on_cpu and any(sizes.of(c, "kv_cache_bytes") is None for c in cells):
        need = sizes.kv_need(cells, model)
        chosen["kv_cache_bytes"] = size = sizes.kv_bytes(need)
        heeded = any(acting.idle(one, "kv_cache_bytes") is None for one in asked)
        notes += [remarks.of_cache(need, size, max(one.ranks for one in asked))] if heeded else []
        cells = [_filled(c, "kv_cache_bytes", size) for c in cells]
    return cells, chosen, notes


def _twin_problems(cells: Sequence[dict[str, Any]], places: Places) -> list[Problem]:
    """Null and a number may come to the same value once null is resolved."""
    names = sorted(set[str]().union(*cells))
    if len(cells) == len({tuple(map(c.get, names)) for c in cells}):
        return []
    hint = "leave out null, or the value that it comes to"
    return [places.problem("matrix", "two of its combinations come to the same settings", hint)]


def _filled(cell: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return cell if sizes.of(cell, name) is not None else {**cell, name: value}


def _config(
    method: MethodSpec, cell: dict[str, Any], config: SweepConfig, model: ModelInfo, device: Kind, pictures: int
) -> BackendConfig:
    return BackendConfig(
        images_per_prompt=pictures if cell["input_mode"] == "vision" else 0,
        method=method,
        model_path=model.path,
        device=device,
        trust_remote_code=config.model.trust_remote_code,
        stop_token_ids=model.stop_token_ids,
        **cell,
    )
