"""Problems as GSM8K has them: {"question", "answer"}, where the answer ends in "#### 72". Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestrator.readers.found import Unfit, unlike
from orchestrator.readers.shaping import Made, rest

_MARK = "####"
_NUMBER = re.compile(r"\s*\$?\s*(-?[0-9][0-9,]{0,30}(?:\.[0-9]{1,30})?)\s*", re.ASCII)


def fits(record: Mapping[str, Any]) -> bool:
    question, answer = record.get("question"), record.get("answer")
    return isinstance(question, str) and isinstance(answer, str) and _MARK in answer


def made(record: Mapping[str, Any]) -> Made:
    question, answer = record.get("question"), record.get("answer")
    if not isinstance(question, str) or not question:
        raise Unfit("question", "is empty" if question == "" else unlike(record, "question", "text"))
    if not isinstance(answer, str):
        raise Unfit("answer", unlike(record, "answer", "text"))
    return Made({**rest(record, "question"), "prompt": question, "expected": _number(answer)})


def _number(answer: str) -> int | float:
    _, mark, end = answer.rpartition(_MARK)
    found = _NUMBER.fullmatch(end) if mark else None
    if found is None:
        raise Unfit("answer", f"does not end in {_MARK} and a number")
    digits = found[1].replace(",", "")
    return float(digits) if "." in digits else int(digits)
