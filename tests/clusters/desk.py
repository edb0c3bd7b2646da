"""Where the errands of a test dial in: who runs is told by them, over a socket, not by the back end."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
JOB = str(Path(__file__).with_name("errand_job.py"))


@dataclass
class Caller:
    """One run of an errand, by its connection."""

    line: socket.socket
    hello: dict[str, Any] = field(default_factory=dict)
    _text: bytes = b""

    @property
    def env(self) -> dict[str, str]:
        return dict(self.hello["env"])

    def says(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next it says; {} when it is gone."""
        self.line.settimeout(patience_s)
        while b"\n" not in self._text:
            try:
                more = self.line.recv(65536)
            except ConnectionResetError:
                more = b""
            if not more:
                return {}
            self._text += more
        text, _, self._text = self._text.partition(b"\n")
        return dict(json.loads(text))

    def word(self, patience_s: float = PATIENCE_S) -> str:
        return str(self.says(patience_s).get("word", "gone"))

    def tell(self, order: str) -> None:
        self.line.sendall(f"{order}\n".encode())

    def lives(self) -> bool:
        self.tell("ping")
        return self.word() == "pong"


class Desk:
    def __init__(self) -> None:
        self._stack = ExitStack()
        self._listener = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    @property
    def variables(self) -> dict[str, str]:
        return {"DESK_PORT": str(self._listener.getsockname()[1])}

    @staticmethod
    def argv(*words: str) -> tuple[str, ...]:
        return (sys.executable, "-I", "-S", JOB, *words)

    def caller(self, patience_s: float = PATIENCE_S) -> Caller:
        """The next that dials in."""
        self._listener.settimeout(patience_s)
        found = Caller(self._stack.enter_context(self._listener.accept()[0]))
        found.hello = found.says()
        return found

    def close(self) -> None:
        self._stack.close()
