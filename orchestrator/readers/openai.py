"""Chats as OpenAI takes them: those for fine-tuning, whose last answer is the expected one, and a batch's requests.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.readers.found import Unfit, unlike
from orchestrator.readers.shaping import Made, rest

#: Of a request's body: what decides there how an answer is made, and here stands in `sampling`, the same for all.
_DECIDING = (
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "n", "stop", "seed"),
    *("tools", "tool_choice", "response_format", "logit_bias", "frequency_penalty", "presence_penalty"),
    *("top_k", "min_p", "repetition_penalty", "length_penalty", "min_tokens", "ignore_eos", "stop_token_ids"),
    *("best_of", "use_beam_search", "bad_words", "allowed_token_ids", "logprobs", "top_logprobs", "prompt_logprobs"),
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "regex", "ebnf"),
)
#: What makes another prompt of the same messages, or of the same text.
_SHAPING = (
    *("chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
    *("add_special_tokens", "reasoning_effort", "reasoning", "documents", "functions", "function_call"),
    *("suffix", "echo", "truncate_prompt_tokens", "previous_response_id"),
)


def is_answered(record: Mapping[str, Any]) -> bool:
    """Whether it is a chat that ends in an answer: another one is read the same way by itself."""
    messages = record.get("messages")
    return isinstance(messages, list) and bool(messages) and _is_answer(messages[-1])


def _is_answer(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def made(record: Mapping[str, Any]) -> Made:
    messages = record.get("messages")
    if not isinstance(messages, list):
        raise Unfit("messages", unlike(record, "messages", "a list"))
    if not messages or not _is_answer(messages[-1]):
        return Made(dict(record))
    if len(messages) == 1:
        raise Unfit("messages", "holds nothing but the answer")
    answer = _text(messages[-1].get("content"))
    expected = {"expected": answer} if answer else {}
    return Made({**rest(record, "messages"), "messages": messages[:-1], **expected})


def _text(content: Any) -> str:
    """Of an answer, which may be in parts."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "".join(text for text in texts if isinstance(text, str))


def fits_batch(record: Mapping[str, Any]) -> bool:
    return "custom_id" in record and isinstance(record.get("body"), Mapping)


def made_batch(record: Mapping[str, Any]) -> Made:
    body = record.get("body")
    if not isinstance(body, Mapping):
        raise Unfit("body", unlike(record, "body", "a mapping"))
    name = next((name for name in ("messages", "prompt", "input") if name in body), None)
    if name is None:
        raise Unfit("body", "has none of messages, prompt and input")
    if str(record.get("url", "")).rstrip("/").endswith("/embeddings"):
        raise Unfit("url", "asks for embeddings, and no text is made")
    said = {"messages" if isinstance(body[name], list) and name != "prompt" else "prompt": body[name]}
    if name == "input":
        said = _of_responses(said, body.get("instructions"))
    remarks = (
        *(f"{key} of a request is kept, and `sampling` decides" for key in _DECIDING if key in body),
        *(f"{key} of a request is kept, and no engine is told of it" for key in _SHAPING if key in body),
    )
    own = {**rest(record, "custom_id", "body"), "body": rest(body, name)}
    return Made({**own, **({"id": record["custom_id"]} if "custom_id" in record else {}), **said}, remarks)


def _of_responses(said: dict[str, Any], instructions: Any) -> dict[str, Any]:
    """As chat completions have it: parts by their names there, and the instructions as a message."""
    asked = said.get("messages", [{"role": "user", "content": said.get("prompt")}])
    messages = [{**one, "content": _renamed(one.get("content"))} if isinstance(one, Mapping) else one for one in asked]
    if isinstance(instructions, str):
        return {"messages": [{"role": "system", "content": instructions}, *messages]}
    return {"messages": messages} if "messages" in said else said


def _renamed(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [_part(part) if isinstance(part, Mapping) else part for part in content]


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    match part.get("type"):
        case "input_text" | "output_text":
            return {"type": "text", "text": part.get("text")}
        case "input_image" if isinstance(part.get("image_url"), str):
            return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part
