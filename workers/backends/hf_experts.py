"""Mixture-of-experts: how many tokens the routers of a model sent to each expert, by hooks on the routers.

Counted are the tokens that an output needs, whatever it was batched with: its prompt, and what it
generated but for the last token, which nothing more was computed from. Padding, rows that only
fill a bucket and rows that had ended are passed through the experts too; they are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from workers.backends.admission import CannotHonour
from workers.backends.base import WrongOutputs


class RouterLoad:
    """Hooks stay for the life of the model. Raises CannotHonour for a model whose routers can't be read."""

    def __init__(self, model: Any) -> None:
        self._experts = {_layer(name): _experts(module) for name, module in _routers(model)}
        self._steps: dict[int, list[Any]] = {layer: [] for layer in self._experts}
        for name, module in _routers(model):
            module.register_forward_hook(self._watcher(_layer(name)))
        self._try(model)

    def _watcher(self, layer: int) -> Callable[[Any, Any, Any], None]:
        steps = self._steps[layer]
        return lambda _module, _given, output: steps.append(_chosen(output))

    def start(self) -> None:
        """Forgets what was seen, a batch that failed half-way too."""
        for steps in self._steps.values():
            steps.clear()

    def counts(self, mask: Any, lengths: Sequence[int]) -> dict[str, float]:
        """By "expert_<layer>_<expert>". `mask` (rows × columns) is that of the padded prompts; of its
        first rows, those of the batch, `lengths` tells the generated tokens."""
        found: dict[str, float] = {}
        for layer, steps in self._steps.items():
            totals = sum(self._of_step(step, layer, indices, mask, lengths) for step, indices in enumerate(steps))
            if not steps:
                raise WrongOutputs(f"the router of layer {layer} was not called")
            found |= {f"expert_{layer}_{expert}": float(count) for expert, count in enumerate(totals.tolist())}
        return found

    def _of_step(self, step: int, layer: int, indices: Any, mask: Any, lengths: Sequence[int]) -> Any:
        rows = len(lengths)
        if step == 0:
            needed = mask.bool().clone()
            needed[rows:] = False
        else:
            needed = mask.new_tensor([step < length for length in lengths] + [False] * (len(mask) - rows)).bool()
        kept = needed.reshape(-1)
        if len(kept) != len(indices):
            raise WrongOutputs(f"the router of layer {layer} took {len(indices)} tokens, the batch had {len(kept)}")
        return indices[kept.to(indices.device)].reshape(-1).bincount(minlength=self._experts[layer]).cpu()

    def _try(self, model: Any) -> None:
        """Whether the routers tell which experts they chose is seen at the first call only."""
        import torch

        if not self._experts:
            raise CannotHonour("expert_load: the model has no experts, or no routers that Transformers names so")
        with torch.inference_mode():
            model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device))
        silent = sorted(layer for layer, steps in self._steps.items() if not steps or steps[0] is None)
        self.start()
        if silent:
            raise CannotHonour(f"expert_load: the routers of layers {silent} do not tell which experts they chose")


def _routers(model: Any) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in model.named_modules() if "Router" in type(module).__name__)


def _layer(name: str) -> int:
    """Of "model.layers.3.mlp.gate"."""
    number = re.search(r"\.(\d+)\.", f".{name}.")
    return int(number[1]) if number else 0


def _experts(router: Any) -> int:
    count = getattr(router, "num_experts", None)
    return int(count if count is not None else router.weight.shape[0])


def _chosen(output: Any) -> Any:
    """The indices (tokens × experts of each) among what a router gives; the rest are weights."""
    parts = output if isinstance(output, tuple) else (output,)
    whole = [one for one in parts if hasattr(one, "is_floating_point") and not one.is_floating_point()]
    return whole[-1] if whole and whole[-1].ndim == 2 else None
