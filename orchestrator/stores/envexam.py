"""Looking into an environment by running its interpreter: what is installed, does the engine import."""

from __future__ import annotations

import platform
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.definition.repairs import OPTIONAL
from orchestrator.errors import EnvironmentFailed
from orchestrator.launcher import Launcher
from orchestrator.stores.envbuild import OnWait, Say
from orchestrator.stores.envstate import OWN, EngineEnv, Fingerprint
from orchestrator.stores.home import tag_of
from orchestrator.stores.recipes import WORKER_MODULES
from orchestrator.stores.tools import ToolFailed, run_tool

READ_TIMEOUT_S = 120.0
TRY_TIMEOUT_S = 120.0  # of one optional package
#: Without these there is no engine; a traceback tells no more.
_OWN_PACKAGES = {"hf": ("torch", "transformers"), "vllm": ("vllm",), "sglang": ("sglang",)}
PROBE_TIMEOUT_S = 900.0  # a first import from a cold disk reads gigabytes


class Examiner:
    """Every method raises EnvironmentFailed with the cause."""

    def __init__(self, home: Path, launcher: Launcher, say: Say, on_wait: OnWait) -> None:
        self._home, self._launcher, self._say, self._on_wait = home, launcher, say, on_wait

    def fresh(self, name: str, engine: str, python: str, recipe_digest: str | None) -> tuple[EngineEnv, str]:
        """A new environment, usable by a worker, and its engine's version. No recipe digest: it is the user's."""
        env = EngineEnv(
            name, engine, python, Fingerprint("", {}, "", ""), "user" if recipe_digest is None else "recipe"
        )
        found = self._tool("installed", {}, env, READ_TIMEOUT_S)
        _check_worker_packages(name, python, found["packages"])
        env = _with(env, found, recipe_digest or "")
        env, version = self.examined(env)
        for sentence in env.repairs:
            self._say(f"environment {name}: {sentence}")
        return env, version

    def examined(self, env: EngineEnv) -> tuple[EngineEnv, str]:
        """The same with its broken optional packages found, by trying, and blocked; and its engine's version."""
        return self._cured(self._tried(env))

    def repaired(self, env: EngineEnv) -> EngineEnv:
        """The same; the engine is imported only if something is broken. Where it can't be, its worker will tell,
        and the next sweep tries again."""
        found = self._tried(env)
        try:
            return self._cured(found)[0] if found.broken else found
        except EnvironmentFailed:
            return msgspec.structs.replace(found, examined="")

    def _tried(self, env: EngineEnv) -> EngineEnv:
        """With what is broken in it, and nothing blocked yet."""
        bare = msgspec.structs.replace(env, broken={}, blocked=(), examined=env.mark)
        if env.engine == "scripted":  # no library in it looks for any
            return bare
        request = {"modules": OPTIONAL, "seconds": TRY_TIMEOUT_S}
        return msgspec.structs.replace(bare, broken=self._tool("optional", request, bare, PROBE_TIMEOUT_S)["broken"])

    def _cured(self, env: EngineEnv) -> tuple[EngineEnv, str]:
        """With as many of the broken packages blocked as the engine can be imported without: all, all but one, none."""
        names = tuple(env.broken)
        all_but_one = (tuple(name for name in names if name != needed) for needed in names)
        for blocked in filter(None, (names, *all_but_one)):
            cured = msgspec.structs.replace(env, blocked=blocked)
            with suppress(EnvironmentFailed):
                return cured, self.engine_version(cured)
        return env, self.engine_version(env)

    def current(self, env: EngineEnv) -> EngineEnv:
        """The same with its fingerprint as of now; imports nothing."""
        found = self._tool("installed", {}, env, READ_TIMEOUT_S)
        return _with(env, found, env.fingerprint.recipe_digest)

    def engine_version(self, env: EngineEnv) -> str:
        """By importing the engine."""
        try:
            return str(self._tool("probe", {"engine": env.engine}, env, PROBE_TIMEOUT_S)["engine_version"])
        except ToolFailed as exc:
            if exc.error_type != "ModuleNotFoundError" or not (lacking := _lacks(env.engine, exc.cause)):
                raise
            raise EnvironmentFailed(env.name, f"{env.python} has no package {lacking}; install it there") from exc

    def _tool(self, tool: str, request: Mapping[str, object], env: EngineEnv, timeout_s: float) -> dict[str, Any]:
        return run_tool(
            self._launcher,
            env.python,
            tool,
            request,
            tag_of(self._home),
            timeout_s,
            self._home / "logs" / f"{tool}-{env.name}-{secrets.token_hex(3)}.log",
            env=env.name,
            variables=env.variables,
            on_wait=self._on_wait,
        )


@cache
def own_environment() -> EngineEnv:
    """The coordinator's own interpreter, in which the scripted engine runs. What is installed is read once."""
    # A broken installation may have metadata without a name.
    named = [d for d in metadata.distributions() if d.metadata and d.metadata["Name"]]
    installed = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in named}
    fingerprint = Fingerprint.of(platform.python_version(), installed, "")
    return EngineEnv(OWN, "scripted", sys.executable, fingerprint, "own", installed=installed)


def _with(env: EngineEnv, found: Mapping[str, Any], recipe_digest: str) -> EngineEnv:
    """As the tool `installed` found it."""
    return msgspec.structs.replace(
        env,
        fingerprint=Fingerprint.of(found["python"], found["packages"], recipe_digest),
        installed=found["packages"],
        editable=found["editable"],
        plugins=tuple(found["plugins"]),
    )


def _lacks(engine: str, cause: str) -> str:
    """The engine's own package, if that is what could not be imported; empty for what it needs in turn."""
    named = cause.rpartition("No module named ")[2].strip("'\"")
    return named if named in _OWN_PACKAGES.get(engine, ()) else ""


def _check_worker_packages(name: str, python: str, installed: Mapping[str, str]) -> None:
    lacking = [package for package in WORKER_MODULES.values() if package not in installed]
    if lacking:
        command = f"{python} -m pip install {' '.join(lacking)}"
        raise EnvironmentFailed(name, f"lacks {', '.join(lacking)}, which Airlock's worker needs: {command}")
