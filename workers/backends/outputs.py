"""From what an engine gives back to Generations, by the same rules for every engine.

An engine may give anything: numbers of numpy, text that is no Unicode, NaN for
a time, an answer too many. What can be kept is kept with a flag; what can't is
an error of that prompt alone, never of its batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.digests import prompt_digest
from protocol.records import (
    DEGENERATE_SHARE,
    DEGENERATE_TOKENS,
    FLAG_DEGENERATE,
    FLAG_NO_TOKEN_IDS,
    FLAG_TEXT_DIFFERS,
    FLAG_UNCLEAN_TEXT,
    FLAG_UNDECODABLE,
    BatchStats,
    FinishReason,
    Generation,
)
from protocol.specs import PromptBatch, PromptInput, pack_ids
from workers.backends import positions, times
from workers.backends.plain import plain
from workers.backends.positions import Position
from workers.text import clean_text, message_of

_REPORTED: dict[str | None, FinishReason] = {"stop": "stop", "length": "length", "error": "error", "abort": "error"}

Decode = Callable[[list[int]], str]


class WrongOutputs(Exception):
    """The engine's answer, or one output in it, is of a form that can't be read."""


@dataclass(frozen=True)
class Output:
    """One prompt's result, as the engine gave it.

    token_ids         generated ids, the prompt's own left out; None if the engine tells text only
    text              the engine's own text; used only where there are no ids
    finish            the engine's own word for why it stopped
    ttft_s, latency_s seconds from hand-over of the batch to this prompt's first and last token
    prompt_token_ids  the prompt as the engine says it got it, images widened; None if it does not say
    generated_tokens  the engine's own count; needed only where there are no ids
    times_s           seconds from hand-over to each token; None if the engine does not tell
    positions         log-probabilities, token by token; to score, of the prompt's tokens from score_from on
    error             why the engine gave nothing for this prompt; the others of its batch can be used
    """

    prompt_id: str
    token_ids: Sequence[int] | None
    text: str | None = None
    finish: str | None = None
    ttft_s: float | None = None
    latency_s: float | None = None
    prompt_token_ids: Sequence[int] | None = None
    generated_tokens: int | None = None
    times_s: Sequence[float] | None = None
    positions: Sequence[Position] | None = None
    flags: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Rules:
    """What holds for all outputs of a batch."""

    decode: Decode | None
    stop: frozenset[int]
    limit: int
    k: int
    scores: bool
    wall_s: float | None


def assemble(
    batch: PromptBatch,
    outputs: Iterable[Output],
    decode: Decode | None,
    eos: Collection[int],
    wall_s: float | None = None,
) -> list[Generation]:
    """A Generation for every output: in the batch's order, joined by prompt id, then those nobody asked for.

    Ids are cut after the first of `eos`, which stays and counts, unless the
    batch says ignore_eos. Text is decoded from the ids that are left, by the
    same `decode` for every engine. A prompt that the engine left out has none
    here, one that it answered twice has two: the coordinator sees that and
    records it for this prompt alone. So does an output that can't be read,
    whose Generation says why in `error`. Times that can't all be true, also
    beside the batch's own `wall_s`, are kept with a flag.
    """
    call = batch.call
    stop = frozenset() if call.ignore_eos else frozenset(eos)
    rules = Rules(decode, stop, call.max_new_tokens, call.logprobs, call.task == "score", wall_s)
    asked = {prompt.id: prompt for prompt in batch.prompts}
    place = {prompt_id: number for number, prompt_id in enumerate(asked)}
    ordered = sorted(outputs, key=lambda output: place.get(output.prompt_id, len(place)))
    return [_generation(asked.get(output.prompt_id), output, rules) for output in ordered]


def _generation(prompt: PromptInput | None, output: Output, rules: Rules) -> Generation:
    try:
        if output.error:
            raise WrongOutputs(output.error)
        return _scored(prompt, output, rules) if rules.scores else _readable(prompt, output, rules)
    except MemoryError:  # of this process, not of this output
        raise
    except Exception as exc:
        return Generation(
            prompt_id=_id(prompt, output),
            text="",
            token_ids=b"",
            generated_tokens=0,
            finish_reason="error",
            prompt_tokens=0,
            prompt_digest="",
            error=f"{type(exc).__name__}: {message_of(exc)}",
        )


def _readable(prompt: PromptInput | None, output: Output, rules: Rules) -> Generation:
    """Raises whatever the output's values raise."""
    ids, count, finish, counted = _counted(output, rules)
    text, said = _text(ids, output.text, rules.decode)
    given = _given(prompt, output)
    at = times.checked(output.ttft_s, output.latency_s, output.times_s, count, rules.wall_s)
    told, odd_logprobs = positions.pack(output.positions if rules.k else None, count, rules.k)
    empty = _degenerate(ids, finish, rules.stop) if ids is not None else not text
    flags = [*output.flags, *counted, *said, *at.flags, *odd_logprobs, *([FLAG_DEGENERATE] if empty else [])]
    return Generation(
        prompt_id=_id(prompt, output),
        text=text,
        token_ids=pack_ids(ids or ()),
        generated_tokens=count,
        finish_reason=finish,
        prompt_tokens=len(given) // 4,
        prompt_digest=prompt_digest(given, prompt.images if prompt else ()),
        ttft_s=at.ttft_s,
        latency_s=at.latency_s,
        itl_s=at.itl_s,
        logprobs=told,
        flags=list(dict.fromkeys(flags)),
    )


