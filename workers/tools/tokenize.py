"""Tool: prompts to token ids, once and for all engines, so that a comparison compares the same input.

A chat goes through the model's template, and so does plain text if that is asked
for. The template writes its own special tokens, so its output is tokenised without
adding any; plain text gets those that the tokenizer adds, save where the text
already begins with the begin-of-sequence token. A continuation is no beginning: it gets
none, and is tokenised by itself, so that the prompt's ids are the same with and without it.
"""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from protocol.specs import pack_ids

#: Some templates write today's date. The same prompts must give the same ids tomorrow.
TEMPLATE_DATE = datetime(2025, 1, 1)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """{"path", "trust_remote_code", "chat_template": auto|on|off,
    "prompts": [{"prompt" or "messages", "continuation"}]}

    → {"has_template", "dated": bool, "templated": bool (plain text too), "ids" and "continuations": [base64 of
    packed ids], "problems": [[index or None, sentence]]}; an index in `problems` has "" for ids.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        request["path"], trust_remote_code=request["trust_remote_code"], local_files_only=True
    )
    return tokenise(tokenizer, request["chat_template"], request["prompts"])


def tokenise(tokenizer: Any, chat_template: str, prompts: list[dict[str, Any]]) -> dict[str, Any]:
    template = tokenizer.chat_template  # a text, or several by name
    templated = chat_template == "on" or (chat_template == "auto" and bool(template))
    problems: list[tuple[int | None, str]] = []
    ids: list[str] = []
    continuations = [_packed(_unmarked(tokenizer, prompt.get("continuation", ""))) for prompt in prompts]
    if chat_template == "on" and not template:
        problems.append((None, "chat_template is on, but the model has no chat template"))
    for index, prompt in enumerate(prompts):
        found = _one(tokenizer, template, templated, prompt)
        if isinstance(found, str):
            problems.append((index, found))
        ids.append("" if isinstance(found, str) else _packed(found))
    dated = "strftime_now" in str(template or "") and any(templated or "messages" in prompt for prompt in prompts)
    return {
        "has_template": bool(template),
        "templated": templated,
        "dated": dated,
        "ids": ids,
        "continuations": continuations,
        "problems": problems,
    }


def _one(tokenizer: Any, template: Any, templated: bool, prompt: dict[str, Any]) -> list[int] | str:
    """Token ids, or what is wrong with the prompt."""
    if "messages" not in prompt and not templated:
        return _plain(tokenizer, prompt["prompt"])
    if not template:
        return "has messages, but the model has no chat template"
    messages = prompt.get("messages") or [{"role": "user", "content": prompt["prompt"]}]
    try:
        text = _render(tokenizer, messages)
    except Exception as exc:  # templates refuse by raising whatever they like
        return f"the model's chat template refuses it: {exc}"
    return _unmarked(tokenizer, text)


def _unmarked(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _packed(ids: list[int]) -> str:
    return base64.b64encode(pack_ids(ids)).decode("ascii")


def _plain(tokenizer: Any, text: str) -> list[int]:
    begin = tokenizer.bos_token
    begun = bool(begin) and text.startswith(begin)
    return list(tokenizer(text, add_special_tokens=not begun)["input_ids"])


def _render(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    # An unfinished answer is to be continued; anything else is to be answered.
    unfinished = messages[-1]["role"] == "assistant"
    rendered: str = tokenizer.apply_chat_template(
        messages,
        tokenize=False,
        add_generation_prompt=not unfinished,
        continue_final_message=unfinished,
        strftime_now=TEMPLATE_DATE.strftime,
    )
    return rendered
