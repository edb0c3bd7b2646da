"""What Transformers has no such thing of, or does not tell, for the notes of the metadata. Pure."""

from __future__ import annotations

from protocol.specs import BackendConfig

_SCHEDULER = "max_num_seqs, max_num_batched_tokens: a batch is one call of generate, and no scheduler cuts it"
_SHARE = "memory_share: it takes memory as it needs it, and keeps no share"
_DYNAMIC = "kv_cache_tokens: the cache grows with each sequence, so there is no capacity"
_STATIC = "kv_cache_tokens: a static cache is made for each batch, so there is no fixed capacity"
_KEPT = "kv_cache_tokens: there is one static cache for each batch size of options.buckets, of cache_tokens a row"
_FIRST_BATCHES = "compiled, compile_s: compilation happens in the first batch of each shape"
_WARM = "warmup_s: one call for each bucket, without compile_s, which is the time in torch.compile"
_FLEX = "compile_s: flex_attention compiles its kernels in the first batches, whatever compile_mode says"
_PAGED = "kv_cache_s: where CUDA graphs are captured it is inside warmup_s"
_EXPERTS = "expert_load: prompt tokens and generated ones but the last; padding and ended rows are left out"


def notes(config: BackendConfig, threads: int | None = None, cpus: int | None = None) -> list[str]:
    """`threads` of each rank, and the `cpus` that all ranks share."""
    method, ranks = config.method, config.ranks
    static = method.compile is not None or method.rocket_bucket
    crowded = config.device == "cpu" and ranks > 1 and threads and cpus and ranks * threads > cpus
    found = {
        _SCHEDULER: not method.continuous_batching,
        _SHARE: True,
        _PAGED: method.continuous_batching,
        _STATIC: static and not method.rocket_bucket,
        _KEPT: method.rocket_bucket,
        _DYNAMIC: not static and not method.continuous_batching,
        _FIRST_BATCHES: method.compile is not None and not method.rocket_bucket,
        _WARM: method.rocket_bucket,
        _FLEX: method.attention == "flex_attention",
        _EXPERTS: config.expert_load,
        f"threads: {ranks} ranks of {threads} each take turns on {cpus} CPUs": crowded,
    }
    return [note for note, applies in found.items() if applies]
