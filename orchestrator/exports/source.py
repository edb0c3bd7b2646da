"""A run as tables: each line with what is its own, and what it shares with others of its point and worker."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.definition.judging import GRADED
from orchestrator.definition.variables import recorded
from orchestrator.events import BatchCommitted, RunStarted
from orchestrator.exports.columns import ASKED, METHOD, SETTINGS, WORKER, Line, Values
from orchestrator.exports.prompts import Prompt, PromptFile
from orchestrator.journal import PROMPTS_NAME
from orchestrator.record.output import Record
from orchestrator.record.ranges import Range
from orchestrator.view.answerkey import AnswerKey, key_of
from orchestrator.view.asked import started
from orchestrator.view.phrases import cause_text
from orchestrator.view.rejudge import rejudge
from orchestrator.view.runview import RunView
from protocol.specs import BackendConfig

#: As values of their settings: of all points these may be much.
_SHARED_AT_ONCE = 64
_NOT_ASKED: Values = (None,) * len(ASKED)
_NOT_JUDGED: Values = (None,) * 3
_NO_WORKER: Values = (None,) * len(WORKER)


@dataclass(frozen=True)
class Source:
    """One run directory."""

    run_dir: Path
    view: RunView

    @classmethod
    def of(cls, run_dir: Path, answers: Path | None = None) -> Source:
        """`answers`: judge by the section of this file. Raises JournalError if it holds no run or a damaged one,
        InputError for what is wrong with that section."""
        view = RunView.load(run_dir)
        if answers is not None:
            rejudge(view, answers)
        return cls(run_dir, view)

    @property
    def name(self) -> str:
        return os.path.basename(os.path.realpath(self.run_dir))

    @cached_property
    def run_id(self) -> str:
        """16 hex digits, of the plan and of who began it when."""
        first = self.view.starts[0] if self.view.starts else None
        begun = (first.at, first.host, first.pid) if first else ()
        return hashlib.sha256(msgspec.json.encode((self.view.plan.digest, *begun))).hexdigest()[:16]

    @property
    def key(self) -> Values:
        return self.name, self.run_id

    def of_point(self, name: str, method: str | None) -> Values:
        """The first columns of whatever is of a point; what only the plan tells is None where it has no such point."""
        point = self.view.points.get(name)
        return (*self.key, name, method, *((point.config.method.engine, point.role) if point else (None, None)))

    @cached_property
    def answer_key(self) -> AnswerKey | None:
        return key_of(self.view)

    @property
    def not_judged(self) -> list[str]:
        """Why the first judge can't judge here."""
        key = self.answer_key
        return [why for name, why in key.lacking.items() if name == key.answers.judge[0]] if key else []

    def judged(self) -> Callable[[Record], Values]:
        """A function that tells whether an output is right, its score and its answer; None each where it can't be
        judged, and the first where there are only scores."""
        key = self.answer_key
        if key is None:
            return lambda _record: _NOT_JUDGED
        graded = key.answers.judge[0] in GRADED and key.answers.threshold is None

        def judged(record: Record) -> Values:
            found = key.verdict(record)
            return _NOT_JUDGED if found is None else (None if graded else found.score == 1, found.score, found.answer)

        return judged

    def shared_by(self) -> Callable[[str, str], Values]:
        """A function of point and incarnation."""

        @lru_cache(_SHARED_AT_ONCE)
        def shared(name: str, incarnation: str) -> Values:
            point = self.view.points.get(name)
            return (*self._worker(incarnation), *(asked(point.config) if point else _NOT_ASKED))

        return shared

    def _worker(self, incarnation: str) -> Values:
        worker = self.view.workers.get(incarnation)
        if worker is None:
            return _NO_WORKER
        told = worker.ready.metadata if worker.ready else None
        names = [column.name for column in WORKER[2:]]
        return worker.launched.env, worker.launched.fingerprint, *(getattr(told, name, None) for name in names)


