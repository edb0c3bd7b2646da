"""What all stints of a run share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.nvml import NvmlReader
from orchestrator.run.gate import Gate
from orchestrator.run.incarnation import Services
from orchestrator.run.keeping import Keeper
from orchestrator.run.ledger import Ledger
from orchestrator.run.modelwatch import ModelWatch
from orchestrator.run.signals import StopFlag


@dataclass(frozen=True)
class Surroundings:
    """
    full      which places take nothing more right now, "" for none
    time_up   why no further batch may begin, "" while one may
    closed    why nobody may begin to load any more, "" while one may
    """

    services: Services
    gate: Gate
    ledger: Ledger
    keeper: Keeper
    model: ModelWatch
    stop: StopFlag
    run_dir: Path
    reader: NvmlReader | None
    full: Callable[[], str]
    time_up: Callable[[], str]
    closed: Callable[[], str]
