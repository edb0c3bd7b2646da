"""Cells of two runs that stand at the same place of both grids and yet are not compared, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import fields

from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row
from orchestrator.view.wording import setting_text
from protocol.specs import BackendConfig

#: The method has a name, the model is among what differs between the runs, and the stop ids are the model's.
_NEVER = ("method", "model_path", "stop_token_ids")
#: What, in the first run, in the second.
Difference = tuple[str, str, str]


def settings(view: RunView, row: Row) -> dict[str, Any]:
    """All that a cell is measured at, but for the method."""
    config = to_builtins(view.points[row.points[0]].config)
    return {name: value for name, value in config.items() if name not in _NEVER}


def same_place(views: tuple[RunView, RunView], lacking: Sequence[Mapping[Any, Row]]) -> list[tuple[Row, Row]]:
    """Of the cells that the other run lacks, those of one method that have the same value of whatever varies within
    one of the runs."""
    axes = [one.name for one in fields(BackendConfig) if any(_varies(view, one.name) for view in views)]
    first, second = (
        {(row.method, *(getattr(row.config, name) for name in axes)): row for row in own.values()} for own in lacking
    )
    return [(row, second[place]) for place, row in first.items() if place in second]


def _varies(view: RunView, name: str) -> bool:
    """Other than by what tells methods and runs apart anyway."""
    return name not in _NEVER and len({getattr(point.config, name) for point in view.plan.listed}) > 1


def unlike(views: tuple[RunView, RunView], both: tuple[Row, Row]) -> list[Difference]:
    old, new = (settings(view, row) for view, row in zip(views, both, strict=True))
    found = [(name, setting_text(old[name]), setting_text(new[name])) for name in old if old[name] != new[name]]
    first, second = (view.plan.prompts_digest for view in views)
    return found if first == second else [*found, ("prompts", first, second)]


def unlike_text(why: Sequence[Difference]) -> str:
    """ "ignore_eos differs (off, on); prompts differ" """
    return "; ".join("prompts differ" if what == "prompts" else f"{what} differs ({a}, {b})" for what, a, b in why)
