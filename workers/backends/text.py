"""Ids to text, by the same rules in every engine's interpreter."""

from __future__ import annotations

from typing import Any

from workers.tokenizing import tokenizer_of


class TextDecoder:
    """The model's own tokenizer, used after the timed region only: engines get and
    give ids, so that no engine's choice of decoding is measured or compared."""

    def __init__(self, model_path: str, trust_remote_code: bool = False) -> None:
        self._tokenizer: Any = tokenizer_of(model_path, trust_remote_code)

    def __call__(self, ids: list[int]) -> str:
        # Cleaning up spaces would undo what the model wrote, and whether it is on by default differs by version.
        text = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)
