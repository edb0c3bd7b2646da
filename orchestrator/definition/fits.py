"""What a kind of machine or an engine can't do of a sweep, with its place in the file. Pure.

None of it needs the model or the prompts: it is known before an environment is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from orchestrator.definition.places import Places
from orchestrator.errors import Problem
from orchestrator.methods import Kind, misfits, refuse
from protocol.specs import BackendConfig, MethodSpec, call_fields, load_fields

LISTED_CELLS: Final = 10


def problems(
    methods: Sequence[MethodSpec], cells: Sequence[Mapping[str, Any]], device: Kind, places: Places
) -> list[Problem]:
    """Of every method in every cell."""
    configs = [BackendConfig(method=m, model_path="", device=device, **cell) for m in methods for cell in cells]
    return refusals(methods, device, places) + misfit_problems(configs, places)


def refusals(methods: Sequence[MethodSpec], device: Kind, places: Places) -> list[Problem]:
    return [places.of_method(m.name, why) for m in methods if (why := refuse(m, device))]


def misfit_problems(configs: Sequence[BackendConfig], places: Places) -> list[Problem]:
    """One problem for each method and reason, with the cells it concerns."""
    cells: dict[tuple[str, str], list[BackendConfig]] = {}
    for config in configs:
        for reason in misfits(config):
            cells.setdefault((config.method.name, reason), []).append(config)
    names = varying(configs)
    found = []
    for (method, reason), bad in cells.items():
        labels = list(dict.fromkeys(label(c, names) for c in bad))
        more = f" and {len(labels) - LISTED_CELLS} more" if len(labels) > LISTED_CELLS else ""
        at = f" (at {'; '.join(labels[:LISTED_CELLS])}{more})" if names else ""
        found.append(places.of_method(method, reason + at))
    return found


def too_many_devices(cells: Sequence[Mapping[str, Any]], devices: int, places: Places) -> list[Problem]:
    """Cells that need more GPUs than there are."""
    found = []
    for cell in cells:
        needed = cell.get("tensor_parallel_size", 1) * cell.get("pipeline_parallel_size", 1)
        if needed > devices:
            name = "tensor_parallel_size" if cell.get("tensor_parallel_size", 1) > 1 else "pipeline_parallel_size"
            found.append(places.of_field(name, f"needs {needed} GPUs, {devices} are visible"))
    return list(dict.fromkeys(found))


def split_over_slices(cells: Sequence[Mapping[str, Any]], places: Places) -> list[Problem]:
    """Cells that need several GPUs, where these are MIG slices: CUDA gives one slice to a process."""
    names = ("tensor_parallel_size", "pipeline_parallel_size")
    wide = dict.fromkeys(name for cell in cells for name in names if cell.get(name, 1) > 1)
    message = "needs whole GPUs; these are MIG slices, of which a process gets one"
    return [places.of_field(name, message) for name in wide]


def varying(configs: Sequence[BackendConfig]) -> list[str]:
    """Fields, methods apart, that differ between the configs."""
    names = [n for n in (*load_fields(), *call_fields()) if n != "method"]
    return [n for n in names if len({getattr(c, n) for c in configs}) > 1]


def label(config: BackendConfig, names: Sequence[str]) -> str:
    return " ".join(f"{name}={getattr(config, name)}" for name in names)
