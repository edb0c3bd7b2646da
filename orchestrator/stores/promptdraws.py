"""Random prompts as the sweep file asks for them: how long each is and which stream its ids come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.definition.promptuse import (
    MOST_TOKENS,
    Lengths,
    PromptSource,
    RandomTokens,
    SharedPrefix,
)
from orchestrator.errors import InputError, Problem
from orchestrator.readers import draws, lines
from orchestrator.readers.draws import Segment
from orchestrator.readers.found import Fault, Unreadable
from orchestrator.readers.tally import Tally
from orchestrator.stores.named import Named, open_file
from orchestrator.stores.promptfaults import Faults
from orchestrator.stores.promptraw import Gathered, RawPrompt
from orchestrator.view.wording import counted

#: They are held in memory, four bytes each.
MOST_TOGETHER = 500_000_000
_A_NUMBER = "one whole number a line, 1 or more"


def drawn(source: PromptSource, base: Path) -> Gathered:
    """The prompts without their ids, which take the model's vocabulary. Raises InputError."""
    assert source.made is not None
    if isinstance(source.made, RandomTokens):
        found = _random(source.made, source, base)
    else:
        found = _shared(source.made, source, base)
    tokens = sum(segment.tokens for one in found.prompts for segment in one.segments)
    if tokens > MOST_TOGETHER:
        raise InputError([Problem(source.where, source.key, f"comes to {tokens} tokens", f"at most {MOST_TOGETHER}")])
    return found


def _random(made: RandomTokens, source: PromptSource, base: Path) -> Gathered:
    given = _of_file(made.input_tokens, "input_tokens", source, base)
    count = len(given) if made.count is None else made.count
    lengths, cut = _lengths(made.input_tokens, count, f"{made.seed}/lengths", given, "input_tokens", source)
    prompts = [
        RawPrompt(str(n), None, None, {}, source.where, segments=(Segment(f"{made.seed}/prompt/{n}", length),))
        for n, length in enumerate(lengths)
    ]
    return Gathered(tuple(prompts), Tally(count, told=(_told("random", lengths, made.seed), *_cut(cut))))


def _shared(made: SharedPrefix, source: PromptSource, base: Path) -> Gathered:
    order = draws.order(made)
    given = _of_file(made.system_tokens, "system_tokens", source, base)
    stream = f"{made.seed}/prefix/lengths"
    prefixes, cut = _lengths(made.system_tokens, made.groups, stream, given, "system_tokens", source)
    given = _of_file(made.question_tokens, "question_tokens", source, base)
    stream = f"{made.seed}/question/lengths"
    questions, more = _lengths(made.question_tokens, len(order), stream, given, "question_tokens", source)
    prompts = []
    for group, number in order:
        prefix = Segment(f"{made.seed}/prefix/{group}", prefixes[group])
        length = questions[group * made.prompts_per_group + number]
        own = Segment(f"{made.seed}/question/{group}/{number}", length)
        fields = {"group": group, "prefix_tokens": prefix.tokens}
        prompts.append(RawPrompt(f"{group}.{number}", None, None, fields, source.where, segments=(prefix, own)))
    told = f"{_told('random', questions, made.seed)} after {_span(prefixes)} that {counted(made.groups, 'group')} share"
    return Gathered(tuple(prompts), Tally(len(prompts), told=(told, *_cut(cut + more))))


def _told(kind: str, lengths: Sequence[int], seed: int) -> str:
    mean = sum(lengths) / len(lengths)
    return f"prompts: {len(lengths)} {kind} ones, seed {seed}, of {_span(lengths)}, {mean:.1f} in the mean"


def _span(lengths: Sequence[int]) -> str:
    low, high = min(lengths), max(lengths)
    return f"{low} tokens" if low == high else f"{low} to {high} tokens"


def _cut(count: int) -> tuple[str, ...]:
    return (f"prompts: {counted(count, 'length')} cut to the bounds of the distribution",) if count else ()


def _lengths(
    wanted: int | Lengths, count: int, stream: str, given: Sequence[int], name: str, source: PromptSource
) -> tuple[list[int], int]:
    """Raises InputError."""
    if isinstance(wanted, Lengths) and wanted.file is not None and len(given) < count:
        message = f"{wanted.file} has {counted(len(given), 'length')}, and {count} are needed"
        raise InputError([Problem(source.where, f"{source.key}.{name}", message)])
    return draws.lengths(wanted, count, stream, given)


def _of_file(wanted: int | Lengths, name: str, source: PromptSource, base: Path) -> list[int]:
    """The lengths of `Lengths.file`, none without one. Raises InputError."""
    if isinstance(wanted, int) or wanted.file is None:
        return []
    named = Named(wanted.file, base)
    faults = Faults()
    try:
        with open_file(named.path) as file:
            found = _read(file.readline, named.written, faults)
    except (OSError, ValueError) as exc:
        message = f"{named} can't be read: {getattr(exc, 'strerror', None) or exc}"
        key = f"{source.key}.{name}.file"
        raise InputError([Problem(source.where, key, message, named.instead(Path.is_file))]) from exc
    if not faults and not found:
        faults.add(Problem(named.written, "", "holds no length", _A_NUMBER))
    if faults:
        raise InputError(faults.problems())
    return found


def _read(readline: lines.Read, label: str, faults: Faults) -> list[int]:
    found = []
    try:
        for number, raw in lines.numbered(readline):
            line = lines.text(number, raw)
            text = "" if isinstance(line, Fault) else line.strip()
            if isinstance(line, Fault):
                faults.add(Problem(f"{label}:{number}", "", line.message, line.suggestion))
            elif text.isascii() and text.isdecimal() and len(text) < 10 and 0 < int(text) <= MOST_TOKENS:
                found.append(int(text))
            elif text:
                faults.add(Problem(f"{label}:{number}", "", "is no length in tokens", _A_NUMBER))
    except Unreadable as exc:
        place = f"{label}:{exc.fault.place}" if exc.fault.place else label
        faults.add(Problem(place, "", exc.fault.message, exc.fault.suggestion))
    return found
