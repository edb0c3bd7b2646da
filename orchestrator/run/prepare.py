"""From a sweep file to all that a run needs, checked: machine, environments, model, prompts, plan.

What is wrong with the input is found here, before the first worker starts and before anything is written into a run
directory; what can be found without an environment is found before one is built.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from orchestrator import config, devices, plan
from orchestrator.config import SweepConfig
from orchestrator.definition import modality, need
from orchestrator.definition.inputs import DIGEST_SCHEME, ModelInfo, PromptSet
from orchestrator.envs import EnvStore
from orchestrator.errors import InputError, Problem
from orchestrator.launcher import Launcher, base_environment
from orchestrator.notify import recipients
from orchestrator.run import checks
from orchestrator.run.environments import (
    Environments,
    doubts,
    engine_problems,
    env_names,
    environment_problems,
    package_problems,
    present,
    repaired,
    tokenizer_env,
    usable,
)
from orchestrator.run.lending import HEEDED
from orchestrator.run.listen import dialled
from orchestrator.run.machines import machine_for, place_lines
from orchestrator.run.slotting import slotted
from orchestrator.stores import entrypoints, prompts
from orchestrator.stores.home import airlock_home
from orchestrator.stores.methodfiles import files_in, files_named_by, files_of
from orchestrator.stores.models import ModelStore
from orchestrator.stores.named import Named
from orchestrator.stores.promptraw import Gathered
from orchestrator.view.asked import same_lines
from orchestrator.view.memory import plan_lines
from orchestrator.view.planned import render

Say = Callable[[str], None]
OnWait = Callable[[], None] | None
T = TypeVar("T")


@dataclass(frozen=True)
class Ground:
    """What stands before anything is built: the file, the raw prompts, the machine that the workers run on, the
    stores."""

    config: SweepConfig
    text: str
    raw: Gathered
    machine: devices.Machine
    launcher: Launcher
    models: ModelStore
    store: EnvStore
    on_wait: OnWait

    @property
    def env_names(self) -> dict[str, str]:
        """Engine → environment, for every engine of the sweep; the demo model is made in hf's if need be."""
        return env_names(self.config, self.store)

    @property
    def cpus(self) -> int | None:
        """Those that a worker may use, where that is known."""
        return self.machine.cpus if self.config.launcher == "local" else self.config.cluster.cpus


@dataclass(frozen=True)
class Prepared:
    """All that a run needs."""

    ground: Ground
    model: ModelInfo
    prompts: PromptSet
    plan: plan.Plan
    environments: Environments

    @cached_property
    def files(self) -> dict[str, dict[str, str]]:
        """Method → what it names, by content, "environment NAME" → what its fingerprint can't tell, and what those of
        the caller's variables name that engines heed. None that has nothing. Read once, before any starts."""
        found = {method.name: files_of(method) for method in self.ground.config.methods}
        found |= {f"environment {env.name}": files_in(env) for env in usable(self.environments)}
        inherited = {name: value for name, value in base_environment().items() if name.startswith(HEEDED)}
        found["the caller's variables"] = files_named_by(inherited)
        return {name: files for name, files in found.items() if files}


def survey(file: Path, overrides: tuple[str, ...], say: Say, on_wait: OnWait = None) -> Ground:
    """Reads and checks all that needs no environment. Raises InputError with everything wrong."""
    text = _read(file)
    known, problems = entrypoints.collected()
    draft = config.draft(text, str(file), overrides, {name: one.spec for name, one in known.items()})
    problems += draft.problems
    machine = machine_for(draft, problems, say)
    launcher = Launcher()
    home = airlock_home()
    models = ModelStore(home, launcher, say, base=file.parent, on_wait=on_wait)
    store = EnvStore(home, launcher, say, kind=machine.kind, on_wait=on_wait)
    found = gather(problems, lambda: draft.prompts and prompts.read(draft.prompts, file.parent, on_wait))
    raw = found.prompts if found else ()
    if draft.model is not None:
        gather(problems, partial(models.check, draft.model))
    seen = None if draft.model is None else models.provisional(draft.model)
    problems += checks.machine_problems(draft, machine, checks.pictured(draft, raw, seen))
    problems += checks.attention_problems(draft, machine) + environment_problems(draft, store)
    problems += modality.problems(draft.cells, seen, raw, draft.places) if seen and raw else []
    problems += package_problems(draft.methods, present(draft, store), machine.kind, draft.places)
    problems += checks.continuation_problems(draft, raw)
    problems += checks.answer_problems(draft, raw) if raw else []
    problems += recipients.problems(draft.notify, draft.places, os.environ)
    if draft.config is None or not found or problems:
        raise InputError(draft.places.ordered(problems))
    return Ground(draft.config, text, found, machine, launcher, models, store, on_wait)


