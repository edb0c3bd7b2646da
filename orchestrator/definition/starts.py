"""The points of a sweep, what makes them different, and the worker starts that measure them, in order. Pure.

grouped      one worker start for each combination of load-time fields, in the order of the file. Of one method
             those stand together that are compiled for the same: dtype, compile mode, largest batch and
             length; which of these comes first the file says. Inside a start the repeats are the outer loop
             and the cells the inner one, so that a slow drift (heat, clocks) meets all cells alike
interleaved  repeat 0 of all these, then repeat 1 of all: a fresh worker for each, so that it also meets
             all methods alike
random       the same worker starts, and the cells inside each, in an order that the seed and the points
             alone decide, wherever the file names them
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from random import Random
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo, fields, replace

from orchestrator.definition.inputs import ModelInfo, PromptSet
from orchestrator.definition.measurement import Measurement
from orchestrator.definition.modality import natural
from protocol.specs import BackendConfig, MethodSpec, call_fields, load_fields

#: Part of every id: raised when the same file comes to mean another measurement.
PLAN_SCHEMA: Final = 2
ID_CHARACTERS: Final = 16
Role = Literal["measure", "drift"]
T = TypeVar("T")


class SweepPoint(Struct, frozen=True, gc=False):
    """One configuration of one method, measured once. `id` is a digest of all that can change
    the output; `repeat` counts from 0.

    role  "drift": a cell that was measured before, at the very end once more. It is no repeat of that cell
    """

    id: str
    method: str
    config: BackendConfig
    repeat: int
    role: Role = "measure"


class WorkerStart(Struct, frozen=True, gc=False):
    """Points that one loaded worker serves, in order.

    env     name of the environment
    config  the load-time fields of all its points; of the call-time fields, batch_size and max_new_tokens
            are the largest of all points of the sweep with these load-time fields, the others mean nothing
    """

    key: str
    env: str
    config: BackendConfig
    points: tuple[SweepPoint, ...]

    @property
    def load(self) -> bytes:
        """The same of all starts that are loaded alike."""
        return msgspec.json.encode(self.config)


@dataclass(frozen=True)
class Load:
    """All cells with the same load-time fields, by repeat: `repeats[1]` is the second measurement of each."""

    key: str
    env: str
    config: BackendConfig
    repeats: tuple[tuple[SweepPoint, ...], ...]

    def whole(self) -> WorkerStart:
        return WorkerStart(self.key, self.env, self.config, tuple(point for once in self.repeats for point in once))

    def once(self, repeat: int) -> WorkerStart:
        return WorkerStart(f"{self.key}-r{repeat}", self.env, self.config, self.repeats[repeat])


_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(_encode(value).encode()).hexdigest()[:ID_CHARACTERS]


def loads_of(
    configs: Sequence[BackendConfig],
    repeats: int,
    environments: Mapping[str, str],
    model: ModelInfo,
    prompts: PromptSet,
) -> list[Load]:
    """Every configuration `repeats` times, in the order of `configs`."""
    return list(_loads(configs, repeats, environments, model, prompts))


def ordered(loads: Sequence[Load], measurement: Measurement) -> list[WorkerStart]:
    if measurement.order == "grouped":
        return [load.whole() for load in _side_by_side(loads)]
    rounds = [load.once(repeat) for repeat in range(len(loads[0].repeats)) for load in loads]
    return rounds if measurement.order == "interleaved" else _random(rounds, Random(measurement.order_seed))


def _side_by_side(loads: Iterable[Load]) -> list[Load]:
    """Those that are compiled for the same, each kind where its first stands; the methods come one after the other."""
    kinds: dict[tuple[Any, ...], list[Load]] = {}
    for load in loads:
        kinds.setdefault((load.config.method.name, *_compiled_for(load.config)), []).append(load)
    return [load for kind in kinds.values() for load in kind]


def again(loads: Sequence[Load], reference: str | None, model: ModelInfo, prompts: PromptSet) -> WorkerStart:
    """The first cell of the reference once more, in a worker that is loaded as the one before was."""
    of_reference = (load for load in loads if load.config.method.name == reference)
    load = next(of_reference, loads[0])
    config = load.repeats[0][0].config
    point = _point(config, Identities(model).of(config), 0, model, prompts, "drift")
    return WorkerStart(f"{load.key}-drift", load.env, load.config, (point,))


def _loads(
    configs: Sequence[BackendConfig],
    repeats: int,
    environments: Mapping[str, str],
    model: ModelInfo,
    prompts: PromptSet,
) -> Iterator[Load]:
    identities = Identities(model)
    groups: dict[str, list[BackendConfig]] = {}
    for config in configs:
        groups.setdefault(identities.start_key(config), []).append(config)
    for key, group in groups.items():
        cells = (_repeated(config, identities.of(config), repeats, model, prompts) for config in group)
        engine = group[0].method.engine
        env = environments.get(engine, "own" if engine == "scripted" else engine)
        yield Load(key, env, _load_config(group), tuple(zip(*cells, strict=True)))


def _repeated(
    config: BackendConfig, identity: dict[str, Any], repeats: int, model: ModelInfo, prompts: PromptSet
) -> list[SweepPoint]:
    return [_point(config, identity, repeat, model, prompts) for repeat in range(repeats)]


def _random(rounds: Iterable[WorkerStart], prng: Random) -> list[WorkerStart]:
    known = sorted(rounds, key=lambda start: start.key)
    mixed = [replace(s, points=tuple(_shuffled(sorted(s.points, key=_id_of), prng))) for s in known]
    return _shuffled(mixed, prng)


def _shuffled(items: Sequence[T], prng: Random) -> list[T]:
    """Of `prng` only `random` is used, whose sequence no version of Python may change."""
    drawn = [prng.random() for _ in items]
    return [items[at] for at in sorted(range(len(items)), key=drawn.__getitem__)]


def _id_of(point: SweepPoint) -> str:
    return point.id


def _load_config(group: Sequence[BackendConfig]) -> BackendConfig:
    """Engines size buffers and capture graphs at load, for the largest batch to come."""
    return BackendConfig(
        **dict(zip(load_fields(), _load_of(group[0]), strict=True)),
        batch_size=max(c.batch_size for c in group),
        max_new_tokens=max(c.max_new_tokens for c in group),
        stop_token_ids=group[0].stop_token_ids,
    )


def _point(
    config: BackendConfig,
    of_config: dict[str, Any],
    repeat: int,
    model: ModelInfo,
    prompts: PromptSet,
    role: Role = "measure",
) -> SweepPoint:
    identity = {
        "schema": PLAN_SCHEMA,
        "config": of_config,
        "model": model.digest,
        "prompts": prompts.digest,
        "repeat": repeat,
    }
    if role != "measure":
        identity["role"] = role
    return SweepPoint(digest(identity), config.method.name, config, repeat, role)


@dataclass
class Identities:
    """What makes the configurations of a plan different. What many of them share is worked out once."""

    model: ModelInfo
    _methods: dict[int, tuple[MethodSpec, dict[str, Any]]] = field(default_factory=dict)
    _keys: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def of(self, config: BackendConfig) -> dict[str, Any]:
        """All of a config that can change the output: not where the model lies, nor what a method says of itself.
        What is at its default is left out, so that a field that is new leaves the ids of all that do not use it.
        An input mode is the default if it is the one that the model decides on by itself."""
        return self._beside_defaults(config, _WHOLE)

    def start_key(self, config: BackendConfig) -> str:
        same = id(config.method), _LOADED.values(config)
        key = self._keys.get(same)
        if key is None:
            load = self._beside_defaults(config, _LOADED)
            key = f"{config.method.name}-{digest({'config': load, 'model': self.model.digest})}"
            self._keys[same] = key
        return key

    def _beside_defaults(self, config: BackendConfig, part: Part) -> dict[str, Any]:
        values = zip(part.names, part.values(config), part.defaults, strict=True)
        given = {name: value for name, value, default in values if value != default}
        if config.input_mode != "auto" and config.input_mode == natural(self.model):
            del given["input_mode"]
        return {**given, "method": self._method(config.method), "model_path": ""}

    def _method(self, method: MethodSpec) -> dict[str, Any]:
        kept = self._methods.get(id(method))
        if kept is None:
            # With the method itself, so that no other one comes to lie at its place in memory.
            kept = self._methods[id(method)] = method, _beside_defaults(replace(method, summary=""))
        return kept[1]


def _beside_defaults(value: Struct) -> dict[str, Any]:
    given = {name: getattr(value, name) for name, default in _defaults(type(value)) if getattr(value, name) != default}
    plain: dict[str, Any] = msgspec.to_builtins(given)
    return plain


@cache
def _defaults(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """Cached, as msgspec reads the annotations anew each time, which takes longer than all else that a plan takes."""
    return tuple((one.name, _default(one)) for one in fields(kind))


def _default(one: FieldInfo) -> Any:
    return one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()


class Part(NamedTuple):
    """Fields whose value is JSON as it is; `values` are those of a configuration."""

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    values: Callable[[BackendConfig], tuple[Any, ...]]

    @classmethod
    def of(cls, wanted: Collection[str]) -> Part:
        pairs = [(n, d) for n, d in _defaults(BackendConfig) if n in wanted and n not in ("method", "model_path")]
        names, defaults = zip(*pairs, strict=True)
        return cls(names, defaults, attrgetter(*names))


_WHOLE: Final = Part.of((*load_fields(), *call_fields()))
_LOADED: Final = Part.of(load_fields())
_load_of: Final = attrgetter(*load_fields())
#: Of a load, whose batch size is its largest.
_compiled_for: Final = attrgetter("dtype", "torch_compile_mode", "batch_size", "max_model_len")
