"""The sections devices and stop_after of a sweep file: what they mean, what is wrong with them, and what does not fit
the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_spec

from orchestrator import config, devices, plan
from orchestrator.config import DeviceUse
from orchestrator.definition import devicefits
from orchestrator.definition.durations import duration_s, duration_text
from orchestrator.definition.inputs import PromptSet
from orchestrator.definition.slowing import slowing
from orchestrator.devices import Machine
from orchestrator.errors import Problem
from orchestrator.nvml import Device
from orchestrator.run import checks
from orchestrator.run.machines import machine_for, place_lines, used
from protocol.specs import Engine, MethodSpec
from tests.unit.plans import MODEL
from tests.unit.test_config import BASE, parse, problems, the_problem
from tests.unit.test_schema import fits_schema

GIB = 1 << 30
A, B = Device(0, "GPU-aa1", "NVIDIA H200", 80 * GIB), Device(1, "GPU-aa2", "NVIDIA H200", 80 * GIB)
T4 = Device(2, "GPU-t4", "Tesla T4", 16 * GIB)
SLICES = (Device(0, "MIG-x", "H200 MIG 3g", 40 * GIB), Device(0, "MIG-y", "H200 MIG 3g", 40 * GIB))


def use(text: str, *overrides: str) -> DeviceUse:
    return parse(f"devices: {text}\n", *overrides).devices


def told(text: str) -> str:
    found = the_problem(f"devices:\n  {text}\n")
    assert found.where.startswith("s.yaml:")
    return f"{found.key}: {found.message} ({found.suggestion})"


# --- what it means --------------------------------------------------------------


def test_without_it_all_is_used_and_nothing_is_shared() -> None:
    assert parse().devices == use("null") == use("{use: null, cpus: null, slots: null}") == DeviceUse()
    assert DeviceUse().cpu_sets == ()


def test_devices_are_indices_or_uuids_and_cpus_one_set_for_each_worker() -> None:
    assert use('{use: [1, "0", GPU-8f3a, MIG-12/3/4], slots: 2}') == DeviceUse(
        use=(1, 0, "GPU-8f3a", "MIG-12/3/4"), slots=2
    )
    got = use('{cpus: ["2,0-1", 4-7], share_cpus: true, standby: off}')
    assert got == DeviceUse(cpus=("0-2", "4-7"), share_cpus=True, standby="off")
    assert got.cpu_sets == ((0, 1, 2), (4, 5, 6, 7))
    assert use("{cpus: [0-3, 2-5], share_cpus: true}").cpus == ("0-3", "2-5")


def test_overrides_need_no_brackets() -> None:
    assert use("null", "devices.use=0,1") == DeviceUse(use=(0, 1))
    assert use("null", "devices.cpus=0-3,4-7") == DeviceUse(cpus=("0-3", "4-7"))
    assert use("null", 'devices.cpus="0,2","1,3"') == DeviceUse(cpus=("0,2", "1,3"))
    assert use("{use: [0]}", "devices.use=null", "devices.slots=3") == DeviceUse(slots=3)


def test_neither_changes_a_point_or_the_plan_and_a_run_may_go_on_with_others() -> None:
    prompts = PromptSet("set", (), templated=False)
    plain, other = (
        plan.build(parse(extra), MODEL, prompts, "cpu", lengths_known=False)
        for extra in ("", "devices: {slots: 2, cpus: [0-1, 2-3]}\nstop_after: 8h\n")
    )
    assert plain.digest == other.digest
    assert [p.id for p in plain.points] == [p.id for p in other.points]
    assert plan.changes(plain, other) == []
    assert (other.devices, other.stop_after_s) == (DeviceUse(slots=2, cpus=("0-1", "2-3")), 28800.0)
    assert (plain.devices, plain.stop_after_s) == (DeviceUse(), None)


# --- mistakes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("use: 0", "devices.use: must be a list, not 0 (write [0])"),
        ("use: 0,1", 'devices.use: must be a list, not the text "0,1" (write [0, 1])'),
        ("use: 0-2", "(write [0, 1, 2])"),
        ("use: all", "(leave use out for all that are visible)"),
        ("use: []", "devices.use: is an empty list (leave use out"),
        ("use: [0, GPU-a, '0']", "devices.use[2]: names 0 again, as devices.use[0] does (leave it out)"),
        ("use: [-1]", "devices.use[0]: must be a whole number, 0 or more and at most 9999, or text, not -1"),
        ("use: [true]", "or text, not true"),
        ("use: [cuda:1]", 'devices.use[0]: the text "cuda:1" is neither an index nor a UUID of a GPU (write 1)'),
        ("use: [gpu-ab]", "(write GPU-ab)"),
        ("use: [H200]", "as `nvidia-smi -L` lists them"),
        ("cpus: 0-3", 'devices.cpus: must be a list, not the text "0-3" (write ["0-3"] for one worker on CPU 0-3)'),
        ("cpus: []", "devices.cpus: is an empty list (for example"),
        ("cpus: [0-3, 3-1]", "devices.cpus[1]: 3-1 counts down (write 1-3)"),
        ("cpus: ['0-3,2']", "devices.cpus[0]: names CPU 2 twice (write 0-3)"),
        ("cpus: ['']", "devices.cpus[0]: names no CPU"),
        ("cpus: ['-1']", 'devices.cpus[0]: "-1" is neither'),
        ("cpus: [4]", 'must be text, not 4 (write "4" for a worker on this CPU alone, "0,1" for one on several)'),
        ("cpus: [-4]", "must be text, not -4 (write it as"),
        ("cpus: [0-3, 8, 2-5]", "devices.cpus[1]: must be text, not 8"),
        (
            "cpus: [0-3, 8-9, 2-5]",
            "devices.cpus[2]: has CPU 2-3, and so has devices.cpus[0]: their workers would slow each other "
            "(give each its own, or write share_cpus: true)",
        ),
        ("slots: 0", "devices.slots: must be a whole number, 1 or more and at most 8192, or null, not 0"),
        ("{slots: 3, cpus: [0-1, 2-3]}", "devices.slots: 3 workers at once can't each have one of 2 CPU sets"),
        ("{slots: 2, exclusive: true}", "devices.exclusive: lets one worker run at a time, and slots is 2"),
        ("{standby: on, exclusive: true}", "devices.standby: starts a worker beside another, and exclusive is true"),
        ("{use: [0], cpus: [0-1]}", "devices.cpus: is for machines without GPUs, and use names GPUs"),
        ("standby: yes", "(did you mean on?)"),
        ("slot: 2", "devices.slot: devices has no such key (did you mean slots?)"),
        ("gpus: [0]", "devices.gpus: devices has no such key (did you mean use?)"),
    ],
)
def test_a_mistake_is_told_once_with_what_to_write(text: str, says: str) -> None:
    assert says in told(text)


def test_all_mistakes_are_told_at_once_each_at_its_own_line() -> None:
    text = "devices:\n  use:\n  - 0\n  - x\n  slots: none\n  standby: maybe\nstop_after: 8 parsecs\n"
    found = problems(text)
    assert [(p.where, p.key) for p in found] == [
        ("s.yaml:8", "devices.use[1]"),
        ("s.yaml:9", "devices.slots"),
        ("s.yaml:10", "devices.standby"),
        ("s.yaml:11", "stop_after"),
    ]


@given(
    st.dictionaries(
        st.sampled_from(["use", "cpus", "slots", "exclusive", "share_cpus", "standby", "x"]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-5, 9000)
            | st.sampled_from(["0-3", "2-1", "GPU-a", "auto", "", "0,"]),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=5,
        ),
    )
)
def test_whatever_stands_there_is_taken_or_told(section: dict[str, object]) -> None:
    found = config.draft(BASE + "devices: " + repr(section).replace("None", "null"), "s.yaml")
    assert all(p.key.startswith("devices") for p in found.problems)
    if found.config is not None:
        assert len(found.config.devices.cpu_sets) == len(found.config.devices.cpus or ())


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("devices: {use: [0, GPU-a], slots: 2, standby: off}\nstop_after: 8h\n", True),
        ("devices: {cpus: ['0-3'], share_cpus: true, exclusive: false}\nstop_after: 3600\n", True),
        ("devices: {slot: 2}\n", False),
        ("devices: {slots: 0}\n", False),
        ("devices: {use: [1.5]}\n", False),
        ("devices: {standby: maybe}\n", False),
        ("stop_after: [8]\n", False),
        ("stop_after: -1\n", False),
    ],
)
def test_editors_are_told_the_same(text: str, fits: bool) -> None:
    assert fits_schema(BASE + text) == fits
    assert (config.draft(BASE + text, "s.yaml").config is not None) == fits


# --- stop_after -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("8h", 28800), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("3600", 3600), ("1.5h", 5400), ("0.5", 0.5)),
        *(("1h 30 min", 5400), ("2d4h", 187200), ("8 hours", 28800), ("8H", 28800), ("null", None)),
    ],
)
def test_a_time_has_units_or_is_seconds(text: str, seconds: float | None) -> None:
    assert parse(f"stop_after: {text}\n").stop_after_s == seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("'3600'", "write 3600, without quotes, or 3600s"),
        ("0", "for example 8h"),
        ("-5", "for example 8h"),
        ("0s", "for example 8h"),
        ("1h2h", "the largest first"),
        ("30m1h", "the largest first"),
        ("8:00", "write 8h0m, or 8m0s"),
        ("never", "leave it out for no limit"),
        ("8 parsecs", "for example 8h"),
        (".inf", "for example 8h"),
        ("99999d", "leave it out for no limit"),
        ("[8h]", "for example 8h"),
        ("true", "for example 8h"),
        ("''", "for example 8h"),
    ],
)
def test_what_is_no_time_says_what_is(text: str, hint: str) -> None:
    found = the_problem(f"stop_after: {text}\n")
    assert (found.where, found.key) == ("s.yaml:5", "stop_after")
    assert hint in found.suggestion


@given(st.floats(1e-3, 1e8) | st.integers(1, 10**8))
def test_a_time_is_read_as_it_is_written(value_s: float) -> None:
    assert duration_s(duration_text(value_s)) == pytest.approx(value_s, abs=1e-6)


def test_times_are_written_in_the_largest_units() -> None:
    assert [duration_text(s) for s in (45, 5400, 28800, 90000, 172800, 0.5)] == [
        *("45s", "1h30m", "8h", "25h", "2d", "0.5s")
    ]


# --- the machine ----------------------------------------------------------------


def fits(text: str, *devices: Device, cpus: int = 8) -> list[str]:
    draft = config.draft(BASE + f"devices: {text}\n", "s.yaml")
    found = devicefits.problems(draft.devices, "cuda" if devices else "cpu", devices, range(cpus), draft.places)
    return [f"{p.where}: {p.key}: {p.message} ({p.suggestion})" for p in found]


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("null", ()),
        ("null", (A, B)),
        ("{use: [0]}", (A, B, T4)),
        ("{use: [GPU-aa2, 0], slots: 2}", (A, B)),
        ("{use: [MIG-x, MIG-y]}", SLICES),
        ("null", SLICES),
        ("{use: [GPU-t, 0]}", (A, T4)),
        ("null", (A, Device(1, "GPU-b", "NVIDIA H200", None), Device(2, "GPU-c", "NVIDIA H200", 80 * GIB - (1 << 26)))),
        ("{cpus: [0-3, 4-7]}", ()),
        ("{slots: 9, share_cpus: true}", ()),
    ],
)
def test_what_is_there_fits(text: str, devices: tuple[Device, ...]) -> None:
    assert fits(text, *devices) == []


@pytest.mark.parametrize(
    ("text", "devices", "says"),
    [
        ("{use: [0]}", (), "devices.use: names 1 GPU, and this machine has none that can be used"),
        ("{cpus: [0-3, 6-9]}", (), "devices.cpus[1]: this process may not use CPU 8-9 (it may use 0-7)"),
        ("{slots: 9}", (), "devices.slots: 9 workers at once need as many CPUs, and this process may use 8"),
        ("{slots: 9}", (A,), "devices.slots: 9 workers at once need as many CPUs"),
        ("{cpus: [0-3]}", (A,), "devices.cpus: is for machines without GPUs"),
        ("{use: [7]}", (A, B), "devices.use[0]: there is no GPU 7 here (there are 0 (GPU-aa1), 1 (GPU-aa2))"),
        ("{use: [GPU-z]}", (A,), "devices.use[0]: there is no GPU GPU-z here"),
        ("{use: [GPU-aa]}", (A, B), "GPU-aa is the beginning of several UUIDs (name them: GPU-aa1, GPU-aa2)"),
        ("{use: [0]}", SLICES, "devices.use[0]: 0 is cut into slices (name them: MIG-x, MIG-y)"),
        ("{use: [1, GPU-aa2]}", (A, B), "devices.use[1]: GPU-aa2 is the same GPU as devices.use[0] (leave it out)"),
        (
            "null",
            (T4, A, B),
            "devices: the visible GPUs differ (1 × Tesla T4 with 16.0 GiB, 2 × NVIDIA H200 with 80.0 GiB), and methods "
            "would be compared across them (name those to use, for example devices: {use: [2]})",
        ),
        ("null", (A, Device(1, "GPU-b", "NVIDIA H200", 40 * GIB)), "the visible GPUs differ"),
        ("null", (SLICES[0], Device(0, "MIG-z", "H200 MIG 1g", 10 * GIB)), "{use: [MIG-x]}"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(text: str, devices: tuple[Device, ...], says: str) -> None:
    (only,) = fits(text, *devices)
    assert only.startswith("s.yaml: devices: " if text == "null" else "s.yaml:5: ")
    assert says in only


def machine(*devices: Device) -> Machine:
    return Machine("cuda" if devices else "cpu", devices, 8, GIB, (), tuple(range(8)))


def survey(text: str, *devices: Device) -> tuple[list[str], list[str], list[str]]:
    """Devices that are used, problems, warnings."""
    draft = config.draft(BASE + f"devices: {text}\n", "s.yaml")
    found: list[Problem] = []
    said: list[str] = []
    got = used(draft, machine(*devices), found, said.append)
    return [device.uuid for device in got.devices], [p.key for p in found], said


def test_the_machine_of_a_run_has_the_named_devices_in_their_order() -> None:
    assert survey("{use: [1, 0]}", A, B) == (["GPU-aa2", "GPU-aa1"], [], [])
    assert survey("{use: [1]}", A, B, T4) == (["GPU-aa2"], [], [])
    assert survey("{use: [1, 9]}", A, B) == (["GPU-aa1", "GPU-aa2"], ["devices.use[1]"], [])


def test_a_driver_that_fails_is_the_only_problem_and_what_it_says_beside_is_a_warning() -> None:
    draft = config.draft(BASE + "devices: {use: [0]}\n", "s.yaml")
    found: list[Problem] = []
    said: list[str] = []
    failing = replace(machine(), driver=True, fault="NVML can't be used: x", notes=("NVML can't be used: x",))
    used(draft, failing, found, said.append)
    assert checks.machine_problems(draft, failing) == []
    assert [str(one) for one in found] == [
        "s.yaml:5: devices: no GPU can be used, though NVIDIA's driver is here: NVML can't be used: x (see nvidia-smi; "
        "for a sweep on the CPU set CUDA_VISIBLE_DEVICES= in the environment)"
    ]
    plain = config.draft(BASE, "s.yaml")
    used(plain, replace(machine(A), driver=True, notes=("device 1: GPU is lost",)), [], said.append)
    assert said == ["warning: device 1: GPU is lost"]
    used(plain, replace(machine(), notes=("NVML can't be used: NVML Shared Library Not Found",)), [], said.append)
    assert len(said) == 1


def test_what_workers_run_on_is_named() -> None:
    assert place_lines(machine()) == ["workers on the CPU: 8 CPUs, 1.0 GiB"]
    unsized = Device(1, "MIG-x", "MIG slice", None)
    assert place_lines(machine(A, unsized)) == [
        "workers on GPU 0 (GPU-aa1), NVIDIA H200, 80.0 GiB",
        "workers on GPU 1 (MIG-x), MIG slice",
    ]


def test_what_nobody_may_expect_is_a_warning() -> None:
    _, _, (differ,) = survey("{use: [0, 2]}", A, B, T4)
    assert differ.startswith("warning: the GPUs differ (1 × NVIDIA H200 with 80.0 GiB, 1 × Tesla T4 with 16.0 GiB)")
    _, _, (few,) = survey("{slots: 3}", A, B)
    assert few == "warning: devices.slots is 3, but 2 GPUs, 1 to a worker, allow 2 workers at once"
    _, _, (idle,) = survey("{slots: 1, cpus: [0-1, 2-3]}")
    assert idle == "warning: devices.slots is 1: the CPUs of [2-3] are not used"
    wide = devicefits.remarks(DeviceUse(slots=2), "cuda", (A, B), [{}, {"tensor_parallel_size": 2}])
    assert wide == ["devices.slots is 2, but 2 GPUs, 2 to a worker, allow 1 worker at once"]


# --- variables of the shell that slow engines down -------------------------------------

LEFT = {"CUDA_LAUNCH_BLOCKING": "1", "TORCH_LOGS": "+dynamo", "NCCL_DEBUG": "trace", "VLLM_TRACE_FUNCTION": "1"}
HARMLESS = {"CUDA_LAUNCH_BLOCKING": "0", "NCCL_DEBUG": "WARN", "TORCHDYNAMO_DISABLE": "", "TORCH_LOGS": "off"}


@pytest.mark.parametrize(
    ("environ", "engine", "kind", "expected"),
    [
        (LEFT, "vllm", "cuda", [f"{name}={value}" for name, value in sorted(LEFT.items())]),
        (LEFT, "hf", "cuda", ["CUDA_LAUNCH_BLOCKING=1", "NCCL_DEBUG=trace", "TORCH_LOGS=+dynamo"]),
        (LEFT, "hf", "cpu", ["TORCH_LOGS=+dynamo"]),
        (HARMLESS, "hf", "cuda", []),
    ],
)
def test_what_slows_engines_down_is_known(
    environ: dict[str, str], engine: Engine, kind: str, expected: list[str]
) -> None:
    method = MethodSpec("m", engine)
    assert slowing(environ, [method], kind) == expected
    own = replace_spec(method, env_vars=dict.fromkeys(environ, "0"))
    assert slowing(environ, [own], kind) == [], "it has its own"
    assert slowing(environ, [own, method], kind) == expected


def test_it_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "discover", machine)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    said: list[str] = []
    machine_for(config.draft(BASE, "s.yaml"), [], said.append)
    (warning,) = [one for one in said if "TORCHDYNAMO_DISABLE=1" in one]
    assert warning.startswith("warning: for debugging, and workers that have them are slow: ")
