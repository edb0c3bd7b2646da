"""The command line: parse, call one verb, turn errors into sentences and exit codes.

Exit: 0 all points ok · 1 finished, some points failed · 2 the input is wrong ·
3 stopped early, no slot, room or time was left · 70 something unforeseen, its
traceback kept · 74 the output could not be written · 130/143 interrupted,
resumable. Verbs are imported when they are called, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Sequence

from orchestrator import __version__, verbs
from orchestrator.called import COMMAND
from orchestrator.exits import (
    EXIT_FAULT,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_OUTPUT,
    EXIT_PARTIAL,
    EXIT_TERMINATED,
)
from orchestrator.parsing import Parser, threshold

#: Whose arguments are another program's: argparse would take the first for an option of ours.
FOREIGN = "harness"


def run(argv: Sequence[str]) -> int:
    """The exit code. Whatever goes wrong ends in a sentence, never in a traceback."""
    from orchestrator.errors import AirlockError, EnvironmentFailed, InputError, Interrupted, OutputFailed

    try:
        return _call(argv)
    except InputError as exc:
        _complain(f"{len(exc.problems)} problem{'s' if len(exc.problems) > 1 else ''} in the input:")
        for problem in exc.problems:
            _complain(f"  {problem}")
        return EXIT_INPUT
    except EnvironmentFailed as exc:
        _complain(f"{exc}\n{exc.log_tail}".rstrip())
        return EXIT_PARTIAL
    except Interrupted as exc:
        _complain(str(exc))
        return EXIT_INTERRUPTED if exc.signum == signal.SIGINT else EXIT_TERMINATED
    except OutputFailed as exc:
        if exc.reader_left:  # of a pipe (`export … | head`): nothing went wrong here
            return EXIT_OK
        _complain(str(exc))
        return EXIT_OUTPUT
    except AirlockError as exc:
        _complain(str(exc))
        return EXIT_INPUT
    except KeyboardInterrupt:
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except Exception as exc:
        return _unforeseen(exc)


def _call(argv: Sequence[str]) -> int:
    from orchestrator.view.answer import Answer

    try:
        own = argv[:1] if argv[:1] == [FOREIGN] else argv
        args = _parser().parse_args(own)
        args.rest = argv[len(own) :]
        verb: Callable[[argparse.Namespace], int] = args.verb
        code = verb(args)
    except SystemExit as exc:  # argparse has told what there was to tell
        code = exc.code if isinstance(exc.code, int) else EXIT_OK
    Answer().finish()
    return code


def _unforeseen(exc: Exception) -> int:
    """A file that can't be read is wrong input, but not in the middle of a run."""
    from orchestrator import crash

    if isinstance(exc, OSError) and not crash.under_way():
        _complain(f"{exc.filename or crash.nameless()}: {exc.strerror or exc}")
        return EXIT_INPUT
    if isinstance(exc, ModuleNotFoundError) and crash.not_installed(exc) and not crash.under_way():
        _complain(crash.not_installed(exc))
        return EXIT_INPUT
    _complain(crash.tell(exc))
    return EXIT_FAULT


def _complain(text: str) -> None:
    """What a file or somebody else's code holds stands in it, and may hold what repaints a terminal."""
    from orchestrator.view.wording import clean

    verbs.say("\n".join(map(clean, f"airlock: {text}".split("\n"))))


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(
        prog=COMMAND,
        description="Compare LLM inference engines fairly and unattended: one sealed worker process per engine.",
        epilog="Exit: 0 all points ok; 1 some points failed; 2 wrong input; 3 stopped early for lack of a slot, of "
        "room or of time, resumable; 70 something unforeseen (traceback kept); 74 output could not be written; "
        "130/143 interrupted, resumable.",
    )
    parser.add_argument("--version", action="version", version=f"airlock {__version__}")
    chosen = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_sweep(chosen)
    _add_readers(chosen)
    _add_serve(chosen)
    _add_env(chosen)
    _add_artefacts(chosen)
    methods = chosen.add_parser("methods", help="every method, what it sets, and whether it can run on this machine")
    methods.add_argument("name", nargs="?", metavar="NAME", help="this one only, with all its fields")
    methods.add_argument("--json", action="store_true")
    methods.set_defaults(verb=verbs.methods)
    doctor = chosen.add_parser("doctor", help="examine interpreters, engines, devices, disk and limits")
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(verb=verbs.doctor)
    harness = chosen.add_parser(FOREIGN, help="tasks of lm-evaluation-harness on workers; takes what lm_eval takes")
    harness.set_defaults(verb=verbs.harness)
    outpost = chosen.add_parser("outpost", help="what a launcher starts on its nodes; never by hand")
    outpost.set_defaults(verb=verbs.outpost)
    schema = chosen.add_parser("schema", help="print the JSON schema of the sweep file, for editors")
    schema.set_defaults(verb=verbs.schema)
    return parser


