"""Builds nvml.c as the driver's library and writes the state it answers from; see the head of nvml.c."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"
MIB = 1024 * 1024
GIB = 1024 * MIB

NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
UNKNOWN = 999
FOR_EVER = -1
#: Beyond any pid of this machine.
FOREIGN = 2**30


def compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def build(folder: Path) -> Path:
    """The folder to put on LD_LIBRARY_PATH."""
    cc = compiler()
    assert cc is not None
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([cc, *flags, "-o", str(folder / LIBRARY), str(SOURCE)], check=True)
    return folder


@dataclass
class FakeDriver:
    """What the driver says now. A process that runs already sees a change at its next call."""

    library: Path
    state: Path
    lines: list[str] = field(default_factory=list)

    @property
    def variables(self) -> Mapping[str, str]:
        """For the environment of a process that is to load it."""
        return {"LD_LIBRARY_PATH": str(self.library), "FAKE_NVML_STATE": str(self.state)}

    def environment(self) -> dict[str, str]:
        """Ours, with the driver; what hides devices here is left out."""
        kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        return {**kept, **self.variables}

    def gpu(self, index: int, uuid: str, *, total: int = 80 * GIB, base: int = 4 * MIB, reserved: int = 0) -> None:
        self._add(f"gpu {index} {uuid} {total} {base} {reserved} NVIDIA Test")

    def slice(self, index: int, place: int, uuid: str, *, total: int = 20 * GIB, base: int = 4 * MIB) -> None:
        self._add(f"slice {index} {place} {uuid} {total} {base} NVIDIA Test MIG")

    def process(self, uuid: str, pid: int, size: int | None, *options: str, kind: str = "compute") -> None:
        self._add(f"process {uuid} {kind} {pid} {'-' if size is None else size}", *options)

    def claims(self, path: Path, size: int, *options: str, linger: int = 0) -> None:
        self._add(f"claims {path} {size} {linger}", *options)

    def fail(self, function: str, code: int, *options: str, uuid: str = "-") -> None:
        self._add(f"fail {function} {code} {uuid}", *options)

    def block(self, function: str, *options: str, uuid: str = "-") -> None:
        self._add(f"block {function} {uuid}", *options)

    def gauge(self, function: str, uuid: str, value: int, step: int = 0) -> None:
        self._add(f"gauge {function} {uuid} {value} {step}")

    def clear(self, word: str) -> None:
        """Takes every line back that begins with `word`."""
        self.lines = [line for line in self.lines if line.split()[0] != word]
        self._write()

    def _add(self, line: str, *options: str) -> None:
        self.lines.append(" ".join([line, *options]))
        self._write()

    def _write(self) -> None:
        """As a whole: the library may be reading."""
        fresh = self.state.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in self.lines))
        fresh.replace(self.state)
