"""Where the prompts of a sweep come from, how a file of them is read, and how random ones are made. Values alone. Pure.

prompts:
  file: test.jsonl
  format: gsm8k
  columns: {id: qid}
  filter: {max_prompt_tokens: 1024}
  sample: {count: 200, seed: 0}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from msgspec import Meta, Struct

ChatTemplate = Literal["auto", "on", "off"]
#: How a file is taken apart.
Container = Literal["jsonl", "txt", "csv", "tsv", "parquet", "hf_dataset"]
#: What the records in it look like. What a file is taken apart by tells nothing of that, and the other way round.
Shape = Literal["sharegpt", "alpaca", "openai", "openai_batch", "mt_bench", "gsm8k"]
Format = Literal[Container, Shape]
CONTAINERS: Final[tuple[str, ...]] = get_args(Container)
SHAPES: Final[tuple[str, ...]] = get_args(Shape)

#: More prompts, or longer ones, are a slip of the pen.
MOST_PROMPTS: Final = 1_000_000
MOST_TOKENS: Final = 10_000_000

Count = Annotated[int, Meta(ge=1, le=MOST_PROMPTS)]
Tokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
Chars = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1, description="the same seed gives the same prompts on any machine")]


class Columns(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which field of a record is what: a name, or a path such as `answers.text[0]`."""

    prompt: Annotated[str | None, Meta(description="the prompt's text")] = None
    messages: Annotated[str | None, Meta(description="a chat, instead of the prompt")] = None
    system: Annotated[str | None, Meta(description="a system message that goes before it")] = None
    id: Annotated[str | None, Meta(description="text or a whole number, unlike all others")] = None
    expected: Annotated[str | None, Meta(description="the right answer: kept, and never sent")] = None
    continuation: Annotated[str | None, Meta(description="what task: score scores")] = None
    images: Annotated[str | None, Meta(description="an image's file or data URL, or a list of them")] = None

    def given(self) -> dict[str, str]:
        """Target → path, of those that are named."""
        return {name: path for name in self.__struct_fields__ if (path := getattr(self, name)) is not None}


class Filter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts outside of it are left out, and counted. Tokens are those that the model sees, template included."""

    min_prompt_tokens: Annotated[Tokens | None, Meta(description="least tokens that the model sees")] = None
    max_prompt_tokens: Annotated[Tokens | None, Meta(description="most tokens that the model sees")] = None
    min_chars: Annotated[Chars | None, Meta(description="least characters, of all messages together")] = None
    max_chars: Annotated[Chars | None, Meta(description="most characters, of all messages together")] = None

    @property
    def by_tokens(self) -> bool:
        return self.min_prompt_tokens is not None or self.max_prompt_tokens is not None


class Sample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many of the prompts that the filter leaves, in the order of the file."""

    count: Annotated[Count, Meta(description="how many are taken")]
    seed: Seed = 0


class Reading(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a file of prompts is read."""

    format: Annotated[Format | None, Meta(description="null: by the file's ending and the fields in it")] = None
    columns: Annotated[Columns, Meta(description="which field of a record is what: a name, or a path")] = Columns()
    split: Annotated[str | None, Meta(description="of a saved dataset: train, test, …")] = None
    delimiter: Annotated[str | None, Meta(description="of a .csv file; null: what its first line shows")] = None
    template: Annotated[str | None, Meta(description='the prompt, made of fields: "Q: {question}\\nA:"')] = None
    filter: Annotated[Filter, Meta(description="prompts outside of it are left out, and counted")] = Filter()
    sample: Annotated[Sample | None, Meta(description="so many of what the filter leaves; null: all")] = None
    unusable: Annotated[
        Literal["refuse", "leave_out"], Meta(description="what becomes of a record that can't be a prompt")
    ] = "refuse"

    @property
    def shape(self) -> str | None:
        return self.format if self.format in SHAPES else None

    @property
    def container(self) -> str | None:
        return self.format if self.format in CONTAINERS else None

    @property
    def sampled_later(self) -> bool:
        """Only once the prompts are tokens it is known which ones pass the filter."""
        return self.sample is not None and self.filter.by_tokens


class Normal(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens."""

    mean: Annotated[float, Meta(gt=0, description="tokens")]
    stddev: Annotated[float, Meta(ge=0, description="standard deviation, tokens")]


class LogNormal(Struct, frozen=True, forbid_unknown_fields=True):
    """Half of the lengths are below the median, in tokens; `sigma` is the standard deviation of their logarithms."""

    median: Annotated[float, Meta(gt=0, description="half of the lengths are below it, tokens")]
    sigma: Annotated[float, Meta(ge=0, le=10, description="standard deviation of the lengths' natural logarithms")]


class Lengths(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A distribution of lengths in tokens: exactly one of the first five. What lies outside `min` and `max` is cut to
    them, and counted."""

    fixed: Annotated[Tokens | None, Meta(description="all alike")] = None
    uniform: Annotated[tuple[Tokens, ...] | None, Meta(description="[shortest, longest], both included")] = None
    normal: Annotated[Normal | None, Meta(description="a normal distribution")] = None
    lognormal: Annotated[LogNormal | None, Meta(description="a log-normal one, nearer to real prompts")] = None
    file: Annotated[str | None, Meta(description="one whole number a line, taken in order")] = None
    min: Annotated[Tokens, Meta(description="shorter ones are made so long")] = 1
    max: Annotated[Tokens | None, Meta(description="longer ones are cut to it")] = None

    def kinds(self) -> list[str]:
        return [name for name in DISTRIBUTIONS if getattr(self, name) is not None]


DISTRIBUTIONS: Final = ("fixed", "uniform", "normal", "lognormal", "file")
LengthsOf: TypeAlias = Tokens | Lengths


class RandomTokens(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts of random token ids out of the model's vocabulary, special tokens left out."""

    count: Annotated[Count | None, Meta(description="null: as many as the file of lengths has")] = None
    input_tokens: Annotated[LengthsOf, Meta(description="how long they are, in tokens")]
    seed: Seed = 0

    kind = "random"


class SharedPrefix(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Random prompts in groups: those of a group begin with the same tokens."""

    groups: Annotated[Count, Meta(description="how many beginnings there are")]
    prompts_per_group: Annotated[Count, Meta(description="how many prompts begin alike")]
    system_tokens: Annotated[LengthsOf, Meta(description="those that a group has in common")]
    question_tokens: Annotated[LengthsOf, Meta(description="those that follow, for each prompt its own")]
    seed: Seed = 0
    order: Annotated[Literal["shuffled", "grouped"], Meta(description="grouped: one group after the other")] = (
        "shuffled"
    )

    kind = "shared_prefix"


@dataclass(frozen=True)
class PromptSource:
    """Where the prompts are: exactly one of `file`, `inline` and `made` is set. For messages, `where` and
    `key` of the whole, and `places` with those of each inline prompt. `reading` is of a file."""

    file: str | None
    inline: tuple[str | dict[str, Any], ...] | None
    chat_template: ChatTemplate = "auto"
    where: str = field(default="", compare=False)
    key: str = field(default="prompts", compare=False)
    places: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    reading: Reading = field(default=Reading())
    made: RandomTokens | SharedPrefix | None = None
