"""Whether a slot is free for a worker: who counts as a stranger, and how he is named."""

from __future__ import annotations

import pytest

from orchestrator.definition.sizes import MIB
from orchestrator.devices import Device, Holder
from orchestrator.run.slots import Slot
from orchestrator.run.strangers import (
    DISPLAY_BYTES,
    NAMED_HOLDERS,
    STEADY_BYTES,
    STEADY_READINGS,
    STRANGERS_BYTES,
    Vacancy,
    holder_texts,
    lost,
    occupied,
    others,
)

GIB = 1024 * MIB
A, B = (Device(index=i, uuid=f"GPU-{x}", name="test", total_bytes=80 * GIB) for i, x in enumerate("ab"))
SLOT = Slot("slot0", (A, B))
OURS = 4711


class Readings:
    """Of the first device; the second is empty."""

    def __init__(self, used: int | None, listed: list[Holder] | None) -> None:
        self.used, self.listed = used, listed
        self.lost: set[str] = set()
        self.lose_at_holders = False

    def used_bytes(self, uuid: str) -> int | None:
        return self.used if uuid == A.uuid else 0

    def free_bytes(self, uuid: str) -> int | None:
        raise NotImplementedError(uuid)

    def holders(self, uuid: str) -> list[Holder] | None:
        if self.lose_at_holders:
            self.lost.add(A.uuid)
        return self.listed if uuid == A.uuid else []

    def why_not(self, uuid: str) -> str:
        return f"no reading of {uuid}"


def computing(size: int | None, pid: int = 77, name: str = "python") -> Holder:
    return Holder(pid, name, size)


def drawing(size: int | None) -> Holder:
    return Holder(88, "Xorg", size, graphics=True)


@pytest.mark.parametrize(
    ("used", "listed"),
    [
        pytest.param(0, [], id="empty"),
        pytest.param(STRANGERS_BYTES, [], id="what a driver needs"),
        pytest.param(400 * MIB, [computing(400 * MIB)], id="an idle context"),
        pytest.param(20 * GIB, [computing(20 * GIB, OURS)], id="our own worker"),
        pytest.param(20 * GIB, [computing(None, OURS)], id="our own worker of unknown size"),
        pytest.param(1500 * MIB, [drawing(1500 * MIB)], id="a desktop"),
        pytest.param(DISPLAY_BYTES + STRANGERS_BYTES, [drawing(DISPLAY_BYTES), computing(STRANGERS_BYTES)], id="both"),
        pytest.param(None, None, id="nothing is told"),
        pytest.param(None, [computing(None)], id="a stranger of whom nothing is told"),
        pytest.param(400 * MIB, None, id="processes are not told"),
    ],
)
def test_free(used: int | None, listed: list[Holder] | None) -> None:
    assert occupied(SLOT, Readings(used, listed), {OURS}) == ""


@pytest.mark.parametrize(
    ("used", "listed", "sentence"),
    [
        pytest.param(5 * GIB, [computing(5 * GIB)], "5.0 GiB in use by others: pid 77 python 5.0 GiB", id="a stranger"),
        pytest.param(None, [computing(5 * GIB)], "5.0 GiB in use by others: pid 77 python 5.0 GiB", id="no sum"),
        pytest.param(
            5 * GIB,
            [computing(5 * GIB, name="")],
            "5.0 GiB in use by others: pid 77 (ended, or of another PID namespace) 5.0 GiB",
            id="another namespace",
        ),
        pytest.param(
            5 * GIB, [], "5.0 GiB in use by others: 5.0 GiB that no visible process holds", id="nobody to be seen"
        ),
        pytest.param(
            5 * GIB, None, "5.0 GiB in use by others: 5.0 GiB of processes that NVML does not tell", id="no list"
        ),
        pytest.param(
            5 * GIB,
            [computing(None)],
            "5.0 GiB in use by others: pid 77 python memory of unknown size",
            id="a stranger of unknown size",
        ),
        pytest.param(
            8 * GIB,
            [computing(3 * GIB, OURS), computing(1 * GIB)],
            "5.0 GiB in use by others: pid 77 python 1.0 GiB, 4.0 GiB that no visible process holds",
            id="ours, theirs and nobody's",
        ),
        pytest.param(
            600 * MIB,
            [computing(300 * MIB), computing(300 * MIB, 78, "other")],
            "600 MiB in use by others: pid 77 python 300 MiB, pid 78 other 300 MiB",
            id="two small ones",
        ),
        pytest.param(3 * GIB, [drawing(3 * GIB)], "3.0 GiB in use by others: pid 88 Xorg 3.0 GiB", id="a game"),
    ],
)
def test_held(used: int | None, listed: list[Holder] | None, sentence: str) -> None:
    assert occupied(SLOT, Readings(used, listed), {OURS}) == f"GPU 0 (GPU-a): {sentence}"


def test_how_much_of_others_is_allowed_may_be_said() -> None:
    readings = Readings(5 * GIB, [computing(5 * GIB)])
    assert occupied(SLOT, readings, allowed_bytes=5 * GIB) == ""
    assert occupied(SLOT, readings, allowed_bytes=5 * GIB - 1) != ""


def test_without_a_reader_nothing_is_held_and_nothing_lost() -> None:
    assert (occupied(SLOT, None), lost(SLOT, None)) == ("", "")


def test_a_lost_device_is_no_occupied_one() -> None:
    readings = Readings(None, None)
    assert lost(SLOT, readings) == ""
    readings.lose_at_holders = True  # where memory is not told, the loss shows in another call
    assert lost(SLOT, readings) == "GPU 0 (GPU-a) is lost: no reading of GPU-a"
    assert occupied(SLOT, readings) == ""


def test_the_largest_come_first_and_the_rest_is_counted() -> None:
    holders = [computing(size * GIB, pid=size, name=f"p{size}") for size in range(1, NAMED_HOLDERS + 3)]
    texts = holder_texts(holders)
    assert texts[0] == "pid 6 p6 6.0 GiB"
    assert texts[NAMED_HOLDERS:] == ["2 more"]


def test_others_are_all_that_is_not_ours_however_little() -> None:
    readings = Readings(0, [computing(3 * GIB, OURS), computing(1 * MIB), drawing(2 * MIB)])
    assert others(SLOT, readings, {OURS}) == ["pid 88 Xorg 2 MiB", "pid 77 python 1 MiB"]
    assert others(SLOT, None) == []


def test_a_slot_that_was_never_held_is_free_at_once() -> None:
    assert Vacancy(SLOT, Readings(400 * MIB, [])).reason() == ""
    assert Vacancy(SLOT, None).reason() == ""


def test_a_slot_that_somebody_leaves_is_free_once_its_memory_is_steady() -> None:
    readings = Readings(5 * GIB, [])
    vacancy = Vacancy(SLOT, readings)
    assert "5.0 GiB that no visible process holds" in vacancy.reason()
    for used in (500 * MIB, 300 * MIB, 100 * MIB, 100 * MIB - STEADY_BYTES):
        readings.used = used
        assert vacancy.reason() == "memory in use on slot0 still changes"
    readings.used = 100 * MIB - STEADY_BYTES
    assert vacancy.reason() == ""


def test_a_slot_that_is_taken_again_is_waited_for_anew() -> None:
    readings = Readings(5 * GIB, [])
    vacancy = Vacancy(SLOT, readings)
    for used in (5 * GIB, *[0] * (STEADY_READINGS - 1), 5 * GIB, *[0] * (STEADY_READINGS - 1)):
        readings.used = used
        assert vacancy.reason() != ""
    assert vacancy.reason() == ""
