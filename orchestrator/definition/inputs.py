"""What a sweep runs on, as values: the model and the prompts, once they are resolved. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from orchestrator.definition.memory import ModelShape
from protocol.specs import PromptInput, Task


class ModelInfo(Struct, frozen=True):
    """digest              over the files, so that a changed model is another model
    context_length      tokens, prompt and output together; None where the model does not tell
    stop_token_ids      the union of what tokenizer, generation config and config call end-of-sequence
    kv_bytes_per_token  in the checkpoint's dtype, all layers; None where that has no simple answer
    revision            the hub's commit, None for a folder
    shape               what its size follows from; None where the files do not tell
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
    shape: ModelShape | None = None


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
    """One prompt and, where there is something to score, its continuation: which of them is sent, the task decides.

    token_ids     as packed by `specs.pack_ids`
    digest        16 hex of their sha256
    source        as the user gave it
    where         "prompts.jsonl:7", for messages
    continuation  packed ids of what `task: score` scores; empty if there is none
    score_digest  as `digest`, over prompt and continuation together
    """

    id: str
    token_ids: bytes
    digest: str
    source: dict[str, Any]
    where: str = ""
    continuation: bytes = b""
    score_digest: str = ""

    def sent(self, task: Task) -> PromptInput:
        if task == "score":
            return PromptInput(self.id, self.token_ids + self.continuation, score_from=len(self.token_ids) // 4)
        return PromptInput(self.id, self.token_ids)

    def sent_digest(self, task: Task) -> str:
        return self.score_digest if task == "score" else self.digest

    def sent_tokens(self, task: Task) -> int:
        return (len(self.token_ids) + (len(self.continuation) if task == "score" else 0)) // 4


class PromptSet(Struct, frozen=True):
    """digest     over all ids and digests, those of continuations too, in order
    templated  plain text went through the model's chat template (chats always do)
    tokenised  false for a stand-in whose token ids are not known yet
    warnings   what may surprise in the results
    """

    digest: str
    prompts: tuple[Prompt, ...]
    templated: bool
    warnings: tuple[str, ...] = ()
    tokenised: bool = True
