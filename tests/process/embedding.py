"""A program that runs a sweep inside itself, as a notebook or a test would: `embedding.py REPORT ARG...`.

It has children of its own, in its own process group: one that sleeps and carries the
tags of another run, as if inherited, and one that has ended and is not yet waited for.
REPORT gets what became of them, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from orchestrator.cli import run


def main(report: str, argv: list[str]) -> None:
    tags = {"AIRLOCK_RUN": "0123456789abcdef", "AIRLOCK_INCARNATION": "w1-0badcafe", "AIRLOCK_WARDEN_PID": "1"}
    with subprocess.Popen(["sleep", "infinity"], env={**os.environ, **tags}) as sleeping:
        ended = subprocess.Popen(["sh", "-c", "exit 7"])
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        handler = signal.getsignal(signal.SIGTERM)
        code = run(argv)
        found = {
            "code": code,
            "sleeping": sleeping.poll(),
            "ended": ended.wait(),
            "group": os.getpgid(sleeping.pid) == os.getpgid(0),
            "handler": signal.getsignal(signal.SIGTERM) == handler,
        }
        sleeping.kill()
    with open(report, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
