"""What torch.compile does in this process, as dynamo itself counts it.

Dynamo gives up on a function after a number of recompilations and runs it uncompiled from then on, for which it
has one warning and one counter. Which later calls still find one of the graphs made before, it does not
tell: so everything after that is flagged.
"""

from __future__ import annotations

import re
import time
from typing import Any

from protocol.records import FLAG_RECOMPILE_LIMIT
from protocol.specs import BackendConfig
from workers.backends import runtime

#: The first line of dynamo's reason, under counters["unimplemented"]; its wording differs by version of torch.
_GIVEN_UP = re.compile(r"(recompile|cache)[ _](size[ _])?limit", re.IGNORECASE)
FLAG_NOT_COMPILED = "compile" + runtime.NOT_HONOURED
CAPTURES = "triton.cudagraphs"
FLAG_NOT_CAPTURED = "cuda_graphs" + runtime.NOT_HONOURED


def compile_config(config: BackendConfig) -> Any:
    """The one CompileConfig used for all batches: the compiled call is kept by equality with it.
    With buckets every shape is known, so none is compiled for shapes that vary."""
    if not config.method.compile:
        return None
    from transformers import CompileConfig

    found = CompileConfig(mode=config.compile_mode, dynamic=False if config.method.rocket_bucket else None)
    found._compile_all_devices = True  # it compiles on GPUs only, unless told
    return found


def cuda_graphs(mode: str | None, device: str) -> str | None:
    """The option of inductor by which a mode captures CUDA graphs, "none" where it does not; None for no mode."""
    if device != "cuda" or mode == "none":
        return "none"
    if mode is None:
        return None
    import torch._inductor as inductor

    return CAPTURES if inductor.list_mode_options().get(mode, {}).get(CAPTURES) else "none"


def graphs() -> int:
    """How many dynamo has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def allow(limit: int | None, graphs: int) -> None:
    """Sets dynamo's recompile limit: to `limit`, or left open to no less than the `graphs` that are planned."""
    from torch._dynamo import config as dynamo

    dynamo.recompile_limit = limit or max(dynamo.recompile_limit, graphs)


class Compilation:
    """Counts from its making on: seconds of compiling, and functions that were compiled once more."""

    def __init__(self, captures: bool = False) -> None:
        """captures: CUDA graphs are to be captured."""
        from torch._dynamo.callback import callback_handler

        self.seconds = 0.0
        self.recompiles = 0
        self._since, self._captures = 0.0, captures
        # Dynamo calls these round the outermost of nested compilations, whichever thread compiles.
        callback_handler.register_start_callback(self._started)
        callback_handler.register_end_callback(self._ended)

    @property
    def limit(self) -> int:
        from torch._dynamo import config as dynamo

        return int(dynamo.recompile_limit)

    @property
    def given_up(self) -> bool:
        """Whether dynamo has run into a recompile limit."""
        from torch._dynamo.utils import counters

        return any(map(is_limit, counters["unimplemented"]))

    @property
    def uncaptured(self) -> bool:
        """Whether a graph that was to be captured runs without."""
        from torch._dynamo.utils import counters

        return self._captures and counters["inductor"]["cudagraph_skips"] > 0

    def flags(self) -> tuple[str, ...]:
        found = {FLAG_RECOMPILE_LIMIT: self.given_up, FLAG_NOT_CAPTURED: self.uncaptured}
        return tuple(flag for flag, applies in found.items() if applies)

    def _started(self, args: Any) -> None:
        self._since = time.perf_counter()
        self.recompiles += args.callback_trigger.name == "DYNAMO" and is_again(str(args.compile_id))

    def _ended(self, _args: Any) -> None:
        self.seconds += time.perf_counter() - self._since


def is_limit(reason: str) -> bool:
    """Whether dynamo's reason for leaving a function uncompiled is a recompile limit."""
    return bool(_GIVEN_UP.search(reason.partition("\n")[0]))


def is_again(compile_id: str) -> bool:
    """Of dynamo's "<function>/<how many times before>", with "_<attempt>" at times."""
    times = compile_id.rpartition("/")[2].partition("_")[0]
    return times.isdecimal() and int(times) > 0
