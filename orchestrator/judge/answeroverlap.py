"""How much an output and an expected text overlap: ROUGE-L and BLEU. Pure.

ROUGE-L is the F-measure of the longest common subsequence of words (Lin, 2004, section 3, with β = 1), as the package
rouge-score gives it without stemming, but for words of any alphabet; the subsequence is rapidfuzz's, which takes a
64th of the time that a table of all pairs does.
BLEU is sacrebleu's, with its own tokenisation (13a); of many outputs it is made of their summed counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

_words = re.compile(r"[^\W_]+").findall
#: Counts are of n-grams up to four: matches of each, totals of each, then the lengths of output and reference.
BLEU_ORDER: Final = 4


def words(text: str) -> list[str]:
    found: list[str] = _words(text.lower())
    return found


def rouge_l(output: Sequence[str], expected: Sequence[str]) -> float:
    """From 0 to 1, of words. Raises ImportError without rapidfuzz."""
    from rapidfuzz.distance import LCSseq

    common = LCSseq.similarity(output, expected)
    return 2 * common / (len(output) + len(expected)) if common else 0.0


@lru_cache
def _bleu() -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True)  # of a lone sentence; counts are the same without


def bleu(output: str, expected: Sequence[str]) -> tuple[float, tuple[int, ...]]:
    """Of one output, from 0 to 1; and its counts, which add up. Raises ImportError without sacrebleu."""
    found = _bleu().sentence_score(output, list(expected))
    return min(1.0, found.score / 100), (*found.counts, *found.totals, found.sys_len, found.ref_len)


def bleu_of(parts: Sequence[int]) -> float:
    """Of outputs whose counts add up to `parts`, from 0 to 1 (Papineni et al., 2002; smoothed as sacrebleu does)."""
    counts, totals = list(parts[:BLEU_ORDER]), list(parts[BLEU_ORDER : 2 * BLEU_ORDER])
    return min(1.0, float(_bleu().compute_bleu(counts, totals, parts[-2], parts[-1]).score) / 100)