Verbs = argparse._SubParsersAction  # the type has no public name


def _add_sweep(chosen: Verbs[argparse.ArgumentParser]) -> None:
    sweep = chosen.add_parser("sweep", help="run every point of a sweep file")
    plan = chosen.add_parser("plan", help="print points, worker starts and order; start nothing")
    for parser in (sweep, plan):
        parser.add_argument("file", metavar="FILE", help="sweep file (YAML)")
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="PATH=VALUE",
            help="override a value, e.g. matrix.batch_size=1,4",
        )
        parser.add_argument(
            "--strict",
            action="store_true",
            help="exit 2, with nothing started, where a fairness warning says that the methods can't be compared; "
            "after a run that was well otherwise, exit 1 where what ran, or the outputs, can't be",
        )
    sweep.add_argument("--run-dir", metavar="DIR", help="where results go (default: runs/NAME)")
    sweep.add_argument("--resume", action="store_true", help="finish a run that was interrupted")
    sweep.add_argument("--retry-failed", action="store_true", help="with --resume: run failed points again")
    sweep.add_argument(
        "--accept-environment-change",
        action="store_true",
        help="with --resume: go on though an engine's environment or the machine is not what the run began with",
    )
    sweep.add_argument("--dry-run", action="store_true", help="the same as `plan`")
    sweep.add_argument(
        "--listen",
        default="",
        metavar="tcp://ADDRESS[:PORT]",
        help="where workers dial back, over TCP with CURVE and a key each (default: a private local socket)",
    )
    sweep.add_argument(
        "--view",
        choices=("auto", "live", "plain", "quiet", "json"),
        default="auto",
        help="live on a terminal, else plain lines; json: an object a line, for programs",
    )
    sweep.set_defaults(verb=verbs.sweep)
    plan.set_defaults(verb=verbs.plan)


def _add_readers(chosen: Verbs[argparse.ArgumentParser]) -> None:
    status = chosen.add_parser("status", help="where a run stands")
    status.add_argument("run", metavar="RUN", help="run directory")
    status.add_argument("--json", action="store_true")
    status.set_defaults(verb=verbs.status)
    watch = chosen.add_parser("watch", help="follow a run from another terminal; ends with it, with its exit code")
    watch.add_argument("run", metavar="RUN", help="run directory")
    watch.add_argument("--view", choices=("auto", "live", "plain", "json"), default="auto", help="as of sweep")
    watch.add_argument("--once", action="store_true", help="say where it stands, and end")
    watch.set_defaults(verb=verbs.watch)
    report = chosen.add_parser("report", help="the results as Markdown")
    report.add_argument("run", metavar="RUN", help="run directory")
    report.add_argument("--json", action="store_true", help="every figure by name, and why a null is one")
    report.add_argument(
        "--html", action="store_true", help="one HTML file with plots that opens offline, RUN/report.html unless told"
    )
    report.add_argument("--output", metavar="FILE", help="where it goes; -: standard output, the default but of --html")
    report.add_argument("--answers", metavar="FILE", help="judge outputs by the section answers: of this YAML file")
    report.set_defaults(verb=verbs.report)
    agree = chosen.add_parser("agree", help="where outputs differ from the reference's; exit 1 if more than ties do")
    agree.add_argument("run", metavar="RUN", help="run directory")
    agree.add_argument("--reference", metavar="RUN", help="take the reference of another run")
    agree.add_argument("--json", action="store_true")
    agree.set_defaults(verb=verbs.agree)
    _add_compare(chosen)
    _add_export(chosen)


