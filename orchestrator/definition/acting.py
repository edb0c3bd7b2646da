"""Which settings act in which methods. Pure.

A sweep gives its settings to all of its methods, and not every method has what a setting is about. None of that passes
in silence: what acts in no method of the sweep is refused, and so is an axis that would measure the same thing twice;
what acts in some methods only is a note of the plan, which names the others. A setting that another one puts out of
action, or the machine, is such a note too: the sweep may turn to that other value by an override.

A sweep may have 100,000 configurations, and all that rules look at is in a few cases: rules are asked once for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from orchestrator.definition.fields import DEFAULTS
from orchestrator.definition.memory import is_continuous
from orchestrator.definition.places import Places
from orchestrator.errors import Problem
from protocol.specs import BackendConfig


@dataclass(frozen=True)
class Rule:
    """Where a setting acts, and else why not, after "it does nothing in METHOD".
    example: a method that has it; empty where it is no slip in a sweep whose methods all lack it, as another setting or
    the machine decides, or every sweep has one."""

    acts: Callable[[BackendConfig], object]
    why: str
    example: str = ""


def _decodes_compiled(config: BackendConfig) -> bool:
    return config.method.engine == "hf" and config.method.compile is not None


_MAKES_TOKENS: Final = Rule(lambda c: c.task == "generate", "where task is score, which makes no tokens")
_SAMPLES: Final = Rule(lambda c: c.temperature > 0, "where temperature is 0, which is greedy")
_BUCKETS: Final = Rule(lambda c: c.method.rocket_bucket, "for want of rocket buckets", "hf_rocket")
_GIVEN_SIZE: Final = "where the size of the KV cache is given, as it always is on a CPU"

#: Fields that are not here act in all methods, or are refused for those that can't do them (`orchestrator.methods`).
#: Of several rules the first that does not hold tells why.
RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "max_num_batched_tokens": (
        Rule(is_continuous, "as the prompts of a batch run through the model at once", "vllm_default"),
    ),
    # Every cell gets one where the file gives none, so that it may stay there when the methods change.
    "kv_cache_bytes": (Rule(is_continuous, "as the KV cache is made for each batch, or bucket"),),
    "gpu_memory_utilization": (
        Rule(lambda c: c.method.engine == "vllm", "as it is vLLM's share of a GPU", "vllm_default"),
        Rule(lambda c: c.device == "cuda" and c.kv_cache_bytes is None, _GIVEN_SIZE),
    ),
    "sglang_mem_fraction_static": (
        Rule(lambda c: c.method.engine == "sglang", "as it is SGLang's share of a GPU", "sglang_default"),
        Rule(lambda c: c.device == "cuda", "on a CPU, where the size of the KV cache is given"),
    ),
    "torch_compile_mode": (Rule(_decodes_compiled, "for want of a compile mode to replace", "hf_compile"),),
    "torch_compile_cache_size_limit": (
        Rule(lambda c: c.compiles_here, "where nothing is compiled, or by options of the engine's own", "hf_compile"),
    ),
    "bucket_batch_sizes": (_BUCKETS,),
    "bucket_lengths": (
        _BUCKETS,
        Rule(lambda c: c.method.engine == "hf", "where batches are padded and prompts are not", "hf_rocket"),
    ),
    "max_new_tokens": (_MAKES_TOKENS,),
    "ignore_eos": (_MAKES_TOKENS,),
    "temperature": (_MAKES_TOKENS,),
    "top_p": (_MAKES_TOKENS, _SAMPLES),
    "seed": (
        _MAKES_TOKENS,
        _SAMPLES,
        Rule(lambda c: c.method.engine != "sglang", "as no seed makes SGLang sample the same again"),
    ),
}


def idle(config: BackendConfig, name: str) -> Rule | None:
    """The rule by which `name` does nothing in this configuration; None where it acts. The scripted engine stands in
    for any other, and takes all."""
    if config.method.engine == "scripted":
        return None
    return next((rule for rule in RULES.get(name, ()) if not rule.acts(config)), None)


@dataclass(frozen=True)
class Cases:
    """`idle` of many configurations, which live on meanwhile."""

    _found: dict[tuple[Any, ...], Mapping[str, Rule]] = field(default_factory=dict)

    def idle(self, config: BackendConfig) -> Mapping[str, Rule]:
        """The settings that do nothing in it, each with the rule."""
        key = case_of(config)
        found = self._found.get(key)
        if found is None:
            found = {name: rule for name in RULES if (rule := idle(config, name))}
            self._found[key] = found
        return found


def case_of(config: BackendConfig) -> tuple[Any, ...]:
    """All that a rule looks at; the method stands for what is in it, as long as it lives."""
    return id(config.method), config.device, config.task, config.temperature > 0, config.kv_cache_bytes is None


def problems(configs: Sequence[BackendConfig], given: Sequence[Mapping[str, Any]], places: Places) -> list[Problem]:
    """`configs`: of all methods in all cells; `given`: the cells as the sweep file has them."""
    cases = Cases()
    unheard = dict(_unheard(configs, given, places, cases))
    again = _again(configs, places, cases)
    return [*unheard.values(), *(problem for name, problem in again if name not in unheard)]


def notes(configs: Sequence[BackendConfig], given: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each setting and reason, with the methods that it does nothing in, whatever the cell."""
    cases, found = Cases(), []
    for name in _named(given):
        heard = {config.method.name for config in _examples(configs) if name not in cases.idle(config)}
        others = [config for config in configs if config.method.name not in heard]
        found += [f"{name} does nothing in {who} {why}" for why, who in _reasons(others, name, cases)]
    return found


