"""Dispatch within a point: every prompt ends exactly once, whatever fails and whenever the run is cut."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.schedule import BatchPlan, Queue

POINT = "0123456789abcdef"


def ids(count: int) -> tuple[str, ...]:
    return tuple(f"p{n}" for n in range(count))


def run(queue: Queue, bad: Iterable[str] = (), stop_after: int | None = None) -> tuple[list[BatchPlan], list[str], int]:
    """Batches that succeeded, poisoned prompts and the number of failures; a batch fails if it holds a bad prompt."""
    good: list[BatchPlan] = []
    poisoned: list[str] = []
    failures = 0
    while (batch := queue.next_batch()) is not None:
        if set(batch.prompt_ids) & set(bad):
            failures += 1
            poisoned += queue.failed(batch.batch_id)
        else:
            good.append(batch)
            queue.done(batch.batch_id)
        if stop_after is not None and len(good) + failures >= stop_after:
            break
    return good, poisoned, failures


def prompts_of(batches: Iterable[BatchPlan]) -> list[str]:
    return [p for b in batches for p in b.prompt_ids]


def test_chunks_in_order() -> None:
    good, poisoned, failures = run(Queue(POINT, ids(5), 2))
    assert [(b.batch_id, b.prompt_ids, b.split) for b in good] == [
        ("01234567-0", ("p0", "p1"), False),
        ("01234567-1", ("p2", "p3"), False),
        ("01234567-2", ("p4",), False),
    ]
    assert (poisoned, failures) == ([], 0)


def test_a_failed_batch_comes_back_as_halves_at_the_front() -> None:
    queue = Queue(POINT, ids(8), 4)
    first = queue.next_batch()
    assert first is not None
    assert queue.failed(first.batch_id) == ()
    good, poisoned, failures = run(queue, bad=["p3"])
    assert [b.batch_id[9:] for b in good] == ["0.0", "0.1.0", "1"]
    assert [b.split for b in good] == [True, True, False]
    assert (poisoned, failures) == (["p3"], 3)


def test_finished_means_nothing_waits_and_nothing_is_out() -> None:
    queue = Queue(POINT, ids(2), 2)
    batch = queue.next_batch()
    assert batch is not None
    assert queue.next_batch() is None
    assert not queue.finished
    assert queue.planned(batch.batch_id) is batch
    queue.done(batch.batch_id)
    assert queue.finished


def test_a_batch_that_is_not_out_is_a_fault_of_the_caller() -> None:
    queue = Queue(POINT, ids(2), 2)
    batch = queue.next_batch()
    assert batch is not None
    queue.done(batch.batch_id)
    for act in (queue.done, queue.failed, queue.planned):
        with pytest.raises(KeyError):
            act(batch.batch_id)


def test_resume_keeps_the_chunks_of_the_unbroken_run() -> None:
    queue = Queue(POINT, ids(6), 3, done={"p0", "p1", "p2", "p4"})
    good, _, _ = run(queue)
    assert [(b.batch_id[9:], b.prompt_ids, b.split) for b in good] == [("1", ("p3", "p5"), True)]


def test_nothing_left_means_no_warm_up_either() -> None:
    queue = Queue(POINT, ids(3), 3, done=ids(3))
    assert (queue.warmup_batch(), queue.next_batch(), queue.finished) == (None, None, True)


def test_warm_ups_are_the_first_chunk_whatever_is_committed() -> None:
    queue = Queue(POINT, ids(4), 2, done={"p0", "p1"})
    batches = [queue.warmup_batch(), queue.warmup_batch()]
    assert [b and (b.batch_id[9:], b.prompt_ids, b.warmup) for b in batches] == [
        ("w0", ("p0", "p1"), True),
        ("w1", ("p0", "p1"), True),
    ]
    assert prompts_of(run(queue)[0]) == ["p2", "p3"]


def test_a_warm_up_avoids_prompts_that_were_part_of_a_failure() -> None:
    queue = Queue(POINT, ids(4), 2)
    first = queue.next_batch()
    assert first is not None
    queue.failed(first.batch_id)
    left = queue.next_batch()
    assert left is not None
    queue.done(left.batch_id)  # p0 is cleared, p1 is not
    warm = queue.warmup_batch()
    assert warm is not None
    assert warm.prompt_ids == ("p0",)
    assert queue.failed(warm.batch_id) == ()
    again = queue.warmup_batch()
    assert again is not None
    assert again.prompt_ids == ("p1",)  # nothing else is clean: what waits


sizes = st.integers(1, 40)


@st.composite
def lists_with_bad(draw: st.DrawFn) -> tuple[tuple[str, ...], frozenset[str]]:
    prompts = ids(draw(sizes))
    return prompts, frozenset(draw(st.lists(st.sampled_from(prompts), max_size=8)))


@given(lists_with_bad(), sizes)
def test_every_prompt_ends_exactly_once_and_in_order(case: tuple[tuple[str, ...], frozenset[str]], size: int) -> None:
    prompts, bad = case
    good, poisoned, _ = run(Queue(POINT, prompts, size), bad)
    assert prompts_of(good) == [p for p in prompts if p not in bad]
    assert poisoned == [p for p in prompts if p in bad]
    assert all(1 <= len(b.prompt_ids) <= size for b in good)
    assert len({b.batch_id for b in good}) == len(good)


@given(sizes.flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_one_bad_prompt_is_found_in_few_failures(case: tuple[int, int]) -> None:
    count, bad = case
    _, poisoned, failures = run(Queue(POINT, ids(count), count), [f"p{bad}"])
    assert poisoned == [f"p{bad}"]
    assert failures <= math.ceil(math.log2(count)) + 2, "alone, it gets a second chance"


@given(st.data(), sizes, sizes)
def test_any_pattern_of_failures_ends(data: st.DataObject, count: int, size: int) -> None:
    """A crash need not be the prompts' fault: whatever fails, each prompt still ends once."""
    queue, ended = Queue(POINT, ids(count), size), list[str]()
    while (batch := queue.next_batch()) is not None:
        if data.draw(st.booleans()):
            ended += queue.failed(batch.batch_id)
        else:
            ended += batch.prompt_ids
            queue.done(batch.batch_id)
    assert ended == list(ids(count))
    assert queue.finished


@given(lists_with_bad(), sizes, st.lists(st.integers(1, 6), max_size=6))
def test_a_run_cut_anywhere_and_resumed_ends_like_an_unbroken_one(
    case: tuple[tuple[str, ...], frozenset[str]], size: int, cuts: list[int]
) -> None:
    prompts, bad = case
    committed: list[str] = []
    for cut in [*cuts, None]:
        good, poisoned, _ = run(Queue(POINT, prompts, size, set(committed)), bad, stop_after=cut)
        for batch in good:
            chunks = {prompts.index(p) // size for p in batch.prompt_ids}
            assert len(chunks) == 1
            assert batch.split == (len(batch.prompt_ids) < min(size, len(prompts) - chunks.pop() * size))
        committed += [*prompts_of(good), *poisoned]
    assert sorted(committed) == sorted(prompts)
