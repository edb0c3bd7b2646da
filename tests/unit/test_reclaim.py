"""Memory is back when it is at its old level and stays there; device readings are the only fake."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.devices import Device
from orchestrator.run.reclaim import DEVICE_TOLERANCE_BYTES, MIB, STABLE_SAMPLES, MemoryWatch, Settling, Slot

GPU = Slot("slot0", (Device(index=0, uuid="GPU-a", name="test", total_bytes=1 << 30),))


class Readings:
    """A device that gives one reading after the other, the last one for ever."""

    def __init__(self, *values: int | None) -> None:
        self.values = list(values)

    def used_bytes(self, uuid: str) -> int | None:
        assert uuid == "GPU-a"
        return self.values.pop(0) if len(self.values) > 1 else self.values[0]

    def holders(self, uuid: str) -> list[tuple[int, str, int | None]] | None:
        raise NotImplementedError(uuid)


def polls_until_back(*after: int | None, baseline: int | None = 100 * MIB) -> tuple[MemoryWatch, int]:
    watch = MemoryWatch(GPU, Readings(baseline, *after), clock=lambda: 0.0)
    watch.ended(0.0)
    for count in range(1, 50):
        if watch.poll() == "back":
            return watch, count
    return watch, 50


def test_slow_release_is_waited_for() -> None:
    watch, count = polls_until_back(900 * MIB, 500 * MIB, 300 * MIB, 101 * MIB)
    assert count == 3 + STABLE_SAMPLES
    assert watch.proof(left=0, strays=[], returned=True, teardown_s=0, rung="shutdown").returned


def test_a_leak_never_counts_as_back() -> None:
    _, count = polls_until_back(100 * MIB + DEVICE_TOLERANCE_BYTES + 1)
    assert count == 50


def test_unreadable_memory_is_noted_and_never_guessed() -> None:
    watch, count = polls_until_back(None)
    assert count == 1
    proof = watch.proof(left=0, strays=[], returned=True, teardown_s=0, rung="shutdown")
    assert proof.after_bytes is None
    assert any("unknown" in note for note in proof.notes)


def test_a_process_left_is_never_a_return() -> None:
    watch, _ = polls_until_back(100 * MIB)
    assert not watch.proof(left=1, strays=[], returned=True, teardown_s=0, rung="kill").returned


@given(st.lists(st.integers(0, 2000), max_size=30))
def test_settled_means_low_and_stable(samples: list[int]) -> None:
    settling = Settling(limit_bytes=1000, tolerance_bytes=100)
    for index, sample in enumerate(samples):
        settling = settling.add(sample)
        last = samples[max(0, index - STABLE_SAMPLES + 1) : index + 1]
        expected = len(last) == STABLE_SAMPLES and max(last) <= 1000 and max(last) - min(last) <= 100
        assert settling.settled == expected
