"""The prompts of a sweep as every engine gets them: token ids, made once, in one environment.

Engines are never handed text: each would tokenise it in its own way, some with two
begin-of-sequence tokens. How a file is read stands in `promptfile`, how random prompts come about in `promptdraws`.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.config import PromptSource
from orchestrator.definition.inputs import ModelInfo, Prompt, PromptSet
from orchestrator.errors import InputError, Problem
from orchestrator.launcher import Launcher
from orchestrator.readers import draws
from orchestrator.readers.choice import outside_tokens
from orchestrator.readers.tally import Tally, reasons
from orchestrator.stores.envbuild import OnWait
from orchestrator.stores.envstate import EngineEnv
from orchestrator.stores.images import kind_of
from orchestrator.stores.promptdraws import drawn
from orchestrator.stores.promptfaults import Faults
from orchestrator.stores.promptfile import UNUSABLE, gathered, too_few
from orchestrator.stores.promptraw import Gathered, RawPrompt
from orchestrator.stores.prompttokens import Tokeniser, name_of
from orchestrator.view.wording import listed
from protocol.digests import DIGEST_CHARACTERS, prompt_digest
from protocol.specs import unpack_ids

__all__ = ["Gathered", "RawPrompt", "as_line", "provisional", "read", "tokenise"]

LISTED_PROMPTS = 10
#: Prompts that one run of the tool is given, so that neither it nor its request grows without end.
MOST_AT_ONCE = 100_000
_FIELDS = ("prompt", "messages", "continuation", "images", "expected")
#: Of difflib's ratio: "image" is meant for "images", "context" not for "continuation".
_CLOSE = 0.8
_LATER = "prompts: how many prompts the filter leaves is known once they are tokenised"


def read(source: PromptSource, base: Path, on_wait: OnWait = None) -> Gathered:
    """All prompts of `source`, a relative file name taken from `base`. Raises InputError."""
    return gathered(source, base, on_wait) if source.made is None else drawn(source, base)


def tokenise(
    raw: Gathered,
    model: ModelInfo,
    source: PromptSource,
    env: EngineEnv | None,
    launcher: Launcher,
    *,
    home: Path,
    on_wait: OnWait = None,
) -> PromptSet:
    """The same prompts, model and template setting give the same ids, on any day and in any order of runs.

    `env` is any environment with transformers in it; the scripted model needs none. Raises InputError
    for prompts that the template refuses or that come to no token, EnvironmentFailed if the tool fails.
    """
    tokeniser = Tokeniser(model, source, env, launcher, home, on_wait)
    if source.made is not None:
        vocabulary = tokeniser.vocabulary()
        if not vocabulary:
            message = "the model's tokenizer tells of no token that is not special"
            raise InputError([Problem(source.where, source.key, message)])
        made = tuple(_prompt(one, _Ids(draws.ids(one.segments, vocabulary))) for one in raw.prompts)
        return PromptSet(_set_digest(made), made, False, notes=raw.tally.notes())
    chosen = _Choosing(raw, source, tokeniser.ids)
    prompts = chosen.prompts()
    warnings = _warnings(prompts, model, chosen.dated)
    return PromptSet(_set_digest(prompts), prompts, chosen.templated, warnings, notes=chosen.tally().notes())


def provisional(raw: Gathered, source: PromptSource) -> PromptSet:
    """A stand-in for planning before there is an environment: no token ids, a digest over the text."""
    some, sample = raw.prompts, source.reading.sample
    if source.reading.sampled_later and sample is not None:
        first = sorted(range(len(some)), key=lambda n: some[n].draw)[: sample.count]
        some = tuple(some[n] for n in sorted(first))
    prompts = tuple(_prompt(one, _Ids(b"")) for one in some)
    text = repr([(one.id, one.source(), one.segments) for one in some]).encode("utf-8", "backslashreplace")
    digest = hashlib.sha256(text).hexdigest()[:DIGEST_CHARACTERS]
    later = (_LATER,) if source.reading.filter.by_tokens else ()
    return PromptSet(digest, prompts, False, tokenised=False, notes=(*raw.tally.notes(), *later))


def as_line(prompt: Prompt) -> dict[str, Any]:
    """For the run directory: one prompt as a JSON object."""
    scored = {"continuation_ids": unpack_ids(prompt.continuation), "score_digest": prompt.score_digest}
    return {
        "id": prompt.id,
        "digest": prompt.digest,
        "token_ids": unpack_ids(prompt.token_ids),
        **({"images": [_about(one) for one in prompt.images]} if prompt.images else {}),
        **(scored if prompt.continuation else {}),
        "source": prompt.source,
    }


def _about(image: bytes) -> dict[str, Any]:
    return {"sha256": name_of(image), "bytes": len(image), "kind": kind_of(image)}


# --- which of them ------------------------------------------------------------------


class _Ids(Struct, frozen=True):
    """Packed, as in Prompt."""

    plain: bytes
    widened: bytes = b""
    continuation: bytes = b""

    @property
    def tokens(self) -> int:
        return len(self.widened or self.plain) // 4


class _Choosing:
    """Tokenises prompts, leaves out those that the filter does not pass, and draws the sample of the rest. To draw,
    no more of them are tokenised than it takes."""

    def __init__(self, raw: Gathered, source: PromptSource, ask: Callable[[Sequence[RawPrompt]], dict[str, Any]]):
        self._raw, self._source, self._ask = raw, source, ask
        self._sample = source.reading.sample if source.reading.sampled_later else None
        self._kept: dict[int, _Ids] = {}
        self._left: Counter[str] = Counter()
        self._looked_at = 0
        self.templated = self.dated = False

    def prompts(self) -> tuple[Prompt, ...]:
        """In the order of the file. Raises InputError."""
        for places in self._rounds():
            if not self._enough:
                self._take(places)
        if not self._kept:
            message = f"there is not a single prompt: left out are {reasons(self._left)}"
            raise InputError([Problem(self._source.where, self._source.key, message)])
        if self._sample is not None and not self._enough:
            raise InputError([too_few(self._source, self._sample.count, len(self._kept))])
        return tuple(_prompt(self._raw.prompts[place], self._kept[place]) for place in sorted(self._kept))

    def tally(self) -> Tally:
        before = self._raw.tally
        left = dict(Counter(before.left) + self._left)
        if self._sample is None:
            return replace(before, left=left)
        of = len(self._raw.prompts)
        looked = None if self._looked_at == of else self._looked_at
        return replace(before, left=left, sample=self._sample, of=of, looked_at=looked)

    @property
    def _enough(self) -> bool:
        return self._sample is not None and len(self._kept) >= self._sample.count

    def _rounds(self) -> Iterator[Sequence[int]]:
        """Places of prompts: all in order, or as they are drawn, a few more than would do and then ever more."""
        places: Sequence[int] = range(len(self._raw.prompts))
        size = MOST_AT_ONCE
        if self._sample is not None:
            places = sorted(places, key=lambda place: self._raw.prompts[place].draw)
            size = self._sample.count + self._sample.count // 4 + 64
        at = 0
        while at < len(places):
            yield places[at : at + min(size, MOST_AT_ONCE)]
            at, size = at + min(size, MOST_AT_ONCE), size * 4

    def _take(self, places: Sequence[int]) -> None:
        raw = [self._raw.prompts[place] for place in places]
        found = self._ask(raw)
        self.templated, self.dated = found["templated"], self.dated or found["dated"]
        refused = self._refused(raw, found)
        parts = ([base64.b64decode(one) for one in found[part]] for part in ("ids", "widened", "continuations"))
        for n, (place, *packed) in enumerate(zip(places, *parts, strict=True)):
            if self._enough:
                return
            ids = _Ids(*packed)
            self._looked_at += 1
            if why := UNUSABLE if n in refused else outside_tokens(self._source.reading.filter, ids.tokens):
                self._left[why] += 1
            else:
                self._kept[place] = ids

    def _refused(self, raw: Sequence[RawPrompt], found: Mapping[str, Any]) -> set[int]:
        """Those that can't be used, where they are to be left out. Raises InputError where they are not."""
        problems = list(_problems(raw, found))
        leaves_out = self._source.reading.unusable == "leave_out"
        faults = Faults()
        for index, problem in problems:
            if index is None or not leaves_out:
                faults.add(problem)
        if faults:
            raise InputError(faults.problems())
        return {index for index, _ in problems if index is not None}


