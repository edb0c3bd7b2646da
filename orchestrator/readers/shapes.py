"""The formats that prompts are published in: one table, and which of them a record is in. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from orchestrator.readers import alpaca, gsm8k, mt_bench, openai, sharegpt
from orchestrator.readers.shaping import Made


class Shape(NamedTuple):
    """`fits` tells by the fields of a single record; `made` raises Unfit or Passed."""

    fits: Callable[[Mapping[str, Any]], bool]
    made: Callable[[Mapping[str, Any]], Made]


#: Of our own: what is read as it stands.
OWN: Final = "jsonl"


def _own(record: Mapping[str, Any]) -> bool:
    return "prompt" in record or "messages" in record


SHAPES: Final[dict[str, Shape]] = {
    OWN: Shape(_own, lambda record: Made(dict(record))),
    "sharegpt": Shape(sharegpt.fits, sharegpt.made),
    "alpaca": Shape(alpaca.fits, alpaca.made),
    "openai": Shape(openai.is_answered, openai.made),
    "openai_batch": Shape(openai.fits_batch, openai.made_batch),
    "mt_bench": Shape(mt_bench.fits, mt_bench.made),
    "gsm8k": Shape(gsm8k.fits, gsm8k.made),
}


def fitting(record: Any) -> list[str]:
    """The names of those that a record could be in, that of our own for a text; none where there is none."""
    if isinstance(record, str):
        return [OWN]
    return [name for name, shape in SHAPES.items() if isinstance(record, Mapping) and shape.fits(record)]
