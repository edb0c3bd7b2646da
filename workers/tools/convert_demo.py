"""Tool: turn the demo model's GGUF file into an ordinary bf16 checkpoint that every engine loads."""

from __future__ import annotations

import os
from typing import Any


def run(request: dict[str, Any]) -> dict[str, Any]:
    """{"gguf": file, "out": folder} → versions of what did it. Raises what transformers raises."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, file = os.path.split(request["gguf"])
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    # Dequantised at load: a model that still counts as quantised can't be saved.
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(request["out"])
    tokenizer.save_pretrained(request["out"])
    return {"transformers": transformers.__version__, "torch": torch.__version__}
