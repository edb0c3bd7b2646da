"""The prompts of a sweep as every engine gets them: token ids, made once, in one environment.

Engines are never handed text: each would tokenise it in its own way, some with two
begin-of-sequence tokens. How the file is read stands in `promptfile`.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.config import PromptSource
from orchestrator.definition.inputs import ModelInfo, Prompt, PromptSet
from orchestrator.errors import EnvironmentFailed, InputError, Problem
from orchestrator.launcher import Launcher
from orchestrator.stores.envbuild import OnWait
from orchestrator.stores.envstate import EngineEnv
from orchestrator.stores.home import tag_of
from orchestrator.stores.images import is_image, kind_of
from orchestrator.stores.models import OFFLINE
from orchestrator.stores.promptfile import RawPrompt, read
from orchestrator.stores.tools import run_tool
from orchestrator.view.wording import listed
from protocol.digests import DIGEST_CHARACTERS, prompt_digest
from protocol.specs import pack_ids, unpack_ids

__all__ = ["RawPrompt", "as_line", "provisional", "read", "tokenise"]

TOKENISE_TIMEOUT_S = 1800.0
LISTED_PROMPTS = 10
SCRIPTED_PATH = "scripted"
_SCRIPTED_IMAGE = b"\xff"
_FIELDS = ("prompt", "messages", "continuation", "images")
#: Of difflib's ratio: "image" is meant for "images", "context" not for "continuation".
_CLOSE = 0.8


def tokenise(
    raw: Sequence[RawPrompt],
    model: ModelInfo,
    source: PromptSource,
    env: EngineEnv | None,
    launcher: Launcher,
    *,
    home: Path,
    on_wait: OnWait = None,
) -> PromptSet:
    """The same prompts, model and template setting give the same ids, on any day and in any order of runs.

    `env` is any environment with transformers in it; the scripted model needs none. Raises InputError
    for prompts that the template refuses or that come to no token, EnvironmentFailed if the tool fails.
    """
    if model.path == SCRIPTED_PATH:
        found = _as_bytes(raw, source)
    elif env is None:
        raise EnvironmentFailed("any", "there is none to tokenise the prompts in")
    else:
        found = _in_env(raw, model, source, env, launcher, home, on_wait)
    _refuse(raw, found)
    ids = ([base64.b64decode(one) for one in found[part]] for part in ("ids", "continuations", "widened"))
    prompts = tuple(_prompt(one, *packed) for one, *packed in zip(raw, *ids, strict=True))
    return PromptSet(_set_digest(prompts), prompts, found["templated"], _warnings(prompts, model, found["dated"]))


def provisional(raw: Sequence[RawPrompt]) -> PromptSet:
    """A stand-in for planning before there is an environment: no token ids, a digest over the text."""
    prompts = tuple(_prompt(one, b"", b"", b"") for one in raw)
    text = repr([(one.id, one.source) for one in prompts]).encode("utf-8", "backslashreplace")
    return PromptSet(hashlib.sha256(text).hexdigest()[:DIGEST_CHARACTERS], prompts, False, tokenised=False)


def as_line(prompt: Prompt) -> dict[str, Any]:
    """For the run directory: one prompt as a JSON object."""
    scored = {"continuation_ids": unpack_ids(prompt.continuation), "score_digest": prompt.score_digest}
    return {
        "id": prompt.id,
        "digest": prompt.digest,
        "token_ids": unpack_ids(prompt.token_ids),
        **({"images": [_about(one) for one in prompt.images]} if prompt.images else {}),
        **(scored if prompt.continuation else {}),
        "source": prompt.source,
    }


# --- the tool's request and answer ----------------------------------------------


def _in_env(
    raw: Sequence[RawPrompt],
    model: ModelInfo,
    source: PromptSource,
    env: EngineEnv,
    launcher: Launcher,
    home: Path,
    on_wait: OnWait,
) -> dict[str, Any]:
    pictures = {_name(image): image for one in raw for image in one.images}
    request = {
        "path": model.path,
        "trust_remote_code": model.trust_remote_code,
        "chat_template": source.chat_template,
        "vision": bool(model.vision),
        "images": {name: base64.b64encode(image).decode("ascii") for name, image in pictures.items()},
        "prompts": [_asked(one) for one in raw],
    }
    log = home / "logs" / f"tokenize-{secrets.token_hex(3)}.log"
    return run_tool(
        launcher,
        env.python,
        "tokenize",
        request,
        tag_of(home),
        TOKENISE_TIMEOUT_S,
        log,
        env=env.name,
        variables={**env.variables, **OFFLINE},
        on_wait=on_wait,
    )


def _asked(one: RawPrompt) -> dict[str, Any]:
    said: dict[str, Any] = {"continuation": one.continuation or "", "images": [_name(image) for image in one.images]}
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


def _name(image: bytes) -> str:
    return hashlib.sha256(image).hexdigest()


def _about(image: bytes) -> dict[str, Any]:
    return {"sha256": _name(image), "bytes": len(image), "kind": kind_of(image)}


def _as_bytes(raw: Sequence[RawPrompt], source: PromptSource) -> dict[str, Any]:
    """The scripted model's tokeniser, in the tool's form: UTF-8 bytes; its template is a line per message."""
    templated = source.chat_template == "on"
    texts = [_scripted_text(one, templated) for one in raw]
    # Of text without images no byte is that of an image.
    wide = [text.replace(_SCRIPTED_IMAGE, _SCRIPTED_IMAGE * 4) if _SCRIPTED_IMAGE in text else b"" for text in texts]
    ids = {"ids": texts, "widened": wide, "continuations": [(one.continuation or "").encode() for one in raw]}
    packed = {part: [base64.b64encode(pack_ids(one)).decode("ascii") for one in some] for part, some in ids.items()}
    return {**packed, "templated": templated, "dated": False, "problems": []}


def _scripted_text(one: RawPrompt, templated: bool) -> bytes:
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


# --- checks -----------------------------------------------------------------------


def _refuse(raw: Sequence[RawPrompt], found: Mapping[str, Any]) -> None:
    """Raises InputError with every prompt that can't be used."""
    problems = [Problem("", "prompts", message) for index, message in found["problems"] if index is None]
    refused = {index: message for index, message in found["problems"] if index is not None}
    for index, (one, ids, scored) in enumerate(zip(raw, found["ids"], found["continuations"], strict=True)):
        if index in refused:
            problems.append(Problem(one.where, f"prompt {one.id}", refused[index]))
        elif not ids:
            # Some engines die of it, and others depend on whether the tokenizer adds a begin-of-sequence token.
            problems.append(Problem(one.where, f"prompt {one.id}", "comes to no token at all"))
        elif one.continuation and not scored:
            problems.append(Problem(one.where, f"prompt {one.id}", "its continuation comes to no token at all"))
    if problems:
        raise InputError(problems)


