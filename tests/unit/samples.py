"""One message of every kind, every field away from its default where it matters."""

from __future__ import annotations

from protocol.messages import (
    BatchDone,
    BatchFailed,
    Beat,
    Fatal,
    Goodbye,
    Hello,
    Imported,
    Init,
    Message,
    Ready,
    Run,
    Shutdown,
)
from protocol.records import (
    BatchStats,
    EngineSettings,
    ErrorInfo,
    Generation,
    LoadTimes,
    Logprobs,
    MemoryUse,
    RuntimeMetadata,
)
from protocol.specs import (
    BackendConfig,
    CallParams,
    MethodSpec,
    NgramSpec,
    PromptBatch,
    PromptInput,
    pack_floats,
    pack_ids,
)

CONFIG = BackendConfig(
    method=MethodSpec(
        name="vllm_ngram",
        engine="vllm",
        attention="FLASH_ATTN",
        eager=True,
        compile="default",
        rocket_bucket=True,
        ngram=NgramSpec(min_n=1, max_n=3, draft_tokens=4),
        engine_args={"block_size": 32, "nested": {"a": [1, 2.5, None, "ü"]}},
        env_vars={"OMP_NUM_THREADS": "2"},
        worker=("/opt/worker", "-v"),
        summary="n-gram speculation",
    ),
    model_path="/models/demo",
    device="cuda",
    dtype="float32",
    max_model_len=512,
    max_num_batched_tokens=2048,
    gpu_memory_utilization=0.5,
    sglang_mem_fraction_static=0.25,
    kv_cache_bytes=2**28,
    input_mode="text",
    torch_compile_cache_size_limit=64,
    torch_compile_mode="reduce-overhead",
    bucket_batch_sizes=(1, 4),
    bucket_lengths=(64, 256),
    tensor_parallel_size=2,
    batch_size=4,
    max_new_tokens=16,
    temperature=0.5,
    top_p=0.75,
    seed=2**63 - 1,
    ignore_eos=True,
    logprobs=2,
    stop_token_ids=(2, 0),
)
METADATA = RuntimeMetadata(
    engine="hf",
    engine_version="5.19.0",
    python_version="3.11.7",
    torch_version="2.13.0",
    devices=["GPU-1"],
    kv_cache_bytes=2**33,
    compiled=False,
    stop_token_ids=[2],
    settings=EngineSettings(batching="static", max_num_seqs=4, chunked_prefill=False, speculation="ngram"),
    options={"attn": "sdpa", "limits": [1, None]},
    patches=["blocked torchvision"],
    load=LoadTimes(import_s=0.5, weights_s=0.25, total_s=1.0),
    memory=MemoryUse(host_rss_bytes=1, host_peak_rss_bytes=2),
)
ERROR = ErrorInfo(type="ValueError", message="bad", traceback="Traceback …", fatal=True)
GENERATION = Generation(
    prompt_id="p1",
    text="ok \ufffd",
    token_ids=pack_ids([1, 2, 2**32 - 1]),
    generated_tokens=3,
    finish_reason="stop",
    prompt_tokens=2,
    prompt_digest="0123456789abcdef",
    ttft_s=0.125,
    latency_s=0.5,
    itl_s=pack_floats([0.125, 0.25]),
    logprobs=Logprobs(
        k=1, chosen=pack_floats([-0.5, None, 0.0]), top_ids=pack_ids([1, 2, 3]), top=pack_floats([-0.5, -1.0, 0.0])
    ),
    flags=["unclean_text"],
)
SAMPLES: dict[str, Message] = {
    "hello": Hello(1, "w3-a1b2c3d4", "00ff", 4242, "3.11.7"),
    "imported": Imported(5.25, "0.32.0"),
    "ready": Ready(METADATA),
    "batch_done": BatchDone("b1", [GENERATION], BatchStats(wall_s=1.5, generated_tokens=3, extra={"accepted": 2.0})),
    "batch_failed": BatchFailed("b1", ERROR),
    "fatal": Fatal("loading", ERROR),
    "beat": Beat("busy", 7, MemoryUse(host_rss_bytes=1)),
    "goodbye": Goodbye(METADATA),
    "init": Init(CONFIG),
    "run": Run(
        PromptBatch("b1", [PromptInput("p1", pack_ids([5, 6]), 1, (b"\x89PNG",))], CallParams.of(CONFIG), warmup=True)
    ),
    "shutdown": Shutdown("sweep over"),
}
