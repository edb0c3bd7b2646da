"""Where a run's figures come from: code, machine, environments and variables, as they are when it starts.

Nothing here stops a run: what can't be had is left out, with the reason in `notes`.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path
from typing import Final

from orchestrator import devices, gauges
from orchestrator.definition.variables import HIDDEN, plain, recorded
from orchestrator.launcher import Launcher
from orchestrator.nvml import NvmlReader
from orchestrator.provenance import CodeState, Provenance
from orchestrator.run.environments import usable
from orchestrator.run.prepare import Prepared
from orchestrator.stores import methodfiles
from orchestrator.stores.checkout import state_of
from protocol.specs import MethodSpec

#: Variables that change what engines do. Of those whose name smells of a secret only the fact that they are set.
MATTERING = re.compile(
    r"^(CUDA|CUBLAS|CUDNN|CUTE|NCCL|NVSHMEM|NVIDIA|UCX|GLOO|TORCH|TORCHDYNAMO|TORCHINDUCTOR|TORCHAO|PYTORCH|ATEN"
    r"|TRITON|TILELANG|TVM|VLLM|SGLANG|SGL|LMCACHE|FLASHINFER|FLASH|BITSANDBYTES|BNB|TRANSFORMERS|SAFETENSORS|HF"
    r"|OMP|MKL|ONEDNN|DNNL|KMP|GOMP|OPENBLAS|GOTO|BLIS|VECLIB|NUMEXPR|TOKENIZERS|LD|MALLOC|GLIBC|XLA|DG|AIRLOCK"
    r"|SLURM|ACCELERATE)_|^(TMPDIR|CC|CXX|CPATH|LIBRARY_PATH)$"
)

#: Of these what decides how an engine works: of one engine, and of all.
_DECIDING: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("VLLM_",),
    "sglang": ("SGLANG_", "SGL_"),
    "hf": ("TRANSFORMERS_",),
    "": (
        *("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "FLASHINFER_", "DG_", "CUBLAS_", "CUDNN_"),
        *("OMP_", "KMP_", "MKL_", "GOMP_", "TORCHDYNAMO_", "ONEDNN_", "DNNL_", "ATEN_"),
    ),
}
#: Words in their names where it is told, reached or kept by them, and not how.
_ASIDE: Final = frozenset(
    {"ADDR", "BASE", "CACHE", "DIR", "HOME", "HOST", "INTERFACE", "IP", "KEY", "LOG", "LOGGING", "LOGS", "OFFLINE"}
    | {"PORT", "PROFILER", "ROOT", "STATS", "TELEMETRY", "TMPDIR", "TRACE", "TRACK", "USAGE", "VERBOSITY", "WARNINGS"}
)


def collect(prepared: Prepared, sweep_file: Path, life: int, reader: NvmlReader | None) -> Provenance:
    machine, launcher = prepared.ground.machine, prepared.ground.launcher
    local = prepared.plan.launcher == "local"
    notes = list(machine.notes) if machine.driver else []
    return Provenance(
        at=time.time(),
        life=life,
        airlock=own_code(Path(__file__).parents[2], launcher, notes),
        sweep=_code(sweep_file.absolute().parent, launcher, "the sweep file", notes),
        python=platform.python_version(),
        system=_os_name(),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        libc=" ".join(platform.libc_ver()).strip(),
        container=container_of(Path("/"), os.environ),
        cpu=cpu_name(),
        cpus=devices.usable_cpus(),
        governors=sorted(set(_governors())),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
        memory_bytes=devices.memory_limit_bytes(),
        huge_pages=_chosen(_read(Path("/sys/kernel/mm/transparent_hugepage/enabled"))),
        driver=None if reader is None else gauges.driver_version(reader),
        cuda_driver=None if reader is None else gauges.cuda_version(reader),
        devices=[gauges.found(reader, device) for device in machine.devices if reader],
        variables=mattering(os.environ, prepared.ground.config.notify.secrets),
        packages={env.name: env.installed for env in usable(prepared.environments)},
        files=prepared.files,
        notes=notes,
        kind=machine.kind if local else "",
    )


def mattering(environ: Mapping[str, str], secrets: Collection[str] = ()) -> dict[str, str]:
    """In the order of their names. No value of a secret, and no value at all that could hold one beside others.
    `secrets`: names that are known to be some."""
    shown = recorded({name: value for name, value in sorted(environ.items()) if MATTERING.match(name)})
    return shown | {name: HIDDEN for name in shown if name in secrets}


def unlike(first: Provenance | None, prepared: Prepared, run_dir: Path, *, measures: bool) -> Iterator[str]:
    """A sentence for each file, variable and machine that decides what is measured, and is not as the run began.
    `first`: how that was, if it came to be written down. `measures`: something is left to be run here."""
    if first is None:
        return
    yield from methodfiles.changed(first.files, prepared.files, run_dir)
    if measures and prepared.plan.launcher == "local":  # elsewhere workers have other variables
        now = mattering(os.environ, prepared.ground.config.notify.secrets)
        yield from changed_variables(first.variables, now, [one.config.method for one in prepared.plan.starts])
        yield from other_machine(first, {one.name for one in prepared.ground.machine.devices}, cpu_name())


def other_machine(first: Provenance, gpus: Set[str], cpu: str) -> Iterator[str]:
    """What workers run on, by its name: fewer of the same are the same. GPUs, where there are some, else the CPU."""
    before = {one.name for one in first.devices}
    if before and gpus - before:
        now, then = (", ".join(sorted(names)) for names in (gpus, before))
        yield f"the GPU of this machine is {now}, and this run began on {then}"
    elif not before and not gpus and "" not in (cpu, first.cpu) and cpu != first.cpu:
        yield f"the CPU of this machine is {cpu}, and this run began on {first.cpu}"


def changed_variables(
    then: Mapping[str, str], now: Mapping[str, str], methods: Collection[MethodSpec]
) -> Iterator[str]:
    """`then`, `now`: as they are recorded."""
    for name in sorted({*then, *now}):
        before, after = (values.get(name, "not set") for values in (then, now))
        if before != after and any(_decides(name, method) for method in methods):
            yield f"the variable {name} is not what this run began with ({before} then, {after} now)"


def _decides(name: str, method: MethodSpec) -> bool:
    """Whether the caller's is one that the method's workers have, and work by."""
    if name in method.env_vars or _ASIDE.intersection(name.split("_")):
        return False
    return name.startswith((*_DECIDING[""], *_DECIDING.get(method.engine, ())))


def container_of(root: Path, environ: Mapping[str, str]) -> str:
    """What this process runs in, by the marks that container runtimes leave; "" if there is none."""
    marks = {
        "kubernetes": "KUBERNETES_SERVICE_HOST" in environ,
        "apptainer": "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ,
        "podman": (root / "run/.containerenv").exists(),
        "docker": (root / ".dockerenv").exists(),
    }
    image = environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER") or ""
    return " ".join([*(name for name, there in marks.items() if there), *([plain(image)] if image else [])])


def own_code(root: Path, launcher: Launcher, notes: list[str]) -> CodeState | None:
    """Not that of a checkout which we are merely installed in, in its .venv say."""
    return _code(root, launcher, "Airlock", notes) if (root / ".git").exists() else None


def _code(folder: Path, launcher: Launcher, what: str, notes: list[str]) -> CodeState | None:
    found, why_not = state_of(folder, launcher)
    if found is None and why_not:
        notes.append(f"the commit of {what} is not known: {why_not}")
    return found


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def cpu_name() -> str:
    lines = _read(Path("/proc/cpuinfo")).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part", "Model")))
    return next(names, platform.processor())


def _governors() -> Iterator[str]:
    for file in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"):
        if governor := _read(file).strip():
            yield governor


def _chosen(text: str) -> str:
    """ "always [madvise] never" → "madvise" """
    return text.partition("[")[2].partition("]")[0]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