def _named(given: Sequence[Mapping[str, Any]]) -> list[str]:
    """Fields of RULES that the file gives a value that is not theirs anyway."""
    somewhere = set[str]().union(*given)
    return [
        name
        for name in RULES
        if name in somewhere and any(cell.get(name, DEFAULTS[name]) != DEFAULTS[name] for cell in given)
    ]


def _examples(configs: Iterable[BackendConfig]) -> list[BackendConfig]:
    """One of each case, the first."""
    found: dict[tuple[Any, ...], BackendConfig] = {}
    for config in configs:
        found.setdefault(case_of(config), config)
    return list(found.values())


def _reasons(configs: Iterable[BackendConfig], name: str, cases: Cases) -> list[tuple[str, str]]:
    """Each reason with the methods, in the order of the sweep."""
    found: dict[str, dict[str, None]] = {}
    for config in configs:
        if getattr(config, name) != DEFAULTS[name] and (rule := cases.idle(config).get(name)):
            found.setdefault(rule.why, {})[config.method.name] = None
    return [(why, ", ".join(who)) for why, who in found.items()]


def _told(configs: Iterable[BackendConfig], name: str, cases: Cases) -> str:
    return "; ".join(f"in {who} {why}" for why, who in _reasons(configs, name, cases))


def _unheard(
    configs: Sequence[BackendConfig], given: Sequence[Mapping[str, Any]], places: Places, cases: Cases
) -> Iterator[tuple[str, Problem]]:
    """What no method of the sweep has."""
    examples = _examples(configs)
    for name in _named(given):
        rules = [cases.idle(config).get(name) for config in examples]
        having = [rule.example for rule in rules if rule and rule.example]
        if rules and len(having) == len(rules):
            hint = f"leave it out, or add a method that has it, for example {having[0]}"
            yield name, places.of_field(name, f"does nothing {_told(configs, name, cases)}", hint)


def _again(configs: Sequence[BackendConfig], places: Places, cases: Cases) -> Iterator[tuple[str, Problem]]:
    """Axes whose values make no difference to a method, so that it would be measured more than once all the same."""
    somewhere = {name for config in _examples(configs) for name in cases.idle(config)}
    idling = [name for name in RULES if name in somewhere and len(set(map(attrgetter(name), configs))) > 1]
    if not idling:
        return
    alike = _alike(configs, idling, cases)
    for name in idling:
        groups = [group for group in alike if len({getattr(config, name) for config in group}) > 1]
        if groups:
            whys = _told((config for group in groups for config in group), name, cases)
            message = f"does nothing {whys}: each of its values would be measured all the same"
            yield name, places.of_field(name, message, "leave it out of the grid, or list the combinations under zip")


def _alike(configs: Iterable[BackendConfig], idling: Sequence[str], cases: Cases) -> list[list[BackendConfig]]:
    """Those of one method that differ in nothing but what does nothing in them; not those that stand alone.
    `idling`: what differs between some and does nothing in some."""
    found: dict[tuple[Any, ...], list[BackendConfig]] = {}
    rest = attrgetter(*(name for name in DEFAULTS if name not in idling))
    for config in configs:
        off = cases.idle(config)
        acting = (DEFAULTS[name] if name in off else getattr(config, name) for name in idling)
        found.setdefault((id(config.method), rest(config), *acting), []).append(config)
    return [group for group in found.values() if len(group) > 1]
