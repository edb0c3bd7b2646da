"""Where the figures of a run come from, as values; `run.provenance` collects them, `view.origins` compares."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field


class CodeState(Struct, frozen=True, kw_only=True):
    """A git checkout. `changed`: tracked files differ from the commit."""

    commit: str
    changed: bool


class DeviceFound(Struct, frozen=True, kw_only=True):
    """What of a GPU stays as it is through a run; None where NVML does not tell. index: NVML's number of it."""

    uuid: str
    name: str
    index: int | None = None
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    ecc: bool | None = None
    persistence: bool | None = None


class Provenance(Struct, frozen=True, kw_only=True, tag="provenance"):
    """Where the figures of one life of a run come from. Text that can't be had is "", numbers None, with the
    reason in `notes`.

    airlock, sweep  the commits of Airlock's own code and of the folder of the sweep file, if they are under git
    kind            what workers on this machine run on; "" where they run on allocations of a cluster
    governors       of the CPUs' frequency
    variables       of the environment, those that change what engines do; values of secrets never
    packages        environment name → distribution → version, of all that is installed in it
    files           method → path of a file or folder that it names, its worker program among them → digest of content;
                    "environment NAME" → folder of an editable package → digest, and engine plugin → version;
                    "the caller's variables" → paths that they name
    """

    at: float
    life: int
    airlock: CodeState | None
    sweep: CodeState | None
    python: str
    system: str
    kernel: str
    libc: str
    container: str
    cpu: str
    cpus: int
    governors: list[str]
    numa_nodes: int
    memory_bytes: int
    huge_pages: str
    driver: str | None
    cuda_driver: str | None
    devices: list[DeviceFound]
    variables: dict[str, str]
    packages: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    kind: Literal["cuda", "cpu", ""] = ""


class DeviceUse(Struct, frozen=True, kw_only=True):
    """A GPU during one batch, from its dispatch to its answer. None: NVML does not tell.

    energy_j   of the whole board, by its own counter; another user of the board counts too
    power_*_w  of the readings; NVML averages each over about a second on recent boards
    throttle   why it ran slower than it might, at any of the readings
    readings   how many there were: one at the end, and one about every second before
    """

    uuid: str
    readings: int
    energy_j: float | None = None
    power_mean_w: float | None = None
    power_max_w: float | None = None
    temperature_max_c: int | None = None
    sm_clock_min_mhz: int | None = None
    sm_clock_mean_mhz: float | None = None
    memory_clock_min_mhz: int | None = None
    throttle: list[str] | None = None


class HostUse(Struct, frozen=True, kw_only=True):
    """The CPUs that a run may use, during one batch, from its dispatch to its answer. Seconds; None: not told.

    cpus         how many they are
    busy_s       CPU time on them, whoever used it
    worker_s     CPU time of the worker's warden and all below it
    steal_s      in which they had work and the hypervisor ran something else
    throttled_s  in which a CPU limit of our control groups kept work off them, over all CPUs
    cpu_wait_s, memory_wait_s, io_wait_s
                 in which some process of the machine, ours included, waited for a CPU, for memory, for a disk
    """

    wall_s: float
    cpus: int | None = None
    busy_s: float | None = None
    worker_s: float | None = None
    steal_s: float | None = None
    throttled_s: float | None = None
    cpu_wait_s: float | None = None
    memory_wait_s: float | None = None
    io_wait_s: float | None = None
