"""Who may come in at the coordinator's socket: a thread that checks keys and counts connections.

libzmq asks it, by ZAP, about each handshake, CURVE over TCP and PLAIN at a local socket;
only keys of live incarnations are let in, and the answer stamps their messages with the
incarnation's name, which no peer can forge. At a local socket the kernel tells who
connects, and other users are hung up as they come.

It has a thread of its own because the door must not wait for the coordinator's
loop: libzmq accepts whoever connects, without a limit, and at an ipc socket it
aborts the whole process when no descriptor is left. So connections beyond a limit
are hung up as they come, before any key is looked at.
"""

from __future__ import annotations

import itertools
import secrets
import struct
import threading
from collections import Counter
from contextlib import suppress

import zmq
from zmq.utils import z85

from protocol.connections import MAX_CONNECTIONS, Connections, is_local, raise_descriptor_limit

#: ZMTP's own name for the authenticator's address.
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = "airlock"

#: What libzmq tells of a connection: a kind and, of the first two, the descriptor.
EVENT = struct.Struct("=Hi")
ACCEPTED, DISCONNECTED = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_DISCONNECTED)
FAILED = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
#: Far more than come while the last ones are read, so that a round reads all there are.
EVENTS_PER_ROUND = 20_000

#: Of a local socket's password.
PASSWORD_BYTES = 32

REFUSED_PEER = "connections that break off the handshake"
REFUSED_USER = "connections of another user"
REFUSED_KEY = "handshakes with a key of no live worker"
REFUSED_CONNECTION = f"connections beyond {MAX_CONNECTIONS}"

_instances = itertools.count()


class Porter:
    """`admit`, `dismiss` and `hang_up` are safe from any thread. `close` ends the thread.

    public_key  Z85 text of a key pair made for this socket; "" at a local one
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], guarded: zmq.Socket[bytes], endpoint: str) -> None:
        """Makes `guarded`, which is not bound to `endpoint` yet, a server that asks for keys."""
        raise_descriptor_limit()
        self.refused: Counter[str] = Counter()
        self.connections = Connections()
        self.public_key = _lock(guarded, endpoint)
        guarded.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        guarded.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without it, no authenticator would mean no check
        self._live: dict[bytes, str] = {}
        self._hung_up = 0
        self._zap = context.socket(zmq.REP)
        self._zap.bind(ZAP_ENDPOINT)
        self._events = self._watch(context, guarded)
        self._stop, self._stopped = self._pair(context)
        self._thread = threading.Thread(target=self._run, name="airlock-porter", daemon=True)
        self._thread.start()

    @staticmethod
    def _watch(context: zmq.Context[zmq.Socket[bytes]], guarded: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        name = f"inproc://porter-events-{next(_instances)}"
        guarded.monitor(name, ACCEPTED | DISCONNECTED | FAILED)
        events = context.socket(zmq.PAIR)
        events.setsockopt(zmq.RCVHWM, 0)  # a full queue would block libzmq's I/O thread, and closing with it
        events.connect(name)
        return events

    @staticmethod
    def _pair(context: zmq.Context[zmq.Socket[bytes]]) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        name = f"inproc://porter-stop-{next(_instances)}"
        ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        ours.bind(name)
        theirs.connect(name)
        return ours, theirs

    # --- for the channel --------------------------------------------------------

    def admit(self, incarnation: str) -> str:
        """A fresh secret for it, as text, that opens the door until `dismiss`."""
        if self.public_key:
            shown, secret = (key.decode("ascii") for key in zmq.curve_keypair())
            self._live[z85.decode(shown)] = incarnation
        else:
            secret = secrets.token_hex(PASSWORD_BYTES)
            self._live[secret.encode("ascii")] = incarnation
        return secret

    def dismiss(self, incarnation: str) -> None:
        for key in [key for key, name in self._live.copy().items() if name == incarnation]:
            del self._live[key]

    def close(self) -> None:
        """Idempotent."""
        if self._thread.is_alive():
            self._stop.send(b"")
            self._thread.join()
        for one in (self._zap, self._events, self._stop, self._stopped):
            one.close(linger=0)

    # --- the thread -------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        for one in (self._events, self._zap, self._stopped):
            poller.register(one, zmq.POLLIN)
        while self._stopped not in (ready := dict(poller.poll())):
            # Events first, so that a connection which is one too many is hung up before its key is looked
            # at: what has been let in may have said something already, and that would be lost.
            if self._events in ready:
                self._take_events()
            elif self._zap in ready:
                self._answer(self._zap.recv_multipart())

    def _take_events(self) -> None:
        with suppress(zmq.Again):
            for _ in range(EVENTS_PER_ROUND):
                event, value = EVENT.unpack(self._events.recv_multipart(zmq.NOBLOCK)[0])
                if event == ACCEPTED:
                    self._accepted(value)
                elif event == DISCONNECTED:
                    self.connections.closed(value)
                elif self._hung_up:  # one of those we hung up, not one that failed by itself
                    self._hung_up -= 1
                else:
                    self.refused[REFUSED_PEER] += 1

    def _accepted(self, fd: int) -> None:
        if not self.connections.opened(fd):
            self._hung_up += 1
            self.refused[REFUSED_USER] += 1
        elif self.connections.evict():
            self._hung_up += 1
            self.refused[REFUSED_CONNECTION] += 1

    def _answer(self, request: list[bytes]) -> None:
        """A request is: version, number, domain, address, identity, mechanism, then a public key or user and password.
        libzmq asks for no mechanism but ours."""
        version, number, *_, proof = request
        name = self._live.get(proof)
        if name is None:
            self.refused[REFUSED_KEY] += 1
            self._zap.send_multipart([version, number, b"400", b"no key of a live worker", b"", b""])
        else:
            self._zap.send_multipart([version, number, b"200", b"OK", name.encode("ascii"), b""])


def _lock(guarded: zmq.Socket[bytes], endpoint: str) -> str:
    """Makes it ask for keys; the public one of a pair made for it, or "" where passwords do."""
    if is_local(endpoint):
        guarded.plain_server = True
        return ""
    public, secret = zmq.curve_keypair()
    guarded.curve_server = True
    guarded.curve_secretkey = secret
    return public.decode("ascii")
