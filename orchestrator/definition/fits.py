"""What a kind of machine or an engine can't do of a sweep, with its place in the file. Pure.

None of it needs the model or the prompts: it is known before an environment is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct

from orchestrator.definition import acting
from orchestrator.definition.places import Places
from orchestrator.definition.requirements import Capability, lacking
from orchestrator.errors import Problem
from orchestrator.methods import Kind, misfits, refuse
from orchestrator.view.wording import listed
from protocol.specs import BackendConfig, MethodSpec, call_fields, load_fields

LISTED_CELLS: Final = 10
LISTED_PROMPTS: Final = 10
#: What no misfit depends on, and large sweeps have many values of.
FITTING_ANYWAY: Final = (
    *("model_path", "dtype", "max_model_len", "max_num_batched_tokens", "kv_cache_bytes", "stop_token_ids"),
    *("gpu_memory_utilization", "sglang_mem_fraction_static", "torch_compile_cache_size_limit", "torch_compile_mode"),
    *("max_new_tokens", "temperature", "top_p", "seed", "ignore_eos"),
)
_FITTING: Final = attrgetter(
    *(name for name in (*load_fields(), *call_fields()) if name not in ("method", *FITTING_ANYWAY))
)
_BRING: Final = (
    "give an interpreter that has it a name (`env add NAME --engine {0} --python PATH`) "
    "and write environments: {{{0}: NAME}}"
)


def problems(
    methods: Sequence[MethodSpec],
    cells: Sequence[Mapping[str, Any]],
    device: Kind,
    places: Places,
    gpus: Sequence[tuple[str, Capability | None]] = (),
    whole: bool = True,
) -> list[Problem]:
    """Of every method in every cell. `gpus`: what a message calls each, and its compute capability. `whole`: these
    are all methods of the sweep, and what acts in none of them acts nowhere."""
    configs = asked(methods, cells, device)
    found = refusals(methods, device, places, gpus) + misfit_problems(configs, places)
    return found + (acting.problems(configs, cells, places) if whole else [])


def asked(methods: Sequence[MethodSpec], cells: Sequence[Mapping[str, Any]], device: Kind) -> list[BackendConfig]:
    """Every method in every cell, with what the sweep file leaves open still open."""
    return [BackendConfig(method=m, model_path="", device=device, **cell) for m in methods for cell in cells]


def refusals(
    methods: Sequence[MethodSpec], device: Kind, places: Places, gpus: Sequence[tuple[str, Capability | None]] = ()
) -> list[Problem]:
    return [places.of_method(m.name, why) for m in methods if (why := refuse(m, device, gpus))]


def package_problems(
    methods: Sequence[MethodSpec], environments: Mapping[str, Installed], places: Places
) -> list[Problem]:
    """Methods that lack a package; `environments` by engine."""
    found = []
    for method in methods:
        env = environments.get(method.engine)
        why = env and lacking(method, env.packages, env.broken)
        if env and why:
            found.append(
                places.of_method(method.name, f"{why} in environment {env.name}; {_BRING.format(method.engine)}")
            )
    return found


class Installed(Struct, frozen=True):
    """What an environment holds: versions by distribution, and by module why it can't be used."""

    name: str
    packages: Mapping[str, str]
    broken: Mapping[str, str] = {}


def misfit_problems(configs: Sequence[BackendConfig], places: Places) -> list[Problem]:
    """One problem for each method and reason, with the cells it concerns."""
    reasons: dict[tuple[Any, ...], list[str]] = {}
    cells: dict[tuple[str, str], list[BackendConfig]] = {}
    for config in configs:
        kind = (id(config.method), *_FITTING(config))
        found_for = reasons.get(kind)
        if found_for is None:
            found_for = reasons[kind] = misfits(config)
        for reason in found_for:
            cells.setdefault((config.method.name, reason), []).append(config)
    names = varying(configs) if cells else []
    found = []
    for (method, reason), bad in cells.items():
        labels = list(dict.fromkeys(label(c, names) for c in bad))
        at = f" (at {listed(labels, LISTED_CELLS, '; ')})" if names else ""
        found.append(places.of_method(method, reason + at))
    return found


def too_many_devices(
    cells: Sequence[Mapping[str, Any]], devices: int, places: Places, have: str = "are visible"
) -> list[Problem]:
    """Cells that need more GPUs than there are. `have`: in what way they are there."""
    found = []
    sizes = ((cell.get("tensor_parallel_size", 1), cell.get("pipeline_parallel_size", 1)) for cell in cells)
    for tensor, pipeline in dict.fromkeys(sizes):
        if (needed := tensor * pipeline) > devices:
            name = "tensor_parallel_size" if tensor > 1 else "pipeline_parallel_size"
            found.append(places.of_field(name, f"needs {needed} GPUs, {devices} {have}"))
    return list(dict.fromkeys(found))


def split_over_slices(cells: Sequence[Mapping[str, Any]], places: Places) -> list[Problem]:
    """Cells that need several GPUs, where these are MIG slices: CUDA gives one slice to a process."""
    names = ("tensor_parallel_size", "pipeline_parallel_size")
    wide = dict.fromkeys(name for cell in cells for name in names if cell.get(name, 1) > 1)
    message = "needs whole GPUs; these are MIG slices, of which a process gets one"
    return [places.of_field(name, message) for name in wide]


def scoring_problems(
    cells: Sequence[Mapping[str, Any]], without: Sequence[str], total: int, places: Places
) -> list[Problem]:
    """Cells that score, where prompts have no continuation; `without` says which, each with its place."""
    if not without or all(cell.get("task") != "score" for cell in cells):
        return []
    which = listed(without, LISTED_PROMPTS)
    message = f"score needs a continuation with every prompt, and {len(without)} of {total} have none: {which}"
    hint = 'write {"prompt": …, "continuation": …}, or leave score out'
    return [places.of_field("task", message, hint)]


def varying(configs: Sequence[BackendConfig]) -> list[str]:
    """Fields, methods apart, that differ between the configs."""
    names = [n for n in (*load_fields(), *call_fields()) if n != "method"]
    return [n for n in names if len(set(map(attrgetter(n), configs))) > 1]


def label(config: BackendConfig, names: Sequence[str]) -> str:
    return " ".join(f"{name}={getattr(config, name)}" for name in names)