def _scored(prompt: PromptInput | None, output: Output, rules: Rules) -> Generation:
    """Raises whatever the output's values raise, WrongOutputs where they are not those of the continuation."""
    given = _given(prompt, output)
    start = prompt.score_from if prompt else None
    if start is None or output.positions is None or len(output.positions) != len(given) // 4 - start:
        count = "no" if output.positions is None else len(output.positions)
        raise WrongOutputs(f"{count} log-probabilities for {len(given) // 4} tokens scored from {start}")
    told, odd = positions.pack(output.positions, len(output.positions), rules.k)
    at = times.checked(None, output.latency_s, None, 0, rules.wall_s)
    return Generation(
        prompt_id=_id(prompt, output),
        text="",
        token_ids=b"",
        generated_tokens=0,
        finish_reason="scored",
        prompt_tokens=len(given) // 4,
        prompt_digest=prompt_digest(given, prompt.images if prompt else ()),
        latency_s=at.latency_s,
        logprobs=told,
        flags=[*output.flags, *at.flags, *odd],
    )


def _id(prompt: PromptInput | None, output: Output) -> str:
    return prompt.id if prompt else clean_text(str(output.prompt_id))[0]


def _given(prompt: PromptInput | None, output: Output) -> bytes:
    if output.prompt_token_ids is not None:
        return pack_ids(_python_ints(output.prompt_token_ids))
    return prompt.seen if prompt else b""


def _counted(output: Output, rules: Rules) -> tuple[list[int] | None, int, FinishReason, tuple[str, ...]]:
    word = None if output.finish is None else str(output.finish)
    if output.token_ids is None:
        return None, _count(output), _REPORTED.get(word, "unknown"), (FLAG_NO_TOKEN_IDS,)
    ids = cut_at_eos(_python_ints(output.token_ids), rules.stop)
    return ids, len(ids), _finish_reason(ids, word, rules), ()


def _count(output: Output) -> int:
    count = plain(output.generated_tokens)
    if not _finite(count) or count < 0 or count != int(count):
        raise WrongOutputs(f"prompt {output.prompt_id}: neither token ids nor a count, but {count!r}")
    return int(count)


def _text(ids: list[int] | None, own: str | None, decode: Decode | None) -> tuple[str, list[str]]:
    """Clean text, and the flags that tell of what was done to it."""
    flags, raw = [], own or ""
    if decode and ids is not None:
        try:
            raw = decode(ids)
            flags += [FLAG_TEXT_DIFFERS] if own is not None and own != raw else []
        except MemoryError:
            raise
        except Exception:  # an id past the vocabulary, say; the ids are kept, whatever they spell
            flags.append(FLAG_UNDECODABLE)
    text, unclean = clean_text(str(raw))
    return text, [*flags, *([FLAG_UNCLEAN_TEXT] if unclean else [])]


def _python_ints(ids: Any) -> list[int]:
    """Of a list, an array or a tensor; numpy's and torch's numbers become Python's. Raises WrongOutputs for
    what is no whole number: rounding would make a token of it."""
    values = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if all(type(one) is int for one in values):
        return values
    whole = [plain(one) for one in values]
    for one in whole:
        if type(one) not in (int, float) or not math.isfinite(one) or one != int(one):
            raise WrongOutputs(f"{one!r} is no token id")
    return [int(one) for one in whole]


def _degenerate(ids: Sequence[int], finish: FinishReason, stop: Collection[int]) -> bool:
    """Whether the output says nothing, or the same thing over and over until its limit."""
    if not ids or (len(ids) == 1 and ids[0] in stop):
        return True
    few = (1 - DEGENERATE_SHARE) * len(ids) + 1
    if finish != "length" or len(ids) < DEGENERATE_TOKENS or len(set(ids)) > few:
        return False
    return Counter(ids).most_common(1)[0][1] > DEGENERATE_SHARE * len(ids)


def cut_at_eos(ids: Iterable[int], stop: Collection[int]) -> list[int]:
    """`ids` up to and with the first that is in `stop`. Batched engines pad
    finished rows, often with the very id that ended them."""
    kept = list(ids)
    if frozenset(stop).isdisjoint(kept):  # the common case, for a tenth of the loop's time
        return kept
    end = next(place for place, one in enumerate(kept) if one in stop)
    return kept[: end + 1]


def _finish_reason(ids: Sequence[int], reported: str | None, rules: Rules) -> FinishReason:
    """From the ids, so that it means the same for every engine; engines disagree on the word for one event."""
    if _REPORTED.get(reported) == "error":
        return "error"
    if ids and ids[-1] in rules.stop:
        return "stop"
    return "length" if len(ids) == rules.limit else "unknown"


def batch_stats(
    generations: Iterable[Generation],
    wall_s: float,
    peak_memory_bytes: int | None = None,
    extra: Mapping[str, float] | None = None,
) -> BatchStats:
    """`wall_s` is measured round the engine's own call, device synchronised, and nothing else. Counters that
    are no finite numbers are left out, and "left_out" says how many."""
    results = list(generations)
    counters = {str(name): plain(value) for name, value in (extra or {}).items()}
    kept = {name: float(value) for name, value in counters.items() if _finite(value)}
    told = {
        "left_out": len(counters) - len(kept),
        "degenerate": sum(FLAG_DEGENERATE in one.flags for one in results),
    }
    peak = plain(peak_memory_bytes)
    return BatchStats(
        wall_s=times.seconds(wall_s) or 0.0,
        generated_tokens=sum(one.generated_tokens for one in results),
        peak_memory_bytes=int(peak) if _finite(peak) else None,
        extra=kept | {name: float(count) for name, count in told.items() if count},
    )


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
