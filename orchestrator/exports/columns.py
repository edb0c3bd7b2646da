"""The tables of an export: every column with its type and its meaning, the same in all formats. Pure.

What a method is and what its settings are becomes columns by itself: a field that is declared in `protocol.specs` is
exported, with the type and the description that it has there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

from protocol.specs import BackendConfig, MethodSpec

#: One more whenever a column is renamed, removed or means something else; a column that is added changes nothing.
SCHEMA_VERSION: Final = 1

#: word: text with few different values. json: whatever differs from method to method, as JSON.
_Single = Literal["text", "word", "integer", "number", "flag", "time", "json"]
Kind = Literal[_Single, "words", "integers", "numbers", "lists of integers", "lists of numbers"]


class Column(NamedTuple):
    """`meaning` names the unit where there is one."""

    name: str
    kind: Kind
    meaning: str


Values = tuple[Any, ...]


class Line(NamedTuple):
    """What is its own, and what it shares: one and the same object for lines of a point and worker that follow each
    other."""

    own: Values
    shared: Values = ()


class Table(NamedTuple):
    """`own` and `shared` are the columns of a line's two parts; `lines` those of a run (see `source`)."""

    name: str
    meaning: str
    own: tuple[Column, ...]
    shared: tuple[Column, ...]
    lines: Callable[[Any], Iterator[Line]]

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.own, *self.shared)


def _plain(hint: Any) -> Any:
    """The one type of a field, without what says that it may be null."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return next((_plain(one) for one in get_args(hint) if one is not type(None)), hint)
    return hint


def kind_of(hint: Any) -> Kind:
    """Of a field of a struct, by its annotation."""
    plain = _plain(hint)
    if plain is str or get_origin(plain) is Literal:
        return "word"
    if plain in _SCALARS:
        return _SCALARS[plain]
    if get_origin(plain) in (list, tuple):
        return _LISTS.get(_plain(get_args(plain)[0]), "json")
    return "json"


_SCALARS: Final[dict[Any, Kind]] = {bool: "flag", int: "integer", float: "number"}
_LISTS: Final[dict[Any, Kind]] = {int: "integers", float: "numbers", str: "words"}


def _described(hint: Any) -> str:
    """The description of the field itself; "" if it has none."""
    marks = getattr(hint, "__metadata__", ())
    return next((mark.description for mark in marks if isinstance(mark, Meta) and mark.description), "")


def _of_struct(struct: type, prefix: str, *without: str) -> Iterator[Column]:
    for name, hint in get_type_hints(struct, include_extras=True).items():
        if name not in without:
            yield Column(prefix + name, kind_of(hint), _described(hint))


RUN: Final = (
    Column("run", "word", "name of the run directory"),
    Column("run_id", "word", "identity of the run: the same after `--resume` and in a copy of its directory"),
)
WORKER: Final = (
    Column("env", "word", "name of the engine's environment"),
    Column("fingerprint", "word", "digest of that environment's versions"),
    Column("engine_version", "word", "as the engine tells it"),
    Column("torch_version", "word", ""),
    Column("transformers_version", "word", ""),
    Column("python_version", "word", "of the engine's environment"),
    Column("device", "word", "what the engine ran on"),
    Column("attention_backend", "word", "what the engine chose, as it tells it"),
)
#: Name, engine and summary stand elsewhere or say nothing of how it runs.
METHOD: Final = tuple(_of_struct(MethodSpec, "method_", "name", "engine", "summary"))
SETTINGS: Final = tuple(_of_struct(BackendConfig, "setting_", "method"))
ASKED: Final = (*METHOD, *SETTINGS)
_POINT: Final = (
    *RUN,
    Column("point", "word", "id of the point: what was asked, and of which repeat"),
    Column("method", "word", ""),
    Column("engine", "word", ""),
    Column("role", "word", "`measure`; `drift`: a cell measured once more at the end, in no figure"),
    Column("repeat", "integer", "from 0"),
)
RECORDS: Final = (
    *_POINT,
    Column("prompt_id", "text", "with `point` the key of the table"),
    Column("prompt_digest", "text", "of the ids the engine was given"),
    Column("prompt_tokens", "integer", "how many they are, images widened"),
    Column("prompt_source", "json", "the prompt as you gave it, with all its fields"),
    Column("prompt_token_ids", "integers", "the ids of its text"),
    Column("expected", "json", "the field `expected` of the prompt"),
    Column("text", "text", "the output; empty where there is none"),
    Column("token_ids", "integers", "the engine's own, a final end-of-sequence id included"),
    Column("generated_tokens", "integer", "how many they are"),
    Column("finish_reason", "word", "`stop`, `length`, `scored`, `error` or `unknown`"),
    Column("ttft_s", "number", "seconds from hand-over of the batch to the prompt's first token"),
    Column("latency_s", "number", "seconds from hand-over of the batch to the prompt's last token"),
    Column("itl_s", "numbers", "seconds between each token and the next"),
    Column("logprobs", "numbers", "natural logarithms, of the output's own tokens or of the given ones"),
    Column("top_token_ids", "lists of integers", "the likeliest tokens of each position, the likeliest first"),
    Column("top_logprobs", "lists of numbers", "theirs"),
    Column("correct", "flag", "whether it is the answer expected, by the first judge; null where nothing is judged"),
    Column("score", "number", "by that judge, from 0 to 1"),
    Column("answer", "text", "what of the output that judge took for its answer"),
    Column("flags", "words", "what there is to know of this output"),
    Column("error_class", "word", "class of the failure; null where the prompt did not fail"),
    Column("error", "text", "the cause in one line"),
    Column("batch", "text", "the batch it ran in"),
    Column("batch_size", "integer", "prompts that really ran together"),
    Column("batch_wall_s", "number", "seconds of the engine's call for the batch, the same in all its records"),
    Column("batch_measured", "flag", "whether the figures of the report count the batch"),
    Column("committed_at", "time", "when the batch was on the disk"),
    Column("incarnation", "word", "the worker that made it"),
)
BATCHES: Final = (
    *_POINT,
    Column("batch", "text", "with `point` and `incarnation` the key of the table"),
    Column("incarnation", "word", "the worker that it ran in"),
    Column("measured", "flag", "whether the figures of the report count it"),
    Column("committed_at", "time", "when it was on the disk"),
    Column("prompts", "integer", "how many were handed over"),
    Column("errors", "integer", "how many of them failed"),
    Column("wall_s", "number", "seconds of the engine's call; null where it gave none"),
    Column("generated_tokens", "integer", "of all its prompts"),
    Column("peak_memory_bytes", "integer", "highest device memory (GPU) or resident set (CPU) seen so far"),
    Column("counters", "json", "what the engine counted, by name"),
    Column("flags", "words", ""),
    Column("neighbours", "words", "other workers of the run that were there meanwhile"),
    Column("host", "json", "how busy the machine was"),
    Column("devices", "json", "what the slot's GPUs did, one object each"),
)
EVENTS: Final = (
    *RUN,
    Column("number", "integer", "from 0, in the order of the journal"),
    Column("at", "time", "when it was written"),
    Column("type", "word", ""),
    Column("incarnation", "word", "the worker that it is about"),
    Column("point", "word", "the point that it is about"),
    Column("batch", "text", "the batch that it is about"),
    Column("event", "json", "all of it"),
)
