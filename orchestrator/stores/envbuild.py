"""Building one environment from a recipe: phases, each a program under a warden, with progress.

pip of the new venv by default. uv where it is on the PATH and nothing is
configured that only pip reads; AIRLOCK_INSTALLER=pip or uv decides otherwise.
"""

from __future__ import annotations

import os
import secrets
import shutil
import site
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import EnvironmentFailed, InputError, Problem
from orchestrator.launcher import Launcher, LaunchSpec, base_environment
from orchestrator.stores.recipes import Recipe
from orchestrator.stores.tools import cause_in, how_it_ended, launch, tail
from orchestrator.view.wording import bytes_text, seconds_text

PHASE_TIMEOUT_S = 4 * 3600.0  # a slow line and 13 GB; the user sees progress and can stop it
PROGRESS_S = 10.0
REMOVE_ATTEMPTS = 20
REMOVE_RETRY_S = 0.25
#: Downloads and unpacked files stand beside the finished environment for a while.
PEAK_FACTOR = 1.5

Say = Callable[[str], None]
OnWait = Callable[[], None] | None

#: They would send the packages elsewhere, or install others or too few. USER is set, to beat a line of pip.conf too.
_DIVERTING = frozenset(
    {f"PIP_{name}" for name in ("TARGET", "PREFIX", "ROOT", "PYTHON", "DRY_RUN", "REQUIREMENT", "NO_DEPS", "USER")}
    | {"UV_SYSTEM_PYTHON", "UV_OVERRIDE"}
)
_PIP_ONLY = tuple(
    f"PIP_{name}" for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX", "CONSTRAINT", "CONFIG_FILE")
)
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


@dataclass(frozen=True)
class Phase:
    """One step of a build: what it does, in words, and its command."""

    doing: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Builder:
    """Builds `recipe` into `folder`/venv, all output to `log`. `folder` exists and is empty."""

    name: str
    recipe: Recipe
    folder: Path
    log: Path
    launcher: Launcher
    run_tag: str
    say: Say
    on_wait: OnWait = None

    def build(self) -> str:
        """Path of the new interpreter. Raises EnvironmentFailed; leaves the folder to the caller then."""
        scratch = self.folder / "tmp"  # inside, so that whoever removes a half-made folder removes all
        scratch.mkdir()
        plugins = [_copied(plugin, scratch) for plugin in self.recipe.plugins]
        progress = Progress(self.name, self.folder, self.log, self.say)
        for phase in phases(self.recipe, self.folder, plugins, find_uv(os.environ)):
            self._run(phase, scratch, progress)
        shutil.rmtree(scratch)
        return str(interpreter(self.folder))

    def _run(self, phase: Phase, scratch: Path, progress: Progress) -> None:
        progress.begin(phase.doing)
        spec = LaunchSpec(
            argv=phase.argv,
            env=installer_environment(base_environment(), scratch),
            cwd=str(scratch),
            log=str(self.log),
            run_tag=self.run_tag,
            incarnation=f"build-{secrets.token_hex(3)}",
        )
        begun = self.log.stat().st_size if self.log.exists() else 0
        completed = launch(self.launcher, spec, self.name, PHASE_TIMEOUT_S, self._waiting(progress))
        if completed.code == 0:
            return
        said = cause_in(self.log.read_bytes()[begun:].decode("utf-8", "replace"))
        why = said if said and not completed.timed_out else how_it_ended(completed, self.log, PHASE_TIMEOUT_S)
        raise EnvironmentFailed(self.name, f"{phase.doing} failed: {why}; full log: {self.log}", tail(self.log))

    def _waiting(self, progress: Progress) -> Callable[[], None]:
        def tick() -> None:
            progress.tick()
            if self.on_wait:
                self.on_wait()

        return tick


