"""The verb `serve`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from orchestrator.exits import EXIT_OK
from orchestrator.exports.extras import needed
from orchestrator.view.answer import Answer


def run(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Raises InputError, also where its packages are missing."""
    for package in ("starlette", "uvicorn", "prometheus_client"):
        needed(package, "serve", "serve")
    from orchestrator.serve.server import serve

    answer = Answer()

    def tell(text: str) -> None:
        answer.lines([text])
        answer.finish()

    serve(args.run, args.listen, args.token_file, tell, say)
    return EXIT_OK
