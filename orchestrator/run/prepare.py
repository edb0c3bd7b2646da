"""From a sweep file to all that a run needs, checked: machine, environments, model, prompts, plan.

What is wrong with the input is found here, before the first worker starts and
before anything is written into a run directory; what can be found without an
environment is found before one is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from orchestrator import config, devices, methods, plan
from orchestrator.config import SweepConfig
from orchestrator.definition.inputs import ModelInfo, PromptSet
from orchestrator.envs import EngineEnv, EnvStore
from orchestrator.errors import EnvironmentFailed, InputError, Problem
from orchestrator.launcher import Launcher
from orchestrator.stores import prompts
from orchestrator.stores.home import airlock_home
from orchestrator.stores.models import ModelStore
from orchestrator.stores.promptfile import RawPrompt

Say = Callable[[str], None]
OnWait = Callable[[], None] | None
Environments = Mapping[str, EngineEnv | EnvironmentFailed]
T = TypeVar("T")
#: Any engine's environment holds the tokenizer's libraries; the first of these that is there is used.
TOKENIZER_PREFERENCE = ("hf", "vllm", "sglang")


@dataclass(frozen=True)
class Ground:
    """What stands before anything is built: the file, the raw prompts, the machine, the stores."""

    config: SweepConfig
    text: str
    raw: tuple[RawPrompt, ...]
    machine: devices.Machine
    launcher: Launcher
    models: ModelStore
    store: EnvStore
    on_wait: OnWait

    @property
    def env_names(self) -> dict[str, str]:
        """Engine → environment, for every engine of the sweep; the demo model is made in hf's if need be."""
        engines = [method.engine for method in self.config.methods]
        chosen = self.config.environments
        return {engine: chosen.get(engine, self.store.default_name(engine)) for engine in dict.fromkeys(engines)}


@dataclass(frozen=True)
class Prepared:
    """All that a run needs."""

    ground: Ground
    model: ModelInfo
    prompts: PromptSet
    plan: plan.Plan
    environments: Environments


def survey(file: Path, overrides: tuple[str, ...], say: Say, on_wait: OnWait = None) -> Ground:
    """Reads and checks all that needs no environment. Raises InputError with everything wrong."""
    sweep_config, text = _read(file, overrides)
    machine = devices.discover()
    launcher = Launcher()
    home = airlock_home()
    models = ModelStore(home, launcher, say, base=file.parent, on_wait=on_wait)
    store = EnvStore(home, launcher, say, kind=machine.kind, on_wait=on_wait)
    raw, *_ = gather(
        lambda: prompts.read(sweep_config.prompts, file.parent),
        lambda: models.check(sweep_config.model),
        lambda: check_machine(sweep_config, machine),
        lambda: store.require(sweep_config.environments.values()),
    )
    return Ground(sweep_config, text, raw, machine, launcher, models, store, on_wait)


def gather(first: Callable[[], T], *others: Callable[[], None]) -> tuple[T, None]:
    """Runs every check though some fail. Raises one InputError with the problems of all."""
    problems: list[Problem] = []
    found: list[T] = []
    for check in (lambda: found.append(first()), *others):
        try:
            check()
        except InputError as exc:
            problems += exc.problems
    if problems:
        raise InputError(problems)
    return found[0], None


def _read(file: Path, overrides: tuple[str, ...]) -> tuple[SweepConfig, str]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise InputError([Problem(str(file), "", f"can't be read: {exc.strerror or exc}")]) from exc
    except UnicodeDecodeError as exc:
        raise InputError([Problem(str(file), "", f"is not UTF-8: byte {exc.start} is {exc.reason}")]) from exc
    return config.parse(text, str(file), overrides), text


def check_machine(sweep_config: SweepConfig, machine: devices.Machine) -> None:
    """Raises InputError for methods that can't run here and for more GPUs than there are."""
    refused = {m.name: methods.refuse(m, machine.kind) for m in sweep_config.methods}
    problems = [Problem(sweep_config.source, f"methods: {n}", why) for n, why in refused.items() if why]
    for cell in sweep_config.cells:
        needed = cell.get("tensor_parallel_size", 1) * cell.get("pipeline_parallel_size", 1)
        if machine.kind == "cuda" and needed > len(machine.devices):
            message = f"needs {needed} GPUs, {len(machine.devices)} are visible"
            problems.append(Problem(sweep_config.source, "tensor_parallel_size", message))
    if problems:
        raise InputError(dict.fromkeys(problems))


def prepare(ground: Ground, say: Say) -> Prepared:
    """Builds what environments are lacking, resolves the model, tokenises, plans. Raises InputError."""
    found = ground.store.ensure(ground.env_names.values())
    environments = {engine: found[name] for engine, name in ground.env_names.items()}
    _check_engines(ground.config, environments)
    return _finish(ground, environments, say)


def _check_engines(sweep_config: SweepConfig, environments: Environments) -> None:
    problems = [
        Problem(
            sweep_config.source, f"environments.{engine}", f"environment {env.name} holds {env.engine}, not {engine}"
        )
        for engine, env in environments.items()
        if isinstance(env, EngineEnv) and env.engine != engine
    ]
    if problems:
        raise InputError(problems)


def _finish(ground: Ground, environments: Environments, say: Say) -> Prepared:
    sweep_config = ground.config
    env = _tokenizer_env(sweep_config, environments)
    model = ground.models.resolve(sweep_config.model, env)
    prompt_set = prompts.tokenise(
        ground.raw, model, sweep_config.prompts, env, ground.launcher, home=airlock_home(), on_wait=ground.on_wait
    )
    for warning in prompt_set.warnings:
        say(f"warning: {warning}")
    built = plan.build(sweep_config, model, prompt_set, ground.machine.kind)
    return Prepared(ground, model, prompt_set, built, environments)


def _tokenizer_env(sweep_config: SweepConfig, environments: Environments) -> EngineEnv | None:
    """Raises EnvironmentFailed if no engine of the sweep has an environment that works."""
    if sweep_config.model.kind == "scripted":
        return None
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


def describe(ground: Ground, say: Say) -> list[str]:
    """The plan as lines. Builds and downloads nothing: what stays unknown without is said."""
    names = dict.fromkeys(ground.env_names.values())
    lacking = [name for name in names if ground.store.get(name) is None]
    if not lacking and ground.models.present(ground.config.model):
        here: Environments = {e.engine: e for e in map(ground.store.get, names) if e is not None}
        return plan.render(_finish(ground, here, say).plan)
    model, prompt_set = ground.models.provisional(ground.config.model), prompts.provisional(ground.raw)
    built = plan.build(ground.config, model, prompt_set, ground.machine.kind, lengths_known=False)
    notes = [f"environment {name} is not built yet: {ground.store.describe(name)}" for name in lacking]
    notes.append("the prompts are not tokenised yet: their lengths and the points' ids are provisional")
    return [*plan.render(built), *notes]
