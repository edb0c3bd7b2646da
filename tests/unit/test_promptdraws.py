"""Random prompts: exact lengths, the same ids on every machine, and shared beginnings."""

from __future__ import annotations

import hashlib
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.definition.inputs import SCRIPTED, PromptSet
from orchestrator.definition.promptuse import Lengths, LogNormal, Normal
from orchestrator.errors import InputError
from orchestrator.launcher import Launcher
from orchestrator.readers import draws
from orchestrator.readers.draws import Segment
from orchestrator.stores.prompts import provisional, read, tokenise
from protocol.specs import unpack_ids
from tests.unit.promptfiles import source_of
from workers.tools.vocabulary import ordinary


def made(folder: Path, **options: Any) -> PromptSet:
    source = source_of(**options)
    return tokenise(read(source, folder), SCRIPTED, source, None, Launcher(), home=folder)


def ids(prompts: PromptSet) -> list[list[int]]:
    return [unpack_ids(one.token_ids) for one in prompts.prompts]


def test_lengths_are_exact_and_ids_ordinary(tmp_path: Path) -> None:
    found = made(tmp_path, random={"count": 5, "input_tokens": 100})
    assert [len(one) for one in ids(found)] == [100] * 5
    assert all(32 <= i < 127 for one in ids(found) for i in one)
    assert len({one.digest for one in found.prompts}) == 5
    assert found.notes == ("prompts: 5 random ones, seed 0, of 100 tokens, 100.0 in the mean",)
    assert (found.templated, found.prompts[0].source) == (False, {"random_tokens": 100})


def test_ids_are_the_same_on_any_machine() -> None:
    packed = draws.ids([Segment("0/prompt/0", 1000)], range(50_000))
    assert hashlib.sha256(packed).hexdigest()[:16] == "4752325a9f0827a9"
    lengths, _ = draws.lengths(Lengths(normal=Normal(100.0, 30.0)), 6, "0/lengths")
    assert lengths == [86, 112, 161, 74, 99, 103]
    assert draws.shuffled(6, "0/order") == [1, 4, 2, 0, 3, 5]


def test_another_seed_gives_other_prompts_and_more_of_them_the_same_ones(tmp_path: Path) -> None:
    few = ids(made(tmp_path, random={"count": 3, "input_tokens": {"uniform": [5, 50]}}))
    more = ids(made(tmp_path, random={"count": 6, "input_tokens": {"uniform": [5, 50]}}))
    other = ids(made(tmp_path, random={"count": 3, "input_tokens": {"uniform": [5, 50]}, "seed": 1}))
    assert more[:3] == few
    assert other != few


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 2**63 - 1))
def test_uniform_lengths_lie_between_their_bounds(low: int, more: int, seed: int) -> None:
    found, cut = draws.lengths(Lengths(uniform=(low, low + more)), 40, str(seed))
    assert all(low <= one <= low + more for one in found)
    assert cut == 0


def test_distributions_have_the_shape_they_are_asked_for() -> None:
    count = 4000
    uniform, _ = draws.lengths(Lengths(uniform=(1, 9)), count, "u")
    assert set(uniform) == set(range(1, 10))
    normal, cut = draws.lengths(Lengths(normal=Normal(500.0, 100.0)), count, "n")
    assert statistics.fmean(normal) == pytest.approx(500, abs=10)
    assert statistics.stdev(normal) == pytest.approx(100, rel=0.05)
    assert cut == 0
    skewed, _ = draws.lengths(Lengths(lognormal=LogNormal(200.0, 0.5)), count, "l")
    assert statistics.median(skewed) == pytest.approx(200, rel=0.05)
    assert statistics.fmean(skewed) > 210


def test_lengths_outside_of_their_bounds_are_cut_and_counted(tmp_path: Path) -> None:
    lengths = {"normal": {"mean": 20, "stddev": 200}, "min": 5, "max": 30}
    found = made(tmp_path, random={"count": 50, "input_tokens": lengths})
    assert {min(map(len, ids(found))), max(map(len, ids(found)))} == {5, 30}
    assert found.notes[1].endswith("lengths cut to the bounds of the distribution")


