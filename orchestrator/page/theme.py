"""Colours and type of the page and its plots. Pure.

Each colour has a role, a value on light and one on dark ground. Specifications hold the light values, so that they
stand alone; `themed` puts the role's CSS variable in the place of each, so that one drawing serves both grounds and the
printer. The eight of series keep their order in the three common kinds of colour blindness (after Okabe and Ito, Color
Universal Design, 2002, darkened to be read as text); nothing is told by colour alone.
"""

from __future__ import annotations

import re
from typing import Any, Final

#: Role → (light, dark). Each light value stands once: it is what `themed` knows a role by.
COLOURS: Final[dict[str, tuple[str, str]]] = {
    "paper": ("#fdfdfc", "#14161a"),
    "raised": ("#f5f5f2", "#1c1f24"),
    "ink": ("#1b1e23", "#e9e7e2"),
    "soft": ("#555c66", "#a7adb6"),
    "line": ("#d5d7d3", "#3a4048"),
    "faint": ("#ebecea", "#262b31"),
    "link": ("#0a5c99", "#7cc0f2"),
    "bad": ("#a82a12", "#ff9d84"),
    "good": ("#0d6b4f", "#5fd0a5"),
    "series-1": ("#0b6fb5", "#59b2ea"),
    "series-2": ("#c44f0a", "#f28b4b"),
    "series-3": ("#04795a", "#35c79a"),
    "series-4": ("#a24c7e", "#de92bd"),
    "series-5": ("#8a6b00", "#e3bd42"),
    "series-6": ("#5a42a6", "#ad97f5"),
    "series-7": ("#4b4f55", "#bcc1c8"),
    "series-8": ("#8f2c1e", "#ff9d8e"),
    "start": ("#c3c9cf", "#5d656e"),
    "import": ("#8da2b6", "#7d94aa"),
    "front": ("#c6cac3", "#757e89"),
    "held": ("#e2e3e0", "#31363c"),
    "load": ("#3a6ea6", "#5a95d4"),
    "warmup": ("#e2a75c", "#d99b4a"),
    "generate": ("#1f8a6c", "#35b48d"),
    "teardown": ("#7b8189", "#989fa8"),
    "waiting": ("#d8cfc0", "#57503f"),
    "tokenizer": ("#a9bcd2", "#8fa9c4"),
    "weights": ("#3b6ea5", "#5b95d3"),
    "kv": ("#7a5ea8", "#a68cd6"),
    "compile": ("#c05a1c", "#e98b52"),
    "own": ("#9fb48c", "#7b9468"),
    "rest": ("#b5b9bd", "#6a7078"),
    "peak": ("#1c1f24", "#dcdad5"),
    "back": ("#1f8b6c", "#36b48d"),
    "same": ("#cfe8dc", "#1d4a3b"),
    "tied": ("#f3e6bd", "#57491c"),
    "apart": ("#f2c4ab", "#74381c"),
    "garbage": ("#e39d95", "#8d2c22"),
    "other": ("#dccbe8", "#4c3763"),
    "base": ("#dfe3e8", "#333a43"),
    "unsure": ("#f4f4f1", "#1d2025"),
}
FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Helvetica Neue', Arial, sans-serif"
SERIES: Final = tuple(COLOURS[f"series-{number}"][0] for number in range(1, 9))
SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
DASHES: Final = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
_ROLES: Final = {light: name for name, (light, _) in COLOURS.items()}
_VALUE: Final = re.compile("|".join(_ROLES))


def light(role: str) -> str:
    return COLOURS[role][0]


def themed(text: str) -> str:
    """A specification or an SVG, with CSS variables in the place of colours."""
    return _VALUE.sub(lambda found: f"var(--{_ROLES[found[0]]})", text)


def variables() -> str:
    """CSS that gives the roles their values: by what the reader's system asks for, unless the page says otherwise."""
    of_light, of_dark = (";".join(f"--{role}:{pair[at]}" for role, pair in COLOURS.items()) for at in (0, 1))
    dark = f":root:not([data-theme=light]){{color-scheme:dark;{of_dark}}}"
    return (
        f":root{{color-scheme:light;{of_light}}}"
        f"@media screen and (prefers-color-scheme:dark){{{dark}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{of_dark}}}}}"
    )


def config() -> dict[str, Any]:
    """Of every specification."""
    quiet = {"labelColor": light("soft"), "titleColor": light("soft"), "titleFontWeight": "normal"}
    return {
        "font": FONT,
        "background": light("paper"),
        "aria": False,
        "view": {"stroke": None},
        "axis": {
            **quiet,
            "gridColor": light("faint"),
            "domainColor": light("line"),
            "tickColor": light("line"),
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titlePadding": 8,
            "labelLimit": 220,
        },
        "legend": {
            **quiet,
            "labelColor": light("ink"),
            "orient": "top",
            "direction": "horizontal",
            "labelFontSize": 11,
            "labelLimit": 220,
            "symbolStrokeWidth": 1.5,
            "symbolOpacity": 1,
            "title": None,
        },
        "text": {"color": light("ink"), "fontSize": 10},
    }
