"""Continuous batching of Transformers: requests come and go in a paged KV cache of fixed size.

`generate_batch` makes a manager, and with it the cache, for every call. Here the manager is made once, at load, so
that a batch pays for its tokens only, as in the other engines. The manager logs its errors and gives what it has:
a prompt without a result, or with a failed one, is an error of that prompt alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from protocol.records import EngineSettings
from protocol.specs import BackendConfig, CallParams, PromptBatch
from workers.backends import runtime
from workers.backends.base import EngineDead, Output
from workers.backends.hf_generate import Answer, sampling
from workers.backends.hf_model import GENERATE, PAGED, is_device_fault, layers, own_args, synchronise
from workers.backends.hf_settings import SAMPLER
from workers.backends.watch import watched

#: Tokens of a page. The paged kernels of flash-attention take multiples of 256; elsewhere a small page wastes less.
FLASH_PAGE_TOKENS, PAGE_TOKENS = 256, 32
#: The default of Transformers for tokens of one forward pass.
BATCH_TOKENS = 8192
#: How often a waiting batch looks whether the engine's thread is alive and has moved on.
POLL_S = 0.2
#: What each request says for itself.
PER_REQUEST = ("max_new_tokens", "eos_token_id")
UNTOLD = "the engine gave no result for this prompt: "


class Paged:
    """The manager of one loaded model, and what it is asked."""

    def __init__(self, config: BackendConfig, model: Any, limit: int, tick: Callable[[], object]) -> None:
        self._config, self._model, self._limit, self._tick = config, model, limit, tick
        self._manager: Any = None
        self._rules: dict[str, Any] = {}

    def start(self, call: CallParams) -> None:
        """A manager for the sampling of `call`; that of a call before serves it if it is the same."""
        rules = {name: value for name, value in sampling(call).items() if name not in PER_REQUEST}
        if self._manager and self._manager.is_running() and rules == self._rules:
            return
        self.stop()
        from transformers import GenerationConfig

        # An end that is left open is taken from the model's folder; each request brings its own.
        options = {**rules, "eos_token_id": -1, "max_new_tokens": call.max_new_tokens}
        self._manager = self._model.init_continuous_batching(
            generation_config=GenerationConfig(**{**options, **own_args(self._config, GENERATE)}),
            continuous_batching_config=self._paging(),
        )
        self._manager.warmup()  # makes the cache; captures graphs where there are any
        self._manager.start()
        self._rules = rules

    def stop(self) -> None:
        if self._manager:
            self._manager.stop(hard_stop=True)
            self._manager = None

    def answer(self, batch: PromptBatch, prompts: Sequence[Sequence[int]]) -> Answer:
        import torch

        call = batch.call
        self.start(call)
        if call.temperature > 0:
            torch.manual_seed(call.seed)
        synchronise(self._config.device)
        steps, start = self._steps, time.perf_counter()
        requests = self._hand_over(batch, prompts)
        results, fault = self._collect({prompt.id for prompt in batch.prompts})
        wall_s = time.perf_counter() - start
        extra = {"steps": float(self._steps - steps)}
        if fault is not None and is_device_fault(fault):
            raise EngineDead(f"{type(fault).__name__}: {fault}") from fault
        held = {stop for one in requests for stop in one._eos_token_ids}
        return Answer(outputs(batch, results, start, fault), wall_s, extra, held)

    def _hand_over(self, batch: PromptBatch, prompts: Sequence[Sequence[int]]) -> list[Any]:
        """While the loop is held, so that the first forward pass sees the whole batch, each time alike. Gives the
        requests that the manager made."""
        call = batch.call
        eos = -1 if call.ignore_eos or not call.stop_token_ids else list(call.stop_token_ids)
        made = watched(self._manager.input_queue, "put", lambda _, request, **__: request)
        with self._manager.pause(), made as requests:
            for prompt, ids in zip(batch.prompts, prompts, strict=True):
                self._manager.add_request(
                    list(ids),
                    request_id=prompt.id,
                    max_new_tokens=call.max_new_tokens,
                    record_timestamps=True,
                    eos_token_id=eos,
                )
        return requests

    def _collect(self, waiting: set[str]) -> tuple[dict[str, Any], BaseException | None]:
        """Results by request, and what ended the engine's loop, if it has ended."""
        results: dict[str, Any] = {}
        seen = self._steps
        while waiting:
            running = self._manager.is_running()
            found = self._manager.get_result(timeout=POLL_S)
            if found is None and not running:
                break
            if found is not None and found.is_finished():
                results[found.request_id] = found
                waiting.discard(found.request_id)
            if found is not None or self._steps != seen:
                seen = self._steps
                self._tick()
        return results, self._manager.background_thread_status.fatal_error

    @property
    def _steps(self) -> int:
        """Forward passes so far. The engine's thread sets it when it begins."""
        return int(getattr(self._manager, "current_batch", 0))

    def _paging(self) -> Any:
        from transformers import ContinuousBatchingConfig

        return ContinuousBatchingConfig(**{**self.ours(), **own_args(self._config, PAGED)})

    def ours(self) -> dict[str, Any]:
        """What Airlock sets. Nothing is left to be found from free memory, or swapped for what is installed."""
        config, page = self._config, FLASH_PAGE_TOKENS if _is_flash(self._config) else PAGE_TOKENS
        blocks = config.kv_cache_bytes and config.kv_cache_bytes // (page * self._token_bytes())
        longest = -(-self._limit // page) + 1
        return {
            "page_size": page,
            "num_blocks": blocks,
            "max_batch_tokens": config.max_num_batched_tokens or min(BATCH_TOKENS, config.batch_size * self._limit),
            "max_requests_per_batch": config.batch_size,
            "max_blocks_per_request": longest + longest % 2 if _is_flash(config) else 0,
            "allow_block_sharing": False,
            "auto_switch_to_flash": False,
        }

    def _token_bytes(self) -> int:
        """KV of one token in all layers."""
        values = sum(map(_head_values, layers(self._model.config.get_text_config())))
        return 2 * values * int(self._model.dtype.itemsize)

    def capacity(self) -> tuple[int, int]:
        """Tokens and bytes of the cache, as it was made."""
        cache, paging = self._manager.batch_processor.cache, self._manager.continuous_batching_config
        return int(cache.num_blocks) * int(paging.page_size), int(cache.num_sectors) * int(cache.bytes_per_sector)

    def settings(self) -> EngineSettings:
        """As the manager resolved them."""
        found = self._manager.continuous_batching_config
        compiled = [one.mode or "default" for one in (found.varlen_compile_config, found.decode_compile_config) if one]
        cache = self._manager.batch_processor.cache
        return EngineSettings(
            batching="continuous",
            max_num_seqs=int(found.max_requests_per_batch),
            max_num_batched_tokens=int(found.max_batch_tokens),
            chunked_prefill=True,
            prefix_caching=bool(cache.use_prefix_sharing),
            cuda_graphs=_graphs(found.cuda_graph_booleans),
            compile_mode="+".join(dict.fromkeys(compiled)) or "none",
            speculation="none",
            scheduler=runtime.scheduling(found.scheduler_type, found.use_async_batching),
            sampler=SAMPLER,
            kv_cache_dtype=str(cache.dtype).removeprefix("torch."),
        )

    @property
    def captures(self) -> bool:
        return any(self._manager.continuous_batching_config.cuda_graph_booleans)

    def options(self) -> dict[str, Any]:
        found = self._manager.continuous_batching_config
        names = ("page_size", "num_blocks", "max_blocks_per_request")
        return {"cache": "paged", **{name: getattr(found, name) for name in names}}


def outputs(batch: PromptBatch, results: Mapping[str, Any], start: float, fault: BaseException | None) -> list[Output]:
    """One for each prompt, joined by id; `start` is the hand-over on the clock of the timestamps."""
    why = UNTOLD + (f"{type(fault).__name__}: {fault}" if fault else "it is missing")
    return [_output(prompt.id, results.get(prompt.id), start, why) for prompt in batch.prompts]


def _output(prompt_id: str, result: Any, start: float, why: str) -> Output:
    if result is None or result.error is not None:
        return Output(prompt_id, None, error=why if result is None else str(result.error))
    ids = list(result.generated_tokens)
    times = [one - start for one in result.timestamps or ()][: len(ids)]
    first, last = (times[0], times[-1]) if times else (None, None)
    told = list(result.prompt_ids)
    return Output(prompt_id, ids, ttft_s=first, latency_s=last, prompt_token_ids=told, times_s=times or None)


def _head_values(layer: Any) -> int:
    """Of the keys of one token in one layer, by its config."""
    heads = getattr(layer, "num_key_value_heads", None) or layer.num_attention_heads
    size = getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads
    return int(heads) * int(size)


def _is_flash(config: BackendConfig) -> bool:
    return "flash" in (config.method.attention or "")


def _graphs(pair: tuple[bool, bool]) -> str:
    """The paths of a forward pass that are captured, by the engine's words."""
    names = [name for name, captured in zip(("varlen", "decode"), pair, strict=True) if captured]
    return "+".join(names) or "none"
