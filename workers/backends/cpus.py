"""The CPUs of each rank, where engines leave it to us. Pure."""

from __future__ import annotations

from collections.abc import Collection

from workers.backends.admission import CannotHonour


def shares(cpus: Collection[int], ranks: int) -> str:
    """As vLLM and SGLang both read them, e.g. "0,1|2,3"; left to themselves they want a memory node for each rank.
    Raises CannotHonour where a rank would have none of its own: they spin, and would wait for each other."""
    if len(cpus) < ranks:
        raise CannotHonour(f"{ranks} ranks need as many CPUs, and there are {len(cpus)}")
    ordered, each = sorted(cpus), len(cpus) // ranks
    parts = [ordered[rank * each : (rank + 1) * each] for rank in range(ranks)]
    return "|".join(",".join(map(str, part)) for part in parts)
