"""Where a run's figures come from, and what was different about another run's. Pure.

Two runs may be set side by side only with everything that differs between them in sight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from orchestrator.definition.inputs import DIGEST_SCHEME, FIRST_SCHEME, scheme_of
from orchestrator.definition.variables import recorded
from orchestrator.plan import Plan
from orchestrator.provenance import CodeState, Provenance
from orchestrator.view.wording import bytes_text, clean

#: Of a provenance, what two lives of one run may differ in without a word.
_PASSING = frozenset({"at", "life", "notes"})
NOTHING = "(none)"
_VARIABLES = ".method.env_vars."
_MODEL = "model.digest"
_READ_LESS = " (an earlier Airlock read less of the files: whether they differ can't be told)"


def lines(found: Provenance) -> Iterator[tuple[str, str]]:
    """What and which, for a table; what is not known is left out."""
    rows = {
        "Airlock": _commit(found.airlock),
        "sweep file's folder, commit": _commit(found.sweep),
        "system": found.system,
        "kernel": found.kernel,
        "C library": found.libc,
        "container": found.container,
        "CPU": f"{found.cpu}, {found.cpus} usable" + (f", {', '.join(found.governors)}" if found.governors else ""),
        "NUMA nodes": str(found.numa_nodes or ""),
        "memory": bytes_text(found.memory_bytes),
        "huge pages": found.huge_pages,
        "driver": " ".join(part for part in (found.driver, found.cuda_driver and f"CUDA {found.cuda_driver}") if part),
        "workers on": "the CPU" if found.kind == "cpu" else "",
        **{f"GPU {device.uuid}": _device(to_builtins(device)) for device in found.devices},
        "variables": " ".join(f"{name}={value}" for name, value in found.variables.items()),
    }
    yield from ((what, clean(text)) for what, text in rows.items() if text)


def notes(lives: Sequence[Provenance]) -> list[str]:
    """What could not be had, and why; each once."""
    return list(dict.fromkeys(note for one in lives for note in one.notes))


def changes(plan: Plan, lives: Sequence[Provenance]) -> list[tuple[int, str, str, str]]:
    """What was different in a later start of a run than in its first: which start, what, before, after."""
    first, later = lives[:1], lives[1:]
    return [
        (one.life, *difference)
        for before in first
        for one in later
        for difference in differences((plan, plan), (before, one))
    ]


def differences(
    plans: tuple[Plan, Plan], found: tuple[Provenance | None, Provenance | None]
) -> list[tuple[str, str, str]]:
    """What, before, after; [] if nothing differs. What one of them does not tell is a difference too."""
    before, after = (dict(_flat(_all_of(plan, one))) for plan, one in zip(plans, found, strict=True))
    differing = (name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name))
    read = {scheme_of(plan.model.digest) for plan in plans}
    remark = {_MODEL: _READ_LESS} if read == {FIRST_SCHEME, DIGEST_SCHEME} else {}
    return [
        (name, _shown(name, before.get(name, NOTHING)), _shown(name, after.get(name, NOTHING)) + remark.get(name, ""))
        for name in differing
    ]


def _shown(name: str, value: str) -> str:
    """Values of a method's variables are compared whole, and shown as they may be."""
    _, is_variable, variable = name.partition(_VARIABLES)
    return recorded({variable: value})[variable] if is_variable and value != NOTHING else value


def _all_of(plan: Plan, found: Provenance | None) -> dict[str, Any]:
    told: dict[str, Any] = {} if found is None else to_builtins(found)
    devices = told.pop("devices", [])
    return {
        "model": {"name": plan.model.name, "digest": plan.model.digest},
        "prompts": plan.prompts_digest,
        "repeats": plan.repeats,
        "warmup": plan.warmup,
        "measurement": to_builtins(plan.measurement),
        "methods": _methods(plan),
        **{name: value for name, value in told.items() if name not in _PASSING},
        "devices": [{name: value for name, value in one.items() if name not in ("uuid", "index")} for one in devices],
    }


def _methods(plan: Plan) -> dict[str, Any]:
    """What each is told, one config for all its starts; settings that vary within a run are its grid."""
    found: dict[str, dict[str, list[Any]]] = {}
    for point in plan.points:
        config = to_builtins(point.config)
        config.pop("model_path")
        for name, value in config.items():
            seen = found.setdefault(point.method, {}).setdefault(name, [])
            if value not in seen:
                seen.append(value)
    return {method: {n: v[0] if len(v) == 1 else v for n, v in config.items()} for method, config in found.items()}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{number}]")
    elif value not in (None, "", [], {}):
        yield path, clean(str(value))


def _commit(code: CodeState | None) -> str:
    return "" if code is None else code.commit + (", changed since" if code.changed else "")


def _device(told: Mapping[str, Any]) -> str:
    parts = {
        "index": "index {}",
        "name": "{}",
        "memory_bytes": "{}",
        "power_limit_w": "{:g} W",
        "sm_clock_max_mhz": "SM at most {} MHz",
        "memory_clock_max_mhz": "memory at most {} MHz",
        "ecc": "ECC {}",
        "persistence": "persistence {}",
    }
    told = {**told, "memory_bytes": bytes_text(size) if (size := told.get("memory_bytes")) else None}
    return ", ".join(text.format(told[name]) for name, text in parts.items() if told.get(name) is not None)
