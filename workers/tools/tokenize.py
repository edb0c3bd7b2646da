"""Tool: prompts to token ids, once and for all engines, so that a comparison compares the same input.

A chat goes through the model's template, and so does plain text if that is asked
for. The template writes its own special tokens, so its output is tokenised without
adding any; plain text gets those that the tokenizer adds, save where the text
already begins with the begin-of-sequence token. A continuation is no beginning: it gets
none, and is tokenised by itself, so that the prompt's ids are the same with and without it.

An image has one placeholder in a prompt's ids. What they come to once the model's processor has
widened it is told beside them: lengths are counted by that, and engines are held to it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from protocol.specs import pack_ids
from workers.tokenizing import tokenizer_of
from workers.vision import CantSee, Sight

#: Some templates write today's date. The same prompts must give the same ids tomorrow.
TEMPLATE_DATE = datetime(2025, 1, 1)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """{"path", "trust_remote_code", "chat_template": auto|on|off, "vision": the model takes images,
    "images": base64 of each by name, "prompts": [{"prompt" or "messages", "continuation", "images": [names]}]}; token
    ids instead of a text are taken as they are

    → {"has_template", "dated": bool, "templated": bool (plain text too), "ids", "widened" and "continuations":
    [base64 of packed ids], "problems": [[index or None, sentence]]}; an index in `problems` has "" for ids.
    "widened" is "" for a prompt without images.
    """
    path, trust = request["path"], request["trust_remote_code"]
    tokenizer = tokenizer_of(path, trust, local_files_only=True)
    pictures = {name: base64.b64decode(data) for name, data in request["images"].items()}
    try:
        sight = Sight(path, trust) if request["vision"] else None
    except CantSee as exc:
        sight = None
        if pictures:
            return {**_nothing(request["prompts"]), "problems": [(None, f"images can't be used: {exc}")]}
    return tokenise(tokenizer, request["chat_template"], request["prompts"], sight, pictures)


def _nothing(prompts: list[dict[str, Any]]) -> dict[str, Any]:
    parts = {part: [""] * len(prompts) for part in ("ids", "widened", "continuations")}
    return {"has_template": False, "templated": False, "dated": False, **parts}


def tokenise(
    tokenizer: Any,
    chat_template: str,
    prompts: list[dict[str, Any]],
    sight: Sight | None = None,
    pictures: Mapping[str, bytes] | None = None,
) -> dict[str, Any]:
    template = tokenizer.chat_template or (sight and sight.chat_template)  # a text, or several by name
    templated = chat_template == "on" or (chat_template == "auto" and bool(template))
    problems: list[tuple[int | None, str]] = [*_unknown(tokenizer, prompts)]
    ids: list[str] = []
    widened: list[str] = []
    continuations = [_packed(_continued(tokenizer, prompt.get("continuation", ""))) for prompt in prompts]
    if chat_template == "on" and not template:
        problems.append((None, "chat_template is on, but the model has no chat template"))
    for index, prompt in enumerate(prompts):
        found = _one(tokenizer, template, templated, prompt, sight)
        wide = _widened(found, [(pictures or {})[name] for name in prompt.get("images", ())], sight)
        problems += [(index, one) for one in (found, wide) if isinstance(one, str) and one]
        ids.append("" if isinstance(found, str) else _packed(found))
        widened.append("" if isinstance(wide, str) else _packed(wide))
    dated = "strftime_now" in str(template or "") and any(templated or "messages" in prompt for prompt in prompts)
    return {
        "has_template": bool(template),
        "templated": templated,
        "dated": dated,
        "ids": ids,
        "widened": widened,
        "continuations": continuations,
        "problems": problems,
    }


def _widened(ids: list[int] | str, images: list[bytes], sight: Sight | None) -> list[int] | str:
    """Token ids as the model sees them, or what is wrong with the images; "" where there is nothing to widen."""
    if isinstance(ids, str) or sight is None or (not images and sight.placeholder_id not in ids):
        return ""
    try:
        return sight.widen(ids, images)
    except CantSee as exc:
        return str(exc)


def _one(
    tokenizer: Any, template: Any, templated: bool, prompt: dict[str, Any], sight: Sight | None
) -> list[int] | str:
    """Token ids, or what is wrong with the prompt."""
    if isinstance(prompt.get("prompt"), list):
        return list(prompt["prompt"])
    if "messages" not in prompt and not templated:
        return _plain(tokenizer, prompt["prompt"])
    if not template:
        return "has messages, but the model has no chat template"
    messages = prompt.get("messages") or [{"role": "user", "content": _content(prompt, sight)}]
    try:
        text = _in_parts(tokenizer, template, messages) if sight else _render(tokenizer, template, messages)
    except Exception as exc:  # templates refuse by raising whatever they like
        return f"the model's chat template refuses it: {exc}"
    return _unmarked(tokenizer, text)


def _unknown(tokenizer: Any, prompts: list[dict[str, Any]]) -> Iterator[tuple[int, str]]:
    """Prompts with ids that stand where a text might, and are none of the model's."""
    for index, prompt in enumerate(prompts):
        given = [prompt[key] for key in ("prompt", "continuation") if isinstance(prompt.get(key), list)]
        unknown = [one for ids in given for one in ids if one >= len(tokenizer)]
        if unknown:
            yield index, f"token id {unknown[0]} is none of the model's {len(tokenizer)}"


def _continued(tokenizer: Any, continuation: str | list[int]) -> list[int]:
    return continuation if isinstance(continuation, list) else _unmarked(tokenizer, continuation)


def _unmarked(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _packed(ids: list[int]) -> str:
    return base64.b64encode(pack_ids(ids)).decode("ascii")


def _plain(tokenizer: Any, text: str) -> list[int]:
    begin = tokenizer.bos_token
    begun = bool(begin) and text.startswith(begin)
    return list(tokenizer(text, add_special_tokens=not begun)["input_ids"])


def _content(prompt: dict[str, Any], sight: Sight | None) -> Any:
    """The images before the text, unless it says itself where they go."""
    text, count = prompt["prompt"], len(prompt.get("images", ()))
    if not count or (sight and sight.placeholder in text):
        return text
    return [*({"type": "image"} for _ in range(count)), {"type": "text", "text": text}]


def _in_parts(tokenizer: Any, template: Any, messages: list[dict[str, Any]]) -> str:
    """Templates of vision-language models take a text's content as a list of parts; some would leave out a plain
    text without a word, others write the list as Python does."""
    whole = [{**m, "content": [{"type": "text", "text": m["content"]}]} if _is_text(m) else m for m in messages]
    try:
        text = _render(tokenizer, template, whole)
        good = all(m["content"].strip() in text for m in messages if _is_text(m)) and "'type'" not in text
    except Exception:  # it refuses parts, in whatever way templates refuse
        good = False
    return text if good else _render(tokenizer, template, messages)


def _is_text(message: dict[str, Any]) -> bool:
    return isinstance(message.get("content"), str)


def _render(tokenizer: Any, template: Any, messages: list[dict[str, Any]]) -> str:
    # An unfinished answer is to be continued; anything else is to be answered.
    unfinished = messages[-1]["role"] == "assistant"
    rendered: str = tokenizer.apply_chat_template(
        messages,
        tokenize=False,
        chat_template=None if template == tokenizer.chat_template else template,
        add_generation_prompt=not unfinished,
        continue_final_message=unfinished,
        strftime_now=TEMPLATE_DATE.strftime,
    )
    return rendered