def asked(config: BackendConfig) -> Values:
    """Of ASKED. No value of a secret."""
    found: dict[str, Any] = msgspec.to_builtins(config)
    method = found["method"] | {"env_vars": recorded(config.method.env_vars)}
    return (
        *(method[column.name.removeprefix("method_")] for column in METHOD),
        *(found[column.name.removeprefix("setting_")] for column in SETTINGS),
    )


def records(source: Source) -> Iterator[Line]:
    """Every committed record once, in file order. One is in memory at a time. Raises JournalError on damage."""
    view, shared, first = source.view, source.shared_by(), lru_cache(_SHARED_AT_ONCE)(source.of_point)
    judged = source.judged()
    with PromptFile(source.run_dir / PROMPTS_NAME, view.plan.prompt_ids) as prompts:
        for ranges in view.replay.ranges():
            batches = {_batch_key(part.commit): part for part in ranges}
            for record in view.replay.records_of(ranges):
                key = (*first(record.point, record.method), record.repeat)
                batch = (*_of_batch(batches.get(_batch_key(record))), record.incarnation)
                own = (*key, *_of_record(record, prompts.read(record.prompt_id), judged(record)), *batch)
                yield Line(own, shared(record.point, record.incarnation))


def _of_record(record: Record, prompt: Prompt, judged: Values) -> Values:
    error, told = record.error, record.logprobs
    return (
        record.prompt_id,
        record.prompt_digest,
        record.prompt_tokens,
        prompt.source,
        prompt.token_ids,
        prompt.expected,
        record.text,
        record.token_ids,
        record.generated_tokens,
        record.finish_reason,
        record.ttft_s,
        record.latency_s,
        record.itl_s,
        *((None, None, None) if told is None else (told.chosen, told.top_ids, told.top)),
        *judged,
        record.flags,
        *((None, None) if error is None else (error.cls, cause_text(error))),
        record.batch,
        record.batch_size,
    )


def _batch_key(one: BatchCommitted | Record) -> tuple[str, str, str]:
    """A retry may run the rest of a batch under the same name, in another worker."""
    return one.point, one.batch, one.incarnation


def _of_batch(part: Range | None) -> Values:
    """A batch without time, or of which a prompt ran again later, is not in the report's figures."""
    if part is None:
        return None, None, None
    stats = part.commit.stats
    return None if stats is None else stats.wall_s, part.measured, part.commit.at


def batches(source: Source) -> Iterator[Line]:
    """Every committed batch, point by point, in the order in which points were begun."""
    view, shared = source.view, source.shared_by()
    for point in view.replay.stands:
        part, planned = view.replay.part([point]), view.points.get(point)
        method, repeat = (planned.method, planned.repeat) if planned else (None, None)
        key = (*source.of_point(point, method), repeat)
        devices = {(use.batch, use.incarnation): use.devices for use in part.devices}
        for one in part.ranges:
            used = devices.get((one.commit.batch, one.commit.incarnation))
            yield Line((*key, *_of_commit(one), used), shared(point, one.commit.incarnation))


def _of_commit(part: Range) -> Values:
    commit, stats = part.commit, part.commit.stats
    told = (stats.wall_s, stats.generated_tokens, stats.peak_memory_bytes, stats.extra) if stats else (None,) * 4
    return (
        commit.batch,
        commit.incarnation,
        part.measured,
        commit.at,
        len(commit.prompts),
        commit.errors,
        *told,
        commit.flags,
        commit.neighbours,
        commit.host,
    )


def events(source: Source) -> Iterator[Line]:
    """The whole journal, but for values of secrets."""
    for number, found in enumerate(source.view.replay.events()):
        event = started(source.view.plan, found) if isinstance(found, RunStarted) else found
        about = (getattr(event, name, None) for name in ("incarnation", "point", "batch"))
        yield Line((*source.key, number, event.at, event.__struct_config__.tag, *about, event))
