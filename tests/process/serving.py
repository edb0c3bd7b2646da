"""A dashboard in a process of its own, and what it answers."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PATIENCE_S = 30


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[str]
    url: str  # as it was printed

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """`headers`: with _ for -."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def runs(self) -> dict[str, dict[str, Any]]:
        """By name, once all are read."""
        while True:
            found = self.ask("/api/runs").json["runs"]
            if all(run["state"] != "unread" for run in found):
                return {run["name"]: run for run in found}

    def key(self, name: str) -> str:
        key: str = self.runs()[name]["key"]
        return key

    def stop(self, signum: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit code, and what it said after its address."""
        self.process.send_signal(signum)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "orchestrator", "serve", *args]


@contextmanager
def served(folder: Path, *args: str, home: Path, **environ: str) -> Iterator[Served]:
    """On a free port, unless `args` say otherwise."""
    env = {**os.environ, "AIRLOCK_HOME": str(home), "TMPDIR": str(home), **environ}
    home.mkdir(exist_ok=True)
    listen = () if "--listen" in args else ("--listen", ":0")
    with subprocess.Popen(
        command(str(folder), *listen, *args), env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            yield Served(process, process.stdout.readline().strip())
        finally:
            process.kill()
