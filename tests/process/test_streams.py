"""A worker's output on a disk that takes nothing, or only some: lines are lost, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.process import disks
from tests.process.disks import KIB, MIB

pytestmark = pytest.mark.usefixtures("nothing_leaked")

ROOT = Path(__file__).resolve().parents[2]
#: Prints as engines do: much, no Unicode, by logging; says on a pipe of its own that it came to its end.
CHATTER = f"""
import logging, os, sys
sys.path.insert(0, {str(ROOT)!r})
from workers import streams
if sys.argv[1] == "lossy":
    streams.lose_rather_than_fail()
logging.basicConfig(stream=sys.stderr)
for _ in range(int(sys.argv[2])):
    print("x" * 1023, flush=True)
print("no \\udc80 Unicode")
logging.error("said by logging")
sys.stderr.write("the last words\\n")
sys.stdout.writelines(["a\\n", "b\\n"])
assert sys.stdout.fileno() == 1 and not sys.stdout.isatty() and sys.stderr.encoding == "utf-8"
os.write(3, b"done")
"""


def chatter(output: Path, how: str, kib: int) -> tuple[int, bool]:
    """The exit status, and whether it came to its end."""
    with output.open("ab", buffering=0) as log:
        done = subprocess.run(
            ["sh", "-c", 'exec "$0" -u -c "$1" "$2" "$3" 3>&1 >&2', sys.executable, CHATTER, how, str(kib)],
            stdout=subprocess.PIPE,
            stderr=log,
            check=False,
            timeout=60,
        )
    return done.returncode, done.stdout == b"done"


def test_a_full_device_costs_lines_only() -> None:
    assert chatter(Path("/dev/full"), "lossy", 100) == (0, True)


def test_without_it_a_print_would_have_failed() -> None:
    status, came_to_its_end = chatter(Path("/dev/full"), "plain", 100)
    assert (status, came_to_its_end) != (0, True)


def test_a_disk_that_fills_keeps_what_came_first(tmp_path: Path) -> None:
    with disks.small(tmp_path / "disk", 64 * KIB) as disk:
        assert chatter(disk / "log", "lossy", 4 * MIB // KIB) == (0, True)
        assert (disk / "log").stat().st_size > 32 * KIB


def test_where_there_is_room_all_is_kept(tmp_path: Path) -> None:
    assert chatter(tmp_path / "log", "lossy", 10) == (0, True)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[:10] == ["x" * 1023] * 10
    assert lines[10:] == ["no \\udc80 Unicode", "ERROR:root:said by logging", "the last words", "a", "b"]
