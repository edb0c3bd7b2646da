"""Asking for token ids: of a tool in an engine's environment, or of the scripted model, whose ids are bytes."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.definition.inputs import ModelInfo
from orchestrator.definition.promptuse import PromptSource
from orchestrator.errors import EnvironmentFailed
from orchestrator.launcher import Launcher
from orchestrator.stores.envbuild import OnWait
from orchestrator.stores.envstate import EngineEnv
from orchestrator.stores.home import tag_of
from orchestrator.stores.images import is_image
from orchestrator.stores.models import OFFLINE
from orchestrator.stores.promptraw import RawPrompt
from orchestrator.stores.tools import run_tool
from protocol.specs import pack_ids, unpack_ids

TOKENISE_TIMEOUT_S = 1800.0
SCRIPTED_PATH = "scripted"
_SCRIPTED_IMAGE = b"\xff"
_SCRIPTED_IDS = 0xFF  # all below
_SCRIPTED_VOCABULARY = list(range(0x20, 0x7F))


@dataclass(frozen=True)
class Tokeniser:
    """`env` is any environment with transformers in it; the scripted model needs none."""

    model: ModelInfo
    source: PromptSource
    env: EngineEnv | None
    launcher: Launcher
    home: Path
    on_wait: OnWait = None

    def ids(self, raw: Sequence[RawPrompt]) -> dict[str, Any]:
        """In the form of `workers.tools.tokenize`. Raises EnvironmentFailed if the tool fails."""
        if self.model.path == SCRIPTED_PATH:
            return _as_bytes(raw, self.source)
        pictures = {name_of(image): image for one in raw for image in one.images}
        return self._asked(
            "tokenize",
            {
                "chat_template": self.source.chat_template,
                "vision": bool(self.model.vision),
                "images": {name: base64.b64encode(image).decode("ascii") for name, image in pictures.items()},
                "prompts": [_asked(one) for one in raw],
            },
        )

    def vocabulary(self) -> list[int]:
        """The ids that stand for ordinary text; none that ends an answer. Raises EnvironmentFailed."""
        if self.model.path == SCRIPTED_PATH:
            return _SCRIPTED_VOCABULARY
        found = unpack_ids(base64.b64decode(self._asked("vocabulary", {})["ids"]))
        stops = set(self.model.stop_token_ids)
        return [one for one in found if one not in stops]

    def _asked(self, tool: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if self.env is None:
            raise EnvironmentFailed("any", "there is none to tokenise the prompts in")
        return run_tool(
            self.launcher,
            self.env.python,
            tool,
            {"path": self.model.path, "trust_remote_code": self.model.trust_remote_code, **request},
            tag_of(self.home),
            TOKENISE_TIMEOUT_S,
            self.home / "logs" / f"{tool}-{secrets.token_hex(3)}.log",
            env=self.env.name,
            variables={**self.env.variables, **OFFLINE},
            on_wait=self.on_wait,
        )


def name_of(image: bytes) -> str:
    return hashlib.sha256(image).hexdigest()


def _asked(one: RawPrompt) -> dict[str, Any]:
    said: dict[str, Any] = {"continuation": one.continuation or "", "images": [name_of(image) for image in one.images]}
    if one.messages is None:
        return said | {"prompt": one.text}
    return said | {"messages": [_flat(message) for message in one.messages]}


def _flat(message: Mapping[str, Any]) -> dict[str, Any]:
    """Text in parts joined to one, as many templates know nothing of parts; beside images it stays where it is."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return dict(message)
    if any(is_image(part) for part in content):
        return {**message, "content": [{"type": "image"} if is_image(part) else dict(part) for part in content]}
    return {**message, "content": "".join(part["text"] for part in content)}


# --- the scripted model -----------------------------------------------------------


def _as_bytes(raw: Sequence[RawPrompt], source: PromptSource) -> dict[str, Any]:
    """The scripted model's tokeniser, in the tool's form: UTF-8 bytes; its template is a line per message."""
    templated = source.chat_template == "on"
    texts = [_scripted_text(one, templated) for one in raw]
    # Of text without images no byte is that of an image.
    wide = [text.replace(_SCRIPTED_IMAGE, _SCRIPTED_IMAGE * 4) if _SCRIPTED_IMAGE in text else b"" for text in texts]
    ids = {"ids": texts, "widened": wide, "continuations": [_scripted_bytes(one.continuation or "") for one in raw]}
    packed = {part: [base64.b64encode(pack_ids(one)).decode("ascii") for one in some] for part, some in ids.items()}
    given = ((n, part) for n, one in enumerate(raw) for part in (one.text, one.continuation) if isinstance(part, list))
    unknown = {n: one for n, part in given for one in part if one >= _SCRIPTED_IDS}
    problems = [(n, f"token id {one} is none of the model's {_SCRIPTED_IDS}") for n, one in unknown.items()]
    return {**packed, "templated": templated, "dated": False, "problems": problems}


def _scripted_bytes(said: str | list[int]) -> bytes:
    return said.encode() if isinstance(said, str) else bytes(one for one in said if one < _SCRIPTED_IDS)


def _scripted_text(one: RawPrompt, templated: bool) -> bytes:
    if isinstance(one.text, list):
        return _scripted_bytes(one.text)
    if one.messages is None and not templated:
        return _SCRIPTED_IMAGE * len(one.images) + (one.text or "").encode()
    if one.messages is None:
        parts: list[Any] = [{"type": "image"}] * len(one.images) + [{"type": "text", "text": one.text}]
        messages = [{"role": "user", "content": parts}]
    else:
        messages = one.messages
    return b"".join(f"{m['role']}: ".encode() + _scripted_content(m) + b"\n" for m in messages) + b"assistant: "


def _scripted_content(message: Mapping[str, Any]) -> bytes:
    content = _flat(message)["content"] or ""
    parts = [{"text": content}] if isinstance(content, str) else content
    return b"".join(_SCRIPTED_IMAGE if is_image(part) else part["text"].encode() for part in parts)
