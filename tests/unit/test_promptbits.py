"""Sets of prompt ids that take a bit each: the same as sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.record.promptbits import Numbers, PromptBits

names = st.sampled_from([f"p{n}" for n in range(40)])
#: To which of three points, what, and which prompts.
steps = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["mark", "discard", "close"]), st.lists(names)))


@given(steps)
def test_points_share_bits_and_never_prompts(taken: list[tuple[int, str, list[str]]]) -> None:
    numbers = Numbers()
    points, expected = [PromptBits(numbers) for _ in range(3)], [set[str]() for _ in range(3)]
    for at, step, prompts in taken:
        if step == "mark":
            known = list(expected[at])
            before = [p for n, p in enumerate(prompts) if p in known or p in prompts[:n]]
            assert points[at].mark(prompts) == before
            expected[at].update(prompts)
        elif step == "discard":
            for prompt in prompts:
                points[at].discard(prompt)
                expected[at].discard(prompt)
        else:
            points[at].close()
        assert list(map(set, points)) == expected
        assert list(map(len, points)) == list(map(len, expected))
        assert all(("p39" in one) == ("p39" in other) for one, other in zip(points, expected, strict=True))


def test_what_sets_do() -> None:
    bits = PromptBits(Numbers())
    bits.mark(["a", "b"])
    assert {"a", "c"} - bits == {"c"}
    assert bits & {"a", "c"} == {"a"}
    assert {"a"} < bits
    assert (None in bits, "c" in bits, repr(PromptBits(Numbers()))) == (False, False, "set()")


def test_points_that_ended_alike_have_one_set_of_bits() -> None:
    numbers = Numbers()
    points = [PromptBits(numbers) for _ in range(100)]
    for point in points:
        point.mark(f"p{n}" for n in range(1000))
        point.close()
    assert len({id(point._bits) for point in points}) == 1
    assert len(numbers.shared) == 1
