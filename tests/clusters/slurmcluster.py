"""A Slurm cluster of the tests' own: two nodes on one host, two GPUs each, for as long as one command runs.

    python -m tests.clusters.slurmcluster [--proctrack pgid|linuxproc] COMMAND ...

makes network, PID and mount namespaces, starts munged, slurmctld and both slurmd in them, runs COMMAND inside and
exits as it did. All of it, jobs and what they detached too, dies with that: the namespace's first process is ours.
Files lie in a file system of the namespace alone. Needs root and what scripts/install-slurm installs.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
NAMESPACES = ("unshare", "--net", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel", "unshare", "ip", "mknod")
#: Debian keeps daemons out of a user's PATH.
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
#: Where the namespace's own file system lies; munge wants a socket path that anybody can reach.
FOLDER = Path("/mnt")
NODES = {"n1": 6818, "n2": 6819}
GPUS_PER_NODE, CPUS_PER_NODE, MEMORY_MIB = 2, 4, 2000
START_S = 20.0
#: A node that does not answer for so long is down. At least what a slurmd that only restarts needs.
NODE_SILENCE_S = 5
MODULE = "tests.clusters.slurmcluster"
INSIDE = "--inside"

CONF = """\
ClusterName=airlock
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort=6817
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
SlurmdTimeout={silence_s}
SlurmctldTimeout=10
MessageTimeout=5
KillWait=4
InactiveLimit=0
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=2
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""
NODE = """\
NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} Weight={port} \\
CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus}
"""


def why_not() -> str:
    """Why this machine can't have such a cluster; "" if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (scripts/install-slurm installs them)"
    if os.geteuid() != 0:
        return "a Slurm cluster of the tests' own needs root"
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


def command(*argv: str, proctrack: str = "linuxproc") -> list[str]:
    """What runs argv in a cluster of its own."""
    return [sys.executable, "-m", MODULE, "--proctrack", proctrack, *argv]


@dataclass(frozen=True)
class SlurmCluster:
    """Inside the namespaces: its daemons and files. Anybody inside may make one; `start` is for the first alone."""

    folder: Path = FOLDER

    @property
    def variables(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": PATH}

    def start(self, proctrack: str) -> None:
        self._write_files(proctrack)
        self._start_munged()
        self._daemon("slurmctld", "-i")
        for node in NODES:
            self.start_node(node)
        _until(self._all_idle, "nodes that are idle")

    def start_node(self, node: str) -> None:
        self._daemon("slurmd", "-N", node)

    def kill_node(self, node: str) -> None:
        """Its slurmd alone, by SIGKILL; the processes of its jobs and their slurmstepd go on."""
        os.kill(int((self.folder / f"slurmd.{node}.pid").read_text()), signal.SIGKILL)

    def kill_controller(self) -> None:
        os.kill(int((self.folder / "slurmctld.pid").read_text()), signal.SIGKILL)

    def start_controller(self) -> None:
        """With what it had written down."""
        self._daemon("slurmctld")

    def node_states(self) -> dict[str, str]:
        shown = self._ask("scontrol", "show", "nodes", "-o").splitlines()
        return {line.split()[0].partition("=")[2]: line.partition(" State=")[2].split()[0] for line in shown if line}

    def logs(self) -> str:
        """The end of each daemon's log."""
        found = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}" for path in found)

    def _write_files(self, proctrack: str) -> None:
        host = socket.gethostname().partition(".")[0]
        conf = CONF.format(host=host, folder=self.folder, proctrack=proctrack, silence_s=NODE_SILENCE_S)
        for name, port in NODES.items():
            conf += NODE.format(
                name=name, host=host, port=port, cpus=CPUS_PER_NODE, memory=MEMORY_MIB, gpus=GPUS_PER_NODE
            )
            (self.folder / f"spool.{name}").mkdir()
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(conf)
        # slurmd takes nothing but character devices for GPUs. These are as /dev/null.
        for number in range(GPUS_PER_NODE):
            os.mknod(self.folder / f"gpu{number}", 0o20666, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{GPUS_PER_NODE - 1}]\n")

    def _start_munged(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        own = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        words = [f"--{option}={self.folder}/munge.{end}" for option, end in own.items()]
        self._daemon("munged", "--num-threads=2", f"--key-file={key}", *words)

    def _daemon(self, *argv: str) -> None:
        """Each goes into the background by itself, and belongs to the namespace's first process from then on."""
        with (self.folder / f"{argv[0]}.out.log").open("ab") as out:
            subprocess.run(argv, env=self._environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=True)

    def _all_idle(self) -> bool:
        return self.node_states() == dict.fromkeys(NODES, "IDLE")

    def _ask(self, *argv: str) -> str:
        env = self._environment()
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=START_S, check=False).stdout

    def _environment(self) -> dict[str, str]:
        return os.environ | self.variables


def _until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_S
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"slurmcluster: no {what} within {START_S:g} s")
        time.sleep(0.05)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proctrack", default="linuxproc", choices=("linuxproc", "pgid"))
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND")
    args = parser.parse_args(arguments)
    if args.inside:
        return _inside(args.proctrack, args.argv)
    if reason := why_not():
        parser.exit(2, f"slurmcluster: {reason}\n")
    again = [sys.executable, "-m", MODULE, INSIDE, "--proctrack", args.proctrack]
    os.chdir(REPO)
    return os.execvp(NAMESPACES[0], [*NAMESPACES, *again, *args.argv])


def _inside(proctrack: str, argv: Sequence[str]) -> int:
    """As process 1 of the namespace."""
    os.environ["PATH"] = PATH
    # A second address: with 127.0.0.1 alone glibc finds the host without IPv4 and Slurm resolves no name.
    for words in (["ip", "link", "set", "lo", "up"], ["ip", "addr", "add", "127.0.0.2/8", "dev", "lo"]):
        subprocess.run(words, check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,dev", "tmpfs", str(FOLDER)], check=True)
    cluster = SlurmCluster()
    try:
        cluster.start(proctrack)
    except (SystemExit, subprocess.SubprocessError):
        sys.stderr.write(cluster.logs())
        raise
    inner = subprocess.Popen(argv, env=os.environ | cluster.variables)
    return _exit_of(inner.pid)


def _exit_of(wanted: int) -> int:
    """Reaps all that comes, as a process 1 must."""
    while True:
        pid, status = os.wait()
        if pid == wanted:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
