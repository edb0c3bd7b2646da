"""Running one of workers/tools inside an engine's interpreter: a request in, a result out.

A tool is a short-lived process under a warden, like a worker. Request and result
travel as JSON files, so whatever its libraries print can't get between them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from orchestrator.errors import EnvironmentFailed, LaunchFailed
from orchestrator.launcher import Completed, Launcher, LaunchSpec, base_environment, beside
from orchestrator.stores.logs import TAIL_LINES, last_lines
from orchestrator.stores.scratch import remove_abandoned, scratch

BOOTSTRAP = Path(__file__).resolve().parent.parent.parent / "workers" / "bootstrap.py"
REMIND_S = 10.0
#: Lines that installers and interpreters print beside the point.
_NOISE = ("WARNING", "DEPRECATION", "[notice]", "warning:")
#: Of the installer's own failure; the trace's last line says what happened.
_EMPTY_ERRORS = ("ERROR: Exception:", "error: subprocess-exited-with-error")
#: How versions of uv explain themselves: below the error, or in a paragraph that the mark begins.
_REASON = "cause: "
_RESOLVER = "× "


class ToolFailed(EnvironmentFailed):
    """The tool ran and raised. `error_type` is the exception's class name."""

    def __init__(self, env: str, cause: str, log_tail: str, error_type: str) -> None:
        super().__init__(env, cause, log_tail)
        self.error_type = error_type


def run_tool(
    launcher: Launcher,
    env_python: str,
    name: str,
    request: Mapping[str, Any],
    run_tag: str,
    timeout_s: float,
    log: Path,
    *,
    env: str = "",
    variables: Mapping[str, str] | None = None,
    on_wait: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """The result of tool `name`, run by `env_python`; `env` names the environment in errors.

    The log is removed after success. Raises ToolFailed if the tool raised, EnvironmentFailed
    if it could not be started, died, or took longer than `timeout_s`.
    """
    env = env or env_python
    check_interpreter(env, env_python)
    remove_abandoned(run_tag)
    with scratch() as own:
        asked, answered = own.folder / "request.json", own.folder / "response.json"
        asked.write_text(json.dumps(request), encoding="utf-8")
        spec = LaunchSpec(
            argv=(env_python, str(BOOTSTRAP), "tool", name, str(asked), str(answered)),
            env={**beside(env_python, base_environment()), "TMPDIR": str(own.folder), **(variables or {})},
            cwd=str(own.folder),
            log=str(log),
            run_tag=run_tag,
            incarnation=own.incarnation,
        )
        completed = launch(launcher, spec, env, timeout_s, on_wait)
        response = _read_response(answered)
    if response is None:
        raise EnvironmentFailed(env, f"{name}: {how_it_ended(completed, log, timeout_s)}", tail(log))
    if not response["ok"]:
        error = response["error"]
        cause = f"{name}: {error['type']}: {one_line(error['message'])}"
        raise ToolFailed(env, cause, error.get("traceback") or tail(log), error["type"])
    log.unlink(missing_ok=True)
    result: dict[str, Any] = response["result"]
    return result


class Reminder:
    """An `on_wait` that says at once, and then every REMIND_S, what is being waited for."""

    def __init__(
        self,
        doing: str,
        say: Callable[[str], None],
        then: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._doing, self._say, self._then, self._clock = doing, say, then, clock
        self._begun = self._told = clock()
        say(doing)

    def __call__(self) -> None:
        now = self._clock()
        if now - self._told >= REMIND_S:
            self._told = now
            self._say(f"{self._doing}, {now - self._begun:.0f} s")
        if self._then:
            self._then()


def launch(
    launcher: Launcher, spec: LaunchSpec, env: str, timeout_s: float, on_wait: Callable[[], None] | None
) -> Completed:
    """`Launcher.run`, its refusal as an EnvironmentFailed."""
    Path(spec.log).parent.mkdir(parents=True, exist_ok=True)
    try:
        return launcher.run(spec, timeout_s, on_wait)
    except LaunchFailed as exc:
        raise EnvironmentFailed(env, str(exc), tail(Path(spec.log))) from exc


def check_interpreter(env: str, python: str) -> None:
    """Raises EnvironmentFailed unless `python` is a program. Its links are followed for the look only."""
    path = Path(python)
    if path.is_symlink() and not path.exists():
        gone = f"its interpreter {python} is a link to {os.path.realpath(python)}, which is gone"
        raise EnvironmentFailed(env, f"{gone}; the Python it was made from was removed or upgraded")
    if not path.exists():
        raise EnvironmentFailed(env, f"its interpreter {python} does not exist")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise EnvironmentFailed(env, f"its interpreter {python} is not a program that we may run")


def tail(log: Path) -> str:
    """The last lines of a log, without an installer's warnings; "" if there is none."""
    return "\n".join(
        [line for line in last_lines(log) if line.strip() and not line.lstrip().startswith(_NOISE)][-TAIL_LINES:]
    )


def cause_in(text: str) -> str:
    """The line of a log that says why it failed: the first error, else the last line; "" if there is none."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(_NOISE)]
    for place, line in enumerate(lines):
        if line.startswith(("ERROR: ", "error: ")) and line not in _EMPTY_ERRORS:
            reasons = takewhile(lambda after: after.startswith(_REASON), lines[place + 1 :])
            return one_line(": ".join([line, *reasons]).split(": ", 1)[1].replace(_REASON, ""))
    for place, line in enumerate(lines):
        if line.startswith(_RESOLVER):  # the rest of the log is the one sentence
            return one_line(" ".join(lines[place:]).removeprefix(_RESOLVER).replace("╰─▶ ", ""))
    return one_line(lines[-1]) if lines else ""


def how_it_ended(completed: Completed, log: Path, timeout_s: float) -> str:
    """One sentence on a process that gave no result."""
    if completed.timed_out:
        return f"took longer than {timeout_s:g} s and was ended"
    ended = f"ended by {completed.signal}" if completed.signal else f"ended with exit code {completed.code}"
    said = cause_in(tail(log))
    return f"{ended}: {said}" if said else f"{ended} and said nothing"


def one_line(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _read_response(path: Path) -> dict[str, Any] | None:
    try:
        response = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return response if isinstance(response, dict) and isinstance(response.get("ok"), bool) else None
