"""Power, energy, clocks and temperature out of a driver's library, alone and in a sweep; each of them optional."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.events import BatchCommitted, DevicesUsed
from orchestrator.provenance import DeviceFound, DeviceUse, Provenance
from orchestrator.report import RunView, markdown, rows
from tests.nvml.fakedriver import NOT_SUPPORTED, FakeDriver
from tests.nvml.test_gpu_slots import Lab
from tests.nvml.test_reader import ask

pytestmark = pytest.mark.usefixtures("nothing_leaked")

JOULE = 1000
SOFTWARE_POWER_CAP, IDLE = 0x4, 0x1


def equip(driver: FakeDriver, uuid: str = "GPU-a") -> None:
    for name, value in {
        "PowerUsage": 350_000,
        "EnforcedPowerLimit": 700_000,
        "Temperature": 64,
        "ClockInfo:1": 1755,
        "ClockInfo:2": 2619,
        "MaxClockInfo:1": 1980,
        "MaxClockInfo:2": 2619,
        "CurrentClocksThrottleReasons": SOFTWARE_POWER_CAP | IDLE,
        "PersistenceMode": 1,
        "EccMode": 1,
    }.items():
        driver.gauge(name, uuid, value)
    driver.gauge("TotalEnergyConsumption", uuid, 5 * JOULE, step=2 * JOULE)


def test_what_a_board_tells(driver: FakeDriver) -> None:
    driver.gpu(0, "GPU-a")
    equip(driver)
    reading, energy, system = ask(
        driver,
        'vars(gauges.read(reader, "GPU-a")) | {"throttle": sorted(gauges.read(reader, "GPU-a").throttle)}',
        '[gauges.energy_j(reader, "GPU-a") for _ in range(3)]',
        "[gauges.driver_version(reader), gauges.cuda_version(reader)]",
    )
    assert reading == {
        "power_w": 350.0,
        "temperature_c": 64,
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 2619,
        "throttle": ["software power cap"],
    }
    assert energy == [5.0, 7.0, 9.0]
    assert system == ["580.65", "13.1"]


def test_what_it_does_not_tell_is_none_and_no_error(driver: FakeDriver) -> None:
    driver.gpu(0, "GPU-a")
    reading, energy, notes = ask(
        driver, 'vars(gauges.read(reader, "GPU-a"))', 'gauges.energy_j(reader, "GPU-a")', "reader.notes"
    )
    assert set(reading.values()) == {None}
    assert (energy, notes) == (None, [])


@pytest.fixture
def lab(tmp_path: Path, driver: FakeDriver) -> Lab:
    driver.gpu(0, "GPU-a")
    return Lab(tmp_path / "lab", driver)


def test_a_sweep_says_what_each_measured_batch_took(lab: Lab) -> None:
    equip(lab.driver)
    assert lab.sweep(lab.worker("one", holds=False), warmup=1) == 0
    used = lab.of(DevicesUsed)
    assert [one.batch for one in used] == [one.batch for one in lab.of(BatchCommitted)]
    (device,) = used[0].devices
    assert device == DeviceUse(
        uuid="GPU-a",
        readings=1,
        energy_j=2.0,
        power_mean_w=350.0,
        power_max_w=350.0,
        temperature_max_c=64,
        sm_clock_min_mhz=1755,
        sm_clock_mean_mhz=1755.0,
        memory_clock_min_mhz=2619,
        throttle=["software power cap"],
    )
    (found,) = lab.of(Provenance)
    assert (found.kind, found.notes) == ("cuda", [])
    assert found.devices == [
        DeviceFound(
            uuid="GPU-a",
            name="NVIDIA Test",
            index=0,
            memory_bytes=80 * 2**30,
            power_limit_w=700.0,
            sm_clock_max_mhz=1980,
            memory_clock_max_mhz=2619,
            ecc=True,
            persistence=True,
        )
    ]


def test_the_report_adds_them_up(lab: Lab) -> None:
    equip(lab.driver)
    assert lab.sweep(lab.worker("one", holds=False), matrix={"batch_size": [2]}) == 0
    (row,) = rows(RunView.load(lab.bench.run_dir))
    tokens = sum(event.stats.generated_tokens for event in lab.of(BatchCommitted))
    assert row.hardware.energy_j == 3 * 2.0
    assert row.hardware.energy_token_j == 3 * 2.0 / tokens
    assert (row.hardware.power_mean_w, row.hardware.throttle) == (350.0, ("software power cap",))
    text = markdown(RunView.load(lab.bench.run_dir))
    assert "| one | 2 | 6.00 J |" in text
    assert "| GPU GPU-a | index 0, NVIDIA Test, 80.0 GiB, 700 W, SM at most 1980 MHz" in text


def test_a_board_without_an_energy_counter_says_the_rest(lab: Lab) -> None:
    equip(lab.driver)
    lab.driver.fail("TotalEnergyConsumption", NOT_SUPPORTED)
    assert lab.sweep(lab.worker("one", holds=False)) == 0
    assert {(one.devices[0].energy_j, one.devices[0].power_max_w) for one in lab.of(DevicesUsed)} == {(None, 350.0)}


def test_a_board_that_tells_nothing_costs_no_event(lab: Lab) -> None:
    assert lab.sweep(lab.worker("one", holds=False)) == 0
    assert lab.of(DevicesUsed) == []
