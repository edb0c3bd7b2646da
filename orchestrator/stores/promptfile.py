"""Prompts as the user has them: in a file of any format, in the sweep file itself, or random ones. Checked in full.

A record becomes a mapping of ours (`readers.mapping`): `prompt` (text) or `messages` (a chat), an optional `id`, an
optional `continuation` (text) for `task: score`, optional `images` (see `images`), an optional `expected` for the
judging of answers; every other field is kept and exported, never interpreted. Prompts without an id are named by their
place among the records, "0", "1", …, with a suffix where a given id has that name already.

Text that can't reach every engine unchanged is refused here, with its place: lone
surrogates can't be sent or stored, and some engines silently end a prompt at NUL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from orchestrator.definition.promptuse import PromptSource
from orchestrator.errors import InputError, Problem
from orchestrator.readers.choice import Draw, Drawn, characters, too_long_or_short
from orchestrator.readers.deciding import Decider, Undecided
from orchestrator.readers.found import Fault, Passed, Record, Unfit, Unreadable, kind
from orchestrator.readers.mapping import OPTIONAL, Mapper, lacks
from orchestrator.readers.openai import is_answered
from orchestrator.readers.tally import Tally, reasons
from orchestrator.stores import images, promptshape
from orchestrator.stores.envbuild import OnWait
from orchestrator.stores.images import Album, NoImage
from orchestrator.stores.named import Named
from orchestrator.stores.promptfaults import Faults
from orchestrator.stores.promptopen import Opened, opened
from orchestrator.stores.promptraw import Gathered, RawPrompt
from orchestrator.stores.prompttext import unclean

UNUSABLE = "can't be a prompt"
#: Between two looks at whether to stop.
LOOK_UP_RECORDS = 10_000
#: One length for all prompts of a batch is what engines take.
_LENGTH = "max_new_tokens"
#: What chat templates take beside the messages.
_BESIDE = ("tools", "functions", "documents", "chat_template_kwargs")
#: What other tools send beside a prompt or a chat.
_UNSENT = ("system", "system_prompt", "history")
_CONTINUED = "an assistant's message at the end of a chat is sent, to be continued"


def gathered(source: PromptSource, base: Path, on_wait: OnWait = None) -> Gathered:
    """The prompts of a file or of the sweep file. A relative file name is taken from `base`, an image's from the prompt
    file's folder.

    Raises InputError with every problem of every line, in the order of the lines.
    """
    if source.inline is not None:
        return _Gathering(source, Album(base)).inline()
    if source.file is None:
        raise InputError([Problem(source.where, "prompts", "there are none", "give `file` or `inline`")])
    named = Named(source.file, base)
    with opened(named, source, on_wait) as file:
        return _Gathering(source, Album(named.path.parent), on_wait).file(file)


class _Entry(Struct, frozen=True):
    """A prompt as found, and its place: in the file, among the records, and in the sweep file's keys."""

    value: Mapping[str, Any]
    where: str
    number: int
    key: str = ""

    def problem(self, key: str, message: str) -> Problem:
        return Problem(self.where, ".".join(filter(None, (self.key, key))), message)