def _warnings(prompts: Sequence[Prompt], model: ModelInfo, dated: bool) -> tuple[str, ...]:
    found = []
    stops = set(model.stop_token_ids)
    ended = [one.id for one in prompts if int.from_bytes(one.token_ids[-4:], "little") in stops]
    if ended:
        found.append(f"{_listed(ended)}: the last token is a stop token, so that engines may answer nothing")
    for (field, meant), ids in _slips(prompts).items():
        found.append(f"{_listed(ids)}: nothing reads the field {field}, which is only kept: did you mean {meant}?")
    if dated:
        found.append("the chat template writes today's date; 2025-01-01 stands there, so that runs can be repeated")
    return tuple(found)


def _slips(prompts: Sequence[Prompt]) -> dict[tuple[str, str], list[str]]:
    """Fields of the user's own whose names are nearly one of ours, with that, and the prompts that have them."""
    names = {name: difflib.get_close_matches(name, _FIELDS, 1, _CLOSE) for one in prompts for name in one.source}
    found: dict[tuple[str, str], list[str]] = {}
    for one in prompts:
        for name in one.source:
            if names[name] and name not in _FIELDS:
                found.setdefault((name, names[name][0]), []).append(one.id)
    return found


def _listed(ids: Sequence[str]) -> str:
    return f"prompt{'s' if len(ids) > 1 else ''} {listed(ids, LISTED_PROMPTS)}"


def _prompt(one: RawPrompt, packed: bytes, scored: bytes, widened: bytes) -> Prompt:
    digest = prompt_digest(widened or packed, one.images)
    both = prompt_digest(packed + scored) if scored else ""
    return Prompt(one.id, packed, digest, one.source(), one.where, scored, both, one.images, widened)


def _set_digest(prompts: Sequence[Prompt]) -> str:
    digest = hashlib.sha256()
    for one in prompts:
        # The length first: no id can pass for the end of another.
        name = one.id.encode()
        digest.update(len(name).to_bytes(4, "little") + name + (one.digest + one.score_digest).encode())
    return digest.hexdigest()[:DIGEST_CHARACTERS]
