"""What `--listen` may say."""

from __future__ import annotations

import socket

import pytest

from orchestrator.config import parse
from orchestrator.errors import InputError
from orchestrator.run.listen import dialled, listening


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("", ""),
        ("tcp://127.0.0.1", "tcp://127.0.0.1:*"),
        ("tcp://[::1]", "tcp://[::1]:*"),
        ("tcp://[0::0:1]", "tcp://[::1]:*"),
    ],
)
def test_good_ones(text: str, endpoint: str) -> None:
    assert listening(text) == endpoint


def test_a_port_of_choice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert listening(f"tcp://127.0.0.1:{port}") == f"tcp://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("127.0.0.1", "no TCP endpoint"),
        ("ipc:///tmp/s", "no TCP endpoint"),
        ("tcp://", "in figures"),
        ("tcp://localhost", "in figures"),
        ("tcp://*", "in figures"),
        ("tcp://127.0.0.1.", "in figures"),
        ("tcp://::1", "in figures"),
        ("tcp://0.0.0.0", "no address that a worker can dial"),
        ("tcp://[::]:5555", "no address that a worker can dial"),
        ("tcp://127.0.0.1:0", "no port between"),
        ("tcp://127.0.0.1:65536", "no port between"),
        ("tcp://127.0.0.1:http", "no port between"),
        ("tcp://127.0.0.1:²", "no port between"),
        ("tcp://127.0.0.1:-1", "no port between"),
        ("tcp://192.0.2.1", "can't be listened at"),  # of no machine, by RFC 5737
    ],
)
def test_bad_ones(text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        listening(text)
    (problem,) = caught.value.problems
    assert (problem.where, why in problem.message) == ("--listen", True), problem


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="in use"):
        listening(f"tcp://127.0.0.1:{taken.getsockname()[1]}")


def test_what_the_file_says_is_named_as_the_files() -> None:
    """Or it would be looked for on the command line."""
    text = "name: t\nmodel: scripted\nprompts: [a]\nmethods: [scripted]\nlauncher: slurm\ncluster:\n  listen: "
    config = parse(f"{text}tcp://192.0.2.1\n", "s.yaml")
    with pytest.raises(InputError) as caught:
        dialled("", config)
    (problem,) = caught.value.problems
    assert (problem.where, problem.key) == ("s.yaml:7", "cluster.listen")
    assert problem.message.startswith("'tcp://192.0.2.1' can't be listened at: ")
    with pytest.raises(InputError, match=r"^--listen: 'tcp://192\.0\.2\.1' can't"):
        dialled("tcp://192.0.2.1", config)
    assert dialled("", parse(f"{text}tcp://127.0.0.1\n", "s.yaml")) == "tcp://127.0.0.1:*"
