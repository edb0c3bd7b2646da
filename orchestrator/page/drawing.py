"""Plots as they stand in the page: a picture for whoever runs no scripts, and the specification for whoever does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.page.assets import VEGA_LITE
from orchestrator.page.plot import WIDTH, Plot
from orchestrator.page.plots import plots
from orchestrator.page.theme import themed
from orchestrator.view import timeline
from orchestrator.view.agreement import json_rows
from orchestrator.view.figures import row_figures
from orchestrator.view.runview import RunView
from orchestrator.view.summary import Row, reference_of

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True)
class Drawn:
    plot: Plot
    svg: Markup
    json: Markup


def data_of(view: RunView, found: Sequence[Row]) -> dict[str, Any]:
    """Of what `report --json` gives that which plots and tables of these rows need."""
    shown = {point for row in found for point in row.points}
    judged = replace(view.agreements, rows=tuple(one for one in view.agreements.rows if one.points[0] in shown))
    return {
        "state": view.state,
        "reference": reference_of(view.plan),
        "rows": [row_figures(row) for row in found],
        "agreement": {"reference": judged.reference, "rows": list(json_rows(judged, differences=False))},
        "timeline": timeline.values(view.replay.events()),
    }


def drawn(data: Mapping[str, Any]) -> Iterator[Drawn]:
    from markupsafe import Markup

    for plot in plots(data):
        yield Drawn(plot, Markup(themed(picture(plot))), Markup(in_script(themed(json.dumps(plot.spec)))))


def picture(plot: Plot) -> str:
    """An SVG as wide as a page of text. Its colours are those of the specification."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg({**plot.spec, "width": WIDTH}, vl_version=VEGA_LITE)
    return svg


def in_script(text: str) -> str:
    """JSON that ends no script element and starts no comment, whatever it holds. It has no character past ASCII."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
