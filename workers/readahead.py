"""Reads a model's weights into the page cache while a worker stands by, so that its load finds them there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

CHUNK_BYTES = 8 << 20
#: What is smaller is no weights.
LEAST_BYTES = 1 << 20
#: Of what is available, so that nothing that another worker needs is thrown out for it.
MOST_SHARE = 0.5


class ReadAhead:
    """Reads from `start` to `stop` at the priority of the thread that starts it. A folder that can't be
    read, or is too large for the memory that is available, is left alone: a load tells what is wrong."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="airlock-readahead", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns once nothing is read any more."""
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        with suppress(OSError):
            paths = list(weights(self._folder))
            if sum(os.path.getsize(path) for path in paths) <= MOST_SHARE * available_bytes():
                for path in paths:
                    self._read_file(path)

    def _read_file(self, path: str) -> None:
        buffer = bytearray(CHUNK_BYTES)
        with open(path, "rb", buffering=0) as file:
            while not self._stop.is_set() and file.readinto(buffer):
                pass


def weights(folder: str) -> Iterator[str]:
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.path.getsize(path) >= LEAST_BYTES:
            yield path


def available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        figures = dict(line.split(":") for line in file)
    return int(figures["MemAvailable"].split()[0]) * 1024
