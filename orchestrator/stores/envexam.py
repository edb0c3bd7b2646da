"""Looking into an environment by running its interpreter: what is installed, does the engine import."""

from __future__ import annotations

import platform
import secrets
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.errors import EnvironmentFailed
from orchestrator.launcher import Launcher
from orchestrator.stores.envbuild import OnWait, Say
from orchestrator.stores.envstate import OWN, EngineEnv, Fingerprint
from orchestrator.stores.home import tag_of
from orchestrator.stores.recipes import WORKER_MODULES
from orchestrator.stores.tools import run_tool

READ_TIMEOUT_S = 120.0
IMPORT_TIMEOUT_S = 300.0
PROBE_TIMEOUT_S = 900.0  # a first import from a cold disk reads gigabytes
#: Engines use these where they are there, and fail where they are there but broken, most often because
#: they were built for another torch. Blocked, they count as not installed.
OPTIONAL = ("torchvision", "torchaudio", "torchcodec", "torchao", "flash_attn", "bitsandbytes")


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
        fingerprint = Fingerprint.of(found["python"], found["packages"], recipe_digest or "")
        env = msgspec.structs.replace(env, fingerprint=fingerprint, installed=found["packages"])
        try:
            return env, self.engine_version(env)
        except EnvironmentFailed as exc:
            return self._cured(env, exc)

    def _cured(self, env: EngineEnv, failure: EnvironmentFailed) -> tuple[EngineEnv, str]:
        """The same without its broken optional packages. Raises `failure` if that is no cure."""
        broken = {module: error for module in OPTIONAL if (error := self._import_error(env, module)) is not None}
        if not broken:
            raise failure
        env = msgspec.structs.replace(env, blocked=tuple(broken))
        try:
            version = self.engine_version(env)
        except EnvironmentFailed:
            raise failure from None
        for module, error in broken.items():
            self._say(f"environment {env.name}: {module} is broken and will be blocked: {error}")
        return env, version

    def _import_error(self, env: EngineEnv, module: str) -> str | None:
        """None if it imports or is not there."""
        try:
            found = self._tool("import_one", {"module": module}, env, IMPORT_TIMEOUT_S)
        except EnvironmentFailed as exc:
            return exc.cause
        error: str | None = found["error"]
        return error

    def current(self, env: EngineEnv) -> EngineEnv:
        """The same with its fingerprint as of now; imports nothing."""
        found = self._tool("installed", {}, env, READ_TIMEOUT_S)
        now = Fingerprint.of(found["python"], found["packages"], env.fingerprint.recipe_digest)
        return msgspec.structs.replace(env, fingerprint=now, installed=found["packages"])

    def engine_version(self, env: EngineEnv) -> str:
        """By importing the engine."""
        return str(self._tool("probe", {"engine": env.engine}, env, PROBE_TIMEOUT_S)["engine_version"])

    def _tool(self, tool: str, request: Mapping[str, str], env: EngineEnv, timeout_s: float) -> dict[str, Any]:
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


def own_environment() -> EngineEnv:
    """The coordinator's own interpreter, in which the scripted engine runs."""
    installed = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in metadata.distributions()}
    fingerprint = Fingerprint.of(platform.python_version(), installed, "")
    return EngineEnv(OWN, "scripted", sys.executable, fingerprint, "own", installed=installed)


def _check_worker_packages(name: str, python: str, installed: Mapping[str, str]) -> None:
    lacking = [package for package in WORKER_MODULES.values() if package not in installed]
    if lacking:
        command = f"{python} -m pip install {' '.join(lacking)}"
        raise EnvironmentFailed(name, f"lacks {', '.join(lacking)}, which Airlock's worker needs: {command}")
