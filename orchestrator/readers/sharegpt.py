"""Conversations as ShareGPT's dumps have them: {"id", "conversations": [{"from": "human" or "gpt" …, "value": text}]}.

The prompt is the first turn of a human, after a system turn if there is one. Dumps are split into pieces, some of which
begin with an answer, and some of which hold no human's turn at all. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.readers.found import Passed, Unfit, kind, unlike
from orchestrator.readers.shaping import Made, rest

#: Who speaks, as several dumps call them.
ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model", "function_call"), "assistant"),
    **dict.fromkeys(("system", "tool", "function", "observation"), "system"),
}


def fits(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("conversations"), list)


def made(record: Mapping[str, Any]) -> Made:
    turns = record.get("conversations")
    if not isinstance(turns, list):
        raise Unfit("conversations", unlike(record, "conversations", "a list of turns"))
    *before, (role, text) = _up_to_a_human(turns) or [("", "")]
    if role != "user":
        raise Passed("hold no turn of a human")
    if not text.strip():
        raise Passed("begin with an empty turn of a human")
    system = [said for by, said in before if by == "system" and said]
    remarks = ["turns after the first of a human are left out"] if len(turns) > len(before) + 2 else []
    if any(by == "assistant" for by, _ in before):
        remarks.append("an answer that stands before the first turn of a human is left out")
    return Made({**rest(record, "conversations"), **_said(system, text)}, tuple(remarks))


def _up_to_a_human(turns: list[Any]) -> list[tuple[str, str]]:
    """The first turn of a human and those before it; all of them where there is none."""
    found = []
    for n, turn in enumerate(turns):
        found.append(_turn(n, turn))
        if found[-1][0] == "user":
            break
    return found


def _said(system: list[str], text: str) -> dict[str, Any]:
    if not system:
        return {"prompt": text}
    turns = [*(("system", one) for one in system), ("user", text)]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def _turn(place: int, turn: Any) -> tuple[str, str]:
    key = f"conversations[{place}]"
    if not isinstance(turn, Mapping):
        raise Unfit(key, f"is {kind(turn)}, not a mapping with `from` and `value`")
    if "from" not in turn and "role" in turn:
        raise Unfit(key, "has role and content, which columns: {messages: conversations} reads")
    role, text = turn.get("from"), turn.get("value")
    if not isinstance(role, str) or role not in ROLES:
        told = ascii(role) if isinstance(role, str) else kind(role)
        raise Unfit(f"{key}.from", f"is {told}, not one of {', '.join(ROLES)}")
    if not isinstance(text, str):
        raise Unfit(f"{key}.value", f"is {kind(text)}, not text")
    return ROLES[role], text
