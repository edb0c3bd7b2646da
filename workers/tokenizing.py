"""The model's own tokenizer, the same one in every engine's interpreter."""

from __future__ import annotations

import os
from typing import Any

#: Where mistral-common is installed, as vLLM and SGLang have it, Transformers takes a model with this file to its
#: tokenizer, which has no template and reads the control tokens of a rendered chat as plain text.
TEKKEN = "tekken.json"


def tokenizer_of(path: str, trust_remote_code: bool = False, **args: Any) -> Any:
    """By the files that Transformers itself made, whatever else is installed. Raises what Transformers raises."""
    from transformers import AutoTokenizer

    own = {"mistral_format": False} if os.path.exists(os.path.join(path, TEKKEN)) else {}
    return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code, **own, **args)
