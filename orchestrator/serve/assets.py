"""The dashboard's own files, and what it takes from the page of the report: its colours and Vega."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Final

from orchestrator.page.theme import variables
from orchestrator.serve.sheet import Sheet, compressed

_KINDS: Final = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_OWN: Final = ("dashboard.css", "common.js", "list.js", "run.js", "plots.js", "login.js", "mark.svg")
VEGA: Final = "vega.js"


def text(name: str) -> str:
    return files("orchestrator.serve").joinpath("assets", name).read_text(encoding="utf-8")


def _sheet(name: str, content: str) -> Sheet:
    return compressed(Sheet(content.encode(), _KINDS[name[name.rindex(".") :]]))


def vega(content: bytes) -> Sheet:
    return compressed(Sheet(content, _KINDS[".js"]))


def missing(reason: str) -> str:
    """The page that says why there is none."""
    return text("missing.html").replace("{{ reason }}", escape(reason))


PAGES: Final = {name: _sheet(name, text(name)) for name in ("list.html", "run.html")}
FILES: Final = {name: _sheet(name, text(name)) for name in _OWN} | {"theme.css": _sheet("theme.css", variables())}
