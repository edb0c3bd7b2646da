"""What a sweep runs on, as values: the model and the prompts, once they are resolved. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class ModelInfo(Struct, frozen=True):
    """digest              over the files, so that a changed model is another model
    context_length      tokens, prompt and output together; None where the model does not tell
    stop_token_ids      the union of what tokenizer, generation config and config call end-of-sequence
    kv_bytes_per_token  in the checkpoint's dtype, all layers; None where that has no simple answer
    revision            the hub's commit, None for a folder
    """

    name: str
    path: str
    digest: str
    context_length: int | None
    stop_token_ids: tuple[int, ...]
    kv_bytes_per_token: int | None
    dtype: str | None
    revision: str | None = None
    trust_remote_code: bool = False


#: Ids are the prompt's UTF-8 bytes; 0 ends, and no prompt may contain it.
SCRIPTED = ModelInfo(
    name="scripted",
    path="scripted",
    digest="scripted-bytes-1",
    context_length=8192,
    stop_token_ids=(0,),
    kv_bytes_per_token=None,
    dtype=None,
)


class Prompt(Struct, frozen=True):
    """token_ids as packed by `specs.pack_ids`; digest: 16 hex of their sha256; source: as the user gave it;
    where: "prompts.jsonl:7", for messages."""

    id: str
    token_ids: bytes
    digest: str
    source: dict[str, Any]
    where: str = ""


class PromptSet(Struct, frozen=True):
    """digest     over all ids and digests, in order
    templated  plain text went through the model's chat template (chats always do)
    tokenised  false for a stand-in whose token ids are not known yet
    warnings   what may surprise in the results
    """

    digest: str
    prompts: tuple[Prompt, ...]
    templated: bool
    warnings: tuple[str, ...] = ()
    tokenised: bool = True
