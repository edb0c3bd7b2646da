"""A stretch of network between outposts and their coordinator that a test can take away, and give back."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress


class Proxy:
    """Whoever dials `port` talks to whoever listens at `to`, on this machine. `refused`: by whom it was dialled while
    there was no way."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.refused = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._parted = self._closed = False
        self._lines: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        self._begin(self._accept)

    def part(self) -> None:
        """All connections break, and none comes about until `join`."""
        with self._lock:
            self._parted = True
            self._cut()

    def join(self) -> None:
        with self._lock:
            self._parted = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._cut()
        socket.create_connection(("127.0.0.1", self.port)).close()  # wakes the door
        for thread in self._threads:
            thread.join()
        self._door.close()

    def _begin(self, work: object, *words: object) -> None:
        self._threads.append(threading.Thread(target=work, args=words))  # type: ignore[arg-type]
        self._threads[-1].start()

    def _cut(self) -> None:
        for line in self._lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        self._lines.clear()

    def _accept(self) -> None:
        while True:
            near, _ = self._door.accept()
            with self._lock:
                if self._closed:
                    near.close()
                    return
                if self._parted or (far := self._dial()) is None:
                    near.close()
                    self.refused.release()
                    continue
                self._lines += [near, far]
                self._begin(self._carry, near, far)

    def _dial(self) -> socket.socket | None:
        with suppress(OSError):
            return socket.create_connection(("127.0.0.1", self.to))
        return None

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with near, far, suppress(OSError):
            while True:
                for source in select.select(list(other), [], [])[0]:
                    if not (data := source.recv(65536)):
                        return
                    other[source].sendall(data)
