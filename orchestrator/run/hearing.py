"""What is believed of what comes under one worker's identity: nothing, until it has proved whose it is. And what each
message is to its life."""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.outcomes import Cause
from orchestrator.run.causes import from_error
from orchestrator.run.life import Answered, Connected, Event, Failed, Farewell, ImportDone, LoadDone
from protocol import PROTOCOL_VERSION
from protocol.codec import decode_up
from protocol.errors import WireError
from protocol.messages import BatchDone, BatchFailed, Beat, Fatal, Goodbye, Hello, Imported, Ready, Up
from protocol.parts import join

#: Strangers' messages beyond it are not even decoded.
MAX_HELLO_BYTES = 4096


@dataclass
class Hearing:
    """`proven` once a Hello with our token came; `dropped` counts what did not count, by kind."""

    name: str
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    proven: bool = False
    dropped: Counter[str] = field(default_factory=Counter)

    def hear(self, parts: list[bytes]) -> Up | Literal[False]:
        """The message, False for one that does not count. Raises WireError for nonsense of a proven worker."""
        if not self.proven and sum(map(len, parts)) > MAX_HELLO_BYTES:
            return self.drop("a message too large for a Hello")
        try:
            message = decode_up(join(parts))
        except WireError:
            if self.proven:
                raise
            return self.drop("a malformed message")
        if isinstance(message, Hello):
            return self._hello(message)
        if self.proven:
            return message
        if isinstance(message, Beat):  # a worker of ours that hangs before its Hello beats: that is no nonsense
            return False
        return self.drop(f"{type(message).__name__} before a valid Hello")

    def _hello(self, message: Hello) -> Hello | Literal[False]:
        told, known = message.token.encode(), self.token.encode()
        if message.incarnation != self.name or not hmac.compare_digest(told, known):
            return self.drop("a Hello with a wrong token")
        self.proven = True
        return message

    def drop(self, what: str) -> Literal[False]:
        self.dropped[what] += 1
        return False

    @property
    def refusal(self) -> str:
        """Why no Hello was accepted, "" if nothing came at all."""
        told = ", ".join(f"{count} × {what}" for what, count in self.dropped.items())
        return f"no valid Hello came; dropped under this worker's identity: {told}" if told else ""


def fact(message: Up) -> Event | None:
    """What happens in the life of whoever sends it; a beat is nothing of that kind."""
    match message:
        case Hello() if message.protocol != PROTOCOL_VERSION:
            told = f"the worker speaks protocol {message.protocol}, we speak {PROTOCOL_VERSION}"
            return Failed(Cause(cls="protocol", message=told))
        case Hello():
            return Connected()
        case Imported():
            return ImportDone()
        case Ready():
            return LoadDone()
        case BatchDone() | BatchFailed():
            return Answered(message.batch_id)
        case Fatal():
            return Failed(from_error(message.phase, message.error), leaving=True)
        case Goodbye():
            return Farewell()
        case Beat():
            return None
