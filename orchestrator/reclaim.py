"""What became of a worker's processes and memory, as a value; `run.reclaim` finds it out."""

from __future__ import annotations

from msgspec import Struct, field


class Reclaim(Struct, frozen=True, kw_only=True):
    """Proof that an incarnation is gone and its memory back.

    processes_left   processes of this incarnation alive at the end; 0 unless quarantined
    strays_killed    descendants that outlived the worker and had to be killed, by name
    held_bytes       memory held just before teardown: device memory on a GPU slot,
                     summed PSS of the process tree on a CPU slot
    peak_bytes       the highest such figure seen
    baseline_bytes   memory in use on the slot before launch
    after_bytes      the same after teardown
    returned         memory is back at the baseline, within `tolerance_bytes`, and stable
    wait_s           from the end of the last process until it was back
    teardown_s       from the request to stop until the last process was gone
    rung             how far the ladder went: "exit", "shutdown", "terminate", "kill", "sweep"
    shm_removed      /dev/shm segments that our processes had mapped and left behind
    holders          who holds device memory of the slot at the end: "pid name bytes"
    """

    device: str
    processes_left: int
    strays_killed: list[str]
    held_bytes: int | None
    peak_bytes: int | None
    baseline_bytes: int | None
    after_bytes: int | None
    tolerance_bytes: int
    returned: bool
    wait_s: float
    teardown_s: float
    rung: str
    shm_removed: list[str] = field(default_factory=list)
    holders: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