class _Refused(Exception):
    """A record's problems."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__()
        self.problems = problems


class _Gathering:
    """One pass over the records. Of a sample no more is held than its own prompts."""

    def __init__(self, source: PromptSource, album: Album, on_wait: OnWait = None) -> None:
        self._on_wait = on_wait
        self._source, self._reading, self._album = source, source.reading, album
        self._faults = Faults()
        self._ids: dict[str, str] = {}
        self._left: Counter[str] = Counter()
        self._remarks: Counter[str] = Counter()
        self._told: list[str] = []
        self._unusable: Problem | None = None
        sample = self._reading.sample
        self._draw = Draw(sample.seed) if sample else None
        self._drawn: Drawn[tuple[_Entry, bytes]] = Drawn(None if self._reading.sampled_later else sample)
        self._read = 0

    # --- where they come from

    def inline(self) -> Gathered:
        values = self._source.inline or ()
        places = self._source.places or tuple(("", f"prompts[{n}]") for n in range(len(values)))
        for value, (where, key) in zip(values, places, strict=True):
            self._attempt(where, _inline, value, where, key, self._read)
        return self._done()

    def file(self, file: Opened) -> Gathered:
        decide = Decider(self._reading)
        mapper: Mapper | None = None
        try:
            for found in file.found:
                where = file.where(found.place)
                if self._on_wait and not self._read % LOOK_UP_RECORDS:
                    self._on_wait()
                if isinstance(found, Fault):
                    self._refuse([Problem(where, "", found.message, found.suggestion)])
                    self._read += 1
                    continue
                shape = decide(found.value)
                mapper = mapper or Mapper(self._reading, shape)
                self._attempt(where, self._made, mapper, found, where)
        except Undecided as exc:
            self._faults.add(Problem(where, "", str(exc), exc.suggestion))
            raise InputError(self._faults.problems()) from exc
        except Unreadable as exc:
            where, fault = file.where(exc.fault.place), exc.fault
            self._faults.add(Problem(where, "", fault.message, fault.suggestion))
        self._told += [decide.told] if decide.told else []
        return self._done()

    # --- one record

    def _attempt(self, where: str, make: Callable[..., _Entry], *args: Any) -> None:
        try:
            self._take(make(*args))
        except Passed as exc:
            self._left[str(exc)] += 1
        except _Refused as exc:
            self._refuse(exc.problems)
        except RecursionError:
            self._refuse([Problem(where, "", "is nested too deeply")])
        self._read += 1

    def _refuse(self, problems: list[Problem]) -> None:
        if self._reading.unusable == "refuse":
            for problem in problems:
                self._faults.add(problem)
        else:
            self._left[UNUSABLE] += 1
            self._unusable = self._unusable or problems[0]

    def _made(self, mapper: Mapper, found: Record, where: str) -> _Entry:
        try:
            made = mapper(found.value)
        except Unfit as exc:
            raise _Refused([Problem(where, exc.key, str(exc))]) from exc
        self._remarks.update(made.remarks)
        return _Entry(made.said, where, self._read)

    def _take(self, entry: _Entry) -> None:
        said = entry.value
        wrong = [*promptshape.faults(said), *(("", message) for message in unclean(said))]
        if wrong:
            raise _Refused([entry.problem(key, message) for key, message in wrong])
        self._claim(entry)
        if _LENGTH in said:
            self._remarks[f"{_LENGTH} of a prompt is kept, and `sampling` decides"] += 1
        if is_answered(said):
            self._remarks[_CONTINUED] += 1
        beside = () if self._reading.template else [name for name in _BESIDE if said.get(name)]
        self._remarks.update(f"{name} are kept, and no engine is told of them" for name in beside)
        if not (self._reading.template or self._reading.columns.system):
            unsent = (name for name in _UNSENT if said.get(name) and isinstance(said[name], str | list))
            self._remarks.update(f"{name} is kept, and not sent: `columns` or `messages` would" for name in unsent)
        limits = self._reading.filter
        if reason := too_long_or_short(limits, characters(said.get("prompt"), said.get("messages"))):
            raise Passed(reason)
        place = self._draw.place(map(said.get, _CONTENT)) if self._draw else b""
        self._drawn.offer(place, (entry, place))

    def _claim(self, entry: _Entry) -> None:
        given = entry.value.get("id")
        if given is None:
            return
        name = str(given)
        if (first := self._ids.get(name)) is not None:
            raise _Refused([entry.problem("", f"id {name!r} is taken by {first}")])
        self._ids[name] = " ".join(filter(None, (entry.where, entry.key)))

    # --- all of them

    def _done(self) -> Gathered:
        self._check_remarks()
        kept = self._drawn.kept()
        names = _Names(self._ids)
        prompts = tuple([one for entry, place in kept if (one := self._raw(entry, place, names)) is not None])
        if not self._faults and not prompts:
            self._faults.add(self._none())
        if not self._faults:
            self._check_sample(len(prompts))
        if self._faults:
            raise InputError(self._faults.problems())
        return Gathered(prompts, self._tally())

    def _check_remarks(self) -> None:
        """A column that is in no record at all is a slip of the pen."""
        for target, path in self._reading.columns.given().items():
            if target in OPTIONAL and self._read and self._remarks[lacks(target)] == self._read:
                message = f"no record has anything at {path}"
                self._faults.add(Problem(self._source.where, f"prompts.columns.{target}", message))

    def _raw(self, entry: _Entry, place: bytes, names: _Names) -> RawPrompt | None:
        """None where its images can't be used."""
        said = entry.value
        taken, problems = self._pictures(entry)
        if problems:
            self._refuse(problems)
            return None
        fields = {name: value for name, value in said.items() if name not in _OWN}
        messages = [dict(m) for m in said["messages"]] if "messages" in said else None
        given = said.get("id")
        name = names.free(entry.number) if given is None else str(given)
        where = entry.where or entry.key
        text, scored = said.get("prompt"), said.get("continuation")
        return RawPrompt(name, text, messages, fields, where, scored, taken, draw=place)

    def _pictures(self, entry: _Entry) -> tuple[tuple[bytes, ...], list[Problem]]:
        taken: list[bytes] = []
        problems: list[Problem] = []
        for place in images.places(entry.value):
            try:
                taken.append(self._album.take(place.reference))
            except NoImage as exc:
                problems.append(entry.problem(place.key, str(exc)))
        return tuple(taken), problems

    def _none(self) -> Problem:
        why = f": left out are {reasons(self._left)}" if self._left else ""
        return Problem(self._source.file or self._source.where, self._source.key, f"there is not a single prompt{why}")

    def _check_sample(self, count: int) -> None:
        sample = self._reading.sample
        if sample is not None and count < sample.count:
            self._faults.add(too_few(self._source, sample.count, count))

    def _tally(self) -> Tally:
        told = list(self._told)
        if self._unusable is not None:
            told.append(f"prompts: the first that {UNUSABLE}: {self._unusable}")
        later = self._reading.sampled_later
        sample = None if later else self._reading.sample
        return Tally(self._read, dict(self._left), dict(self._remarks), tuple(told), sample, self._drawn.offered)


def too_few(source: PromptSource, asked: int, left: int) -> Problem:
    hint = f"write {left}, or let the filter pass more"
    return Problem(source.where, "prompts.sample.count", f"is {asked}, and {left} prompts are left", hint)


def _inline(value: Any, where: str, key: str, number: int) -> _Entry:
    said = {"prompt": value} if isinstance(value, str) else value
    if not isinstance(said, Mapping):
        message = f"is {kind(value)}"
        raise _Refused([Problem(where, key, message, "a prompt is a text or a mapping")])
    return _Entry(said, where, number, key)


#: What makes a prompt what it is, and what of it stands apart from its fields.
_CONTENT = ("id", "prompt", "messages", "continuation", "images")
_OWN = frozenset({"id", "prompt", "messages", "continuation"})


class _Names:
    """Names for prompts without an id, none of which is given or taken."""

    def __init__(self, given: Iterable[str]) -> None:
        self._taken = set(given)

    def free(self, place: int) -> str:
        name = next(name for name in _candidates(place) if name not in self._taken)
        self._taken.add(name)
        return name


def _candidates(place: int) -> Iterator[str]:
    yield str(place)
    number = 1
    while True:
        yield f"{place}.{number}"
        number += 1
