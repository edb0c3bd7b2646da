"""Small random models of shapes that the demo model does not have. They speak its vocabulary; what they
say means nothing.

Transformers makes them, in an interpreter that has it, so that each folder is what an engine expects to find.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAKING_S = 300.0
CONTEXT = 2048
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
#: Weights so far apart that greedy decoding does not fall into one token for ever.
SPREAD = 0.3

_ATTENTION: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": CONTEXT,
    "initializer_range": SPREAD,
    "tie_word_embeddings": True,
}
LLAMA: dict[str, Any] = {"model_type": "llama", "intermediate_size": 512, **_ATTENTION}
MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    **_ATTENTION,
}

_SCRIPT = """
import json, sys
import torch
from transformers import AutoConfig, AutoModelForCausalLM

folder, shape = sys.argv[1], json.loads(sys.argv[2])
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), dtype=torch.float32)
model.save_pretrained(folder)
"""


def tiny_llama(folder: Path, python: str, demo: str) -> str:
    """A Llama of two layers, 8 heads and 4 KV heads, so that two devices can share it."""
    return make(folder, python, demo, LLAMA)


def tiny_moe(folder: Path, python: str, demo: str) -> str:
    """A Qwen3 mixture of 8 experts, of which each token takes 2, in both layers."""
    return make(folder, python, demo, MOE)


def make(folder: Path, python: str, demo: str, shape: Mapping[str, Any]) -> str:
    """The folder of a model of `shape`, in float32, with the tokenizer of the folder `demo`.

    `python` is an interpreter that has Transformers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = json.loads((Path(demo) / "config.json").read_text())
    ids = {name: told[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    command = [python, "-c", _SCRIPT, str(folder), json.dumps({**shape, **ids})]
    subprocess.run(command, timeout=MAKING_S, stdout=sys.stderr, check=True)
    for name in TOKENIZER:
        if (Path(demo) / name).exists():
            shutil.copyfile(Path(demo) / name, folder / name)
    return str(folder)