def test_lengths_of_a_file_are_taken_in_order(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_bytes(b"\xef\xbb\xbf7\r\n\r\n3\n11")
    assert [len(one) for one in ids(made(tmp_path, random={"input_tokens": {"file": "l.txt"}}))] == [7, 3, 11]
    assert [len(one) for one in ids(made(tmp_path, random={"count": 2, "input_tokens": {"file": "l.txt"}}))] == [7, 3]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"7\n0\n-1\n1.5\n\xb2\n" + b"9" * 40, [f"l.txt:{n}: is no length in tokens" for n in (2, 3, 4, 6)]),
        (b"\n", ["l.txt: holds no length"]),
        ("7".encode("utf-16"), ["l.txt: is UTF-16"]),
        (b"7\n", ["s.yaml:4: prompts.random.input_tokens: l.txt has 1 length, and 2 are needed"]),
    ],
)
def test_what_is_wrong_with_a_file_of_lengths_has_its_line(tmp_path: Path, data: bytes, says: list[str]) -> None:
    (tmp_path / "l.txt").write_bytes(data)
    with pytest.raises(InputError) as caught:
        made(tmp_path, random={"count": 2, "input_tokens": {"file": "l.txt"}})
    found = [str(one) for one in caught.value.problems]
    assert all(any(line.startswith(start) for line in found) for start in says), found


def test_a_missing_file_of_lengths_is_told_where_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"s.yaml:4: prompts.random.input_tokens.file: gone, that is .* can't be read"):
        made(tmp_path, random={"input_tokens": {"file": "gone"}})


SHARED: dict[str, Any] = {
    "groups": 3,
    "prompts_per_group": 4,
    "system_tokens": 40,
    "question_tokens": {"uniform": [2, 9]},
}


def test_those_of_a_group_begin_with_the_same_tokens(tmp_path: Path) -> None:
    found = made(tmp_path, shared_prefix=SHARED)
    assert len(found.prompts) == 12
    by_group: dict[int, set[tuple[int, ...]]] = {}
    for one, tokens in zip(found.prompts, ids(found), strict=True):
        by_group.setdefault(one.source["group"], set()).add(tuple(tokens[:40]))
        assert one.source["random_tokens"] == len(tokens)
        assert 42 <= len(tokens) <= 49
    assert {group: len(prefixes) for group, prefixes in by_group.items()} == {0: 1, 1: 1, 2: 1}
    assert len(set().union(*by_group.values())) == 3
    assert found.notes[0].endswith("after 40 tokens that 3 groups share")


def test_the_order_of_groups_is_shuffled_unless_told(tmp_path: Path) -> None:
    shuffled = made(tmp_path, shared_prefix=SHARED)
    grouped = made(tmp_path, shared_prefix={**SHARED, "order": "grouped"})
    names = [one.id for one in grouped.prompts]
    assert names == sorted(names)
    assert [one.id for one in shuffled.prompts] != names
    assert {one.id: one.digest for one in shuffled.prompts} == {one.id: one.digest for one in grouped.prompts}


def test_before_there_is_a_vocabulary_lengths_are_known_in_words(tmp_path: Path) -> None:
    source = source_of(random={"count": 2, "input_tokens": 9})
    found = provisional(read(source, tmp_path), source)
    assert not found.tokenised
    assert found.notes == ("prompts: 2 random ones, seed 0, of 9 tokens, 9.0 in the mean",)
    other = source_of(random={"count": 2, "input_tokens": 9, "seed": 1})
    assert provisional(read(other, tmp_path), other).digest != found.digest


def test_no_more_tokens_are_made_than_a_machine_holds(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"s.yaml:4: prompts.random: comes to 10000000000 tokens"):
        made(tmp_path, random={"count": 1000, "input_tokens": 10_000_000})


class Tokenizer:
    all_special_ids = (0, 2)

    @property
    def added_tokens_decoder(self) -> dict[int, str]:
        return {2: "<s>", 7: "<tool>"}

    def get_vocab(self) -> dict[str, int]:
        return {"a": 3, "<s>": 2, "<pad>": 0, "b": 1, "<tool>": 7, "far": 9, "same as b": 1}


def test_the_vocabulary_is_what_stands_for_text() -> None:
    assert ordinary(Tokenizer(), None) == [1, 3, 9]
    assert ordinary(Tokenizer(), 9) == [1, 3]
