"""How a sweep measures and what its results are held against.

    measurement:
      order: interleaved            # repeats go round all methods
      reference: hf_sdpa            # the others' outputs and speed are set against it
      slo_ttft_s: 0.5               # for goodput

`order`, `order_seed`, `drift` and `stop_early` (by `least_repeats` and `confidence`) decide what runs, and `reference`
what drift measures again; all else is only how results are read. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import Meta, Struct

from orchestrator.definition.fields import parts
from orchestrator.definition.spelling import nearest
from orchestrator.definition.sweepfile import Node, Problems

Order = Literal["grouped", "interleaved", "random"]
Slo = Annotated[float, Meta(gt=0)]
#: An interval is made of so many repeats or more.
INTERVAL_REPEATS = 3


class Measurement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds, shares and natural logarithms, by the names' ends."""

    order: Annotated[
        Order,
        Meta(
            description="grouped: all repeats of a method in one worker; interleaved: each repeat goes round all "
            "methods, with a worker each; random: interleaved, shuffled by order_seed"
        ),
    ] = "grouped"
    order_seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="of order: random")] = 0
    reference: Annotated[
        str | None,
        Meta(
            description="method that the others are set against; null: for speed the first of the sweep, for outputs "
            "the first of Transformers"
        ),
    ] = None
    drift: Annotated[
        bool, Meta(description="measure the first cell of the reference once more at the very end of the sweep")
    ] = False
    stop_early: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        Meta(description="no more repeats of a cell once its interval of tokens/s is within this share of it"),
    ] = None
    least_repeats: Annotated[int, Meta(ge=2, description="repeats before stop_early may act; 3 at least")] = 3
    confidence: Annotated[float, Meta(gt=0, lt=1, description="level of the intervals")] = 0.95
    agreement_gap: Annotated[
        float,
        Meta(ge=0, description="nats by which the reference may prefer its own token where outputs first differ"),
    ] = 0.5
    slo_ttft_s: Annotated[Slo | None, Meta(description="for goodput: most seconds to the first token")] = None
    slo_tpot_s: Annotated[Slo | None, Meta(description="for goodput: most seconds per further token")] = None
    slo_latency_s: Annotated[Slo | None, Meta(description="for goodput: most seconds to the last token")] = None

    @property
    def sequence(self) -> dict[str, Any]:
        """What decides when each point runs; empty for the default."""
        seed = {"order_seed": self.order_seed} if self.order == "random" else {}
        return {} if self.order == "grouped" else {"order": self.order, **seed}

    @property
    def least(self) -> int:
        """Repeats before `stop_early` may act: fewer have no interval."""
        return max(self.least_repeats, INTERVAL_REPEATS)

    @property
    def ending(self) -> dict[str, Any]:
        """What decides that repeats are left out; empty if nothing does."""
        if self.stop_early is None:
            return {}
        return {"stop_early": self.stop_early, "least_repeats": self.least_repeats, "confidence": self.confidence}

    @property
    def order_text(self) -> str:
        """ "interleaved", "random with seed 7" """
        return f"random with seed {self.order_seed}" if self.order == "random" else self.order


def read_measurement(node: Node, problems: Problems) -> Measurement:
    return Measurement(**parts(node, "measurement", get_type_hints(Measurement, include_extras=True), problems))


def check_reference(node: Node | None, found: Measurement, methods: Iterable[str], problems: Problems) -> None:
    """A reference that is none of `methods`, the names that are no mistake here."""
    names = list(methods)
    if node is not None and found.reference is not None and found.reference not in names:
        where = node.value["reference"].where
        message = f"{found.reference} is no method of this sweep"
        problems.add(where, "measurement.reference", message, nearest(found.reference, names))
