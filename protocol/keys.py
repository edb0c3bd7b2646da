"""What lets an incarnation in, and the name that it is then known by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Keys:
    """What one incarnation needs to be let in: over TCP its secret key and, to know that it talks to us, our public
    one, both Z85 text; at a local socket a password, and `server` is ""."""

    server: str
    secret: str = field(repr=False)

    @property
    def variables(self) -> dict[str, str]:
        """As they are handed over: in the environment, which other users can't read, unlike a command line."""
        server = {"AIRLOCK_SERVER_KEY": self.server} if self.server else {}
        return {**server, "AIRLOCK_SECRET_KEY": self.secret}


def identity_of(incarnation: str, token: str) -> bytes:
    """The ZeroMQ identity: nobody who does not know the token can take it first."""
    return f"{incarnation}.{hashlib.sha256(token.encode()).hexdigest()[:16]}".encode("ascii")
