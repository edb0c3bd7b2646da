"""Before and after a sweep: what makes its figures incomparable is told, and with --strict not let pass."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import InputError, Problem
from orchestrator.exits import EXIT_PARTIAL
from orchestrator.judge.fairness import lint
from orchestrator.judge.findings import Finding, warnings
from orchestrator.run.prepare import Ground, Say
from orchestrator.view import fairness
from orchestrator.view.runview import RunView
from protocol.specs import BackendConfig


def announce(ground: Ground, say: Say) -> None:
    """What takes the next seconds, or a minute on a busy machine: an engine's interpreter is started for it."""
    if ground.config.model.kind != "scripted":
        say(f"{ground.config.name}: examining environments and model, counting the prompts' tokens")


def findings(ground: Ground) -> list[Finding]:
    """What differs in what is asked of the methods; it needs no environment."""
    asked, kind = ground.config, ground.machine.kind
    return lint([BackendConfig(method=m, model_path="", device=kind, **c) for m in asked.methods for c in asked.cells])


def refuse(found: Sequence[Finding], strict: bool) -> None:
    """With `strict`, raises InputError with every warning."""
    if strict and (grave := warnings(found)):
        raise InputError([Problem("", "fairness", f"{one.text}: {one.why}", one.advice) for one in grave])


def after(view: RunView, code: int, strict: bool, say: Say) -> int:
    """Tells what ran otherwise than asked or than elsewhere. The exit code, with `strict` that of a
    run whose figures can't be compared where it would have been 0."""
    found = fairness.warning_lines(view)
    for line in found:
        say(f"fairness: {line}")
    return EXIT_PARTIAL if strict and found and code == 0 else code
