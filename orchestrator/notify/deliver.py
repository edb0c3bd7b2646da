"""Tells one message to everybody who is to be told: a program of its own, started by path under a warden.

Standard library only. Reads its order, JSON, from AIRLOCK_NOTIFY; the secrets that it names from the rest of the
environment. Writes a line of JSON to standard output for each recipient: message, to, ok, said. Runs at the lowest
priority, so that what is measured meanwhile is disturbed as little as may be.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

ORDER = "AIRLOCK_NOTIFY"
#: Ours, and no command's business.
HIDDEN = (ORDER, "AIRLOCK_WARDEN_PID", "AIRLOCK_INCARNATION")
COMMAND_S, POST_S = 30.0, 15.0
#: For a command beyond its time: to be ended, and told of.
GRACE_S = 5.0
#: A command that says more is ended; of what it said the last is told.
MOST_BYTES, SAID_BYTES = 1 << 20, 300
#: For what a command left behind to close its output, which it may hold open for ever.
OUTPUT_S = 1.0
VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
#: Shorter values stand in any text by chance.
LEAST_SECRET = 6


class Failed(Exception):
    """What went wrong, in words."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """What is secret is for the address that was given, and for no other."""

    def redirect_request(self, *_args: object, **_more: object) -> None:
        return None


def main() -> int:
    with suppress(OSError):
        os.nice(19)
    order = json.loads(os.environ[ORDER])
    tasks = [(one["name"], partial(run, one, order), COMMAND_S + GRACE_S) for one in order["commands"]]
    tasks += [(one["name"], partial(post, one), POST_S) for one in order["webhooks"]]
    results: list[bool] = []
    threads = [threading.Thread(target=attempt, args=(order["message"], *task, results), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0 if all(results) else 1


def attempt(number: int, name: str, task: Callable[[], None], limit_s: float, results: list[bool]) -> None:
    """A server that answers byte by byte keeps to no limit of a socket."""
    found: list[str] = []
    worker = threading.Thread(target=lambda: found.append(failure(task)), daemon=True)
    worker.start()
    worker.join(limit_s)
    said = hushed(found[0] if found else f"not done within {limit_s:g} s")[:SAID_BYTES]
    results.append(not said)
    line = json.dumps({"message": number, "to": name, "ok": not said, "said": said})
    os.write(1, line.encode() + b"\n")


def failure(task: Callable[[], None]) -> str:
    """Why it failed, "" if it did not."""
    try:
        task()
    except Failed as exc:
        return str(exc)
    except OSError as exc:
        return f"{type(exc).__name__}: {exc}"
    except Exception as exc:  # its words may hold a part of an address or of a header
        return type(exc).__name__
    return ""


def hushed(text: str) -> str:
    """Without the secrets that it may have been told, whole or in part."""
    for name in sorted(set(VARIABLE.findall(os.environ[ORDER]))):
        value = os.environ.get(name, "").strip()
        path = value.partition("://")[2].partition("/")[2]
        parts = [part for part in (*value.split(), path) if len(part) >= LEAST_SECRET]
        for part in filter(None, (value, *sorted(parts, key=len, reverse=True))):
            text = text.replace(part, f"${name}")
    return text


def filled(text: str) -> str:
    """With the variable of the environment that it names. Raises Failed where that is not set."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise Failed(f"{match[1]} is not set in the environment")
        return os.environ[match[1]].strip()

    return VARIABLE.sub(value, text)


def post(webhook: dict[str, Any]) -> None:
    headers = {name: filled(value) for name, value in webhook["headers"].items()}
    url = filled(webhook["url"])
    if not url.startswith(("https://", "http://")):
        raise Failed("its address is none of the web")
    try:
        request = urllib.request.Request(url, webhook["body"].encode(), headers, method="POST")
        with urllib.request.build_opener(NoRedirect).open(request, timeout=POST_S) as answer:
            answer.read(1)
    except urllib.error.HTTPError as exc:
        raise Failed(f"it answered {exc.code} {exc.reason}") from None
    except urllib.error.URLError as exc:
        raise Failed(f"can't be reached: {exc.reason}") from None
    except TimeoutError:
        raise Failed(f"no answer within {POST_S:g} s") from None


def run(command: dict[str, Any], order: dict[str, Any]) -> None:
    env = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    try:
        process = subprocess.Popen(
            command["argv"],
            env=env | order["variables"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as exc:
        raise Failed(f"can't be started: {exc.strerror}") from None
    output = Output(process)
    output.start()
    with suppress(OSError), process.stdin as entry:  # type: ignore[union-attr]
        entry.write(order["summary"].encode())
    try:
        status = process.wait(COMMAND_S)
    except subprocess.TimeoutExpired:
        output.end()
        raise Failed(f"ended after {COMMAND_S:g} s") from None
    output.join(OUTPUT_S)
    if output.flooded:
        raise Failed(f"ended, as it said more than {MOST_BYTES >> 20} MiB")
    if status:
        how = f"exit status {status}" if status > 0 else f"signal {-status}"
        raise Failed(": ".join(filter(None, (how, output.last_line))))


class Output(threading.Thread):
    """Takes what a command says, so that it never waits for a reader."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._tail = b""
        self._size = 0
        self.flooded = False

    def run(self) -> None:
        with suppress(OSError, ValueError):
            while part := os.read(self._process.stdout.fileno(), 1 << 16):  # type: ignore[union-attr]
                self._size += len(part)
                self._tail = (self._tail + part)[-SAID_BYTES:]
                if self._size > MOST_BYTES:
                    self.flooded = True
                    self.end()
                    return

    @property
    def last_line(self) -> str:
        lines = self._tail.decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def end(self) -> None:
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
