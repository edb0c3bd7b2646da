"""A program that uses Ray as the coordinator does, to be killed or interrupted by a test.

    raycaller.py FOLDER RUN_TAG ARGV...

It says "submitted JOB" once its errand runs, then each signal with the errand's state; after the second it closes.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from orchestrator.clusters.base import Errand
from orchestrator.clusters.ray_cluster import RayCluster
from orchestrator.launcher import Launcher
from tests.clusters.raycluster import ADDRESS, SECOND, ray_python, until
from tests.process.launching import PATIENCE_S


def main(folder: Path, run_tag: str, *argv: str) -> int:
    cluster = RayCluster(Launcher(), run_tag, folder / "driver.log", ADDRESS, str(ray_python()))
    handled: list[int] = []
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda number, _frame: handled.append(number))
    job = cluster.submit(Errand("called", argv, {}, folder, folder / "log", gpus=1, options=(f"{SECOND}=1",)))
    until(lambda: cluster.state(job).state == "running", "errand that runs", PATIENCE_S)
    say(f"submitted {job}")
    for _ in range(2):
        until(lambda: bool(handled), "signal", PATIENCE_S)
        say(f"{signal.Signals(handled.pop()).name} {cluster.state(job).state}")
    cluster.close()
    return 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
