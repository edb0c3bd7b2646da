"""plan.json: a plan of any size, written and read point by point.

One JSON value, with one point or one beginning of a worker start a line:

    {"name":…,"starts":[
    {"key":…,"env":…,"config":{…},"points":[
    {"id":…,"method":…,"config":{…},…},
    …
    ]},
    …
    ]}

Each point has its whole configuration there, for whoever reads it with other tools; in memory points share what they
have in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec.structs import asdict, force_setattr, replace

from orchestrator.errors import JournalError
from orchestrator.plan import Plan, SweepPoint, WorkerStart
from orchestrator.record.disk import reading
from orchestrator.record.framing import JOURNAL_NAME
from protocol.specs import BackendConfig, MethodSpec

PLAN_NAME: Final = "plan.json"
_STARTS, _POINTS, _END = b',"starts":[\n', b',"points":[\n', b"]}"
_LOST: Final = (
    "without it the run beside it can't be read, reported, exported or resumed, though its records are there; put it"
    " back from a copy, or begin another run of the same sweep file with another --run-dir, stop it and copy its"
    " plan.json here: the same as long as the sweep file and what it names are the same"
)
#: What a plan's configurations have in common, and is large or many objects.
_COMMON: Final = ("model_path", "stop_token_ids")

_encode = msgspec.json.encode
_decode_plan = msgspec.json.Decoder(Plan).decode
_decode_start = msgspec.json.Decoder(WorkerStart).decode
_decode_point = msgspec.json.Decoder(SweepPoint).decode


def lines(plan: Plan) -> Iterator[bytes]:
    """What stands in the file."""
    head = {name: value for name, value in asdict(plan).items() if name != "starts"}
    yield _encode(head)[:-1] + _STARTS
    for number, start in enumerate(plan.starts, 1):
        yield _encode(replace(start, points=())).removesuffix(b',"points":[]}') + _POINTS
        for at, point in enumerate(start.points, 1):
            yield _encode(point) + (b",\n" if at < len(start.points) else b"\n")
        yield _END + (b",\n" if number < len(plan.starts) else b"\n")
    yield _END + b"\n"


def read_plan(run_dir: Path) -> Plan:
    """Raises JournalError naming the file."""
    path = run_dir / PLAN_NAME
    try:
        with reading(path) as file:
            return _plan(file)
    except OSError as exc:
        begun = isinstance(exc, FileNotFoundError) and (run_dir / JOURNAL_NAME).exists()
        why = _LOST if begun else "not a run directory, or one whose start was cut short"
        raise JournalError(f"{path}: {exc.strerror}: {why}") from exc
    except msgspec.DecodeError as exc:
        raise JournalError(f"{path}: is not a plan of this version of Airlock: {exc}") from exc


def _plan(file: BinaryIO) -> Plan:
    head = file.readline()
    if not head.endswith(_STARTS):  # somebody else's layout, or an earlier one
        return _decode_plan(head + file.read())
    plan = _decode_plan(head.removesuffix(b"\n") + _END)
    return replace(plan, starts=tuple(_starts(file)))


def _starts(file: BinaryIO) -> Iterator[WorkerStart]:
    methods: dict[str, MethodSpec] = {}
    while (raw := file.readline()).endswith(_POINTS):
        start = _decode_start(raw.removesuffix(b"\n") + _END)
        method = methods.setdefault(start.config.method.name, start.config.method)
        _share(start.config, start.config, method)
        yield replace(start, points=tuple(_points(file, start.config, method)))
    if raw != _END + b"\n" or file.read(1):
        raise msgspec.DecodeError("its end is missing, or something follows it")


def _points(file: BinaryIO, common: BackendConfig, method: MethodSpec) -> Iterator[SweepPoint]:
    while (raw := file.readline()) and not raw.startswith(_END):
        point = _decode_point(raw.rstrip(b",\n"))
        _share(point.config, common, method)
        yield point


def _share(config: BackendConfig, common: BackendConfig, method: MethodSpec) -> None:
    """What is equal becomes the same. Nobody else has seen `config` yet."""
    if config.method == method:
        force_setattr(config, "method", method)
    for name in _COMMON:
        if getattr(config, name) == getattr(common, name):
            force_setattr(config, name, getattr(common, name))
