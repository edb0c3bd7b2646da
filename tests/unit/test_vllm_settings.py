"""What is read back from vLLM's own configuration, and what of it is not what was asked. No engine is imported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from protocol.specs import BackendConfig, CallParams, MethodSpec, NgramSpec, PromptInput, pack_ids
from workers.backends import vllm_args, vllm_settings
from workers.backends.positions import Position
from workers.backends.vllm_output import TokenClock, output, positions

MIB = 1 << 20
NGRAM = NgramSpec(2, 4, 5)


def config(method: dict[str, Any] | None = None, **fields: Any) -> BackendConfig:
    spec = MethodSpec(**{"name": "m", "engine": "vllm", **(method or {})})
    return BackendConfig(**{"method": spec, "model_path": "/model", "dtype": "float32", **fields})


def engine(**changes: Any) -> Any:
    """vLLM's configuration on a GPU as far as it is looked at; `changes` by "part.name"."""
    parts: dict[str, dict[str, Any]] = {
        "model_config": {"dtype": "torch.float32", "max_model_len": 256, "quantization": None},
        "scheduler_config": {
            "max_num_seqs": 64,
            "max_num_batched_tokens": 4096,
            "enable_chunked_prefill": True,
            "policy": "fcfs",
            "async_scheduling": True,
        },
        "cache_config": {
            "enable_prefix_caching": False,
            "cache_dtype": "auto",
            "gpu_memory_utilization": 0.9,
            "kv_cache_memory_bytes": None,
            "num_gpu_blocks": 16,
            "block_size": 32,
        },
        "compilation_config": {
            "mode": SimpleNamespace(name="VLLM_COMPILE"),
            "cudagraph_mode": SimpleNamespace(name="FULL_AND_PIECEWISE"),
            "cudagraph_capture_sizes": [1, 2, 4],
        },
        "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1},
    }
    speculation = changes.pop("speculative_config", None)
    for name, value in changes.items():
        part, _, key = name.partition("__")
        parts[part][key] = value
    built = {part: SimpleNamespace(**values) for part, values in parts.items()}
    return SimpleNamespace(**built, speculative_config=speculation)


def rank(**changes: Any) -> dict[str, Any]:
    told = {"attention": ["FLASH_ATTN"], "kv_cache_bytes": 16 * MIB, "compile_s": None, "sampler": "cuda"}
    return {**told, **changes}


def flags(settings: BackendConfig, found: Any, **of_rank: Any) -> list[str]:
    return vllm_settings.flags(found, [rank(**of_rank)], vllm_args.engine_args(settings), settings)


def test_what_runs_as_asked_has_no_flag() -> None:
    asked = config({"attention": "flash_attn"}, device="cuda", max_model_len=256, max_num_batched_tokens=4096)
    assert flags(asked, engine()) == []


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"model_config__dtype": "torch.float16"}, "dtype"),
        ({"model_config__max_model_len": 128}, "max_model_len"),
        ({"scheduler_config__max_num_batched_tokens": 512}, "max_num_batched_tokens"),
        ({"scheduler_config__enable_chunked_prefill": False}, "chunked_prefill"),
        ({"cache_config__enable_prefix_caching": True}, "prefix_caching"),
        ({"compilation_config__mode": SimpleNamespace(name="NONE")}, "eager"),
        ({"compilation_config__cudagraph_mode": SimpleNamespace(name="NONE")}, "cuda_graphs"),
    ],
)
def test_each_difference_has_its_flag(changes: dict[str, Any], flag: str) -> None:
    asked = config(device="cuda", max_model_len=256, max_num_batched_tokens=4096)
    assert flags(asked, engine(**changes)) == [f"{flag}_not_honoured"]


def test_a_method_that_chooses_graphs_itself_is_asked_nothing_of_them() -> None:
    off = {"mode": SimpleNamespace(name="NONE"), "cudagraph_mode": SimpleNamespace(name="NONE")}
    found = engine(**{f"compilation_config__{name}": value for name, value in off.items()})
    own = {"engine_args": {"compilation_config": {"mode": 0}}}
    assert flags(config(own, device="cuda"), found) == []
    assert flags(config({"eager": True}, device="cuda"), found) == []
    assert flags(config({"eager": True}, device="cuda"), engine()) == ["eager_not_honoured", "cuda_graphs_not_honoured"]


def test_the_methods_own_arguments_are_what_is_asked() -> None:
    own = config({"engine_args": {"max_num_batched_tokens": 512}}, device="cuda", max_num_batched_tokens=4096)
    found = engine(scheduler_config__max_num_batched_tokens=512)
    assert flags(own, found) == ["engine_args_override:max_num_batched_tokens"]
    assert flags(own, engine()) == [
        "max_num_batched_tokens_not_honoured",
        "engine_args_override:max_num_batched_tokens",
    ]


@pytest.mark.parametrize(
    ("asked_bytes", "honoured"), [(16, True), (16.9, True), (17, False), (15.9, False), (64, False)]
)
def test_a_cache_of_all_whole_blocks_that_fit_is_what_was_asked(asked_bytes: float, honoured: bool) -> None:
    asked = config(device="cuda", kv_cache_bytes=int(asked_bytes * MIB))
    assert flags(asked, engine()) == ([] if honoured else ["kv_cache_bytes_not_honoured"])


def test_speculation_is_compared_by_its_numbers() -> None:
    asked = config({"ngram": NGRAM}, device="cuda")
    told = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    same, other = SimpleNamespace(**told), SimpleNamespace(**{**told, "prompt_lookup_min": 4})
    assert flags(asked, engine(speculative_config=same)) == []
    assert flags(asked, engine(speculative_config=other)) == flags(asked, engine()) == ["ngram_not_honoured"]
    found = vllm_settings.settings(engine(speculative_config=same), [rank()])
    assert (found.speculation, found.ngram_min, found.ngram_max, found.draft_tokens) == ("ngram", 2, 4, 5)


