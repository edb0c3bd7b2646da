"""Prompts given as token ids: they reach the engines as they are, or are refused with their line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.definition.inputs import SCRIPTED
from orchestrator.definition.promptuse import PromptSource
from orchestrator.errors import InputError
from orchestrator.launcher import Launcher
from orchestrator.stores.promptfaults import ALIKE, KINDS
from orchestrator.stores.prompts import read, tokenise
from protocol.specs import unpack_ids
from workers.tools.tokenize import tokenise as in_tool


class Sized:
    """A tokenizer that must not be asked for anything but how much it knows."""

    chat_template = "a template"

    def __len__(self) -> int:
        return 50

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not text
        assert not add_special_tokens
        return {"input_ids": []}


IDS = st.lists(st.integers(0, 254), min_size=1, max_size=20)


@given(IDS, IDS)
def test_they_are_what_the_scripted_model_gets(ids: list[int], scored: list[int]) -> None:
    source = PromptSource(None, ({"prompt": ids, "continuation": scored},), "on")
    found = tokenise(read(source, Path()), SCRIPTED, source, None, Launcher(), home=Path())
    (one,) = found.prompts
    assert (unpack_ids(one.token_ids), unpack_ids(one.continuation)) == (ids, scored)
    assert one.source == {"prompt": ids, "continuation": scored}


def test_no_template_and_no_special_token_is_put_round_them() -> None:
    found = in_tool(Sized(), "on", [{"prompt": [3, 4], "continuation": [5]}, {"prompt": [50]}])
    assert found["ids"][0] == "AwAAAAQAAAA="
    assert found["continuations"][0] == "BQAAAA=="
    assert found["problems"] == [(1, "token id 50 is none of the model's 50")]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"prompt": []}', "prompt: is empty"),
        ('{"prompt": [1, -1]}', "prompt: is a list, not text; a list holds token ids, and [1] is none"),
        ('{"prompt": [true]}', "prompt: is a list, not text; a list holds token ids, and [0] is none"),
        ('{"prompt": [1.0]}', "prompt: is a list, not text; a list holds token ids, and [0] is none"),
        ('{"prompt": [4294967296]}', "prompt: is a list, not text; a list holds token ids, and [0] is none"),
        ('{"prompt": [[1]]}', "prompt: is a list, not text; a list holds token ids, and [0] is none"),
        ('{"prompt": [1], "images": ["a.png"]}', "images: can't stand beside token ids"),
        ('{"prompt": "a", "continuation": ["b"]}', "continuation: is a list, not text; a list holds token ids"),
    ],
)
def test_what_is_no_list_of_ids_is_refused_with_its_line(line: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(line)
    with pytest.raises(InputError) as caught:
        read(PromptSource("p.jsonl", None), tmp_path)
    assert str(caught.value.problems[0]).startswith(f"p.jsonl:1: {told}")


def test_an_id_the_scripted_model_does_not_know_is_refused() -> None:
    source = PromptSource(None, ({"prompt": [255]},))
    with pytest.raises(InputError, match="token id 255 is none of the model's 255"):
        tokenise(read(source, Path()), SCRIPTED, source, None, Launcher(), home=Path())


@pytest.mark.parametrize("named", [True, False])
def test_what_most_prompts_have_wrong_once_they_are_tokens_is_told_of_a_few(named: bool) -> None:
    names = ["".join(chr(ord("a") + int(digit)) for digit in str(n)) for n in range(2000)]
    source = PromptSource(None, tuple({"prompt": [255], **({"id": name} if named else {})} for name in names))
    with pytest.raises(InputError) as caught:
        tokenise(read(source, Path()), SCRIPTED, source, None, Launcher(), home=Path())
    problems = [str(one) for one in caught.value.problems]
    assert len(problems) <= KINDS + ALIKE + 1
    assert any(f"the last of {2000 - len(problems) + 1} more" in one for one in problems)
