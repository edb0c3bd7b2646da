"""Places that differ from where tests usually run: PID 1 of a namespace, a user without rights, a /proc that hides."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.reaper import ProcessRef, subtree
from tests.process.dying import ROOT
from tests.process.sweeping import PATIENCE_S, Bench

NOBODY = 65534
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
UNPRIVILEGED = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")
HIDING = ("sh", "-c", 'mount -o remount,hidepid=2 /proc && exec "$@"', "sh")

PLACES: dict[str, tuple[str, ...]] = {
    "pid 1": NAMESPACE,
    "nobody": UNPRIVILEGED,
    "pid 1, nobody": (*NAMESPACE, *UNPRIVILEGED),
    "pid 1, nobody, hidepid": (*NAMESPACE, *HIDING, *UNPRIVILEGED),
}


class Unavailable(Exception):
    """This host does not allow it."""


@dataclass(frozen=True)
class Place:
    bench: Bench
    prefix: tuple[str, ...]
    python: str

    def start(self, *args: str) -> subprocess.Popen[str]:
        command = [*self.prefix, self.python, *self.bench.command(*args)[1:]]
        return subprocess.Popen(
            command, cwd=ROOT, env=self.bench.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *args: str) -> tuple[int, str]:
        running = self.start(*args)
        out, err = running.communicate(timeout=PATIENCE_S)
        return running.returncode, out + err

    def coordinator(self, running: subprocess.Popen[str]) -> ProcessRef:
        """Below what makes the namespace, if that is another process."""
        below = subtree(running.pid)
        return below[1 if NAMESPACE[0] in self.prefix else 0]


@contextmanager
def place(name: str) -> Iterator[Place]:
    """Raises Unavailable."""
    prefix = PLACES[name]
    plain_user = UNPRIVILEGED[0] in prefix
    with tempfile.TemporaryDirectory(prefix="al-test-") as folder:
        os.chmod(folder, 0o755)
        python = python_for_all(Path(folder, "venv")) if plain_user else sys.executable
        bench = Bench(Path(folder, "bench"))
        for path in (bench.folder, bench.tmp) if plain_user else ():
            os.chown(path, NOBODY, NOBODY)
        check([*prefix, python, "-c", "import zmq, msgspec, ruamel.yaml"])
        yield Place(bench, prefix, python)


def python_for_all(folder: Path) -> str:
    """An interpreter of our version, with our packages, that every user may run; ours may be in root's home."""
    found = shutil.which(
        f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin:/bin"
    )
    if found is None:
        raise Unavailable("there is no interpreter of this version for all users")
    check([found, "-m", "venv", "--without-pip", str(folder)])
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return str(folder / "bin" / "python")


def check(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as exc:
        raise Unavailable(str(exc)) from exc
    if done.returncode:
        raise Unavailable(done.stderr.strip())
