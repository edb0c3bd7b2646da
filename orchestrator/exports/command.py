"""What the verb `export` does."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from orchestrator import __version__
from orchestrator.errors import InputError, Problem
from orchestrator.exports import parquet, place, textual
from orchestrator.exports.columns import Table
from orchestrator.exports.source import Source
from orchestrator.exports.tables import TABLES, lines_of
from orchestrator.exports.values import lost_text
from orchestrator.view.delivery import opened
from orchestrator.view.whichrun import run_dirs
from orchestrator.view.wording import clean, counted

Format = Literal["jsonl", "csv", "parquet"]
Say = Callable[[str], None]
FORMATS: Final[tuple[Format, ...]] = ("jsonl", "csv", "parquet")


@dataclass(frozen=True)
class Request:
    """`path` is None for standard output."""

    sources: Sequence[Path]
    table: Table
    format: Format
    path: Path | None
    force: bool = False
    spreadsheet: bool = False
    answers: Path | None = None


def run(args: argparse.Namespace, say: Say) -> int:
    """Raises InputError with everything that is wrong with the request, before anything is read."""
    if args.to:
        from orchestrator.exports import tracking

        return tracking.run(args, say)
    path = Path(args.output) if args.output else None
    request = Request(
        sources=run_dirs(args.runs),
        table=TABLES[args.what],
        format=args.format or _by_name(path),
        path=path,
        force=args.force,
        spreadsheet=args.spreadsheet,
        answers=Path(args.answers) if args.answers else None,
    )
    if problems := [*_problems(request), *_misnamed(request, args.format), *_meaningless(args)]:
        raise InputError(problems)
    write(request, say)
    return 0


def _by_name(path: Path | None) -> Format:
    return next((one for one in FORMATS if one == _ending(path)), "jsonl")


def _ending(path: Path | None) -> str:
    return path.suffix.removeprefix(".").lower() if path else ""


def _misnamed(request: Request, asked: Format | None) -> Iterator[Problem]:
    """A file whose name promises what is not in it."""
    ending, where = _ending(request.path), f"--output {request.path}"
    if asked and ending in FORMATS and ending != asked:
        yield Problem(where, "", f"would hold {asked}, by --format", f"name it .{asked}, or leave --format out")
    elif not asked and ending and ending not in FORMATS:
        yield Problem(where, "", f"no format is called {ending}", f"--format with one of {', '.join(FORMATS)}")


def _problems(request: Request) -> Iterator[Problem]:
    if request.path is not None:
        yield from place.problems(request.path, request.force)
    elif request.force:
        yield Problem("", "--force", "means something only with --output")
    if request.spreadsheet and request.format != "csv":
        yield Problem("", "--spreadsheet", "means something only with --format csv")
    if request.format == "parquet":
        if request.path is None and sys.stdout is not None and sys.stdout.isatty():
            yield Problem("", "--format parquet", "is nothing for a terminal", "--output FILE, or a pipe")
        try:
            parquet.arrow()
        except InputError as exc:
            yield from exc.problems


def _meaningless(args: argparse.Namespace) -> Iterator[Problem]:
    for name in ("tracking_uri", "experiment", "project", "offline", "patience_s"):
        if getattr(args, name):
            yield Problem("", f"--{name.replace('_', '-')}", "means something only with --to")


def write(request: Request, say: Say) -> None:
    """Raises OutputFailed, and JournalError where a run is damaged; no half a file is left."""
    table, lost, csv = request.table, Counter[str](), textual.Csv(request.spreadsheet)
    sources = [Source.of(one, request.answers) for one in request.sources]
    lines = lines_of(table, sources, lost)
    with opened(request.path) as out:
        if request.format == "parquet":
            parquet.write(table, lines, parquet.schema(table, about(sources)), out)
        else:
            for encoded in csv.lines(table, lines) if request.format == "csv" else textual.jsonl(table, lines):
                out.write(encoded)
    if lost:
        say(f"note: {lost_text(lost)}")
    if table is TABLES["records"]:
        for reason in dict.fromkeys(reason for one in sources for reason in one.not_judged):
            say(f"note: not judged: {clean(reason)}")
    if csv.formulas and not request.spreadsheet:
        say(f"note: {counted(csv.formulas, 'text')} of it would be a formula to a spreadsheet: --spreadsheet for those")


def about(sources: Sequence[Source]) -> dict[str, str]:
    """What a Parquet file says of itself, beside its schema: where it comes from."""
    return {"version": __version__, "runs": msgspec.json.encode([_origin(one) for one in sources]).decode()}


def _origin(source: Source) -> dict[str, Any]:
    view = source.view
    return {
        "run": clean(source.name),
        "run_id": source.run_id,
        "name": view.plan.name,
        "plan": view.plan.digest,
        "prompts": view.plan.prompts_digest,
        "model": view.plan.model.digest,
        "state": view.state,
        "starts": len(view.starts),
        "provenance": view.origins[-1] if view.origins else None,
    }
