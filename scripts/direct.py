"""The other end of direct_generate.py: Transformers without Airlock, batch by batch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from scripts.figures import REPO

#: Prompts as ids; gives the seconds of the call, as measured in its process, and the new ids of each prompt.
Generate = Callable[[Sequence[Sequence[int]]], tuple[float, list[list[int]]]]


@dataclass(frozen=True)
class Order:
    model: str
    new: int
    threads: int | None
    attention: str = "sdpa"


@contextmanager
def direct_process(python: str, order: Order, env: Mapping[str, str]) -> Iterator[Generate]:
    """Once the model is loaded. Gone when the context is left."""
    argv = [python, str(REPO / "scripts" / "direct_generate.py")]
    with subprocess.Popen(argv, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        given, told = process.stdin, process.stdout
        assert given is not None
        assert told is not None

        def ask(value: Any) -> Any:
            given.write(f"{json.dumps(value)}\n")
            given.flush()
            if not (answer := told.readline()):
                raise SystemExit("Transformers could not be called directly")
            return json.loads(answer)

        def generate(prompts: Sequence[Sequence[int]]) -> tuple[float, list[list[int]]]:
            answer = ask(prompts)
            return answer["s"], answer["ids"]

        ask(asdict(order))
        yield generate
        given.close()
