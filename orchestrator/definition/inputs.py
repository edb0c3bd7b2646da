"""What a sweep runs on, as values: the model and the prompts, once they are resolved. Pure."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from orchestrator.definition.memory import ModelShape
from protocol.specs import PromptInput, Task

#: How digests of models are made, told by how they begin; the first ones begin with nothing of the kind.
FIRST_SCHEME: Final = ""
DIGEST_SCHEME: Final = "v2"


def scheme_of(digest: str) -> str:
    """Two digests of models say whether these are the same only if they were made in the same way."""
    return digest.partition("-")[0] if "-" in digest else FIRST_SCHEME


class ModelInfo(Struct, frozen=True):
    """digest              over the files, so that a changed model is another model
    context_length      tokens, prompt and output together; None where the model does not tell
    stop_token_ids      the union of what tokenizer, generation config and config call end-of-sequence
    kv_bytes_per_token  in the checkpoint's dtype, all layers; None where that has no simple answer
    revision            the hub's commit, None for a folder
    shape               what its size follows from; None where the files do not tell
    vision              a vision-language model, by its config; None while that is not known
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
    vision: bool | None = None


#: Ids are the prompt's UTF-8 bytes; 0 ends, and no prompt may contain it. 255, which is in no text, stands for an
#: image, of which the model sees four.
SCRIPTED = ModelInfo(
    name="scripted",
    path="scripted",
    digest="scripted-bytes-1",
    context_length=8192,
    stop_token_ids=(0,),
    kv_bytes_per_token=None,
    dtype=None,
    vision=True,
)


class Prompt(Struct, frozen=True):
    """One prompt and, where there is something to score, its continuation: which of them is sent, the task decides.

    token_ids     as packed by `specs.pack_ids`
    digest        by `digests.prompt_digest`, over what the model sees
    source        as the user gave it
    where         "prompts.jsonl:7", for messages
    continuation  packed ids of what `task: score` scores; empty if there is none
    score_digest  as `digest`, over prompt and continuation together
    images        encoded files, each with one placeholder in token_ids; their digest is over these too
    widened       with images: packed ids as the model sees them
    """

    id: str
    token_ids: bytes
    digest: str
    source: dict[str, Any]
    where: str = ""
    continuation: bytes = b""
    score_digest: str = ""
    images: tuple[bytes, ...] = ()
    widened: bytes = b""

    def sent(self, task: Task) -> PromptInput:
        if task == "score":
            return PromptInput(self.id, self.token_ids + self.continuation, score_from=len(self.token_ids) // 4)
        return PromptInput(self.id, self.token_ids, images=self.images, widened=self.widened)

    def sent_digest(self, task: Task) -> str:
        return self.score_digest if task == "score" else self.digest

    def sent_tokens(self, task: Task) -> int:
        seen = self.widened or self.token_ids
        return (len(seen) + (len(self.continuation) if task == "score" else 0)) // 4


class PromptSet(Struct, frozen=True):
    """digest     over all ids and digests, those of continuations too, in order
    templated  plain text went through the model's chat template (chats always do)
    tokenised  false for a stand-in whose token ids are not known yet
    warnings   what may surprise in the results
    notes      how many were read, left out and drawn, where that is not simply all
    """

    digest: str
    prompts: tuple[Prompt, ...]
    templated: bool
    warnings: tuple[str, ...] = ()
    tokenised: bool = True
    notes: tuple[str, ...] = ()
