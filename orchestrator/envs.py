"""The engines' environments below AIRLOCK_HOME/envs: find, build, add, check.

Their folders and locks: see `stores.envshelf`. A user's own environment is an
env.json alone; its interpreter is never touched.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from orchestrator.errors import EnvironmentFailed, InputError, Problem
from orchestrator.launcher import Launcher
from orchestrator.stores import recipes
from orchestrator.stores.envbuild import Builder, OnWait, Say, announcement, check_room, cost, remove_tree, size_bytes
from orchestrator.stores.envexam import Examiner, own_environment
from orchestrator.stores.envshelf import EnvShelf
from orchestrator.stores.envstate import OWN, EngineEnv, EnvCheck, Estimate, Fingerprint, Stored, name_problems, save
from orchestrator.stores.home import tag_of
from orchestrator.stores.recipes import Kind, Recipe
from orchestrator.stores.tools import check_interpreter
from orchestrator.view.wording import bytes_text, seconds_text

__all__ = ["OWN", "EngineEnv", "EnvCheck", "EnvStore", "Estimate", "Fingerprint"]

Found = EngineEnv | EnvironmentFailed

ATTEMPTS = 5  # at taking an environment that others keep rebuilding


class EnvStore:
    """Finds and makes environments. What `ensure` returned stays locked against rebuilding until `close`,
    or else until the process ends."""

    def __init__(
        self,
        home: Path,
        launcher: Launcher,
        say: Say,
        *,
        kind: Kind,
        on_wait: OnWait = None,
        recipe: Callable[[str, Kind], Recipe | None] = recipes.recipe,
    ) -> None:
        """`on_wait` is called several times a second while something runs; what it raises ends that."""
        self._home, self._launcher, self._say, self._kind = home, launcher, say, kind
        self._on_wait, self._recipe_of = on_wait, recipe
        self._examiner = Examiner(home, launcher, say, on_wait)
        self._shelf = EnvShelf(home, say, on_wait)

    def close(self) -> None:
        self._shelf.close()

    # --- reading --------------------------------------------------------------

    def default_name(self, engine: str) -> str:
        """The environment an engine runs in unless the sweep says otherwise."""
        return OWN if engine == "scripted" else engine

    def get(self, name: str) -> EngineEnv | None:
        """As stored; None if it is not there. Raises EnvironmentFailed for one that is damaged."""
        if name == OWN:
            return own_environment()
        stored = self._shelf.load(name)
        return stored.env if stored else None

    def outdated(self, name: str) -> str:
        """Why `ensure` would build the environment anew; "" if it would not."""
        stored = None if name == OWN else self._shelf.load(name)
        return self._outdated(stored) if stored else ""

    def estimate(self, name: str) -> Estimate:
        """Of building it. Raises InputError for a name without a recipe."""
        recipe = self._recipe(name)
        return Estimate(recipe.packages, recipe.disk_bytes, recipe.build_s, recipe.proven)

    def describe(self, name: str) -> str:
        """One clause on what building it would take. Raises InputError for a name without a recipe."""
        recipe = self._recipe(name)
        return f"{cost(recipe)} for {' '.join(recipe.packages[:1])} and what it needs"

    # --- making ---------------------------------------------------------------

    def require(self, names: Iterable[str]) -> None:
        """Raises InputError for every name that is neither there nor has a recipe."""
        unknown = [problem for name in names if (problem := self._unknown(name)) is not None]
        if unknown:
            raise InputError(unknown)

    def ensure(self, names: Iterable[str]) -> dict[str, Found]:
        """Each environment ready, built where lacking or outdated, with its fingerprint as of now.

        One that can't be had stands there as its failure. Raises InputError for unknown names.
        """
        wanted = tuple(dict.fromkeys(names))
        self.require(wanted)
        self._shelf.remove_half_made()
        return {name: _or_failure(partial(self._ready, name)) for name in wanted}

    def build(self, name: str, rebuild: bool = False) -> EngineEnv:
        """Build by its recipe unless it is there and up to date. Raises InputError, EnvironmentFailed."""
        recipe = self._recipe(name)
        with self._shelf.alone(name):
            return self._build_alone(name, recipe, rebuild)

    def add(self, name: str, engine: str | None, python: str) -> EngineEnv:
        """Take in an interpreter of the user's, after importing the engine in it.

        `engine` None means the engine of that name. Raises InputError, EnvironmentFailed.
        """
        engine = engine or name
        path = Path(os.path.expanduser(python)).absolute()  # not resolved: that would leave the venv
        problems = name_problems(name, engine)
        if path.is_dir():
            problems.append(Problem("", "--python", f"{path} is a folder", f"{path}/bin/python"))
        elif not os.path.lexists(path):  # a dangling link has a sentence of its own
            problems.append(Problem("", "--python", f"{path} does not exist"))
        if problems:
            raise InputError(problems)
        with self._shelf.alone(name):
            return self._add_alone(name, engine, str(path))

    def check(self, name: str) -> EnvCheck:
        """Try the optional packages and import the engine now, and compare versions.

        Raises EnvironmentFailed if it can't be imported.
        """
        if name == OWN:
            return EnvCheck(own_environment(), platform.python_version())
        stored = self._shelf.load(name)
        if stored is None:
            problem = self._unknown(name)
            raise InputError([problem]) if problem else EnvironmentFailed(name, "not built yet; `env build` builds it")
        env, version = self._examiner.examined(self._examiner.current(stored.env))
        self._keep(name, stored, env)
        return EnvCheck(env, version, stored.env.known.drift(env.fingerprint), self._outdated(stored))

    # --- steps ----------------------------------------------------------------

    def _ready(self, name: str) -> EngineEnv:
        if name == OWN:
            return own_environment()
        for _ in range(ATTEMPTS):
            self._shelf.share(name)
            stored = self._shelf.load(name)
            if stored is not None and not self._outdated(stored):
                env = self._examiner.current(stored.env)
                if changes := stored.env.known.drift(env.fingerprint):
                    self._say(f"environment {name} has changed since it was made: {'; '.join(changes)}")
                return env if env.examined == env.mark else self._examined(name, stored, env)
            self.build(name)
        raise EnvironmentFailed(name, "others keep changing it; try again when they are done")

    def _examined(self, name: str, stored: Stored, env: EngineEnv) -> EngineEnv:
        """Once for all sweeps to come, since trying takes seconds."""
        self._say(f"environment {name}: trying which of its optional packages can be used")
        env = self._examiner.repaired(env)
        self._keep(name, stored, env)
        return env

    def _keep(self, name: str, stored: Stored, env: EngineEnv) -> None:
        """Writes down what is broken. The fingerprint stays that of when the environment was made. Where that can't be
        done, the next one tries again."""
        seen = replace(stored.env, broken=env.broken, blocked=env.blocked, examined=env.examined)
        if seen != stored.env:
            self._shelf.amend(name, stored, replace(stored, env=seen))

    def _build_alone(self, name: str, recipe: Recipe, rebuild: bool) -> EngineEnv:
        stored = None if rebuild and self._shelf.is_damaged(name) else self._shelf.load(name)
        if stored is not None and stored.env.source == "user":
            raise InputError([Problem("", name, "is an environment of yours, which Airlock never changes")])
        if stored is not None:
            why = self._outdated(stored)
            if not (why or rebuild):
                self._say(f"environment {name} is there and up to date")
                return stored.env
            self._say(f"environment {name}: {why or 'rebuilding it, as asked'}")
        if refusal := recipe.refuses(sys.version_info[:2]):
            raise EnvironmentFailed(name, f"{refusal}; make one with another Python yourself and use `env add`")
        return self._make(name, recipe)

    def _make(self, name: str, recipe: Recipe) -> EngineEnv:
        folder = self._shelf.folder(name)
        for line in announcement(name, recipe, folder):
            self._say(line)
        begun = time.monotonic()
        try:
            remove_tree(folder)
            folder.mkdir(parents=True)
            check_room(name, recipe, folder)
            env, version = self._examiner.fresh(name, recipe.engine, self._builder(name, recipe).build(), recipe.digest)
            stored = Stored.now(env, version, recipe.kind, time.monotonic() - begun, size_bytes(folder))
            save(folder, stored)
        except BaseException as exc:
            remove_tree(folder)  # also after an interrupt; the log stays
            if isinstance(exc, OSError):
                raise EnvironmentFailed(name, f"{exc.filename or folder}: {exc.strerror or exc}") from exc
            raise
        ready = f"{recipe.engine} {version}, {bytes_text(stored.size_bytes)}, {seconds_text(stored.build_s)}"
        self._say(f"environment {name} is ready: {ready}")
        return env

    def _builder(self, name: str, recipe: Recipe) -> Builder:
        log = self._home / "logs" / f"env-{name}-{time.strftime('%Y%m%d-%H%M%S')}.log"
        tag = tag_of(self._home)
        return Builder(name, recipe, self._shelf.folder(name), log, self._launcher, tag, self._say, self._on_wait)

    def _add_alone(self, name: str, engine: str, python: str) -> EngineEnv:
        if self._shelf.load(name) is not None:
            raise InputError([Problem("", name, "there is an environment of that name", "choose another name")])
        env, version = self._examiner.fresh(name, engine, python, None)
        folder = self._shelf.folder(name)
        remove_tree(folder)
        folder.mkdir(parents=True)
        save(folder, Stored.now(env, version))
        self._say(f"environment {name} is ready: {engine} {version}, {python}")
        if doubt := recipes.untested(engine, env.installed):
            self._say(f"environment {name}: {doubt}")
        return env

    def _outdated(self, stored: Stored) -> str:
        if stored.env.source != "recipe":
            return ""
        if stored.kind != self._kind:
            return f"it was built for a {stored.kind} machine, and one for a {self._kind} machine is needed"
        recipe = self._recipe_of(stored.env.name, self._kind)
        if recipe is not None and recipe.digest != stored.env.fingerprint.recipe_digest:
            return "its recipe has changed since it was built"
        try:
            check_interpreter(stored.env.name, stored.env.python)
        except EnvironmentFailed as exc:
            return exc.cause
        return ""

    # --- names ----------------------------------------------------------------

    def _recipe(self, name: str) -> Recipe:
        recipe = self._recipe_of(name, self._kind)
        if recipe is None:
            known = f"known: {', '.join(recipes.engines())}"
            raise InputError([Problem("", name, "there is no recipe of that name", known)])
        return recipe

    def _unknown(self, name: str) -> Problem | None:
        if name == OWN or name in self._shelf.names() or self._recipe_of(name, self._kind):
            return None
        known = ", ".join(dict.fromkeys([*recipes.engines(), *self._shelf.names()]))
        return Problem("", f"environment {name}", "there is none of that name", f"known: {known}; `env add` adds yours")

    def list(self) -> dict[str, Found]:
        """All that are complete, by name; a damaged one as its error."""
        return {name: _or_failure(partial(self._stored_env, name)) for name in self._shelf.complete()}

    def _stored_env(self, name: str) -> EngineEnv:
        env = self.get(name)
        if env is None:
            raise EnvironmentFailed(name, "it has just been removed by another Airlock")
        return env


def _or_failure(make: Callable[[], EngineEnv]) -> Found:
    try:
        return make()
    except EnvironmentFailed as exc:
        return exc