def gather(problems: list[Problem], check: Callable[[], T]) -> T | None:
    """What `check` gives; None once its problems are added to the others."""
    try:
        return check()
    except InputError as exc:
        problems += exc.problems
        return None


def _read(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as exc:
        hint = Named(str(file), Path(), "the current").instead(lambda path: path.suffix in (".yaml", ".yml"))
        raise InputError([Problem(str(file), "", f"can't be read: {exc.strerror or exc}", hint)]) from exc
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError([Problem(str(file), "", "is UTF-16", "save it as UTF-8")])
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as exc:
        line = data.count(10, 0, exc.start) + 1
        message = f"is not UTF-8: byte {exc.start} is {exc.reason}"
        raise InputError([Problem(f"{file}:{line}", "", message, "save it as UTF-8")]) from exc


def prepare(ground: Ground, say: Say, scheme: str = DIGEST_SCHEME) -> Prepared:
    """Builds what environments are lacking, resolves the model, tokenises, plans. `scheme`: of the model's digest.
    Raises InputError."""
    found = ground.store.ensure(ground.env_names.values())
    environments = {engine: found[name] for engine, name in ground.env_names.items()}
    for sentence in doubts(repaired(environments, ground.config.repairs)):
        say(sentence)
    if problems := engine_problems(environments, ground.config.places):
        raise InputError(problems)
    if problems := package_problems(ground.config.methods, environments, ground.machine.kind, ground.config.places):
        raise InputError(problems)
    return _finish(ground, environments, say, scheme)


def _finish(ground: Ground, environments: Environments, say: Say, scheme: str = DIGEST_SCHEME) -> Prepared:
    sweep_config = ground.config
    env = None if sweep_config.model.kind == "scripted" else tokenizer_env(environments)
    model = ground.models.resolve(sweep_config.model, env, scheme)
    if unseen := modality.problems(sweep_config.cells, model, ground.raw.prompts, sweep_config.places):
        raise InputError(sweep_config.places.ordered(unseen))
    prompt_set = prompts.tokenise(
        ground.raw, model, sweep_config.prompts, env, ground.launcher, home=airlock_home(), on_wait=ground.on_wait
    )
    for warning in prompt_set.warnings:
        say(f"warning: {warning}")
    built = plan.build(sweep_config, model, prompt_set, ground.machine.kind, cpus=ground.cpus)
    if short := need.problems(
        [start.config for start in built.starts], model, _places_bytes(ground), sweep_config.places
    ):
        raise InputError(sweep_config.places.ordered(short))
    return Prepared(ground, model, prompt_set, built, repaired(environments, sweep_config.repairs))


def _places_bytes(ground: Ground) -> list[int | None]:
    """What a worker could have at most: of each device that is used, or the host's memory with its swap."""
    machine = ground.machine
    if machine.kind == "cuda":
        return [device.total_bytes for device in machine.devices]
    if machine.memory_bytes is None:
        return [None]
    return [machine.memory_bytes + devices.meminfo_bytes("SwapTotal")]


def describe(ground: Ground, say: Say, listen: str = "") -> Iterator[str]:
    """The plan as lines. Builds and downloads nothing: what stays unknown without is said. `listen`: as the sweep
    would be told. Raises InputError, for what a sweep finds wrong first as well."""
    dialled(listen, ground.config)
    names = dict.fromkeys(ground.env_names.values())
    found = {name: ground.store.get(name) for name in names}
    lacking = [name for name, env in found.items() if env is None]
    here: Environments = {env.engine: env for env in found.values() if env is not None}
    told, place = doubts(repaired(here, ground.config.repairs)), place_lines(ground.machine)
    at_once = slotted(ground.machine, ground.config.devices).notes if ground.config.launcher == "local" else ()
    if not lacking and ground.models.present(ground.config.model):
        built = _finish(ground, here, say).plan
        host_bytes = ground.machine.memory_bytes if ground.machine.kind == "cpu" else None
        memory = plan_lines(built, ground.machine.devices, host_bytes)
        return chain(render(built, place), at_once, told, same_lines(built), memory)
    model = ground.models.provisional(ground.config.model)
    prompt_set = prompts.provisional(ground.raw, ground.config.prompts)
    built = plan.build(ground.config, model, prompt_set, ground.machine.kind, lengths_known=False, cpus=ground.cpus)
    notes = [f"environment {name} is not built yet: {ground.store.describe(name)}" for name in lacking]
    if ground.config.model.kind == "hub" and not ground.models.present(ground.config.model):
        notes.append(f"model {model.name} is not fetched yet, so neither its name nor what it holds is checked")
    return chain(render(built, place), at_once, told, notes, same_lines(built))
