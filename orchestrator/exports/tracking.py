"""Sends runs to a tracker of experiments: `export --to`.

The tracker's library is imported in a process of its own, under a warden like any other, by an interpreter of its own
where one is named. Everything is read, and handed over as a file of JSON lines, before that process starts: a damaged
run sends nothing, and a tracker that hangs, crashes or is not there is one sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

from orchestrator.definition.variables import MOST_CHARACTERS, plain
from orchestrator.errors import EnvironmentFailed, InputError, LaunchFailed, OutputFailed, Problem
from orchestrator.exports import tracked
from orchestrator.exports.source import Source
from orchestrator.exports.values import as_json
from orchestrator.journal import PLAN_NAME, SWEEP_NAME
from orchestrator.launcher import Completed, Launcher, LaunchSpec, base_environment
from orchestrator.stores.home import airlock_home, tag_of
from orchestrator.stores.scratch import remove_abandoned, scratch
from orchestrator.stores.tools import Reminder, check_interpreter, how_it_ended, one_line
from orchestrator.view.asked import secrets
from orchestrator.view.markdown import pieces
from orchestrator.view.whichrun import run_dirs
from orchestrator.view.wording import clean, counted, joined

Say = Callable[[str], None]
CHILD: Final = Path(__file__).with_name("child.py")
#: An item at a time has so long, and the import of the library.
PATIENCE_S: Final = 300.0
#: A tracker that is silent is ended long before.
_FOR_EVER_S: Final = 7 * 24 * 3600.0
_TITLES: Final = {"mlflow": "MLflow", "wandb": "Weights & Biases"}
_OPTIONS: Final = {"mlflow": ("tracking_uri", "experiment"), "wandb": ("project", "offline")}
#: What needs no server and no account, where nothing was chosen: by which option, by which variable.
_WITHOUT: Final = {
    "mlflow": ("uri", "MLFLOW_TRACKING_URI", "--tracking-uri file:./mlruns keeps it in a folder here"),
    "wandb": ("offline", "WANDB_MODE", "--offline keeps it in a folder here, to be sent later"),
}
_OF_TABLES: Final = ("format", "output", "force", "spreadsheet")


def run(args: argparse.Namespace, say: Say) -> int:
    """Raises InputError for options that mean nothing here or a library that is missing, OutputFailed if the tracker
    could not be told."""
    if problems := list(_problems(args)):
        raise InputError(problems)
    answers = Path(args.answers) if args.answers else None
    for path in run_dirs(args.runs):
        send(Source.of(path, answers), args.to, _options(args), args.patience_s or PATIENCE_S, say)
    return 0


def _problems(args: argparse.Namespace) -> Iterator[Problem]:
    others = [name for tracker, names in _OPTIONS.items() if tracker != args.to for name in names]
    for name in (*_OF_TABLES, *others):
        if getattr(args, name):
            yield Problem("", f"--{name.replace('_', '-')}", f"means nothing with --to {args.to}", "leave it out")
    if args.what != "records":
        yield Problem("", "--what", f"means nothing with --to {args.to}: it gets the rows", "leave it out")
    if args.patience_s is not None and not args.patience_s > 0:
        yield Problem("", "--patience-s", f"can't be {args.patience_s:g}", "seconds, more than 0")
    try:
        check_interpreter(args.to, _python(args.to))
    except EnvironmentFailed as exc:
        yield Problem("", _variable(args.to), exc.cause)


def _variable(tracker: str) -> str:
    return f"AIRLOCK_{tracker.upper()}_PYTHON"


def _python(tracker: str) -> str:
    return os.environ.get(_variable(tracker)) or sys.executable


def _options(args: argparse.Namespace) -> dict[str, Any]:
    if args.to == "mlflow":
        return {"uri": args.tracking_uri or "", "experiment": args.experiment or "airlock"}
    return {"project": args.project or os.environ.get("WANDB_PROJECT") or "airlock", "offline": args.offline}


def send(source: Source, tracker: str, options: dict[str, Any], patience_s: float, say: Say) -> None:
    """Raises as `run`, and JournalError if the run is damaged."""
    tag = tag_of(airlock_home())
    remove_abandoned(tag)
    with scratch() as own:
        items, answers, log = (own.folder / name for name in ("items", "answers", "log"))
        files, left_out = _files(source, own.folder)
        count = _write(items, chain([options], tracked.items(source, files)))
        spec = LaunchSpec(
            argv=(_python(tracker), str(CHILD), tracker, str(items), str(answers)),
            env={**base_environment(), "TMPDIR": str(own.folder)},
            cwd=os.getcwd(),
            log=str(log),
            run_tag=tag,
            incarnation=own.incarnation,
        )
        doing = f"sending {clean(source.name)} to {_TITLES[tracker]}"
        completed = _launch(spec, _Silence(answers, patience_s), Reminder(doing, say))
        told = _last(answers)
        if "where" not in told:
            raise _failure(tracker, told, completed, log, patience_s, _advice(tracker, options))
    sent = f"{counted(count - 2, 'row')} and the sweep are in {plain(told['where'])}"
    for line in (sent, *left_out, *told.get("notes", [])):
        say(clean(line))


def _launch(spec: LaunchSpec, silence: _Silence, remind: Callable[[], None]) -> Completed:
    try:
        return Launcher().run(spec, _FOR_EVER_S, remind, silence)
    except LaunchFailed as exc:
        raise OutputFailed(str(exc), reader_left=False) from exc


class _Silence:
    """Whether nothing was answered for too long."""

    def __init__(self, answers: Path, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._answers, self._patience_s, self._clock = answers, patience_s, clock
        self._heard = clock()
        self._size = -1

    def __call__(self) -> bool:
        size = self._answers.stat().st_size if self._answers.exists() else -1
        if size != self._size:
            self._size, self._heard = size, self._clock()
        return self._clock() - self._heard >= self._patience_s


def _write(path: Path, lines: Iterable[Any]) -> int:
    """How many there are."""
    with path.open("wb") as out:
        return sum(out.write(bytes(as_json(line)) + b"\n") > 0 for line in lines)


def _files(source: Source, folder: Path) -> tuple[dict[str, str], list[str]]:
    """What goes with the sweep, and a sentence on what does not."""
    report = folder / "report.md"
    with report.open("w", encoding="utf-8", errors="replace") as out:
        out.writelines(pieces(source.view))
    found = {report.name: str(report)}
    if names := secrets(source.view.plan):
        return found, [f"{SWEEP_NAME} and {PLAN_NAME} stay here: they hold the value of {joined(names)}"]
    inputs = {name: str(source.run_dir.absolute() / name) for name in (SWEEP_NAME, PLAN_NAME)}
    return found | {name: path for name, path in inputs.items() if os.path.isfile(path)}, []


def _last(answers: Path) -> dict[str, Any]:
    """{} where it did not come to say anything, or was cut short."""
    try:
        found = json.loads(answers.read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}


def _advice(tracker: str, options: dict[str, Any]) -> str:
    option, variable, advice = _WITHOUT[tracker]
    return "" if options[option] or os.environ.get(variable) else f" ({advice})"


def _failure(
    tracker: str, told: dict[str, Any], completed: Completed, log: Path, patience_s: float, advice: str
) -> InputError | OutputFailed:
    title, python = _TITLES[tracker], _python(tracker)
    if told.get("missing"):
        install = f"pip install 'engine-airlock[{tracker}]', or name a Python that has it as {_variable(tracker)}"
        return InputError([Problem("", "--to", f"{tracker} can't be imported by {python}: {told['error']}", install)])
    if completed.stopped:
        why = f"said nothing for {patience_s:g} s and was ended"
    else:
        why = one_line(told.get("error") or how_it_ended(completed, log, patience_s), MOST_CHARACTERS)
    return OutputFailed(plain(f"{title}: {why}{advice}"), reader_left=False)
