"""What the harness asks for, as sweeps of one method, and what it gets of their records. Pure.

A sweep is named by a digest of all that it asks, so the same requests are the same run: what was interrupted goes on,
and what is done is read.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.record.output import Record

#: What the harness may ask of a generation, beside how long it is and where it ends, and our name for it.
SAMPLED: Final = {"temperature": "temperature", "top_p": "top_p", "seed": "seed"}
#: What says nothing that the rest does not say.
_SAID_OTHERWISE: Final = ("do_sample", "until", "max_gen_toks")
_DIGEST_CHARACTERS: Final = 12

Ids = Sequence[int]


class Unasked(ValueError):
    """What the harness wants and no method can be asked for."""


class Unanswered(Exception):
    """What a record lacks, or how a sweep ended without records: in words."""


@dataclass(frozen=True)
class Call:
    """One sweep. `prompts`: as they stand in a prompt file, as token ids. `cut`: how many lost their beginning."""

    sampling: Mapping[str, Any]
    prompts: tuple[Mapping[str, Any], ...]
    cut: int = 0

    def name(self, base: Mapping[str, Any]) -> str:
        """Of the run. `base`: what the sweep file says beside it."""
        said = json.dumps([dict(base), dict(self.sampling), self.prompts], sort_keys=True)
        what = "score" if self.sampling.get("task") == "score" else "generate"
        return f"{what}-{hashlib.sha256(said.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"


def scoring(pairs: Sequence[tuple[Ids, Ids]], max_length: int) -> Call:
    """Log-probabilities of each continuation after its context. A context that is too long for the model loses its
    beginning. Raises Unasked for a continuation that leaves it no room, or is empty."""
    lines, cut = [], 0
    for number, (context, continuation) in enumerate(pairs):
        room = max_length - len(continuation)
        if not continuation or room < 1:
            raise Unasked(
                f"request {number}: a continuation of {len(continuation)} tokens after a context of {len(context)} "
                f"can't be scored where {max_length} are the most"
            )
        cut += len(context) > room
        lines.append({"id": str(number), "prompt": list(context[-room:]), "continuation": list(continuation)})
    return Call({"task": "score", "logprobs": 1}, tuple(lines), cut)


def alike(requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[int, list[int]]]:
    """Which requests can be one sweep: those that ask the same of their contexts. One that samples and is there again,
    as with `repeats` of a task, is of another: with its numbers goes how many times it was there before."""
    before = Counter[tuple[str, str]]()
    found: dict[tuple[int, str], list[int]] = {}
    for number, (context, asked) in enumerate(requests):
        what = str(asked)
        again = before[context, what] if _is_sampled(asked) else 0
        found.setdefault((again, what), []).append(number)
        before[context, what] += 1
    return [(again, numbers) for (again, _), numbers in found.items()]


def _is_sampled(asked: Mapping[str, Any]) -> bool:
    return asked.get("do_sample") is not False and float(asked.get("temperature") or 0.0) > 0.0


def generating(contexts: Sequence[Ids], asked: Mapping[str, Any], max_length: int, again: int = 0) -> Call:
    """`asked`: as `normalize_gen_kwargs` of the harness leaves it. `again`: how many times the same was asked before;
    one seed would give the same answer each time. Raises Unasked."""
    unknown = sorted(set(asked) - set(SAMPLED) - set(_SAID_OTHERWISE))
    if unknown:
        raise Unasked(f"generation_kwargs: no method can be asked for {', '.join(unknown)}: {', '.join(SAMPLED)} can")
    most = int(asked["max_gen_toks"])
    room = max_length - most
    if room < 1:
        raise Unasked(f"max_gen_toks: {most} new tokens leave no room for a prompt where {max_length} are the most")
    if empty := [number for number, ids in enumerate(contexts) if not ids]:
        raise Unasked(f"request {empty[0]}: its context comes to no token; add_bos_token=True puts one before each")
    lines = [{"id": str(number), "prompt": list(ids[-room:])} for number, ids in enumerate(contexts)]
    sampling = {name: asked[theirs] for theirs, name in SAMPLED.items() if asked.get(theirs) is not None}
    if again and sampling.get("temperature"):
        sampling["seed"] = int(sampling.get("seed", 0)) + again
    return Call({"max_new_tokens": most, **sampling}, tuple(lines), sum(len(ids) > room for ids in contexts))


def likelihood(record: Record, continuation: Ids) -> tuple[float, bool]:
    """The sum of the continuation's log-probabilities in nats, and whether each of its tokens is the likeliest.
    Raises Unanswered where the engine gave no number for one of them."""
    told = record.logprobs
    chosen = [] if told is None else [one for one in told.chosen if one is not None]
    if told is None or len(chosen) != len(continuation) or len(told.top_ids) != len(continuation):
        text = f"{len(chosen)} of {len(continuation)} log-probabilities of prompt {record.prompt_id}"
        raise Unanswered(f"{record.method} told {text}")
    return sum(chosen), all(ids[:1] == [asked] for ids, asked in zip(told.top_ids, continuation, strict=True))
