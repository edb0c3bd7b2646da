"""What NVML tells of a device beyond its memory: limits, clocks, temperature, power, energy. Every call is optional."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.nvml import Device, NvmlReader, text
from orchestrator.provenance import DeviceFound

#: nvml.h: nvmlClockType_t, nvmlTemperatureSensors_t.
SM_CLOCK, MEMORY_CLOCK, GPU_TEMPERATURE = 1, 2, 0
#: nvml.h: nvmlClocksEventReason*, as far as they tell of a GPU that runs slower than it might. Idle is none.
THROTTLE = {
    0x002: "application clocks",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
}


@dataclass(frozen=True)
class Reading:
    """Of one moment. None: not told."""

    power_w: float | None
    temperature_c: int | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    throttle: frozenset[str] | None


def driver_version(reader: NvmlReader) -> str | None:
    version = reader.system("nvmlSystemGetDriverVersion")
    return None if version is None else text(version)


def cuda_version(reader: NvmlReader) -> str | None:
    """The newest CUDA that the driver can serve: 12080 is 12.8."""
    number = reader.system("nvmlSystemGetCudaDriverVersion_v2")
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def found(reader: NvmlReader, device: Device) -> DeviceFound:
    """What stays as it is while a run lasts."""
    uuid = device.uuid
    limit_mw = reader.optional(uuid, "nvmlDeviceGetEnforcedPowerLimit")
    ecc = reader.optional(uuid, "nvmlDeviceGetEccMode")
    persistence = reader.optional(uuid, "nvmlDeviceGetPersistenceMode")
    return DeviceFound(
        uuid=uuid,
        name=device.name,
        index=device.index,
        memory_bytes=device.total_bytes,
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        sm_clock_max_mhz=reader.optional(uuid, "nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        memory_clock_max_mhz=reader.optional(uuid, "nvmlDeviceGetMaxClockInfo", MEMORY_CLOCK),
        ecc=None if ecc is None else bool(ecc[0]),
        persistence=None if persistence is None else bool(persistence),
    )


def energy_j(reader: NvmlReader, uuid: str) -> float | None:
    """Since the driver was loaded, of the whole board. Volta and later count it."""
    total_mj = reader.optional(uuid, "nvmlDeviceGetTotalEnergyConsumption")
    return None if total_mj is None else total_mj / 1000


def read(reader: NvmlReader, uuid: str) -> Reading:
    power_mw = reader.optional(uuid, "nvmlDeviceGetPowerUsage")
    return Reading(
        power_w=None if power_mw is None else power_mw / 1000,
        temperature_c=reader.optional(uuid, "nvmlDeviceGetTemperature", GPU_TEMPERATURE),
        sm_clock_mhz=reader.optional(uuid, "nvmlDeviceGetClockInfo", SM_CLOCK),
        memory_clock_mhz=reader.optional(uuid, "nvmlDeviceGetClockInfo", MEMORY_CLOCK),
        throttle=_throttle(reader, uuid),
    )


def _throttle(reader: NvmlReader, uuid: str) -> frozenset[str] | None:
    """By its name since driver 535, else by its old one."""
    mask = reader.optional(uuid, "nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:
        mask = reader.optional(uuid, "nvmlDeviceGetCurrentClocksThrottleReasons")
    return None if mask is None else frozenset(name for bit, name in THROTTLE.items() if mask & bit)