def _problems(raw: Sequence[RawPrompt], found: Mapping[str, Any]) -> Iterator[tuple[int | None, Problem]]:
    """Every prompt that can't be used; None for what is wrong with all of them."""
    yield from ((None, Problem("", "prompts", message)) for index, message in found["problems"] if index is None)
    refused = {index: message for index, message in found["problems"] if index is not None}
    for index, (one, ids, scored) in enumerate(zip(raw, found["ids"], found["continuations"], strict=True)):
        message = refused.get(index, "")
        if not message and not ids:
            # Some engines die of it, and others depend on whether the tokenizer adds a begin-of-sequence token.
            message = "comes to no token at all"
        elif not message and one.continuation and not scored:
            message = "its continuation comes to no token at all"
        if message:
            yield index, Problem(one.where, f"prompt {one.id}", message)


# --- what is said of them -----------------------------------------------------------


def _warnings(prompts: Sequence[Prompt], model: ModelInfo, dated: bool) -> tuple[str, ...]:
    found = []
    stops = set(model.stop_token_ids)
    ended = [one.id for one in prompts if int.from_bytes(one.token_ids[-4:], "little") in stops]
    if ended:
        found.append(f"{_listed(ended)}: the last token is a stop token, so that engines may answer nothing")
    for (field, meant), ids in _slips(prompts).items():
        found.append(f"{_listed(ids)}: nothing reads the field {field}, which is only kept: did you mean {meant}?")
    if dated:
        found.append("the chat template writes today's date; 2025-01-01 stands there, so that runs can be repeated")
    return tuple(found)


