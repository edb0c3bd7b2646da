"""`harness …`: the harness's own command line, with our model known to it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec

from orchestrator.called import COMMAND
from orchestrator.errors import InputError, Problem
from orchestrator.exits import EXIT_INTERRUPTED, EXIT_OK, EXIT_PARTIAL
from orchestrator.harness.calls import Unanswered, Unasked
from orchestrator.verbs import say

#: Subcommands that evaluate nothing.
OTHERS = ("ls", "validate")
#: What of the harness reads its command line.
READERS = ("lm_eval._cli", "lm_eval.config")
INSTALL = "pip install 'engine-airlock[harness]'"


def main(arguments: Sequence[str]) -> int:
    """Raises InputError where the harness is not there, or what it is told is wrong."""
    lacking = [name for name in ("lm_eval", "transformers") if find_spec(name) is None]
    if lacking:
        raise InputError([Problem("", " and ".join(lacking), f"not installed in {sys.executable}", INSTALL)])
    from lm_eval.__main__ import cli_evaluate

    from orchestrator.harness import model  # registers it

    sys.argv = ["lm_eval", *arguments, *unnamed_model(arguments, model.NAME)]
    try:
        cli_evaluate()
    except KeyboardInterrupt:
        say("airlock: interrupted; the same command goes on where this one was")
        return EXIT_INTERRUPTED
    except Unasked as exc:
        raise InputError([Problem("", "", str(exc))]) from exc
    except ValueError as exc:
        if not is_refusal(exc):
            raise
        hint = f"`{COMMAND} harness ls tasks` lists them" if "Tasks not found" in str(exc) else ""
        raise InputError([Problem("", "", str(exc), hint)]) from exc
    except Unanswered as exc:
        say(f"airlock: {exc}")
        return EXIT_PARTIAL
    return EXIT_OK


def is_refusal(exc: ValueError) -> bool:
    """Whether the harness raised it over what it was told."""
    *_, (frame, _) = traceback.walk_tb(exc.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith(READERS)


def unnamed_model(arguments: Sequence[str], ours: str) -> list[str]:
    """What names our model where none is named. Without a subcommand the harness takes `run` to be meant."""
    options = [one for one in arguments if one.startswith("-")]
    evaluates = bool(options) and arguments[0] not in OTHERS and not {"-h", "--help"} & {*options}
    named = any(one in ("-M", "--model") or one.startswith("--model=") for one in options)
    return ["--model", ours] if evaluates and not named else []
