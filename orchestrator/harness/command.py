"""`harness …`: the harness's own command line, with our model known to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from orchestrator.errors import InputError, Problem
from orchestrator.exits import EXIT_OK, EXIT_PARTIAL
from orchestrator.harness.calls import Unasked
from orchestrator.harness.sweeps import SweepFailed
from orchestrator.verbs import say

INSTALL = "pip install 'engine-airlock[harness]'"


def main(arguments: Sequence[str]) -> int:
    """Raises InputError where the harness is not there, or what it is told is wrong."""
    lacking = [name for name in ("lm_eval", "transformers") if find_spec(name) is None]
    if lacking:
        raise InputError([Problem("", " and ".join(lacking), f"not installed in {sys.executable}", INSTALL)])
    from lm_eval.__main__ import cli_evaluate

    from orchestrator.harness import model  # registers it

    sys.argv = ["lm_eval", *arguments]
    if "run" in arguments and "--model" not in arguments:
        sys.argv += ["--model", model.NAME]
    try:
        cli_evaluate()
    except Unasked as exc:
        raise InputError([Problem("", "", str(exc))]) from exc
    except SweepFailed as exc:
        say(f"airlock: {exc}")
        return EXIT_PARTIAL
    return EXIT_OK
