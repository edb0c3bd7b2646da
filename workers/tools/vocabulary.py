"""Tool: the token ids that random prompts are drawn from: ordinary text, and nothing special or added."""

from __future__ import annotations

import base64
from typing import Any

from protocol.specs import pack_ids
from workers.tokenizing import tokenizer_of


def run(request: dict[str, Any]) -> dict[str, Any]:
    """{"path", "trust_remote_code"} → {"ids": base64 of packed ids, in order}."""
    from transformers import AutoConfig

    path, trust = request["path"], request["trust_remote_code"]
    tokenizer = tokenizer_of(path, trust, local_files_only=True)
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust, local_files_only=True).get_text_config()
        size = getattr(config, "vocab_size", None)
    except Exception:  # of any class: an engine may know models that transformers does not
        size = None
    return {"ids": base64.b64encode(pack_ids(ordinary(tokenizer, size))).decode("ascii")}


def ordinary(tokenizer: Any, size: int | None) -> list[int]:
    """In order. `size`: of the model's embedding, beyond which an engine has nothing to look up."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return sorted(i for i in set(tokenizer.get_vocab().values()) - special if size is None or i < size)
