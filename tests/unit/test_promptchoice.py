"""Which prompts of a file are taken: filters by characters and tokens, samples by a seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.definition.promptuse import Sample
from orchestrator.errors import InputError
from orchestrator.readers.choice import Draw, Drawn
from orchestrator.stores.prompts import provisional, read
from tests.unit.promptfiles import gathered, json_lines, refusals, said, source_of, tokenised

MANY = [{"prompt": f"number {n} " + "x" * (n % 7)} for n in range(60)]


def test_prompts_are_filtered_by_characters_while_they_are_read(tmp_path: Path) -> None:
    data = json_lines(
        {"prompt": "four"}, {"prompt": "seven77"}, {"messages": [{"role": "user", "content": "eight888"}]}
    )
    found = gathered(tmp_path, "p.jsonl", data, filter={"min_chars": 5, "max_chars": 7})
    assert [one.id for one in found.prompts] == ["1"]
    assert found.tally.notes() == (
        "prompts: 3 read; left out: 1 that have fewer than 5 characters, 1 that have more than 7 characters",
    )


def test_prompts_are_filtered_by_tokens_once_they_are_tokens(tmp_path: Path) -> None:
    found = tokenised(tmp_path, "p.jsonl", json_lines(*MANY), filter={"min_prompt_tokens": 10, "max_prompt_tokens": 11})
    assert {len(one.token_ids) // 4 for one in found.prompts} == {10, 11}
    (note,) = found.notes
    assert note.startswith("prompts: 60 read; left out: ")
    with pytest.raises(
        InputError, match="there is not a single prompt: left out are 60 that have fewer than 900 tokens"
    ):
        tokenised(tmp_path, "p.jsonl", json_lines(*MANY), filter={"min_prompt_tokens": 900})


def test_a_sample_is_the_same_whatever_the_order_and_kept_in_the_order_of_the_file(tmp_path: Path) -> None:
    asked = {"sample": {"count": 9, "seed": 4}}
    forth = [one.text for one in gathered(tmp_path, "p.jsonl", json_lines(*MANY), **asked).prompts]
    back = [one.text for one in gathered(tmp_path, "p.jsonl", json_lines(*reversed(MANY)), **asked).prompts]
    assert forth == list(reversed(back))
    assert forth == [one["prompt"] for one in MANY if one["prompt"] in forth]
    other = gathered(tmp_path, "p.jsonl", json_lines(*MANY), sample={"count": 9, "seed": 5})
    assert {one.text for one in other.prompts} != set(forth)
    assert other.tally.notes() == ("prompts: 60 read; 9 of 60 drawn with seed 5",)


def test_a_sample_is_the_same_on_any_machine(tmp_path: Path) -> None:
    found = gathered(tmp_path, "p.jsonl", json_lines(*MANY), sample={"count": 3, "seed": 0})
    assert [one.id for one in found.prompts] == ["0", "11", "50"]


def test_one_more_prompt_takes_the_place_of_one_at_most(tmp_path: Path) -> None:
    asked = {"sample": {"count": 20}}
    before = {one.text for one in gathered(tmp_path, "p.jsonl", json_lines(*MANY), **asked).prompts}
    for text in ("another", MANY[0]["prompt"], "more"):
        after = {
            one.text for one in gathered(tmp_path, "p.jsonl", json_lines({"prompt": text}, *MANY), **asked).prompts
        }
        assert len(before - after) <= 1


def test_filters_come_before_samples_by_characters_and_by_tokens_alike(tmp_path: Path) -> None:
    data, sample = json_lines(*MANY), {"count": 8, "seed": 1}
    by_tokens = tokenised(tmp_path, "p.jsonl", data, filter={"max_prompt_tokens": 12}, sample=sample)
    by_characters = tokenised(tmp_path, "p.jsonl", data, filter={"max_chars": 12}, sample=sample)
    assert [one.id for one in by_tokens.prompts] == [one.id for one in by_characters.prompts]
    assert by_tokens.digest == by_characters.digest
    assert "8 of 60 drawn with seed 1, of which " in by_tokens.notes[0]
    stand_in = provisional(
        gathered(tmp_path, "p.jsonl", data, filter={"max_prompt_tokens": 12}, sample=sample), FILTERED
    )
    assert len(stand_in.prompts) == 8
    assert "known once they are tokenised" in stand_in.notes[-1]


FILTERED = source_of(file="p.jsonl", filter={"max_prompt_tokens": 12}, sample={"count": 8, "seed": 1})


@pytest.mark.parametrize("filters", [{"max_chars": 12}, {"max_prompt_tokens": 12}])
def test_a_sample_of_more_than_there_are_is_refused(tmp_path: Path, filters: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"s.yaml:4: prompts.sample.count: is 55, and 28 prompts are left \(write 28"):
        tokenised(tmp_path, "p.jsonl", json_lines(*MANY), filter=filters, sample={"count": 55})


def test_the_same_prompt_twice_is_drawn_twice() -> None:
    places = [draw.place(["x"]) for draw in [Draw(0)] for _ in range(3)]
    assert len(set(places)) == 3
    assert places == [draw.place(["x"]) for draw in [Draw(0)] for _ in range(3)]


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=30), st.integers(1, 10))
def test_those_drawn_first_are_kept(places: list[bytes], count: int) -> None:
    drawn: Drawn[int] = Drawn(Sample(count=count))
    for number, place in enumerate(places):
        drawn.offer(place, number)
    assert drawn.kept() == sorted(sorted(range(len(places)), key=lambda n: (places[n], n))[:count])


def test_a_changed_option_is_a_changed_plan_only_if_prompts_change(tmp_path: Path) -> None:
    data = json_lines(*MANY[:5])
    plain = tokenised(tmp_path, "p.jsonl", data)
    same = tokenised(tmp_path, "p.jsonl", data, filter={"max_chars": 100}, sample={"count": 5}, format="jsonl")
    assert plain.digest == same.digest
    assert plain.notes == ()
    assert tokenised(tmp_path, "p.jsonl", data, sample={"count": 4}).digest != plain.digest


def test_a_split_belongs_to_a_dataset_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    assert "belongs to the folder of a saved dataset" in refusals(tmp_path, "p.jsonl", "", split="test")[0]
    with pytest.raises(InputError, match="is no regular file"):
        read(source_of(file="/dev/null", format="txt"), tmp_path)
    assert said(tmp_path, "p.data", "one\n", format="txt") == [{"id": "0", "prompt": "one"}]
    assert (
        said(tmp_path, "q.data", json_lines({"question": "?", "answer": "#### 1"}), format="gsm8k")[0]["expected"] == 1
    )
