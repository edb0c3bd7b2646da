"""Run as a program: evaluates expressions on the coordinator's own NVML reader, one result a line.

Each argument is a Python expression; it sees `machine` (discovered), `reader` (None without devices),
`hasty` (one that soon gives up on a driver), `strangers`, `gauges` and `slots`. Results are JSON, of repr where they
have none.
"""

from __future__ import annotations

import json
import sys

import pynvml

from orchestrator import devices, gauges
from orchestrator.nvml import NvmlReader
from orchestrator.run import strangers
from orchestrator.run.slots import Slots, numbered


def main(expressions: list[str]) -> None:
    machine = devices.discover()
    names = {
        "machine": machine,
        "reader": devices.reader(machine),
        "hasty": NvmlReader(pynvml, patience_s=0.5),
        "strangers": strangers,
        "slots": Slots(numbered(machine.devices)),
        "gauges": gauges,
    }
    for expression in expressions:
        sys.stdout.write(json.dumps(eval(expression, names), default=repr) + "\n")


main(sys.argv[1:])
