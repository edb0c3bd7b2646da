"""What SGLang's answers look like, and what they tell. Pure.

Of an answer's meta_info: finish_reason, completion_tokens, cached_tokens, num_retractions;
[output|input]_token_logprobs as (log-probability, id, text) for each position, and
[output|input]_top_logprobs as a list of these for each; spec_*; routed_experts.
"""

from __future__ import annotations

import base64
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.backends.base import WrongOutputs
from workers.backends.positions import Position

#: Ours by theirs; absent from an answer means none of them.
TOTALS = {"cached_tokens": "cached_tokens", "num_retractions": "num_preemptions"}
#: Of speculation. A draft is one verification, the root of the tree not counted as a token.
SPECULATION = {
    "spec_verify_ct": "drafts",
    "spec_num_proposed_drafts": "draft_tokens",
    "spec_num_correct_drafts": "accepted_tokens",
}


#: What models call the number of their experts.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class Result:
    """One answer, whatever its form was. `meta` is empty where the form has none."""

    token_ids: list[int] | None
    text: str | None
    meta: Mapping[str, Any]

    @property
    def finish(self) -> str | None:
        reason = self.meta.get("finish_reason")
        return reason.get("type") if isinstance(reason, Mapping) else reason

    @property
    def error(self) -> str:
        """Why it was given up, "" if it was not."""
        reason = self.meta.get("finish_reason")
        told = isinstance(reason, Mapping) and reason.get("type") == "abort" and reason.get("message")
        return f"SGLang gave it up: {told}" if told else ""

    @property
    def completion_tokens(self) -> int | None:
        return self.meta.get("completion_tokens")


def results(answer: object) -> list[Result]:
    """SGLang's answer to a batch, in the batch's order.

    Its form depends on the version and on how many prompts were given: a dict,
    a list of dicts, of strings or of id lists, a string, or one dict of lists.
    Raises WrongOutputs for anything else.
    """
    return list(_results(answer))


def _results(answer: object) -> Iterator[Result]:
    if isinstance(answer, Mapping):
        yield from map(_of_mapping, _split(answer))
    elif isinstance(answer, str):
        yield Result(None, answer, {})
    elif _is_ids(answer):
        yield Result(list(answer), None, {})  # type: ignore[call-overload]
    elif isinstance(answer, (list, tuple)):
        for one in answer:
            yield from _results(one)
    else:
        raise WrongOutputs(f"SGLang answered with {type(answer).__name__}")


def _of_mapping(answer: Mapping[str, Any]) -> Result:
    ids = answer.get("output_ids", answer.get("token_ids"))
    if ids is None and answer.get("text") is None:
        raise WrongOutputs(f"SGLang's answer has neither ids nor text, but {sorted(answer)}")
    return Result(None if ids is None else list(ids), answer.get("text"), answer.get("meta_info") or {})


def _split(answer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """One dict for each prompt, out of a dict whose values are lists over the prompts."""
    meta = answer.get("meta_info")
    if not isinstance(meta, (list, tuple)):
        return [answer]
    return [{key: value[i] for key, value in answer.items()} for i in range(len(meta))]


def _is_ids(answer: object) -> bool:
    return isinstance(answer, (list, tuple)) and bool(answer) and all(type(one) is int for one in answer)


def generated(result: Result) -> list[Position]:
    """Of the tokens of an answer."""
    return _aligned(result.meta, "output", result.token_ids or ())


def scored(result: Result, continuation: Sequence[int]) -> list[Position]:
    """Of the tokens of the prompt's end: the token at logprob_start_len is told with None, those after it count."""
    return _aligned(result.meta, "input", continuation, 1)


def _aligned(meta: Mapping[str, Any], side: str, ids: Sequence[int], first: int = 0) -> list[Position]:
    """One position for each of `ids`, up to the first that SGLang tells of another token: too few
    positions are an error of that prompt, shifted ones would be believed."""
    chosen = (meta.get(f"{side}_token_logprobs") or ())[first:]
    tops = (meta.get(f"{side}_top_logprobs") or ())[first:] or [()] * len(chosen)
    pairs = zip(ids, chosen, tops, strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1][1], pairs)
    return [Position(one[0], [(token, value) for value, token, *_ in top or ()]) for _, one, top in same]


def ends(params: Any, eos: Iterable[int] | None) -> set[int]:
    """At which ids SGLang's scheduler ends a request with these SamplingParams; `eos` are the model's own."""
    return set() if params.ignore_eos else {*(params.stop_token_ids or ()), *(eos or ())}


def totals(answers: Iterable[Result], speculates: bool) -> dict[str, float]:
    """Counters of BatchStats.extra, summed over the answers."""
    names = TOTALS | SPECULATION if speculates else TOTALS
    kept = list(answers)
    return {ours: float(sum(one.meta.get(theirs) or 0 for one in kept)) for theirs, ours in names.items()}


@dataclass(frozen=True)
class Mixture:
    """A model's shape: its layers, the experts in each, and how many of them a token takes."""

    layers: int
    experts: int
    per_token: int

    @classmethod
    def of(cls, shape: Mapping[str, Any]) -> Mixture | None:
        """By config.json; None for a model without experts."""
        per_token, layers = shape.get("num_experts_per_tok"), shape.get("num_hidden_layers")
        experts = next((shape[name] for name in EXPERTS if shape.get(name)), None)
        return cls(int(layers), int(experts), int(per_token)) if per_token and layers and experts else None


def expert_load(answers: Iterable[Result], mixture: Mixture) -> dict[str, float]:
    """expert_<layer>_<expert>: tokens routed to it. Those out of the prefix cache were so in an earlier batch."""
    found: Counter[tuple[int, int]] = Counter()
    row = mixture.layers * mixture.per_token
    for one in answers:
        ids = _routed(one)[row * int(one.meta.get("cached_tokens") or 0) :]
        for layer in range(mixture.layers):
            slots = [ids[layer * mixture.per_token + slot :: row] for slot in range(mixture.per_token)]
            if _routes(slots):
                found.update({(layer, expert): 0 for expert in range(mixture.experts)})
                found.update((layer, expert) for slot in slots for expert in slot)
    return {f"expert_{layer}_{expert}": float(count) for (layer, expert), count in sorted(found.items())}


def _routed(result: Result) -> array[int]:
    ids = array("i")
    ids.frombytes(base64.b64decode(result.meta.get("routed_experts") or ""))
    return ids


def _routes(slots: Sequence[Sequence[int]]) -> bool:
    """Whether a layer has experts at all: SGLang leaves zeros where a dense one stands, and no router
    takes an expert twice. Where it takes one only, nothing but zeros means the same."""
    return any(slots[0]) if len(slots) == 1 else any(a != b for a, b in zip(slots[0], slots[1], strict=True))
