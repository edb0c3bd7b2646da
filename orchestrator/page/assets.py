"""What the page brings along: Vega, Vega-Lite and vega-embed out of the package vl-convert-python; our own files."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

#: Of those that vl-convert-python holds: what a specification means must not change with the package.
VEGA_LITE: Final = "6.4"
_EXPOSE: Final = "globalThis.airlock = {vegaEmbed};"


@cache
def bundle() -> str:
    """JavaScript for one <script type="module">: the libraries, and app.js, which puts draw, table and theme into the
    global `airlock`. Takes about a second, once. It holds no `</script`."""
    import vl_convert

    libraries: str = vl_convert.javascript_bundle(_EXPOSE, vl_version=VEGA_LITE)
    return f"{libraries}\n{text('app.js')}"


def text(name: str) -> str:
    """One of the files in assets/."""
    return files("orchestrator.page").joinpath("assets", name).read_text(encoding="utf-8")
