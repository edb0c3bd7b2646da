"""How right answers are, as a figure: its kinds, and each as text. Pure."""

from __future__ import annotations

from typing import Final, Literal

#: share: of right answers. mean: of scores. corpus: one score of all outputs together.
Kind = Literal["share", "mean", "corpus"]
#: What each is of.
MEASURES: Final[dict[Kind, str]] = {
    "share": "right answers",
    "mean": "mean score",
    "corpus": "score of all outputs",
}


def number_text(kind: Kind, value: float, sign: str = "") -> str:
    """BLEU and shares by the hundred, as both are usually told."""
    return f"{value:{sign}.3f}" if kind == "mean" else f"{value * 100:{sign}.1f}"


def value_text(kind: Kind, value: float) -> str:
    """ "71.0 %", of scores "0.412", BLEU "27.3" """
    return number_text(kind, value) + (" %" if kind == "share" else "")
