"""What a run was asked to do, by its plan: settings, methods, and how the figures are read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import json, to_builtins
from msgspec.structs import asdict, fields, replace

from orchestrator.definition.measurement import Measurement
from orchestrator.definition.variables import hidden, recorded, told
from orchestrator.events import RunStarted
from orchestrator.plan import Plan
from orchestrator.view.markup import grid
from orchestrator.view.wording import setting_text
from protocol.specs import MethodSpec, call_fields, load_fields

SETTINGS = """\
sampling: travels with each batch. load: fixed when an engine loads. measurement: how the run is ordered and its figures
are read. null: not set, and in load left to the engine. (chosen): left open in the sweep file, and decided once for all
methods. Several values: a point for each combination."""
_OF_MODEL = ("name", "digest", "revision", "dtype", "trust_remote_code")
#: Told apart from the settings.
_APART = ("method", "model_path")
_HELD = (
    "max_new_tokens",
    "temperature",
    "top_p",
    "seed",
    "ignore_eos",
    "dtype",
    "prefix_caching",
    "tensor_parallel_size",
    "pipeline_parallel_size",
)


def settings(plan: Plan) -> dict[str, list[Any]]:
    """Each setting with all the values that points have, those of sampling first."""
    names = [name for name in (*call_fields(), *load_fields()) if name not in _APART]
    return {name: list(dict.fromkeys(getattr(point.config, name) for point in plan.listed)) for name in names}


def sampling_text(plan: Plan) -> str:
    """ "batch_size 1, 4; max_new_tokens 32; …" """
    found = settings(plan)
    return "; ".join(f"{name} {_several(found[name])}" for name in call_fields())


def same_lines(plan: Plan) -> Iterator[str]:
    """What `plan` says of what is held equal: of the settings that bear on figures and outputs, those of one value."""
    one = {name: found[0] for name, found in settings(plan).items() if len(found) == 1 and name in _HELD}
    # To score makes no tokens.
    calls = call_fields() if any(point.config.task == "generate" for point in plan.points) else ()
    kinds = {"sampling": calls, "load": load_fields()}
    yield ""
    yield "the same for all:"
    for kind, names in kinds.items():
        told = [f"{name} {setting_text(one[name])}" for name in names if name in one]
        if told:
            yield f"   {kind}: {'; '.join(told)}"
    yield f"   warm-up batches {plan.warmup}"


def _several(found: Sequence[Any]) -> str:
    return ", ".join(map(setting_text, found))


def methods(plan: Plan) -> list[dict[str, Any]]:
    """What each is: its engine and environment, and all that is not as a method is by default."""
    starts = {start.config.method.name: start for start in plan.starts}
    ordered = dict.fromkeys(point.method for point in plan.listed)
    return [{"environment": starts[name].env, **_spelt(starts[name].config.method)} for name in ordered]


def _spelt(method: MethodSpec) -> dict[str, Any]:
    plain: dict[str, Any] = to_builtins(replace(method, env_vars=recorded(method.env_vars)))
    usual = {one.name: one.default for one in fields(MethodSpec) if one.name not in ("name", "engine")}
    return {name: value for name, value in plain.items() if name not in usual or value not in (usual[name], {})}


def secrets(plan: Plan) -> list[str]:
    """Variables of the methods whose values are told nowhere; the sweep file and the plan hold them."""
    return hidden(start.config.method.env_vars for start in plan.starts)


def overrides(plan: Plan, given: Iterable[str]) -> list[str]:
    """Of --set, as they may be told."""
    return told(given, secrets(plan))


def started(plan: Plan, event: RunStarted) -> RunStarted:
    """As it may be told."""
    return replace(event, overrides=overrides(plan, event.overrides))


def values(plan: Plan) -> dict[str, Any]:
    """Plain JSON values."""
    model = {name: getattr(plan.model, name) for name in _OF_MODEL}
    return {
        "model": model,
        "prompts": {"count": len(plan.prompt_ids), "digest": plan.prompts_digest},
        "repeats": plan.repeats,
        "warmup": plan.warmup,
        "settings": to_builtins(settings(plan)),
        "chosen": dict(plan.chosen),
        "methods": methods(plan),
        "measurement": to_builtins(plan.measurement),
        "answers": to_builtins(plan.answers),
    }


def markdown(plan: Plan) -> Iterator[str]:
    if not plan.points:
        return
    yield from grid(["setting", "value", "kind"], list(_lines(plan)))
    yield ""
    yield SETTINGS
    yield ""
    yield from grid(["method", "engine", "environment", "what it is"], [_method_line(one) for one in methods(plan)])


def _lines(plan: Plan) -> Iterator[Sequence[str]]:
    calls = call_fields()
    for name, found in settings(plan).items():
        told = (f"{setting_text(one)}{_chosen(plan, name, one)}" for one in found)
        yield name, ", ".join(told), "sampling" if name in calls else "load"
    for name, value in asdict(plan.measurement).items():
        yield name, setting_text(value), "measurement"


def _chosen(plan: Plan, name: str, value: Any) -> str:
    return " (chosen)" if name in plan.chosen and plan.chosen[name] == value else ""


def _method_line(method: dict[str, Any]) -> list[str]:
    rest = {name: value for name, value in method.items() if name not in ("name", "engine", "environment", "summary")}
    said = [f"{name}={_text(value)}" for name, value in rest.items()]
    return [method["name"], method["engine"], method["environment"], " ".join(said) or "all is left to the engine"]


def _text(value: object) -> str:
    return json.encode(value).decode() if isinstance(value, dict | list) else setting_text(value)


def slo_text(rule: Measurement) -> str:
    """ "TTFT at most 0.5 s, TPOT at most 0.02 s"; empty where there is no limit"""
    limits = {"TTFT": rule.slo_ttft_s, "TPOT": rule.slo_tpot_s, "end to end": rule.slo_latency_s}
    return ", ".join(f"{name} at most {setting_text(most)} s" for name, most in limits.items() if most is not None)
