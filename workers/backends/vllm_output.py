"""What vLLM gave back for a prompt: its tokens, when each came, and their log-probabilities."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from protocol.specs import CallParams, PromptInput
from workers.backends.outputs import Output
from workers.backends.positions import Position


class TokenClock:
    """When each token came, by the stamps of vLLM's engine core, while `LLM.generate` runs as it always does.

    vLLM keeps of each request how many tokens it has and when the last ones came.
    `generate` asks its engine for one step after the other; here each step is
    followed by a look at these two numbers, a fraction of a microsecond
    for each request. Tokens that one step gave have one time.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._step: Callable[[], Any] = engine.step
        self._requests: list[Any] | None = None
        self._places: dict[int, int] = {}
        self._seen: list[tuple[array[int], array[float]]] = []

    def __enter__(self) -> TokenClock:
        self._engine.step = self._stamped  # on this one object, where it hides the method of its class
        return self

    def __exit__(self, *_: object) -> None:
        del self._engine.step

    def times(self, stats: Any) -> list[float] | None:
        """Of the request with these stats, on the monotonic clock. None if it was not seen."""
        at = self._places.get(id(stats))
        if at is None:
            return None
        found: list[float] = []
        for counts, stamps in self._seen:
            found += [stamps[at]] * (counts[at] - len(found))
        return found

    def _stamped(self) -> Any:
        if self._requests is None:  # all of them are added before the first step
            states = self._engine.output_processor.request_states.values()
            self._requests = [state.stats for state in states if state.stats is not None]
            self._places = {id(stats): at for at, stats in enumerate(self._requests)}
        outputs = self._step()
        counts = array("L", [one.num_generation_tokens for one in self._requests])
        self._seen.append((counts, array("d", [one.last_token_ts for one in self._requests])))
        return outputs


def ends(params: Any) -> set[int]:
    """At which ids vLLM's engine core ends a request with these SamplingParams. Its all_stop_token_ids are more: those
    that min_tokens masks."""
    return {*(params.stop_token_ids or ()), params.eos_token_id} - {None}


def output(prompt: PromptInput, result: Any, started: float, clock: TokenClock, call: CallParams) -> Output:
    """vLLM's stamps are of the same monotonic clock as `started`, in its children too."""
    one, metrics = result.outputs[0], result.metrics
    stamps = clock.times(metrics) if metrics else None
    return Output(
        prompt.id,
        list(one.token_ids),
        finish=one.finish_reason,
        ttft_s=metrics.first_token_ts - started if metrics else None,
        latency_s=metrics.last_token_ts - started if metrics else None,
        prompt_token_ids=result.prompt_token_ids,
        times_s=[stamp - started for stamp in stamps] if stamps is not None else None,
        positions=_positions(prompt, result, call),
    )


def _positions(prompt: PromptInput, result: Any, call: CallParams) -> list[Position] | None:
    if call.task == "score":
        return positions(result.prompt_logprobs, prompt.score_from or 0)
    return positions(result.outputs[0].logprobs) if call.logprobs else None


def positions(flat: Any, start: int = 0) -> list[Position]:
    """Of vLLM's flat lists: at each position first the token that stands there, then the likeliest ones."""
    bounds: Sequence[tuple[int, int]] = list(zip(flat.start_indices, flat.end_indices, strict=True))[start:]
    return [
        Position(flat.logprobs[at], list(zip(flat.token_ids[at + 1 : end], flat.logprobs[at + 1 : end], strict=True)))
        for at, end in bounds
    ]
