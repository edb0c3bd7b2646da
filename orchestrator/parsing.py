"""The command line's own parser: argparse, and what was probably meant."""

from __future__ import annotations

import argparse
from typing import Any


class Parser(argparse.ArgumentParser):
    """Says what was probably meant by a choice that there is not."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        from orchestrator.definition.spelling import likely

        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as exc:
            close = likely(str(value), map(str, action.choices or ()))
            message = f"did you mean {close}? {exc.message}" if close else exc.message
            raise argparse.ArgumentError(action, message) from None


def threshold(text: str) -> str:
    """Of a gate. What can't be one is probably the run that was to follow."""
    try:
        float(text.strip().removesuffix("%"))
    except ValueError:
        hint = "the threshold comes right behind the option: --fail-on-regression 5% BASE RUN"
        raise argparse.ArgumentTypeError(f"{text!r} is no share; {hint}") from None
    return text
