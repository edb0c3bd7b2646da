"""A worker that shares no code with us runs a whole sweep, and the specification that it was written by is complete."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from orchestrator.run.slots import Slot
from orchestrator.run.workplace import CACHE, worker_environment
from protocol import PROTOCOL_VERSION, records
from protocol.codec import MAX_FREE_BYTES, MAX_MESSAGE_BYTES
from protocol.keys import Keys
from protocol.messages import Down, Up
from protocol.parts import PART_BYTES
from protocol.specs import MethodSpec
from tests.process.sweeping import NO_SECOND_TRY, PROMPTS, Bench

REPO = Path(__file__).resolve().parents[2]
TINY = REPO / "examples" / "tiny_worker.py"
SPECIFICATION = (REPO / "docs" / "protocol.md").read_text(encoding="utf-8")
ALLOWED = {"msgpack", "zmq"}
STOP = 0  # of the scripted model


def tiny(name: str, *more: str) -> dict[str, Any]:
    return {"name": name, "base": "scripted", "worker": [sys.executable, str(TINY), *more]}


@pytest.mark.parametrize("listen", [(), ("--listen", "tcp://127.0.0.1")], ids=["ipc", "tcp"])
def test_a_sweep_beside_the_scripted_engine(bench: Bench, listen: tuple[str, ...]) -> None:
    bench.write(methods=["scripted", tiny("tiny")], sampling={"max_new_tokens": 12}, warmup=1)
    done = bench.run(*listen)
    assert done.returncode == 0, done.stderr
    assert {end.outcome for ends in bench.outcomes().values() for end in ends} == {"ok"}
    found = {r["prompt_id"]: r for r in bench.records if r["method"] == "tiny"}
    assert len(found) == len(PROMPTS)
    assert sorted(r["text"] for r in found.values()) == sorted(text[::-1] for text in PROMPTS)
    assert {r["finish_reason"] for r in found.values()} == {"stop"}
    assert [release.cause for release in bench.releases()] == [None, None], "it left on request, with a farewell"
    bench.assert_clean()


def test_what_it_does_not_honour_it_refuses(bench: Bench) -> None:
    told = {**tiny("told"), "engine_args": {"louder": 1}}
    bench.write(
        methods=[tiny("tiny"), told, "scripted"],
        sampling={"max_new_tokens": 4, "temperature": 0.7, "logprobs": 2},
        policies=NO_SECOND_TRY,
    )
    done = bench.run()
    assert done.returncode == 1, done.stderr
    causes = {name: ends[0].cause for name, ends in bench.outcomes().items()}
    assert {name: cause and (cause.cls, cause.message) for name, cause in causes.items()} == {
        "tiny": (
            "engine_error",
            "NotImplementedError: it turns prompts round, and nothing else: no temperature, logprobs",
        ),
        "told": ("config", "ValueError: it takes no arguments: louder"),
        "scripted": None,
    }
    assert "fairness: note: worker: tiny, told a program of its own: what it does not honour" in done.stdout
    bench.assert_clean()


def test_log_probabilities_that_are_overlooked_are_flagged(bench: Bench, tmp_path: Path) -> None:
    """By a worker that refuses nothing."""
    careless = tmp_path / "careless.py"
    careless.write_text(TINY.read_text().replace('call["logprobs"] > 0', "False"))
    bench.write(
        methods=["scripted", {**tiny("tiny"), "worker": [sys.executable, str(careless)]}],
        sampling={"max_new_tokens": 4, "logprobs": 2},
    )
    assert bench.run().returncode == 0
    flagged = {r["method"] for r in bench.records if "no_logprobs" in r["flags"]}
    assert flagged == {"tiny"}
    bench.assert_clean()


def test_a_program_that_is_not_there_is_refused_before_anything_starts(bench: Bench) -> None:
    (bench.folder / "text").touch()
    lost = {**tiny("lost"), "worker": ["/no/such/worker"]}
    text = {**tiny("text"), "worker": [str(bench.folder / "text")]}
    bench.write(methods=[lost, text, {**tiny("name"), "worker": ["no-such-worker"]}, "scripted"])
    done = bench.run()
    assert done.returncode == 2, done.stdout
    assert "methods[0].worker: /no/such/worker is not there" in done.stderr
    assert f"methods[1].worker: {bench.folder}/text is not a program that we may run" in done.stderr
    assert "methods[2].worker: no-such-worker is not there" in done.stderr
    assert not bench.run_dir.exists()


def test_one_that_dies_at_its_launch_says_why_at_the_terminal(bench: Bench) -> None:
    dying = [sys.executable, "-c", "import no_such_module"]
    bench.write(methods=[{**tiny("dying"), "worker": dying}], policies=NO_SECOND_TRY)
    done = bench.run()
    assert done.returncode == 1, done.stderr
    assert "(exit status 1): ModuleNotFoundError: No module named 'no_such_module'" in done.stdout
    bench.assert_clean()


def test_a_program_that_does_not_start_costs_its_own_points(bench: Bench) -> None:
    program = bench.folder / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    lost = {**tiny("lost"), "worker": [str(program)]}
    bench.write(methods=[lost, "scripted"], matrix={"batch_size": [4]})
    done = bench.run()
    assert done.returncode == 1, done.stderr
    assert {name: ends[0].outcome == "ok" for name, ends in bench.outcomes().items()} == {
        "lost": False,
        "scripted": True,
    }
    bench.assert_clean()


def test_the_plan_tells_whose_worker_it_is(bench: Bench) -> None:
    bench.write(methods=["scripted", tiny("tiny")])
    done = bench.run("--dry-run")
    assert done.returncode == 0, done.stderr
    assert "1. scripted  (environment own)\n" in done.stdout
    assert f"2. tiny  (environment own; worker {sys.executable})" in done.stdout


def test_a_program_by_a_relative_path_is_refused(bench: Bench) -> None:
    bench.write(methods=[{**tiny("mine"), "worker": ["./mine"]}])
    done = bench.run()
    assert done.returncode == 2
    assert "methods[0].worker" in done.stderr


def test_it_needs_nothing_of_ours() -> None:
    tree = ast.parse(TINY.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= ALLOWED | sys.stdlib_module_names


# --- the specification ----------------------------------------------------------------


def structs(kind: inspect.Type, found: dict[str, inspect.StructType]) -> dict[str, inspect.StructType]:
    """All that a message is made of, by name."""
    match kind:
        case inspect.Metadata(type=inner):
            structs(inner, found)
        case inspect.StructType(cls=cls, fields=fields) if cls.__name__ not in found:
            found[cls.__name__] = kind
            for field in fields:
                structs(field.type, found)
        case inspect.UnionType(types=types):
            for one in types:
                structs(one, found)
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            structs(inner, found)
    return found


STRUCTS = structs(inspect.multi_type_info([Up, Down])[1], structs(inspect.type_info(Up), {}))


def section(name: str) -> str:
    found = re.search(rf"^#+ `{name}`$.*?(?=^#|\Z)", SPECIFICATION, re.MULTILINE | re.DOTALL)
    assert found, f"docs/protocol.md has no section on {name}"
    return found[0]


@pytest.mark.parametrize("name", STRUCTS)
def test_the_specification_names_every_field(name: str) -> None:
    """Each in a row of its own, with whether it may be left out."""
    text = section(name)
    rows = {row[0]: row[1] for row in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)}
    assert list(rows) == [one.encode_name for one in STRUCTS[name].fields]
    optional = {one.encode_name for one in STRUCTS[name].fields if not one.required}
    assert {field for field, kind in rows.items() if "optional" in kind} == optional


@pytest.mark.parametrize("kind", [*get_args(Up), *get_args(Down)])
def test_the_specification_names_every_message(kind: type[msgspec.Struct]) -> None:
    assert f'`"{kind.__struct_config__.tag}"`' in section(kind.__name__)


def test_the_specification_names_every_word() -> None:
    words: set[str] = set()
    for struct_type in STRUCTS.values():
        for one in struct_type.fields:
            words |= literals(one.type)
    words |= {getattr(records, name) for name in vars(records) if name.startswith("FLAG_")}
    assert not [word for word in words if f"`{word}`" not in SPECIFICATION]


def literals(kind: inspect.Type) -> set[str]:
    match kind:
        case inspect.Metadata(type=inner):
            return literals(inner)
        case inspect.LiteralType(values=values):
            return {str(value) for value in values}
        case inspect.UnionType(types=types):
            return set().union(*map(literals, types))
    return set()


def test_the_specification_has_the_numbers() -> None:
    assert f"protocol {PROTOCOL_VERSION}" in SPECIFICATION
    for number in (PART_BYTES, MAX_MESSAGE_BYTES, MAX_FREE_BYTES):
        assert f"{number:,}" in SPECIFICATION


def test_the_specification_names_every_variable(tmp_path: Path) -> None:
    keys = Keys("server", "secret")
    method = MethodSpec("m", "hf")
    told = worker_environment(
        {}, method=method, slot=Slot("s"), endpoint="", token="", keys=keys, room=tmp_path / CACHE
    )
    ours = {name for name in told if name.startswith("AIRLOCK_")}
    ours |= {"AIRLOCK_RUN", "AIRLOCK_INCARNATION", "AIRLOCK_WARDEN_PID", "AIRLOCK_NICE", "AIRLOCK_READ_AHEAD"}
    assert not [name for name in ours if f"`{name}`" not in SPECIFICATION]
