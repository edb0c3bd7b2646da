"""A finished run judged by other rules than it was begun with: nothing runs again."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from orchestrator.definition import sweepfile
from orchestrator.definition.judging import Answers, read_answers
from orchestrator.definition.places import Places
from orchestrator.definition.sweepfile import Problems
from orchestrator.errors import InputError, Problem
from orchestrator.judge import answerkeys
from orchestrator.view.runview import RunView


def rejudge(view: RunView, file: Path) -> None:
    """By the section `answers:` of a YAML file, which may be a sweep file. Raises InputError."""
    view.plan = replace(view.plan, answers=_read(file))


def _read(file: Path) -> Answers:
    problems = Problems()
    try:
        root = sweepfile.load(file.read_text(encoding="utf-8-sig"), str(file), problems)
    except (OSError, UnicodeDecodeError) as exc:
        raise InputError([Problem(str(file), "", f"can't be read: {getattr(exc, 'strerror', None) or exc}")]) from exc
    section = root.value.get("answers") if root is not None and isinstance(root.value, dict) else None
    if section is None and not problems.found:
        problems.add(str(file), "answers", "is missing", "for example answers: {judge: exact}")
    found = None if section is None else read_answers(section, problems)
    if root is not None and found is not None and not problems.found:
        problems.found += answerkeys.unable(found, Places.of(root, str(file)))
    if problems.found or found is None:
        raise InputError(problems.ordered())
    return found