def test_buckets_are_the_sizes_of_the_graphs_in_tokens() -> None:
    told = vllm_args.engine_args(config({"rocket_bucket": True}, device="cuda", batch_size=6))
    assert told["max_num_seqs"] == 6
    assert told["compilation_config"]["cudagraph_capture_sizes"] == [1, 2, 4, 6]
    given = {"bucket_batch_sizes": (8, 2), "batch_size": 6}
    told = vllm_args.engine_args(config({"rocket_bucket": True, "ngram": NGRAM}, device="cuda", **given))
    assert told["max_num_seqs"] == 8
    assert told["compilation_config"] == {
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": [12, 48],
        "max_cudagraph_capture_size": 48,
    }


def test_buckets_that_vllm_did_not_capture_are_flagged() -> None:
    asked = config({"rocket_bucket": True}, device="cuda", batch_size=4)
    small = {"scheduler_config__max_num_seqs": 4}
    assert flags(asked, engine(**small)) == []
    assert flags(asked, engine(**small, compilation_config__cudagraph_capture_sizes=[1, 2])) == [
        "rocket_bucket_not_honoured"
    ]


def test_a_share_decides_only_where_no_size_is_given() -> None:
    assert vllm_settings.settings(engine(), [rank()]).memory_share == 0.9
    sized = engine(cache_config__kv_cache_memory_bytes=MIB)
    assert vllm_settings.settings(sized, [rank()]).memory_share is None
    assert vllm_settings.SHARE_NOTE in list(vllm_settings.notes(sized, [rank()], LOAD, config()))
    assert vllm_settings.SEED_NOTE in list(vllm_settings.notes(sized, [rank()], LOAD, config(temperature=0.5)))


LOAD = vllm_settings.load_times(1.0, 5.0, [rank()], compiled=True)


def test_the_compilers_own_time_is_taken_where_it_has_one() -> None:
    assert (LOAD.compile_s, LOAD.kv_cache_s) == (5.0, None)
    assert vllm_settings.load_times(1.0, 5.0, [rank(), rank(compile_s=3.0)], compiled=True).compile_s == 3.0
    assert vllm_settings.load_times(1.0, 5.0, [rank()], compiled=False).kv_cache_s == 5.0


class Engine:
    """Steps as vLLM's engine does: requests that ended leave, their stats stay with whoever holds them."""

    def __init__(self, *plans: list[tuple[int, float]]) -> None:
        self.plans = [list(plan) for plan in plans]
        self.stats = [SimpleNamespace(num_generation_tokens=0, last_token_ts=0.0) for _ in plans]
        states = {str(at): SimpleNamespace(stats=one) for at, one in enumerate(self.stats)}
        self.output_processor = SimpleNamespace(request_states=states)

    def step(self) -> list[int]:
        ended = []
        for at, (plan, stats) in enumerate(zip(self.plans, self.stats, strict=True)):
            if plan:
                new, stats.last_token_ts = plan.pop(0)
                stats.num_generation_tokens += new
                ended += [] if plan else [at]
        for at in ended:
            del self.output_processor.request_states[str(at)]
        return ended


def test_a_clock_stamps_each_token_and_changes_no_step() -> None:
    running = Engine([(1, 10.0), (3, 11.0), (1, 12.5)], [(1, 10.0)])
    with TokenClock(running) as clock:
        assert [running.step() for _ in range(3)] == [[1], [], [0]]
    assert clock.times(running.stats[0]) == [10.0, 11.0, 11.0, 11.0, 12.5]
    assert clock.times(running.stats[1]) == [10.0]
    assert clock.times(SimpleNamespace()) is None
    assert "step" not in vars(running)


def flat(*of_positions: list[tuple[int, float]]) -> Any:
    """vLLM's flat lists: where each position begins and ends in the list of all pairs."""
    pairs = [pair for one in of_positions for pair in one]
    ends = [sum(map(len, of_positions[: at + 1])) for at in range(len(of_positions))]
    starts = [end - len(one) for end, one in zip(ends, of_positions, strict=True)]
    ids, values = [token for token, _ in pairs], [value for _, value in pairs]
    return SimpleNamespace(start_indices=starts, end_indices=ends, token_ids=ids, logprobs=values)


def test_the_token_that_stands_there_comes_first() -> None:
    told = flat([], [(7, -3.0), (1, -0.5), (2, -1.0)], [(1, -0.25), (1, -0.25), (9, -2.0)])
    assert positions(told, 1) == [Position(-3.0, [(1, -0.5), (2, -1.0)]), Position(-0.25, [(1, -0.25), (9, -2.0)])]
    assert positions(told, 2) == positions(told)[2:]
    assert positions(flat([(7, -3.0)])) == [Position(-3.0, [])]


def test_a_result_without_stats_has_no_times() -> None:
    call = CallParams(
        batch_size=1, max_new_tokens=2, temperature=0.0, top_p=1.0, seed=0, ignore_eos=False, stop_token_ids=()
    )
    completion = SimpleNamespace(token_ids=[4], finish_reason="length", logprobs=None)
    result = SimpleNamespace(outputs=[completion], metrics=None, prompt_token_ids=[1], prompt_logprobs=None)
    found = output(PromptInput("p", pack_ids([1])), result, 1.0, TokenClock(Engine()), call)
    assert (found.token_ids, found.ttft_s, found.latency_s, found.times_s, found.positions) == ([4], *[None] * 4)
