"""An engine that is a script: deterministic, instant unless told otherwise, and as faulty as a test orders.

Options, in `method.engine_args`; an unknown one is refused:

    load_s        seconds that load() takes
    token_s       seconds per step; a step is one token of every prompt of the batch
    memory_bytes  resident memory held from load() on
    lowers_to     the most tokens it says it serves, whatever it was asked for
    stops_at      the id at which it ends outputs, whatever it was told
    salt          mixed into the output, so that two scripted methods disagree
    cache         "load" or "batch": where it compiles; what it finds or makes then is in its metadata
    cache_traps   it leaves in its cache what no cache should hold
    fault         one fault, see scripted_faults
    faults        several, performed in this order

What must act before Init is known comes by the environment instead
(`method.env_vars`), as the same map in JSON: SCRIPTED_OPTIONS. There are obeyed too:

    import_s      seconds that the import takes
    import_cpu_s  seconds of CPU that it takes after that, as the imports of engines do

Output is a function of the prompt's ids and images, the seed and the salt alone, whatever
the batch. Ids are code points of letters and spaces. Where stop ids are given, about half of
the prompts end with one within the first 24 tokens.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import platform
import string
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from protocol import PROTOCOL_VERSION
from protocol.records import BatchStats, Generation, LoadTimes, RuntimeMetadata
from protocol.specs import BackendConfig, CallParams, PromptBatch, PromptInput, unpack_ids
from workers.backends.base import Backend, Output, Position, assemble, batch_stats
from workers.backends.runtime import with_ends
from workers.backends.scripted_cache import compiled
from workers.backends.scripted_faults import EARLY, LONG_AGO, Fault, Faults, Scene
from workers.backends.scripted_results import apply

OPTIONS_VARIABLE = "SCRIPTED_OPTIONS"
ALPHABET = tuple(map(ord, string.ascii_lowercase + " "))
_NO_LETTERS = bytes(set(range(256)) - set(ALPHABET))
LATEST_EOS = 24
LN_2 = math.log(2)


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    import_s: float = 0.0
    import_cpu_s: float = 0.0
    load_s: float = 0.0
    token_s: float = 0.0
    memory_bytes: int = 0
    lowers_to: int | None = None
    stops_at: int | None = None
    salt: str = ""
    cache: Literal["", "load", "batch"] = ""
    cache_traps: bool = False
    fault: Fault | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def all_faults(self) -> tuple[Fault, ...]:
        return (*([self.fault] if self.fault else []), *self.faults)

    @classmethod
    def of(cls, engine_args: Mapping[str, Any]) -> Options:
        """Raises ValueError for an unknown option or fault, or one that would come too late."""
        options = msgspec.convert(dict(engine_args), cls)
        if early := [fault.at for fault in options.all_faults if fault.at in EARLY]:
            raise ValueError(f"a fault at {early[0]!r} is over before Init; give it in {OPTIONS_VARIABLE}")
        return options

    @classmethod
    def of_environment(cls) -> Options:
        return msgspec.json.decode(os.environ.get(OPTIONS_VARIABLE, "{}"), type=cls)


class ScriptedBackend(Backend):
    _early: ClassVar[Options] = Options()
    _asked = LONG_AGO  # the last batch that came

    def __init__(self, config: BackendConfig) -> None:
        super().__init__(config)
        self._options = Options.of(config.method.engine_args)
        self._faults = Faults((*self._early.all_faults, *self._options.all_faults))
        self._held = bytearray()
        self._batches = 0
        self._load_s = 0.0
        self._artefacts = ""
        self._metadata = self._describe()

    @classmethod
    def prepare(cls) -> None:
        cls._early = Options.of_environment()
        Faults(cls._early.all_faults).fire(cls.host, "hello")

    @classmethod
    def import_engine(cls) -> str:
        time.sleep(cls._early.import_s)
        _use_cpu(cls._early.import_cpu_s)
        faults = Faults(cls._early.all_faults)
        faults.fire(cls.host, "import")
        faults.lie_in_wait("standby", lambda: Scene(cls.host))
        return f"protocol {PROTOCOL_VERSION}"

    def load(self) -> RuntimeMetadata:
        started = time.perf_counter()
        self._faults.fire(self.host, "load")
        self._faults.start_beside(self.host)
        time.sleep(self._options.load_s)
        self._compile("load")
        self._held = bytearray(b"x") * self._options.memory_bytes
        self._faults.fire(self.host, "ready")
        self._faults.lie_in_wait("idle", lambda: Scene(self.host, self._asked))
        self._load_s = time.perf_counter() - started
        return self.runtime_metadata()

    def generate(self, batch: PromptBatch) -> tuple[list[Generation], BatchStats]:
        self._batches += 1
        self._asked = batch.batch_id
        moments = (f"batch:{self._batches}", *(f"prompt:{prompt.id}" for prompt in batch.prompts))
        faults = self._faults.fire(self.host, *moments)
        self._compile("batch")
        started = time.perf_counter()
        call = self._going_by(batch.call)
        outputs = self._run(batch, call, started)
        wall_s = time.perf_counter() - started
        unclean = any(fault.do == "surrogates" for fault in faults)
        generations = assemble(batch, outputs, _unclean if unclean else _text, batch.call.stop_token_ids, wall_s)
        stats = batch_stats(generations, wall_s, self.memory.read(busy=True).host_peak_rss_bytes)
        if call.task == "generate":
            self._metadata = with_ends(self._metadata, batch.call, () if call.ignore_eos else call.stop_token_ids)
        return apply((fault.do for fault in faults), generations), stats

    def _compile(self, where: str) -> None:
        if self._options.cache == where and not self._artefacts:
            self._artefacts = compiled(self._options.salt, self._options.cache_traps)

    def _going_by(self, call: CallParams) -> CallParams:
        """What it goes by, which the option may have made another than it was told."""
        at = self._options.stops_at
        return call if at is None else replace(call, stop_token_ids=(at,))

    def _run(self, batch: PromptBatch, call: CallParams, started: float) -> list[Output]:
        if batch.call.task == "score":
            return [_score(prompt, batch.call.logprobs) for prompt in batch.prompts]
        shown = {p.id: b"".join((p.seen, *p.images)) for p in batch.prompts}
        answers = {prompt_id: answer_ids(one, call, self._options.salt) for prompt_id, one in shown.items()}
        at_s = [self._step(started) for _ in range(max(map(len, answers.values()), default=0))]
        return [
            Output(
                prompt_id,
                ids,
                finish="stop",
                ttft_s=at_s[0],
                latency_s=at_s[len(ids) - 1],
                times_s=at_s[: len(ids)],
                positions=[_position(one, batch.call.logprobs) for one in ids] if batch.call.logprobs else None,
            )
            for prompt_id, ids in answers.items()
        ]

    def _step(self, started: float) -> float:
        if self._options.token_s:
            time.sleep(self._options.token_s)
        self.host.tick()
        return time.perf_counter() - started

    def runtime_metadata(self) -> RuntimeMetadata:
        return replace(
            self._metadata,
            options={"artefacts": self._artefacts},
            load=LoadTimes(weights_s=self._load_s),
            memory=self.memory.read(),
        )

    def _describe(self) -> RuntimeMetadata:
        return RuntimeMetadata(
            engine="scripted",
            engine_version=f"protocol {PROTOCOL_VERSION}",
            python_version=platform.python_version(),
            device="cpu",
            max_model_len=self._options.lowers_to or self.config.max_model_len,
            compiled=False,
            threads=1,
            notes=["a script, no model: dtype, attention and KV cache do not exist"],
        )

    def shutdown(self) -> None:
        self._faults.fire(self.host, "shutdown", over=self._asked)


def _use_cpu(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def answer_ids(prompt: bytes, call: CallParams, salt: str = "") -> list[int]:
    """At most `max_new_tokens` ids, the end-of-sequence id included where there is one."""
    noise = hashlib.shake_128(b"%d %s " % (call.seed, salt.encode()) + prompt).digest(2 + call.max_new_tokens)
    ids = list(noise[2:].translate(_letters(call.stop_token_ids)))
    end = noise[0] % LATEST_EOS
    if call.stop_token_ids and noise[1] % 2 and end < len(ids):
        ids[end] = call.stop_token_ids[0]
        if not call.ignore_eos:
            del ids[end + 1 :]
    return ids


@functools.lru_cache
def _letters(but: tuple[int, ...]) -> bytes:
    """For bytes.translate: any byte to a letter that is no stop id. This and the like of it
    keep the engine out of what is measured with it."""
    letters = [one for one in ALPHABET if one not in but]
    return bytes(letters[value % len(letters)] for value in range(256))


def _score(prompt: PromptInput, k: int) -> Output:
    ids = unpack_ids(prompt.token_ids)
    return Output(prompt.id, (), positions=[_position(one, k) for one in ids[prompt.score_from :]])


def _position(token: int, k: int) -> Position:
    """The token itself is the likeliest, half as likely the next number and so on: 1/2, 1/4, 1/8."""
    return Position(-LN_2, [(token + step, -LN_2 * (step + 1)) for step in range(k)])


def _text(ids: list[int]) -> str:
    try:
        data = bytes(ids)
    except ValueError:  # a stop id past a byte; it is no letter
        data = bytes(one for one in ids if one in ALPHABET)
    return data.translate(None, _NO_LETTERS).decode("ascii")


def _unclean(ids: list[int]) -> str:
    return f"\udc9d{_text(ids)}\0"
