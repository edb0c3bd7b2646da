"""Questions as MT-bench has them: {"question_id", "category", "turns": [text, text], "reference": [text, text]}.

The prompt is the first turn. The second one asks about the engine's own answer to the first, so that no two engines
would be asked the same. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.readers.found import Unfit, kind, unlike
from orchestrator.readers.shaping import Made, rest


def fits(record: Mapping[str, Any]) -> bool:
    return "question_id" in record and isinstance(record.get("turns"), list)


def made(record: Mapping[str, Any]) -> Made:
    turns = record.get("turns")
    if not isinstance(turns, list) or not turns:
        raise Unfit("turns", "is empty" if turns == [] else unlike(record, "turns", "a list of texts"))
    wrong = next((n for n, turn in enumerate(turns) if not isinstance(turn, str) or not turn), None)
    if wrong is not None:
        raise Unfit(f"turns[{wrong}]", "is empty" if turns[wrong] == "" else f"is {kind(turns[wrong])}, not text")
    reference = record.get("reference")
    answer = reference[0] if isinstance(reference, list) and reference else None
    remarks = ("turns after the first are left out, as they ask about an engine's own answer",)
    return Made(
        {
            **rest(record, "question_id", "turns", "reference"),
            **({"id": record["question_id"]} if "question_id" in record else {}),
            "prompt": turns[0],
            **({"expected": answer} if answer else {}),
        },
        remarks if len(turns) > 1 else (),
    )
