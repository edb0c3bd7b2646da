"""The two ends of the wire: a ROUTER for the coordinator, a DEALER for a worker.

Each incarnation has a key of its own: whoever has none of the live ones gets nothing
into the coordinator, not even a queue. Over TCP it is a CURVE key pair. A local socket
lies in a folder of this user alone, and lets nobody else in, so there it is a password
(ZMTP's PLAIN), which costs a handshake and nothing after it.

What bounds the memory: a message travels in parts of PART_BYTES, and no part may
be larger, so a peer that has not proved its key can make us hold one part. One
that has proved it can fill a queue of RECEIVE_MARK messages. libzmq itself sets no
bound to the parts of one message; see `protocol.burden` for one that never ends.

Every socket has LINGER 0, so that no exit waits for a peer.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence

import zmq

from protocol.burden import Burden
from protocol.codec import decode_down, encode
from protocol.connections import is_local
from protocol.errors import PeerGone, Unsupported
from protocol.keys import Keys, identity_of
from protocol.messages import Down, Up
from protocol.parts import MAX_PARTS, PART_BYTES, join, split
from protocol.porter import Porter

#: Whole messages that wait here unread, per connection; the rest waits at the sender's.
RECEIVE_MARK = 4
SEND_MARK = 64
#: Read in one go, more or less; then the coordinator's loop looks at its clock again.
MESSAGES_PER_TURN = 256
BYTES_PER_TURN = 64 * 1024 * 1024
#: CURVE's MESSAGE command is 33 bytes longer than what it carries.
MAX_FRAME_BYTES = PART_BYTES + 64
#: sun_path holds 108 bytes with its terminator; libzmq binds 107 and fails at 108.
MAX_IPC_PATH_BYTES = 107
#: A connection that has not proved its key by then is closed.
HANDSHAKE_MS = 3_000
#: Over a network: a connection that is silent for so long is probed by the kernel, and lost if nothing
#: comes back. Not ZMTP's own heartbeats: in libzmq 4.3.5 one that is due while the receive queue is full
#: and the peer has gone aborts the process (its issues 3937 and 4767), which a flood could bring about.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 10, 5, 3
#: Lost, too, if what was sent is not acknowledged by then.
UNACKNOWLEDGED_MS = 25_000
#: The kernel itself would go on for two minutes, ever more slowly.
CONNECT_MS = 5_000
#: A worker tries again for as long as it lives, and always as often: the door may be crowded.
RECONNECT_MS = 100


def has_message(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def receive_parts(socket: zmq.Socket[bytes]) -> list[bytes]:
    """The rest of the message that waits at `socket`: MAX_PARTS and one to tell that there were more."""
    parts = [socket.recv()]
    while socket.getsockopt(zmq.RCVMORE):
        part = socket.recv()  # all parts of a message come at once, so this never waits
        if len(parts) <= MAX_PARTS:
            parts.append(part)
    return parts


def _configure(socket: zmq.Socket[bytes], endpoint: str) -> None:
    if not (is_local(endpoint) or zmq.has("curve")):
        raise Unsupported("this interpreter's pyzmq has no CURVE; install the one from PyPI: -m pip install pyzmq")
    options = {
        zmq.LINGER: 0,
        zmq.SNDHWM: SEND_MARK,
        zmq.RCVHWM: RECEIVE_MARK,
        zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
        zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
    }
    if not is_local(endpoint):
        options |= {
            zmq.IPV6: int("[" in endpoint),
            zmq.TCP_KEEPALIVE: 1,
            zmq.TCP_KEEPALIVE_IDLE: KEEPALIVE_IDLE_S,
            zmq.TCP_KEEPALIVE_INTVL: KEEPALIVE_INTERVAL_S,
            zmq.TCP_KEEPALIVE_CNT: KEEPALIVE_PROBES,
            zmq.TCP_MAXRT: UNACKNOWLEDGED_MS,
            zmq.CONNECT_TIMEOUT: CONNECT_MS,
        }
    for option, value in options.items():
        socket.setsockopt(option, value)


def show(socket: zmq.Socket[bytes], endpoint: str, user: str, keys: Keys) -> None:
    """Makes it show `keys` where it dials. `user` is for the record alone: the key tells whose it is."""
    if is_local(endpoint):
        socket.plain_username = user.encode("ascii")
        socket.plain_password = keys.secret.encode("ascii")
    else:
        socket.curve_serverkey = keys.server.encode("ascii")
        socket.curve_secretkey = keys.secret.encode("ascii")
        socket.curve_publickey = zmq.curve_public(keys.secret.encode("ascii"))


class RouterChannel:
    """The coordinator's end. `endpoint` is an ipc path, or tcp://ADDRESS:PORT where `*` stands for a
    free port; the attribute is where workers dial. Only incarnations that were admitted, and not yet
    dismissed, are heard. One thread owns it."""

    def __init__(self, endpoint: str) -> None:
        """Raises zmq.ZMQError where it can't be bound."""
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self._identities: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._owners: dict[str, str] = {}
        self._connections: dict[str, tuple[int, int]] = {}  # descriptor, and which of those that had its number
        self._dropped: Counter[str] = Counter()
        _configure(self.socket, endpoint)
        # Without it ROUTER drops what it can't deliver, silently.
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if not is_local(endpoint):
            # After a partition a worker is back before its old connection is known to be lost.
            self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._burden = Burden()
        self._porter = Porter(self.context, self.socket, endpoint)
        try:
            self.socket.bind(endpoint)
        except BaseException:
            self.close()
            raise
        self.endpoint: str = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._porter.connections.endpoint = self.endpoint

    @property
    def dropped(self) -> dict[str, int]:
        """How many messages, handshakes and connections were refused so far, by reason."""
        return {**self._dropped, **self._porter.refused.copy()}

    def admit(self, incarnation: str, token: str, others: Sequence[str] = ()) -> Keys:
        """A fresh key for it, good until `dismiss`. `others`: names under which whoever has the key may come as
        well, each with an identity of its own, so that of two that have it each can be told from the other."""
        for name in (incarnation, *others):
            identity = identity_of(name, token)
            self._identities[name] = identity
            self._names[identity] = name
            self._owners[name] = incarnation
        return Keys(self._porter.public_key, self._porter.admit(incarnation))

    def dismiss(self, incarnation: str, *, gone: bool = False) -> None:
        """Its key is worth nothing any more, and its connections are closed. Idempotent. `gone`: whoever had them has
        ended, so they are closed already and may be others' by now."""
        self._porter.dismiss(incarnation)
        for name in [name for name, owner in self._owners.items() if owner == incarnation]:
            if gone:
                self._connections.pop(name, None)
            self.forget(name)

    def forget(self, name: str) -> None:
        """What comes under this name does not count any more; the key it came with stays good."""
        self._owners.pop(name, None)
        self._names.pop(self._identities.pop(name, b""), None)
        self.hang_up(name)

    def hang_up(self, incarnation: str) -> None:
        """Ends its connection. A live worker dials again at once."""
        fd, born = connection = self._connections.pop(incarnation, (-1, 0))
        is_open = self._porter.connections.born(fd) == born > 0  # else its number is another's
        # One of which nothing was read before it was closed may seem to be the next one's, but that has spoken too.
        if is_open and connection not in self._connections.values():
            self._porter.connections.hang_up(fd)

    def restore(self) -> None:
        """A local socket's file that somebody removed; who is connected stays so. Raises OSError."""
        path = self.endpoint.removeprefix("ipc://")
        if is_local(self.endpoint) and not os.path.exists(path):
            try:
                self.socket.bind(self.endpoint)
            except zmq.ZMQError as exc:
                raise OSError(exc.errno, exc.strerror, path) from exc

    def send(self, incarnation: bytes, message: Down) -> None:
        """Raises PeerGone if nobody is connected as `incarnation` or its queue is full."""
        self.send_frame(incarnation, encode(message))

    def send_frame(self, incarnation: bytes, frame: bytes) -> None:
        """As `send`, of a message that is encoded already."""
        parts = split(frame)
        identity = self._identities.get(incarnation.decode("ascii"), b"")
        try:
            self.socket.send_multipart([identity, *parts], flags=zmq.NOBLOCK)
        except zmq.ZMQError as exc:
            raise PeerGone(f"no route to {incarnation!r}: {exc}") from exc

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """(incarnation, parts) of the next message. None if none waits, or if it had to be dropped."""
        try:
            first = self.socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        parts = receive_parts(self.socket)
        name = self._names.get(first.bytes)
        if name is None:
            # Never tell the identity: the one of a live worker is a secret.
            self._dropped["messages under an identity of no live worker"] += 1
            return None
        if first.get("User-Id") != self._owners[name]:
            self._dropped["messages under an identity that belongs to another key"] += 1
            return None
        fd = first.get(zmq.SRCFD)
        # What waits here unread may be of a connection that is closed by now: then the first word told which it was.
        if self._connections.get(name, (-1, 0))[0] != fd:
            self._connections[name] = fd, self._porter.connections.born(fd)
        self._burden.heard(name)
        return name.encode("ascii"), parts

    def turn(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """What waits, as `receive` gives it, but never more than a turn's worth: a flood must not keep
        the caller from its clock. No parts at all stand for a message that was cut off, see `Burden`."""
        yield from self._unburden()
        room_bytes = BYTES_PER_TURN
        for _ in range(MESSAGES_PER_TURN):
            if room_bytes <= 0 or not has_message(self.socket):
                return
            if (message := self.receive()) is not None:
                room_bytes -= sum(map(len, message[1]))
                yield message

    def _unburden(self) -> Iterator[tuple[bytes, list[bytes]]]:
        names = dict.fromkeys(self._porter.connections.descriptors(), "")
        born = self._porter.connections.born
        names |= {fd: name for name, (fd, when) in self._connections.items() if born(fd) == when}
        for fd in self._burden.culprits(names):
            self._dropped["messages without an end"] += 1
            self._porter.connections.hang_up(fd)
            if names[fd]:
                yield names[fd].encode("ascii"), []

    def close(self) -> None:
        """Idempotent."""
        if not self.context.closed:
            # First of all: libzmq's I/O thread would wait for ever to tell an event that nobody takes any more.
            self.socket.disable_monitor()
            self._porter.close()
        self.context.destroy(linger=0)


class DealerChannel:
    """A worker's end. Not thread-safe: one thread at a time may use it."""

    def __init__(self, endpoint: str, incarnation: str, token: str, keys: Keys) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        _configure(self.socket, endpoint)
        self.socket.setsockopt(zmq.IDENTITY, identity_of(incarnation, token))
        self.socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        show(self.socket, endpoint, incarnation, keys)
        self.socket.connect(endpoint)

    def send(self, message: Up) -> None:
        self.socket.send_multipart(split(encode(message)))

    def offer(self, frame: bytes) -> bool:
        """Queues the message, or answers False where `send` would block: the coordinator is gone or slow."""
        try:
            self.socket.send_multipart(split(frame), flags=zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def fileno(self) -> int:
        """Readable once something may have come; whoever uses the socket uses that up."""
        return int(self.socket.fileno())

    def has_message(self) -> bool:
        return has_message(self.socket)

    def wait(self, wake_fd: int, timeout_s: float) -> None:
        """Sleeps until a message is there, `wake_fd` is readable or the time is up."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(wake_fd, zmq.POLLIN)
        poller.poll(max(0, math.ceil(timeout_s * 1000)))

    def receive(self, timeout_s: float) -> Down | None:
        """The next message, or None after `timeout_s`. Raises Malformed."""
        frame = self.receive_frame(timeout_s)
        return None if frame is None else decode_down(frame)

    def receive_frame(self, timeout_s: float) -> bytes | None:
        """As `receive`, not decoded."""
        if not has_message(self.socket) and not (timeout_s and self.socket.poll(int(timeout_s * 1000))):
            return None
        return join(receive_parts(self.socket))

    def close(self, linger_s: float = 0.0) -> None:
        """`linger_s` lets a farewell leave before the context goes."""
        self.context.destroy(linger=int(linger_s * 1000))
