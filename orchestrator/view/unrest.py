"""What disturbed the measurement of a row, in words: warnings, and no marks.

A mark says that a row ran something else, so that no interval can make it comparable. Unrest of the machine makes
figures uncertain, and an interval over repeats holds as much of it as they have met. What it can't hold is unrest that
some rows met and others did not: only a reader can weigh that, so it is told beside the figures and forbids nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from orchestrator.view.compare import HIDDEN_DRIFT, Drift, drift_text
from orchestrator.view.hardware import Hardware
from orchestrator.view.host import Host, short_percent

WARNING = "!"
#: The fastest repeat's tokens/s / the slowest's - 1.
REPEATS_SPREAD = 0.1
#: Of the CPU time that the run could have had, what all others used.
OTHERS_SHARE = 0.1
#: The same that the hypervisor or a limit withheld while there was work.
WITHHELD_SHARE = 0.02
#: Of the time, in which some process waited for memory.
MEMORY_SHARE = 0.05
#: Of NVML's reasons to slow down those of a board in trouble. A power cap is how boards run under full load.
_TROUBLE = frozenset(
    {"hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "hardware power brake"}
)


def warnings(
    rates: Collection[float], host: Host, hardware: Hardware, drift: Drift | None, confidence: float
) -> tuple[str, ...]:
    """`rates`: tokens/s of each repeat. `drift`: of this row's cell, if it was measured once more."""
    return (*_apart(rates), *_withheld(host), *_slowed(hardware), *_drifted(drift, confidence))


def _apart(rates: Collection[float]) -> Iterator[str]:
    apart = max(rates) / min(rates) - 1 if len(rates) > 1 and min(rates) > 0 else 0.0
    if apart >= REPEATS_SPREAD:
        yield f"repeats spread by {short_percent(apart)}: the machine was not quiet, or they are too short to time"


def _withheld(host: Host) -> Iterator[str]:
    for share, least, what in (
        (host.host_others_share, OTHERS_SHARE, "others used {} of the CPU time"),
        (host.host_steal_share, WITHHELD_SHARE, "the hypervisor stole {} of the CPU time"),
        (host.host_throttled_share, WITHHELD_SHARE, "a limit on CPU time withheld {} of it"),
        (host.host_memory_wait_share, MEMORY_SHARE, "processes waited for memory {} of the time"),
    ):
        if share is not None and share >= least:
            yield what.format(short_percent(share))


def _slowed(hardware: Hardware) -> Iterator[str]:
    if reasons := sorted(_TROUBLE.intersection(hardware.throttle or ())):
        yield f"a GPU slowed down: {', '.join(reasons)}"


def _drifted(drift: Drift | None, confidence: float) -> Iterator[str]:
    if drift and drift.ratio and drift.verdict(confidence) == "drifted" and abs(drift.ratio.value - 1) >= HIDDEN_DRIFT:
        yield f"measured once more at the end, {drift_text(drift, confidence)}"
