"""Instructions as Alpaca has them: {"instruction", "input", "output"}, in the template that it was trained with.

Source of the template: the README of Stanford Alpaca, where it stands once with and once without an input. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.readers.found import Unfit, kind, unlike
from orchestrator.readers.shaping import Made, rest

_WITH = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{}\n\n### Input:\n{}\n\n### Response:"
)
_WITHOUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{}\n\n### Response:"
)


def fits(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("instruction"), str) and isinstance(record.get("output"), str)


def made(record: Mapping[str, Any]) -> Made:
    instruction = record.get("instruction")
    if not isinstance(instruction, str) or not instruction:
        raise Unfit("instruction", "is empty" if instruction == "" else unlike(record, "instruction", "text"))
    given, answer = (_optional(record, name) for name in ("input", "output"))
    prompt = _WITH.format(instruction, given) if given else _WITHOUT.format(instruction)
    expected = {"expected": answer} if answer else {}
    return Made({**rest(record, "instruction", "input", "output"), "prompt": prompt, **expected})


def _optional(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise Unfit(name, f"is {kind(value)}, not text")
    return value or ""