class Progress:
    """Says about every PROGRESS_S what is going on, for how long, and how large it has grown."""

    def __init__(
        self, name: str, folder: Path, log: Path, say: Say, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._folder, self._log, self._say, self._clock = name, folder, log, say, clock
        self._doing = ""
        self._begun = self._told = clock()

    def begin(self, doing: str) -> None:
        self._doing = doing
        self._begun = self._told = self._clock()
        self._say(f"  {self._name}: {doing}")

    def tick(self) -> None:
        now = self._clock()
        if now - self._told < PROGRESS_S:
            return
        self._told = now
        size = bytes_text(size_bytes(self._folder))
        step = _last_step(self._log)
        self._say(f"  {self._name}: {self._doing}, {now - self._begun:.0f} s, {size} so far{step and f' ({step})'}")


def phases(recipe: Recipe, folder: Path, plugins: list[Path], uv: str | None) -> list[Phase]:
    """The commands of a build, in order."""
    venv, python = str(folder / "venv"), str(interpreter(folder))
    empty = not (recipe.packages or plugins)
    create: tuple[str, ...]
    install: tuple[str, ...]
    uninstall: tuple[str, ...]
    if uv:
        create = (uv, "venv", "--python", sys.executable, venv)
        install = (uv, "pip", "install", "--python", python, "--compile-bytecode")
        uninstall = (uv, "pip", "uninstall", "--python", python)
    else:
        create = (sys.executable, "-m", "venv", *(("--without-pip",) if empty else ()), venv)
        install = (python, *_PIP, "install", "--progress-bar", "off")
        uninstall = (python, *_PIP, "uninstall", "--yes")
    found = [Phase("creating the virtual environment", create)]
    if recipe.packages:
        found.append(Phase(f"installing {recipe.packages[0]} and what it needs", (*install, *recipe.packages)))
    if recipe.remove:
        found.append(Phase(f"removing {' '.join(recipe.remove)}", (*uninstall, *recipe.remove)))
    if plugins:
        names = ", ".join(plugin.name for plugin in plugins)
        found.append(Phase(f"installing our plugin {names}", (*install, "--no-deps", *map(str, plugins))))
    return found


def interpreter(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def find_uv(environ: Mapping[str, str], pip_files: Iterable[Path] | None = None) -> str | None:
    """uv's path if it is to be used, None for pip. Raises InputError for a wrong AIRLOCK_INSTALLER.

    `pip_files`: where pip's settings may be; None for the usual places.
    """
    wanted = environ.get("AIRLOCK_INSTALLER", "auto")
    if wanted not in ("auto", "pip", "uv"):
        raise InputError([Problem("AIRLOCK_INSTALLER", "", f"can't be {wanted!r}", "auto, pip or uv")])
    uv = shutil.which("uv", path=environ.get("PATH"))
    if wanted == "uv" and uv is None:
        raise InputError([Problem("AIRLOCK_INSTALLER", "", "uv is not on the PATH")])
    # A mirror that only pip knows of would be passed by.
    files = pip_config_files(environ) if pip_files is None else pip_files
    configured = any(environ.get(name) for name in _PIP_ONLY) or any(file.is_file() for file in files)
    return None if wanted == "pip" or (wanted == "auto" and configured) else uv


def pip_config_files(environ: Mapping[str, str]) -> list[Path]:
    home = Path(environ.get("HOME", "/"))
    config = Path(environ.get("XDG_CONFIG_HOME", home / ".config"))
    folders = [config, *map(Path, environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":"))]
    files = [folder / "pip" / "pip.conf" for folder in folders]
    return [*files, home / ".pip" / "pip.conf", Path("/etc/pip.conf"), *(Path(p) / "pip.conf" for p in site.PREFIXES)]


def installer_environment(base: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The caller's, with its own settings of pip and uv kept, save those that divert the installation.

    TMPDIR is on the disk that the environment goes to: /tmp is often a small one in memory.
    """
    kept = {name: value for name, value in base.items() if name not in _DIVERTING}
    return {**kept, "PIP_USER": "0", "TMPDIR": str(scratch)}


def size_bytes(folder: Path) -> int:
    """Bytes on the disk below `folder`; what vanishes meanwhile is left out."""
    total = 0
    pending = [os.fspath(folder)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return total


def check_room(name: str, recipe: Recipe, folder: Path) -> None:
    """Raises EnvironmentFailed if the disk has no room for the build."""
    check_disk(name, int(recipe.disk_bytes * PEAK_FACTOR), folder)


def check_disk(name: str, needed_bytes: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        room = f"needs about {bytes_text(needed_bytes)} while it is made, {folder} has {bytes_text(free)} free"
        raise EnvironmentFailed(name, f"{room}; set AIRLOCK_HOME to a larger disk")


def announcement(name: str, recipe: Recipe, folder: Path) -> list[str]:
    """What is about to happen, for the user to read before it does."""
    lines = [
        f"environment {name} ({recipe.kind}): building it in {folder} with {'uv' if find_uv(os.environ) else 'pip'}",
        f"  {cost(recipe)}: {', '.join(recipe.packages) or 'no packages'}",
    ]
    if not recipe.proven:
        lines.append("  this recipe resolves but has not been run yet: tell us how it goes")
    return lines


def cost(recipe: Recipe) -> str:
    return f"about {bytes_text(recipe.disk_bytes)} of disk and {seconds_text(recipe.build_s)} or more"


def remove_tree(folder: Path) -> None:
    """Also where a build that is being killed still writes: what it adds is removed too. Raises OSError."""
    for _ in range(REMOVE_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(REMOVE_RETRY_S)
    shutil.rmtree(folder)


def _copied(plugin: Path, scratch: Path) -> Path:
    # setuptools writes build/ and *.egg-info beside the sources, which may be read-only and are not ours to litter.
    ignored = shutil.ignore_patterns("__pycache__", "build", "dist", "*.egg-info")
    return Path(shutil.copytree(plugin, scratch / plugin.name, ignore=ignored))


def _last_step(log: Path) -> str:
    """What pip is at: "Downloading triton-3.9.0", from the last line it wrote."""
    lines = tail(log).splitlines()
    words = lines[-1].split() if lines else []
    if len(words) < 2 or words[0] not in ("Collecting", "Downloading"):
        return ""
    return f"{words[0]} {'-'.join(words[1].split('-')[:2])}"