def _slips(prompts: Sequence[Prompt]) -> dict[tuple[str, str], list[str]]:
    """Fields of the user's own whose names are nearly one of ours, with that, and the prompts that have them."""
    names = {name for one in prompts for name in one.source}
    meant = {name: close for name in names - {*_FIELDS} if (close := _close(name))}
    found: dict[tuple[str, str], list[str]] = {}
    for one in prompts if meant else ():
        for name in one.source:
            if name in meant:
                found.setdefault((name, meant[name]), []).append(one.id)
    return found


def _close(name: str) -> str | None:
    return next(iter(difflib.get_close_matches(name, _FIELDS, 1, _CLOSE)), None)


def _listed(ids: Sequence[str]) -> str:
    return f"prompt{'s' if len(ids) > 1 else ''} {listed(ids, LISTED_PROMPTS)}"


def _prompt(one: RawPrompt, ids: _Ids) -> Prompt:
    digest = prompt_digest(ids.widened or ids.plain, one.images)
    both = prompt_digest(ids.plain + ids.continuation) if ids.continuation else ""
    return Prompt(one.id, ids.plain, digest, one.source(), one.where, ids.continuation, both, one.images, ids.widened)


def _set_digest(prompts: Sequence[Prompt]) -> str:
    digest = hashlib.sha256()
    for one in prompts:
        # The length first: no id can pass for the end of another.
        name = one.id.encode()
        digest.update(len(name).to_bytes(4, "little") + name + (one.digest + one.score_digest).encode())
    return digest.hexdigest()[:DIGEST_CHARACTERS]
