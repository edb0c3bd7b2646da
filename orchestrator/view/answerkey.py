"""What the prompts of a run expect, and its judges: each output may be held against it at any time.

key_of(view)              None where the run judges nothing
key.verdicts(record)      by each judge; `key.verdict` by the first
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from orchestrator.definition.judging import Answers
from orchestrator.errors import JournalError
from orchestrator.journal import PROMPTS_NAME
from orchestrator.judge.answerkeys import EXTRA
from orchestrator.judge.answers import Judge, Prepare, Verdict, judge_for
from orchestrator.judge.answertext import accepted
from orchestrator.record.disk import reading
from orchestrator.record.output import Record
from orchestrator.record.promptlines import require_all
from orchestrator.view.runview import RunView

#: Of so many prompts what they expect is kept ready to be held against an output.
_READY: Final = 1 << 15


class _Source(msgspec.Struct):
    expected: Any = None


class _Line(msgspec.Struct):
    id: str
    source: _Source


@dataclass
class AnswerKey:
    """expected   of the prompts that have it, by id: what is right, as texts
    numbers    the same prompts numbered
    lacking    judge → why it can't judge here
    """

    answers: Answers
    expected: Mapping[str, tuple[str, ...]]
    numbers: Mapping[str, int] = field(init=False)
    lacking: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = {name: number for number, name in enumerate(self.expected)}
        self._prepare = [self._of(name) for name in self.answers.judge]
        self._judges = lru_cache(_READY)(self._judges_of)

    def verdict(self, record: Record) -> Verdict | None:
        """By the first judge, which is the one that the results show. None where nothing is expected of the prompt, or
        not to be judged by this judge."""
        found = self.verdicts(record)
        return found[0] if found else None

    def verdicts(self, record: Record) -> list[Verdict | None] | None:
        """By each judge. None where nothing is expected of the prompt, or nothing was generated."""
        if record.prompt_id not in self.expected or record.finish_reason == "scored":
            return None
        judges = self._judges(record.prompt_id)
        if record.error is not None:
            return [judge and _failed(judge) for judge in judges]
        return [judge and judge(record.text) for judge in judges]

    def _judges_of(self, prompt_id: str) -> list[Judge | None]:
        texts = self.expected[prompt_id]
        return [prepare and prepare(texts) for prepare in self._prepare]

    def _of(self, name: Any) -> Prepare | None:
        try:
            return judge_for(name, self.answers)
        except ImportError as exc:
            self.lacking[name] = f"the package {exc.name} is missing here: {EXTRA}"
        except ValueError as exc:
            self.lacking[name] = f"the pattern is none: {exc}"
        return None


def _failed(judge: Judge) -> Verdict:
    """Of no output at all."""
    return judge("")._replace(score=0.0, answer=None, why="the prompt failed")


def key_of(view: RunView) -> AnswerKey | None:
    """Reads the prompts of the run. Raises JournalError if some are missing or damaged."""
    plan = view.plan
    if plan.answers is None:
        return None
    return AnswerKey(plan.answers, dict(_expected(view.run_dir / PROMPTS_NAME, plan.prompt_ids)))


def _expected(path: Path, planned: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    decode, number, there = msgspec.json.Decoder(_Line).decode, 0, set[str]()
    try:
        with reading(path) as file:
            for raw in file:
                number += 1
                line = decode(raw)
                there.add(line.id)
                if texts := accepted(line.source.expected):
                    yield line.id, texts
    except OSError as exc:
        raise JournalError(f"{path}: {exc.strerror}") from exc
    except msgspec.DecodeError as exc:
        raise JournalError(f"{path}: line {number} is damaged: {exc}") from exc
    require_all(path, planned, there)
