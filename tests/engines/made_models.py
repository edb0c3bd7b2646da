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
    # SGLang has no weights for the head of a Qwen mixture whose embeddings are tied, and says nothing.
    "tie_word_embeddings": False,
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

_IMAGE = "<|IMAGE_PLACEHOLDER|>"
_MARKS = ("<|IMAGE_START|>", "<|IMAGE_END|>")
_TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>{% else %}\
{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
VISION = {
    "model_type": "paddleocr_vl",
    "tie_word_embeddings": True,
    "text_config": {
        **{name: value for name, value in _ATTENTION.items() if name != "tie_word_embeddings"},
        "intermediate_size": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [8, 12, 12]},
        "rope_is_neox_style": True,  # SGLang's reading of it has another default
    },
    "vision_config": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 56,
        "patch_size": 14,
        "tokens_per_second": 2,
    },
    "image": _IMAGE,
    "marks": _MARKS,
    "template": _TEMPLATE,
}

_VISION_SCRIPT = """
import json, sys
import torch
from transformers import AddedToken, AutoConfig, AutoModelForImageTextToText, AutoTokenizer, PaddleOCRVLProcessor
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil

folder, shape, demo = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
image, marks, template = (shape.pop(name) for name in ("image", "marks", "template"))
text = {name: shape.pop(name) for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
tokenizer = AutoTokenizer.from_pretrained(demo, extra_special_tokens={"image_token": image})
tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in (image, *marks)])
names = ("image_token_id", "vision_start_token_id", "vision_end_token_id")
shape |= zip(names, tokenizer.convert_tokens_to_ids([image, *marks]))
shape["text_config"] |= {**text, "vocab_size": len(tokenizer)}
torch.manual_seed(0)
model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**shape), dtype=torch.float32)
model.save_pretrained(folder)
pixels = PaddleOCRVLImageProcessorPil(
    size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}, patch_size=14, merge_size=2, temporal_patch_size=1
)
tokenizer.chat_template = template
PaddleOCRVLProcessor(image_processor=pixels, tokenizer=tokenizer, chat_template=template).save_pretrained(folder)
"""


def tiny_llama(folder: Path, python: str, demo: str) -> str:
    """A Llama of two layers, 8 heads and 4 KV heads, so that two devices can share it."""
    return make(folder, python, demo, LLAMA)


def tiny_moe(folder: Path, python: str, demo: str) -> str:
    """A Qwen3 mixture of 8 experts, of which each token takes 2, in both layers."""
    return make(folder, python, demo, MOE)


def tiny_vision(folder: Path, python: str, demo: str) -> str:
    """A PaddleOCR-VL: of the families that all engines know, one whose processor needs no torchvision. Two layers
    see and two speak; an image comes to 4 tokens at the least and 16 at the most."""
    return make(folder, python, demo, VISION, _VISION_SCRIPT)


def make(folder: Path, python: str, demo: str, shape: Mapping[str, Any], script: str = _SCRIPT) -> str:
    """The folder of a model of `shape`, in float32, with the tokenizer of the folder `demo` where `script` makes none.

    `python` is an interpreter that has Transformers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = json.loads((Path(demo) / "config.json").read_text())
    ids = {name: told[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    command = [python, "-c", script, str(folder), json.dumps({**shape, **ids}), demo]
    subprocess.run(command, timeout=MAKING_S, stdout=sys.stderr, check=True)
    for name in TOKENIZER:
        if (Path(demo) / name).exists() and not (folder / name).exists():
            shutil.copyfile(Path(demo) / name, folder / name)
    return str(folder)
