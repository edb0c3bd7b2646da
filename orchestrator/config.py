"""A sweep file's meaning: text in, SweepConfig out, or every problem it has. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from msgspec import Meta

from orchestrator.definition import sweepfile
from orchestrator.definition.chosen import check_scripted, read_methods
from orchestrator.definition.clusteruse import ClusterUse, LauncherKind, check_cluster, read_cluster, read_launcher
from orchestrator.definition.deviceuse import DeviceUse, read_devices
from orchestrator.definition.durations import read_stop_after
from orchestrator.definition.fields import INVALID, convert, parts
from orchestrator.definition.grid import cells
from orchestrator.definition.judging import Answers, read_answers
from orchestrator.definition.limits import Limits, Policies, read_limits, read_policies
from orchestrator.definition.measurement import Measurement, check_reference, read_measurement
from orchestrator.definition.notifyuse import NotifyUse, read_notify
from orchestrator.definition.overrides import override
from orchestrator.definition.ownmethods import name_hint
from orchestrator.definition.places import Places
from orchestrator.definition.promptsource import read_prompts
from orchestrator.definition.promptuse import ChatTemplate, PromptSource
from orchestrator.definition.repairs import Repairs, read_repairs
from orchestrator.definition.sections import as_meant, check_sections, takes_list, without_empty
from orchestrator.definition.sources import ModelRef, read_model
from orchestrator.definition.spelling import shown
from orchestrator.definition.sweepfile import Node, Problems
from orchestrator.errors import InputError, Problem
from orchestrator.methods import ENGINES, builtin, is_name
from protocol.specs import MethodSpec

__all__ = [
    "Answers",
    "ChatTemplate",
    "ClusterUse",
    "DeviceUse",
    "Draft",
    "LauncherKind",
    "Limits",
    "Measurement",
    "ModelRef",
    "NotifyUse",
    "Policies",
    "PromptSource",
    "Repairs",
    "SweepConfig",
    "draft",
    "json_schema",
    "parse",
]

#: A larger number of repeats or warm-up batches is a slip of the pen.
MAX_TIMES: Final = 1_000


@dataclass(frozen=True)
class SweepConfig:
    """One sweep file, checked.

    cells         BackendConfig fields and values: settings, sampling and one
                  combination of matrix and zip each; the last axis moves fastest
    environments  engine → name of its environment, where the user named one
    source        the file's name, for messages
    repairs       which broken packages of the environments are blocked
    devices       what of the machine is used, and by how many workers at once
    stop_after_s  nothing new begins after so long; None: no limit
    launcher      where the workers run
    cluster       what the allocations have that they run on, where the launcher is not local
    answers       how outputs are judged; None: not at all
    notify        who is told of its end and of what goes wrong
    places        where the file says what, for messages too
    """

    name: str
    model: ModelRef
    prompts: PromptSource
    methods: tuple[MethodSpec, ...]
    cells: tuple[dict[str, Any], ...]
    repeats: int
    warmup: int
    measurement: Measurement
    limits: Limits
    policies: Policies
    environments: dict[str, str]
    source: str
    repairs: Repairs = field(default=Repairs())
    devices: DeviceUse = field(default=DeviceUse())
    stop_after_s: float | None = None
    launcher: LauncherKind = "local"
    cluster: ClusterUse = field(default=ClusterUse())
    answers: Answers | None = None
    notify: NotifyUse = field(default=NotifyUse())
    places: Places = field(default=Places(""), compare=False, repr=False)


@dataclass(frozen=True)
class Draft:
    """What can be read of a sweep file with mistakes in it, so that the rest is checked all the same.

    config       the whole, if nothing is wrong; other fields hold what is right, None or empty where nothing is
    all_methods  none of them is wrong
    """

    config: SweepConfig | None
    model: ModelRef | None
    prompts: PromptSource | None
    methods: tuple[MethodSpec, ...]
    cells: tuple[dict[str, Any], ...]
    environments: dict[str, str]
    places: Places
    problems: tuple[Problem, ...]
    all_methods: bool = False
    devices: DeviceUse = field(default=DeviceUse())
    launcher: LauncherKind = "local"
    cluster: ClusterUse = field(default=ClusterUse())
    answers: Answers | None = None
    notify: NotifyUse = field(default=NotifyUse())


def parse(
    text: str, source: str, overrides: Sequence[str] = (), registry: Mapping[str, MethodSpec] | None = None
) -> SweepConfig:
    """The sweep that `text` describes, each of `overrides` ("path=value") applied first.
    `registry`: the methods there are, by name; without it the built-in ones.

    Raises InputError with all that is wrong, in the order of the file's lines.
    """
    found = draft(text, source, overrides, registry)
    if found.config is None:
        raise InputError(found.problems)
    return found.config


def draft(
    text: str, source: str, overrides: Sequence[str] = (), registry: Mapping[str, MethodSpec] | None = None
) -> Draft:
    """As `parse`, but what is wrong comes with the result, beside what is right."""
    problems = Problems()
    root = sweepfile.load(text, source, problems)
    if root is None or not isinstance(root.value, dict):
        if not problems.found:
            what = "is empty" if root is None else f"must be a mapping of keys to values, not {shown(root.value)}"
            problems.add(source if root is None else root.where, "", what, "begin with name: my_sweep")
        return Draft(None, None, None, (), (), {}, Places(source), tuple(problems.ordered()))
    for expression in overrides:
        root = override(root, expression, problems, takes_list)
    return _draft(without_empty(root), source, problems, builtin() if registry is None else registry)


def json_schema(registry: Mapping[str, MethodSpec] | None = None) -> dict[str, Any]:
    """JSON Schema of the sweep file, for editors."""
    from orchestrator.definition.schema import sweep_schema

    return sweep_schema(builtin() if registry is None else registry)


def _draft(root: Node, source: str, problems: Problems, registry: Mapping[str, MethodSpec]) -> Draft:
    check_sections(root, source, problems)
    root = as_meant(root)

    def section(name: str, read: Callable[[Node, Problems], Any], default: Any) -> Any:
        node = root.value.get(name)
        return default if node is None else read(node, problems)

    chosen = read_methods(root.value.get("methods"), registry, problems)
    model = section("model", read_model, None)
    prompts = section("prompts", read_prompts, None)
    repeats = section("repeats", _counter("repeats", 1, MAX_TIMES), 1)
    grid = cells(root, max(1, len(chosen.specs)) * repeats, problems)
    environments = section("environments", _environments, {})
    places = Places.of(root, source)
    check_scripted(model, chosen, places, problems)
    measurement = section("measurement", read_measurement, Measurement())
    check_reference(root.value.get("measurement"), measurement, chosen.names, problems)
    rest = {
        "name": section("name", _name, ""),
        "warmup": section("warmup", _counter("warmup", 0, MAX_TIMES), 1),
        "limits": section("limits", read_limits, Limits()),
        "policies": section("policies", read_policies, Policies()),
        "repairs": section("repairs", read_repairs, Repairs()),
        "stop_after_s": section("stop_after", read_stop_after, None),
    }
    uses = section("devices", read_devices, DeviceUse())
    launcher = section("launcher", read_launcher, "local")
    cluster = section("cluster", read_cluster, ClusterUse())
    if launcher is not None:
        check_cluster(root, launcher, cluster, uses, problems)
    answers = section("answers", read_answers, None)
    notify = section("notify", read_notify, NotifyUse())
    read = {"devices": uses, "launcher": launcher or "local", "cluster": cluster, "answers": answers, "notify": notify}
    config = None
    if not problems.found:
        config = SweepConfig(
            model=model,
            prompts=prompts,
            methods=chosen.specs,
            measurement=measurement,
            cells=grid,
            repeats=repeats,
            environments=environments,
            source=source,
            places=places,
            **read,
            **rest,
        )
    whole = tuple(c for c in grid if INVALID not in c.values())
    found = tuple(problems.ordered())
    return Draft(config, model, prompts, chosen.specs, whole, environments, places, found, chosen.whole, **read)


def _name(node: Node, problems: Problems) -> str:
    value = convert(node, "name", str, problems)
    if value is INVALID:
        return ""
    if not is_name(value):
        problems.add(node.where, "name", f"can't be {shown(value)}", name_hint(value))
    return str(value)


def _counter(key: str, low: int, high: int) -> Callable[[Node, Problems], int]:
    def read(node: Node, problems: Problems) -> int:
        value = convert(node, key, Annotated[int, Meta(ge=low, le=high)], problems)
        return low if value is INVALID else int(value)

    return read


def _environments(node: Node, problems: Problems) -> dict[str, str]:
    engines = {e: str for e in ENGINES if e != "scripted"}
    given = parts(node, "environments", engines, problems)
    for engine, name in given.items():
        if not is_name(name):
            where = node.value[engine].where
            problems.add(where, f"environments.{engine}", f"can't be {shown(name)}", name_hint(name))
    return {engine: name for engine, name in given.items() if is_name(name)}
