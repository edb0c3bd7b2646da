"""prompts.jsonl of a run that goes on: written again where it lost prompts, and otherwise left as the run began.

The prompts at hand are those of the plan, id by id and token by token, before this is asked. What they expect is in no
digest: it may have changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.definition.inputs import Prompt
from orchestrator.errors import JournalError
from orchestrator.journal import PROMPTS_NAME, encode, write_prompts
from orchestrator.record.disk import reading
from orchestrator.record.promptlines import lacking, lacking_text
from orchestrator.stores import prompts
from orchestrator.view.wording import clean, counted


class _Source(msgspec.Struct):
    expected: Any = None


class _Line(msgspec.Struct):
    id: str
    source: _Source


def keep(run_dir: Path, given: Sequence[Prompt]) -> Iterator[str]:
    """What there is to be told, a sentence each. Raises JournalError where lost prompts can't be written again."""
    path = run_dir / PROMPTS_NAME
    kept = dict(_kept(path))
    changed = list(_changed(kept, given))
    ids = [prompt.id for prompt in given]
    if lost := lacking(ids, kept):
        told = lacking_text(path, lost, ids)
        if changed:
            how = "so that it can't be written again: put it back from a copy"
            raise JournalError(f"{told}, and {_changed_text(changed)}, {how}")
        write_prompts(run_dir, map(prompts.as_line, given))
        yield f"{told}: written again, with `expected` as the sweep file has it now"
    elif changed:
        yield f"{_changed_text(changed)}, but its results are read with what {PROMPTS_NAME} says"


def _changed_text(changed: Sequence[str]) -> str:
    of = f"{counted(len(changed), 'prompt')} (first {clean(changed[0])})"
    return f"`expected` of {of} is not what this run began with"


def _kept(path: Path) -> Iterator[tuple[str, Any]]:
    """Id and `expected` of the lines that are whole."""
    decode = msgspec.json.Decoder(_Line).decode
    try:
        with reading(path) as file:
            for raw in file:
                try:
                    line = decode(raw)
                except msgspec.DecodeError:
                    continue
                yield line.id, line.source.expected
    except FileNotFoundError:
        return
    except OSError as exc:
        raise JournalError(f"{path}: {exc.strerror}") from exc


def _changed(kept: Mapping[str, Any], given: Sequence[Prompt]) -> Iterator[str]:
    """As JSON has it: a tuple is a list there."""
    for prompt in given:
        expected = msgspec.json.decode(encode(prompt.source.get("expected")))
        if prompt.id in kept and kept[prompt.id] != expected:
            yield prompt.id
