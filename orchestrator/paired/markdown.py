"""A comparison of runs as Markdown for a pull request: the verdict in one line, what changed, and the rest folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from orchestrator.paired.changes import WITHIN
from orchestrator.paired.pair import SIDES, Pair, Turn
from orchestrator.paired.review import Judged, Review
from orchestrator.paired.unpaired import unlike_text
from orchestrator.view.marks import MARK
from orchestrator.view.markup import cell, grid
from orchestrator.view.results import label
from orchestrator.view.teardown import moment
from orchestrator.view.unrest import WARNING
from orchestrator.view.wording import UNKNOWN, count_text, counted, first_line, listed, or_unknown, percent_text

RULE: Final = """\
A change is named if a test tells it apart from none, for all comparisons together (Holm), and its estimate is past the
threshold; it is unchanged if its whole interval is within the threshold. Intervals over starts of workers hold what
differs from one start to the next in these runs (a cell measured once more for drift is one of them), not what may
differ between days and machines."""
#: What whoever has but one start of each can do.
ADVICE: Final = """\
Repeats or batches that shared a worker tell nothing of another run: two equal runs may well differ by more. To tell two
runs apart give both of them `repeats: 3` or better 5 with `measurement: {order: interleaved}`, a worker for each.
Two starts of each, by two repeats or `drift: true`, are the very least."""
#: Named in the first line, and with each reason.
_NAMED: Final = 3
_CAUSE: Final = 120
_HEAD: Final = ("cell", "figure", *SIDES, "change", "interval", "over", "verdict")


def markdown(found: Sequence[Review]) -> Iterator[str]:
    for number, one in enumerate(found):
        if number:
            yield from ("", "---", "")
        yield from _review(one)


def _review(one: Review) -> Iterator[str]:
    yield _headline(one)
    yield ""
    for side in one.found.sides:
        yield f"- {side.name}: {cell(side.path)}, began {or_unknown(side.began_at, moment)}"
    if one.found.models:
        yield f"- the models differ ({cell(', '.join(one.found.models))}): so figures may, whatever else changed"
    if one.found.machine:
        yield f"- the machines differ ({cell(', '.join(one.found.machine))}): that may be why figures changed"
    yield ""
    if named := [line for word in ("regressed", "improved") for line in _lines(one, word)]:
        yield from grid(_HEAD, named)
        yield ""
        yield from _disturbed(one)
    yield from _untold(one)
    yield from _folded(f"All comparisons ({_total(one)})", _all(one))
    yield from _folded("Outputs, token id by token id", _outputs(one.found.pairs))
    yield from _folded(f"What differs between the runs ({len(one.found.differences)})", _differences(one))
    yield from _folded("Cells that are not compared", _unpaired(one))


def _disturbed(one: Review) -> Iterator[str]:
    """What else may be behind a regression."""
    worse = {judged.change.subject for judged in one.changes("regressed")}
    found = [line for pair in one.found.pairs if pair.label in worse for line in _warnings(pair)]
    yield from (f"- {cell(line)}" for line in found)
    if found:
        yield ""


def _total(one: Review) -> int:
    return len(one.judged) + len(one.found.turns)


def _headline(one: Review) -> str:
    past = f"past {percent_text(one.threshold)}"
    better, untold, total = one.count("improved"), one.count("can't tell"), _total(one)
    if bad := one.count("regressed"):
        text = f"**{counted(bad, 'regression')} {past}** in {counted(total, 'comparison')}: {cell(_names(one))}"
    elif not total:
        text = f"**Nothing to compare**: {_nothing(one)}"
    elif untold == total:
        text = f"**Can't tell** whether anything is worse {past}: {counted(total, 'comparison')} without an answer"
    else:
        text = f"**No regression {past}** in {counted(total - untold, 'comparison')}"
    apart = f"{counted(len(one.found.apart), 'cell')} not compared, as settings differ"
    parts = [
        f"{better} improved" if better else "",
        f"{untold} more can't be told" if 0 < untold < total else "",
        f"{counted(len(one.found.missing), 'cell')} of A missing in B" if one.found.missing else "",
        apart if total and one.found.apart else "",
        "exit code 0 all the same: --strict makes it 1" if one.passed else "",
    ]
    return "; ".join((text, *filter(None, parts))) + "."


def _nothing(one: Review) -> str:
    """Why there is no comparison at all."""
    if one.found.pairs:
        return "neither run tells any of these figures"
    if not one.found.apart:
        return "the runs have no cell in common"
    differing = dict.fromkeys(unlike_text(why) for _, why in one.found.apart)
    return cell(f"{counted(len(one.found.apart), 'cell')} in both, but {listed(list(differing), _NAMED)}")


def _names(one: Review) -> str:
    turns = [f"{turn.subject} {turn.what} {turn.after}" for turn in one.turns("regressed")]
    changes = [judged.change for judged in sorted(one.changes("regressed"), key=_size)]
    named = [f"{one.subject} {one.metric.title} {or_unknown(one.size, one.text)}" for one in changes]
    return listed([*turns, *named], _NAMED)


def _size(one: Judged) -> float:
    return -abs(one.change.size or 0.0)


def _lines(one: Review, word: str) -> Iterator[list[str]]:
    yield from (_turn(turn) for turn in one.found.turns if turn.word == word)
    yield from (_change(judged) for judged in one.judged if judged.verdict.word == word)


def _turn(turn: Turn) -> list[str]:
    why = f": {first_line(turn.why, _CAUSE)}" if turn.why else ""
    return [turn.subject, turn.what, turn.before, turn.after, UNKNOWN, UNKNOWN, UNKNOWN, f"{turn.word}{why}"]


def _change(judged: Judged) -> list[str]:
    one, verdict = judged.change, judged.verdict
    span = or_unknown(one.span, lambda found: f"{one.text(found.low)} to {one.text(found.high)}")
    return [
        one.subject,
        one.metric.title,
        *(or_unknown(value, one.metric.text) for value in (one.before, one.after)),
        or_unknown(one.size, one.text),
        span,
        one.unit_text if one.span else UNKNOWN,
        verdict.text,
    ]


def _untold(one: Review) -> Iterator[str]:
    """Each reason with whom it is about."""
    reasons: dict[str, list[str]] = {}
    starts: dict[str, int] = {}
    for judged in one.changes("can't tell"):
        why = judged.verdict.why
        reasons.setdefault(why, []).append(f"{judged.change.subject} {judged.change.metric.title}")
        starts[why] = max(starts.get(why, 0), judged.verdict.starts or 0)
    for turn in one.turns("can't tell"):
        reasons.setdefault(turn.why, []).append(f"{turn.subject} {turn.what}")
    if reasons:
        yield "What can't be told:"
        yield ""
        for why, whom in reasons.items():
            advice = f"; about {starts[why]} starts on each side would tell" if starts.get(why) else ""
            yield f"- {cell(why)}: {cell(listed(whom, _NAMED))}{advice}"
        yield ""
    if WITHIN in reasons:
        yield ADVICE
        yield ""


def _all(one: Review) -> Iterator[str]:
    if _total(one):
        yield from grid(_HEAD, [*map(_turn, one.found.turns), *map(_change, one.judged)])
        yield from ("", RULE, "")
    yield from (f"- {cell(line)}" for pair in one.found.pairs for line in _doubts(pair))


def _doubts(pair: Pair) -> Iterator[str]:
    for side, row in zip(SIDES, (pair.before, pair.after), strict=True):
        if row.marks:
            yield f"{MARK} {label(row)}, {side}: not to be compared as it is: {'; '.join(row.marks)}"
        if row.outcome != "ok":
            yield f"{label(row)}, {side}: {row.outcome_text}"
    yield from _warnings(pair)


def _warnings(pair: Pair) -> Iterator[str]:
    for side, row in zip(SIDES, (pair.before, pair.after), strict=True):
        if row.warnings:
            yield f"{WARNING} {label(row)}, {side}: {'; '.join(row.warnings)}"


def _outputs(pairs: Sequence[Pair]) -> Iterator[str]:
    yield from grid(["cell", "outputs", "the same", "given other token ids", ""], map(_sameness, pairs))


def _sameness(pair: Pair) -> list[object]:
    found = pair.outputs
    sampled = "sampled" if pair.before.config.temperature > 0 else ""
    share = or_unknown(found.share, percent_text)
    same = f"{count_text(found.same)} ({share})" if found.compared else UNKNOWN
    return [pair.label, found.compared, same, found.other, found.reason or sampled]


def _differences(one: Review) -> Iterator[str]:
    if one.found.differences:
        yield from grid(["what", *SIDES], one.found.differences)
    else:
        yield "Nothing that is recorded."


def _unpaired(one: Review) -> Iterator[str]:
    for name, why in one.found.apart:
        yield f"- {cell(name)}: in both, but not compared: {cell(unlike_text(why))}"
    yield from (f"- {cell(name)} is in {side.name} only" for name, side in one.found.only)


def _folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Nothing where there is nothing in it."""
    inside = list(lines)
    if any(inside):
        yield from ("<details>", f"<summary>{title}</summary>", "", *inside, "", "</details>", "")
