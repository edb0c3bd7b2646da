"""What vLLM's worker processes tell about themselves.

vLLM mixes this class into its worker by dotted name, in this process or in its
children, where `bootstrap` runs again and binds `workers` before anything of
vLLM is imported.
"""

from __future__ import annotations

from typing import Any

DOTTED_NAME = "workers.backends.vllm_probe.RuntimeProbe"


class RuntimeProbe:
    """Its attributes must not clash with the worker's own: vLLM asserts that."""

    model_runner: Any

    def airlock_probe(self) -> dict[str, Any]:
        """Plain values only: the answer may cross a process boundary."""
        import torch

        runner, cuda = self.model_runner, torch.cuda.is_initialized()
        return {
            "attention": sorted({g.backend.get_name() for groups in runner.attn_groups for g in groups}),
            "kv_cache_bytes": _tensor_bytes(getattr(runner, "kv_caches", [])),
            "model_runner": type(runner).__module__,
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name() if cuda else None,
            "device_allocated_bytes": torch.cuda.memory_allocated() if cuda else None,
            "device_reserved_bytes": torch.cuda.memory_reserved() if cuda else None,
            "device_peak_bytes": torch.cuda.max_memory_reserved() if cuda else None,
        }


def _tensor_bytes(tensors: Any) -> int | None:
    """None where the runner keeps its cache in another form."""
    sizes = [int(one.nbytes) for one in tensors if hasattr(one, "nbytes")]
    return sum(sizes) if sizes and len(sizes) == len(tensors) else None