def _add_export(chosen: Verbs[argparse.ArgumentParser]) -> None:
    export = chosen.add_parser("export", help="outputs, figures, batches or events, as a table or to a tracker")
    export.add_argument("runs", nargs="+", metavar="RUN", help="run directory")
    export.add_argument(
        "--what", choices=("records", "rows", "batches", "events"), default="records", help="default: records"
    )
    export.add_argument(
        "--format", choices=("jsonl", "csv", "parquet"), help="default: by the name of the output, else jsonl"
    )
    export.add_argument("--output", metavar="FILE", help="default: standard output")
    export.add_argument("--force", action="store_true", help="replace a file that is no export")
    export.add_argument("--answers", metavar="FILE", help="judge outputs by the section answers: of this YAML file")
    export.add_argument("--spreadsheet", action="store_true", help="CSV in which no text is taken for a formula")
    tracker = export.add_argument_group("trackers")
    tracker.add_argument("--to", choices=("mlflow", "wandb"), help="figures, settings and report to a tracker instead")
    tracker.add_argument("--tracking-uri", metavar="URI", help="MLflow: default as MLflow has it")
    tracker.add_argument("--experiment", metavar="NAME", help="MLflow: default: airlock")
    tracker.add_argument("--project", metavar="NAME", help="Weights & Biases: default: airlock")
    tracker.add_argument("--offline", action="store_true", help="Weights & Biases: into a folder, to be sent later")
    tracker.add_argument("--patience-s", type=float, metavar="S", help="a tracker silent for so long is ended (300)")
    export.set_defaults(verb=verbs.export)


def _add_serve(chosen: Verbs[argparse.ArgumentParser]) -> None:
    serve = chosen.add_parser("serve", help="a dashboard and metrics of runs over HTTP; it only reads")
    serve.add_argument(
        "run", nargs="?", default="runs", metavar="RUN|DIR", help="run directory, or a folder of them (default: runs)"
    )
    serve.add_argument(
        "--listen",
        default="127.0.0.1:8765",
        metavar="ADDRESS:PORT",
        help="default: 127.0.0.1:8765; :0 for a free port; any other address needs a token",
    )
    serve.add_argument(
        "--token-file", metavar="FILE", help="what is to be shown; else of AIRLOCK_SERVE_TOKEN, else made where needed"
    )
    serve.set_defaults(verb=verbs.serve)


def _add_compare(chosen: Verbs[argparse.ArgumentParser]) -> None:
    compare = chosen.add_parser("compare", help="what changed from one run to another, and whether for the worse")
    compare.add_argument("before", metavar="BASE", help="run directory")
    compare.add_argument("after", metavar="RUN", nargs="+", help="another; of several each is set beside BASE")
    compare.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="tokens_per_s (default), ttft, tpot, itl, latency, load, peak_memory, accuracy or all; may be repeated",
    )
    compare.add_argument(
        "--fail-on-regression",
        type=threshold,
        metavar="SHARE",
        help="exit 1 where a figure is surely worse, and by more than this: 5%% or 0.05",
    )
    compare.add_argument(
        "--strict",
        action="store_true",
        help="with --fail-on-regression: exit 1 as well where it can't be told, or a cell of BASE is missing",
    )
    compare.add_argument("--json", action="store_true")
    compare.set_defaults(verb=verbs.compare)


def _add_artefacts(chosen: Verbs[argparse.ArgumentParser]) -> None:
    artefacts = chosen.add_parser("artefacts", help="what engines compiled and is kept for later starts: list, clear")
    artefacts.set_defaults(verb=verbs.artefacts)
    actions = artefacts.add_subparsers(required=True, dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="every entry: size, last use, what it is for")
    listing.add_argument("--json", action="store_true")
    actions.add_parser("clear", help="remove all: the next start of each method is cold")


def _add_env(chosen: Verbs[argparse.ArgumentParser]) -> None:
    env = chosen.add_parser("env", help="engine environments: list, build, add, check")
    env.set_defaults(verb=verbs.env)
    actions = env.add_subparsers(required=True, dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="every environment and its state")
    listing.add_argument("--json", action="store_true")
    build = actions.add_parser("build", help="build environments from their pinned recipes")
    build.add_argument("names", nargs="+", metavar="NAME", help="hf, vllm, sglang")
    build.add_argument("--rebuild", action="store_true", help="build again though it is there")
    add = actions.add_parser("add", help="use an interpreter of your own")
    add.add_argument("name", metavar="NAME")
    add.add_argument("--python", required=True, metavar="PATH", help="its interpreter")
    add.add_argument("--engine", choices=("hf", "vllm", "sglang"), help="default: the name, if it is an engine's")
    check = actions.add_parser("check", help="import the engine now and compare versions with those stored")
    check.add_argument("names", nargs="*", metavar="NAME", help="default: all")
