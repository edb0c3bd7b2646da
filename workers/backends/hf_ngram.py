"""Prompt lookup counts nothing by itself: what it drafted is counted where `generate` asks for candidates.

What was accepted follows exactly from the steps: a forward pass gives one token of its own, and any more are draft.
"""

from __future__ import annotations

from typing import Any


class DraftCounter:
    """Counts the candidates of every generator that `model` makes from now on."""

    def __init__(self, model: Any) -> None:
        self.drafts = self.draft_tokens = 0
        make = model._get_candidate_generator

        def counted(*args: Any, **kwargs: Any) -> Any:
            return self._watch(make(*args, **kwargs))

        model._get_candidate_generator = counted

    def _watch(self, generator: Any) -> Any:
        candidates = generator.get_candidates

        def counted(input_ids: Any, *args: Any, **kwargs: Any) -> Any:
            found = candidates(input_ids, *args, **kwargs)
            drafted = int(found[0].shape[1]) - int(input_ids.shape[1])
            self.drafts += drafted > 0
            self.draft_tokens += drafted
            return found

        generator.get_candidates = counted
        return generator

    def take(self) -> dict[str, float]:
        """The counts since the last time."""
        found = {"drafts": float(self.drafts), "draft_tokens": float(self.draft_tokens)}
        self.drafts = self.draft_tokens = 0
        return found
