"""What each verb of the command line does. Each imports what it needs when it is called: `--help` answers at once."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path

from orchestrator.exits import EXIT_OK, EXIT_PARTIAL


def sweep(args: argparse.Namespace) -> int:
    from orchestrator.run import descriptors
    from orchestrator.run.sweep import Request, run
    from orchestrator.stores.home import airlock_home, tag_of
    from orchestrator.stores.scratch import remove_abandoned

    if args.dry_run:
        return plan(args)
    _need_resume(args)
    descriptors.ensure()
    remove_abandoned(tag_of(airlock_home()))
    return run(
        Request(
            file=Path(args.file),
            overrides=tuple(args.set),
            run_dir=Path(args.run_dir) if args.run_dir else None,
            resume=args.resume,
            accept_environment_change=args.accept_environment_change,
            retry_failed=args.retry_failed,
            view=args.view,
            listen=args.listen,
            strict=args.strict,
        )
    )


def outpost(_args: argparse.Namespace) -> int:
    from orchestrator.remote.outpost import main
    from orchestrator.run import descriptors

    descriptors.ensure()
    return main()


def _need_resume(args: argparse.Namespace) -> None:
    from orchestrator.errors import InputError, Problem

    given = {"--retry-failed": args.retry_failed, "--accept-environment-change": args.accept_environment_change}
    problems = [Problem("", name, "means something only with --resume") for name, on in given.items() if on]
    if problems and not args.resume:
        raise InputError(problems)


def plan(args: argparse.Namespace) -> int:
    from orchestrator.notify import recipients
    from orchestrator.run import prepare, scrutiny
    from orchestrator.view import fairness

    ground = prepare.survey(Path(args.file), tuple(args.set), say)
    scrutiny.announce(ground, say)
    found = scrutiny.findings(ground)
    told = recipients.lines(ground.config.notify, Path(args.file).parent)
    _answer(chain(prepare.describe(ground, say, getattr(args, "listen", "")), told, fairness.lines(found)))
    scrutiny.refuse(found, args.strict)
    return EXIT_OK


def _answer(lines: Iterable[str]) -> None:
    from orchestrator.view.answer import Answer

    Answer().lines(lines)


def _judged(lines: Iterable[str], code: int) -> int:
    """`code`, which does not depend on whether the reader of a pipe stays to the end."""
    from orchestrator.errors import OutputFailed
    from orchestrator.view.answer import Answer

    try:
        _answer(lines)
        Answer().finish()
    except OutputFailed as exc:
        if not exc.reader_left:
            raise
    return code


def watch(args: argparse.Namespace) -> int:
    from orchestrator.terminal.watching import watch
    from orchestrator.view.whichrun import run_dirs

    (run_dir,) = run_dirs([args.run])
    return watch(run_dir, args.view, once=args.once)


def status(args: argparse.Namespace) -> int:
    from orchestrator import report
    from orchestrator.view.whichrun import run_dirs

    (run_dir,) = run_dirs([args.run])
    found = report.status(report.RunView.load(run_dir))
    _answer([json.dumps(found, indent=2)] if args.json else report.status_lines(found))
    return EXIT_OK


def report(args: argparse.Namespace) -> int:
    from orchestrator.page import command
    from orchestrator.view.runview import RunView
    from orchestrator.view.whichrun import run_dirs

    (run_dir,) = run_dirs([args.run])
    view = RunView.load(run_dir)
    if args.answers:
        from orchestrator.view.rejudge import rejudge

        rejudge(view, Path(args.answers))
    command.run(args, view, say)
    return EXIT_OK


def agree(args: argparse.Namespace) -> int:
    from orchestrator.view import agreement
    from orchestrator.view.whichrun import run_dirs

    run_dir, *reference = run_dirs([one for one in (args.run, args.reference) if one])
    view, found = agreement.load(run_dir, reference[0] if reference else None)
    code = EXIT_PARTIAL if any(row.bad for row in found.rows) else EXIT_OK
    told = [json.dumps(agreement.as_json(found), indent=2)] if args.json else agreement.lines(view, found)
    return _judged(told, code)


def compare(args: argparse.Namespace) -> int:
    from orchestrator.paired import markdown, review, values
    from orchestrator.paired.pair import compare_all
    from orchestrator.view.whichrun import run_dirs

    asked = review.asked(args.metric, args.fail_on_regression, args.strict)
    before, *after = run_dirs([args.before, *args.after])
    found = compare_all(before, after, asked.metrics)
    judged, code = review.reviewed(found, asked)
    told = [json.dumps(values.values(judged, code), indent=2)] if args.json else markdown.markdown(judged)
    return _judged(told, code)


def export(args: argparse.Namespace) -> int:
    from orchestrator.exports import command

    return command.run(args, say)


def serve(args: argparse.Namespace) -> int:
    from orchestrator.serve import command

    return command.run(args, say)


def harness(args: argparse.Namespace) -> int:
    from orchestrator.harness import command

    return command.main(args.rest)


def methods(args: argparse.Namespace) -> int:
    from orchestrator.view import methodlist

    _answer(methodlist.methods(args.name, args.json))
    return EXIT_OK


def schema(_args: argparse.Namespace) -> int:
    from orchestrator.config import json_schema
    from orchestrator.stores import entrypoints

    _answer([json.dumps(json_schema(entrypoints.registry()), indent=2)])
    return EXIT_OK


def doctor(args: argparse.Namespace) -> int:
    from orchestrator.view import doctor as examiner

    findings = examiner.examine(say)
    _answer([json.dumps([f.as_dict() for f in findings], indent=2)] if args.json else map(str, findings))
    return EXIT_PARTIAL if any(f.level == "bad" for f in findings) else EXIT_OK


def env(args: argparse.Namespace) -> int:
    from orchestrator.view import listing

    action: Callable[[argparse.Namespace, Callable[[str], None]], int] = getattr(listing, f"env_{args.action}")
    return action(args, say)


def artefacts(args: argparse.Namespace) -> int:
    from orchestrator.view import stored

    action: Callable[[argparse.Namespace, Callable[[str], None]], int] = getattr(stored, f"artefacts_{args.action}")
    return action(args, say)


def say(text: str) -> None:
    with suppress(OSError, AttributeError, ValueError):  # a stderr that is closed or full changes no exit code
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
