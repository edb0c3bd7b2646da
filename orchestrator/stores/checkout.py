"""The commit of the git checkout that a folder lies in."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.errors import LaunchFailed
from orchestrator.launcher import Launcher, LaunchSpec, base_environment
from orchestrator.provenance import CodeState
from orchestrator.stores.home import airlock_home, tag_of
from orchestrator.stores.scratch import scratch

TIMEOUT_S = 20.0
COMMIT = "# branch.oid "


def state_of(folder: Path, launcher: Launcher) -> tuple[CodeState | None, str]:
    """Or None and why there is none; "" if the folder simply is not under git."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None, ""
    git = shutil.which("git")
    if git is None:
        return None, "git is not on the PATH"
    # Whoever owns the checkout may not be us: git then refuses, unless told that we only read.
    options = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false", "--no-optional-locks", "-C", str(folder))
    return _read(*_said((git, *options, "status", "--porcelain=v2", "--branch", "--untracked-files=no"), launcher))


def _read(said: str, why_not: str) -> tuple[CodeState | None, str]:
    """git-status(1), porcelain format version 2: a header of lines with "#", then a line for each changed file."""
    lines = said.splitlines()
    commit = next((line.removeprefix(COMMIT) for line in lines if line.startswith(COMMIT)), "")
    if why_not or not commit or commit == "(initial)":
        return None, why_not or "there is no commit yet"
    return CodeState(commit=commit, changed=any(line.startswith(("1 ", "2 ", "u ")) for line in lines)), ""


def _said(argv: tuple[str, ...], launcher: Launcher) -> tuple[str, str]:
    """What it wrote, and why that is no answer."""
    with scratch() as own:
        log = own.folder / "said"
        spec = LaunchSpec(
            argv=argv,
            # A git that started us, as one of its hooks, names another checkout by variables.
            env={name: value for name, value in base_environment().items() if not name.startswith("GIT_")}
            | {"LC_ALL": "C"},
            cwd=str(own.folder),
            log=str(log),
            run_tag=tag_of(airlock_home()),
            incarnation=own.incarnation,
        )
        try:
            done = launcher.run(spec, TIMEOUT_S)
        except LaunchFailed as exc:
            return "", str(exc)
        text = log.read_text(encoding="utf-8", errors="replace")
    return text, "" if done.ok else " ".join(text.split()) or f"git ended with exit code {done.code}"
