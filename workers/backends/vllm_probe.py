"""What vLLM's worker processes tell about themselves.

vLLM mixes this class into its worker by dotted name, in this process or in its
children, where `bootstrap` runs again and binds `workers` before anything of
vLLM is imported. Plain values only: each answer may cross a process boundary.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

DOTTED_NAME = "workers.backends.vllm_probe.RuntimeProbe"


class RuntimeProbe:
    """Its attributes must not clash with the worker's own: vLLM asserts that."""

    model_runner: Any
    vllm_config: Any
    airlock_loads: dict[int, Any]

    def airlock_probe(self) -> dict[str, Any]:
        import torch

        runner, cuda = self.model_runner, torch.cuda.is_initialized()
        return {
            "attention": sorted({g.backend.get_name() for groups in runner.attn_groups for g in groups}),
            "kv_cache_bytes": _kv_cache_bytes(getattr(runner, "kv_caches", [])),
            "model_runner": type(runner).__module__,
            "sampler": _sampler(runner),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name() if cuda else None,
            "compile_s": float(self.vllm_config.compilation_config.compilation_time) or None,
            # On CPUs vLLM packs weights anew, out of torch's sight.
            "weights_bytes": _storage_bytes(runner.get_model().parameters()) if cuda else None,
            "graphs_bytes": _graphs_bytes(torch.cuda.memory_snapshot()) if cuda else None,
        }

    def airlock_memory(self) -> dict[str, int]:
        """Of torch's allocator on the worker's GPU; empty on a CPU."""
        import torch

        if not torch.cuda.is_initialized():
            return {}
        return {
            "device_allocated_bytes": torch.cuda.memory_allocated(),
            "device_reserved_bytes": torch.cuda.memory_reserved(),
            "device_peak_bytes": torch.cuda.max_memory_reserved(),
            "device_peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        }

    def airlock_watch_experts(self) -> int:
        """From here on counts, by the hook that vLLM's routers have, the tokens sent to each expert.
        The number of layers that are counted; 0 where a layer's kernel routes by itself."""
        from vllm.model_executor.layers.fused_moe.layer import MoERunner
        from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter

        layers = [module for module in self.model_runner.get_model().modules() if isinstance(module, MoERunner)]
        self.airlock_loads = {}
        if any(one._quant_method.is_monolithic or not isinstance(one.router, BaseRouter) for one in layers):
            return 0
        for layer in layers:
            self.airlock_loads[int(layer.layer_id)] = load = _Load(layer.router.global_num_experts)
            layer.router.set_capture_fn(partial(_Load.add, load))
        return len(layers)

    def airlock_expert_loads(self) -> list[tuple[int, list[int]]]:
        """The layers of this rank, and the tokens sent to each of their experts since the counting began."""
        return [(layer, load.counts()) for layer, load in self.airlock_loads.items()]


class _Load:
    """Counted on the device, without waiting for it."""

    def __init__(self, experts: int) -> None:
        self._experts = experts
        self._total: Any = None

    def add(self, expert_ids: Any) -> None:
        import torch

        ids = expert_ids.flatten().long()
        if self._total is None:
            self._total = torch.zeros(self._experts, dtype=torch.int64, device=ids.device)
        self._total.scatter_add_(0, ids, torch.ones_like(ids))

    def counts(self) -> list[int]:
        return [0] * self._experts if self._total is None else [int(one) for one in self._total.tolist()]


def _sampler(runner: Any) -> str | None:
    """Which of its implementations it has chosen, e.g. "cpu", "cuda"; None for a runner that has one only."""
    chosen = getattr(getattr(runner, "sampler", None), "topk_topp_sampler", None)
    return None if chosen is None else str(chosen.forward.__name__).removeprefix("forward_")


def _kv_cache_bytes(tensors: Iterable[Any]) -> int | None:
    """None where the runner keeps its cache in another form."""
    found = list(tensors)
    return _storage_bytes(found) if found and all(hasattr(one, "untyped_storage") for one in found) else None


def _storage_bytes(tensors: Iterable[Any]) -> int:
    """Each piece of memory once: layers may share one."""
    storages = [one.untyped_storage() for one in tensors]
    return sum({one.data_ptr(): int(one.nbytes()) for one in storages}.values())


def _graphs_bytes(segments: Iterable[dict[str, Any]]) -> int:
    """What torch's allocator keeps in private pools, which are those of CUDA graphs."""
    return sum(int(one["total_size"]) for one in segments if tuple(one["segment_pool_id"]) != (0, 0))
