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

from orchestrator.envbuild import OnWait
from orchestrator.envstate import OWN, EngineEnv, Fingerprint
from orchestrator.errors import EnvironmentFailed
from orchestrator.home import tag_of
from orchestrator.launcher import Launcher
from orchestrator.recipes import WORKER_MODULES
from orchestrator.tools import run_tool

READ_TIMEOUT_S = 120.0
PROBE_TIMEOUT_S = 900.0  # a first import from a cold disk reads gigabytes


class Examiner:
    """Every method raises EnvironmentFailed with the cause."""

    def __init__(self, home: Path, launcher: Launcher, on_wait: OnWait) -> None:
        self._home, self._launcher, self._on_wait = home, launcher, on_wait

    def fresh(self, name: str, engine: str, python: str, recipe_digest: str | None) -> tuple[EngineEnv, str]:
        """A new environment, usable by a worker, and its engine's version. No recipe digest: it is the user's."""
        found = self._installed(name, python)
        _check_worker_packages(name, python, found["packages"])
        fingerprint = Fingerprint.of(found["python"], found["packages"], recipe_digest or "")
        source: Any = "user" if recipe_digest is None else "recipe"
        return EngineEnv(name, engine, python, fingerprint, source), self.engine_version(name, engine, python)

    def current(self, env: EngineEnv) -> EngineEnv:
        """The same with its fingerprint as of now; imports nothing."""
        found = self._installed(env.name, env.python)
        now = Fingerprint.of(found["python"], found["packages"], env.fingerprint.recipe_digest)
        return msgspec.structs.replace(env, fingerprint=now)

    def engine_version(self, name: str, engine: str, python: str) -> str:
        """By importing the engine."""
        return str(self._tool("probe", {"engine": engine}, name, python, PROBE_TIMEOUT_S)["engine_version"])

    def _installed(self, name: str, python: str) -> dict[str, Any]:
        return self._tool("installed", {}, name, python, READ_TIMEOUT_S)

    def _tool(self, tool: str, request: Mapping[str, str], name: str, python: str, timeout_s: float) -> dict[str, Any]:
        log = self._home / "logs" / f"{tool}-{name}-{secrets.token_hex(3)}.log"
        tag = tag_of(self._home)
        return run_tool(self._launcher, python, tool, request, tag, timeout_s, log, env=name, on_wait=self._on_wait)


def own_environment() -> EngineEnv:
    """The coordinator's own interpreter, in which the scripted engine runs."""
    installed = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in metadata.distributions()}
    fingerprint = Fingerprint.of(platform.python_version(), installed, "")
    return EngineEnv(OWN, "scripted", sys.executable, fingerprint, "own")


def _check_worker_packages(name: str, python: str, installed: Mapping[str, str]) -> None:
    lacking = [package for package in WORKER_MODULES.values() if package not in installed]
    if lacking:
        command = f"{python} -m pip install {' '.join(lacking)}"
        raise EnvironmentFailed(name, f"lacks {', '.join(lacking)}, which Airlock's worker needs: {command}")
