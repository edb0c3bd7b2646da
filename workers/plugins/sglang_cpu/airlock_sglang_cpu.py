"""A platform plugin by which a CUDA build of SGLang starts without a GPU.

Such a build has no CPU kernels: told to be a CPU engine it wants its own
compiled ones, told nothing it wants a GPU's. As an out-of-tree platform it
takes the plain torch path in both places. Speed measured this way says nothing
about SGLang; correctness of what drives it can be tested.

SGLang loads entry points in its scheduler's processes too, so this has to be
installed into the environment, not merely be importable in one process.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuSRTPlatform


class AirlockCpuPlatform(CpuSRTPlatform):  # type: ignore[misc]
    """SGLang's CPU platform, declared as not its own."""

    def is_out_of_tree(self) -> bool:
        return True

    def init_backend(self) -> None:
        """Buffers of the host that SGLang pins by the CUDA driver are plain memory here."""
        from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS

        ALLOC_MEMORY_FUNCS["cpu"] = _unpinned


def _unpinned(dims: tuple[int, ...], dtype: torch.dtype, device: str, **_: Any) -> torch.Tensor:
    return torch.empty(dims, dtype=dtype, device=device)


def activate() -> str | None:
    """The class to use, by dotted name; None leaves the choice to SGLang, as on any machine with a GPU."""
    if torch.cuda.is_available():
        return None
    return f"{__name__}.{AirlockCpuPlatform.__qualname__}"
