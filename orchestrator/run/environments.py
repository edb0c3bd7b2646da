"""The environments of a sweep, by engine: which they are, what is wrong with them, what is broken in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from orchestrator.config import Draft, Repairs, SweepConfig
from orchestrator.definition import fits
from orchestrator.definition.places import Places
from orchestrator.envs import EngineEnv, EnvStore
from orchestrator.errors import EnvironmentFailed, InputError, Problem
from orchestrator.methods import Kind, refuse
from orchestrator.stores import recipes
from protocol.specs import MethodSpec

Environments = Mapping[str, EngineEnv | EnvironmentFailed]
#: Any engine's environment holds the tokenizer's libraries; the first of these that is there is used.
TOKENIZER_PREFERENCE = ("hf", "vllm", "sglang")


def environment_problems(draft: Draft, store: EnvStore) -> list[Problem]:
    """Names that are neither there nor have a recipe, and environments of another engine."""
    found = []
    for engine, name in draft.environments.items():
        unknown = _unknown(name, store)
        found += [draft.places.problem(f"environments.{engine}", f"{name}: {p.message}", p.suggestion) for p in unknown]
        holds = None if unknown else _engine_of(name, store)
        if holds not in (None, engine):
            found.append(_other_engine(draft.places, engine, name, holds))
    return found


def _unknown(name: str, store: EnvStore) -> Sequence[Problem]:
    try:
        store.require([name])
    except InputError as exc:
        return exc.problems
    return ()


def env_names(asked: SweepConfig | Draft, store: EnvStore) -> dict[str, str]:
    """Engine → environment, for every engine of the sweep."""
    engines = dict.fromkeys(method.engine for method in asked.methods)
    return {engine: asked.environments.get(engine, store.default_name(engine)) for engine in engines}


def usable(environments: Environments) -> list[EngineEnv]:
    """Those that work."""
    return [env for env in environments.values() if isinstance(env, EngineEnv)]


def package_problems(
    methods: Sequence[MethodSpec], environments: Environments, kind: Kind, places: Places
) -> list[Problem]:
    """Methods that their engine's environment lacks a package for, where it is known what is in it."""
    installed = {
        engine: fits.Installed(env.name, env.fingerprint.packages, env.broken)
        for engine, env in environments.items()
        if isinstance(env, EngineEnv)
    }
    able = [method for method in methods if not refuse(method, kind)]
    return fits.package_problems(able, installed, places)


def present(draft: Draft, store: EnvStore) -> Environments:
    """The environments of the sweep that are there already, by engine."""
    found: dict[str, EngineEnv | EnvironmentFailed] = {}
    for engine, name in env_names(draft, store).items():
        with suppress(EnvironmentFailed):  # a damaged one: `ensure` says how
            if env := store.get(name):
                found[engine] = env
    return found


def _engine_of(name: str, store: EnvStore) -> str | None:
    """None for one that is damaged: `ensure` says how."""
    try:
        env = store.get(name)
    except EnvironmentFailed:
        return None
    return env.engine if env else name if name in recipes.engines() else None


def _other_engine(places: Places, engine: str, name: str, holds: str | None) -> Problem:
    message = f"environment {name} holds {holds}, not {engine}"
    return places.problem(f"environments.{engine}", message, f"leave it out for the built one, {engine}")


def repaired(environments: Environments, repairs: Repairs) -> Environments:
    """As the workers get them. Our own tools, which measure nothing, always run with all repairs."""
    return {e: env.repaired(repairs) if isinstance(env, EngineEnv) else env for e, env in environments.items()}


def doubts(environments: Environments) -> list[str]:
    """What the sweep's environments hold that can't be used, and whether it is blocked; and engines of other versions
    than Airlock knows."""
    return [
        f"environment {env.name}: {sentence}"
        for env in usable(environments)
        for sentence in (*env.repairs, recipes.untested(env.engine, env.installed))
        if sentence
    ]


def engine_problems(environments: Environments, places: Places) -> list[Problem]:
    """Environments of another engine, once more: another Airlock may have made them since."""
    return [
        _other_engine(places, engine, env.name, env.engine)
        for engine, env in environments.items()
        if isinstance(env, EngineEnv) and env.engine != engine
    ]


def tokenizer_env(environments: Environments) -> EngineEnv:
    """Raises EnvironmentFailed if no engine of the sweep has an environment that works."""
    failures = []
    for engine in TOKENIZER_PREFERENCE:
        env = environments.get(engine)
        if isinstance(env, EngineEnv):
            return env
        if env is not None:
            failures.append(env)
    causes = "; ".join(str(f) for f in failures) or "no method of the sweep brings one"
    tail = "\n".join(f.log_tail for f in failures)
    raise EnvironmentFailed("(any)", f"none is there to tokenise the prompts in: {causes}", tail)
