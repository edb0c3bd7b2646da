from __future__ import annotations

import base64
import hashlib
import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.config import parse
from orchestrator.definition.inputs import SCRIPTED, PromptSet
from orchestrator.definition.promptuse import ChatTemplate, PromptSource
from orchestrator.definition.sources import NOT_FILLED_IN
from orchestrator.errors import InputError
from orchestrator.launcher import Launcher
from orchestrator.stores import prompttokens
from orchestrator.stores.envstate import EngineEnv, Fingerprint
from orchestrator.stores.promptfaults import ALIKE, KINDS
from orchestrator.stores.prompts import Gathered, RawPrompt, as_line, provisional, read, tokenise
from protocol.specs import PromptInput, pack_ids, unpack_ids
from workers.tools.tokenize import TEMPLATE_DATE
from workers.tools.tokenize import tokenise as in_tool


def read_file(folder: Path, data: bytes, name: str = "p.jsonl") -> tuple[RawPrompt, ...]:
    (folder / name).write_bytes(data)
    return read(PromptSource(name, None), folder).prompts


def refused(folder: Path, data: bytes, name: str = "p.jsonl") -> list[str]:
    with pytest.raises(InputError) as caught:
        read_file(folder, data, name)
    return [str(problem) for problem in caught.value.problems]


def inline(*values: Any, chat_template: ChatTemplate = "auto") -> PromptSource:
    return PromptSource(None, values, chat_template)


# --- reading --------------------------------------------------------------------


def test_json_lines_keep_ids_and_foreign_fields(tmp_path: Path) -> None:
    prompts = read_file(
        tmp_path, b'{"prompt": "one", "id": "a", "topic": {"n": 1}}\n{"messages": [{"role": "user", "content": "x"}]}'
    )
    assert [p.id for p in prompts] == ["a", "1"]
    assert prompts[0].text == "one"
    assert prompts[0].source() == {"prompt": "one", "topic": {"n": 1}}
    assert prompts[1].messages == [{"role": "user", "content": "x"}]
    assert prompts[1].where == "p.jsonl:2"


def test_byte_order_mark_crlf_and_blank_lines_are_no_prompts(tmp_path: Path) -> None:
    prompts = read_file(tmp_path, b'\xef\xbb\xbf{"prompt": "one"}\r\n\r\n  \n{"prompt": "two"}\r\n')
    assert [(p.text, p.where) for p in prompts] == [("one", "p.jsonl:1"), ("two", "p.jsonl:4")]


def test_plain_text_is_a_prompt_a_line_and_only_lf_ends_it(tmp_path: Path) -> None:
    prompts = read_file(tmp_path, "one \u2028 still one\r\n\n two\n".encode(), "p.txt")
    assert [p.text for p in prompts] == ["one \u2028 still one", " two"]


def test_every_problem_of_every_line_is_listed(tmp_path: Path) -> None:
    lines = [
        b'{"prompt": "ok"}',
        b'{"prompt": "a", "messages": []}',
        b"{}",
        b'{"prompt": 3, "id": 1.5}',
        b'{"prompt": ""}',
        b'{"prompt": "a\\ud800b"}',
        b'{"prompt": "a\\u0000b"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": }',
        b'["prompt"]',
        b'{"prompt": "x", "score": NaN}',
        b'{"prompt": "x", "prompt": "y"}',
        b'{"messages": [{"role": "", "content": "x"}, {"role": "user"}, "x", '
        b'{"role": "user", "content": [{"type": "image"}]}]}',
        b'{"prompt": "x", "id": ""}',
        b'{"prompt": "x", "n": 36893488147419103232}',
        b'{"messages": "x"}',
        b'{"prompt": "x", "k\\ud800": 1}',
    ]
    problems = refused(tmp_path, b"\n".join(lines))
    by_line = {n: [p for p in problems if p.startswith(f"p.jsonl:{n}:")] for n in range(1, len(lines) + 1)}
    expected = {
        1: [],
        2: ["has both", "messages: is empty"],
        3: ["has neither"],
        4: ["id: is a number", "prompt: is a number"],
        5: ["prompt: is empty"],
        6: ["prompt has a lone surrogate (U+D800) at character 1"],
        7: ["prompt has a NUL at character 1"],
        8: ["is not UTF-8: byte 13"],
        9: ["is not valid JSON"],
        10: ["is a list"],
        11: ["NaN is not a JSON value"],
        12: ["'prompt' is given twice"],
        13: ["messages[0].role", "messages[1].content: is missing", "messages[2]: is text", "messages[3].content[0]"],
        14: ["id: is empty"],
        15: ["n is a number of more than 64 bits"],
        16: ["messages: is text"],
        17: ["lone surrogate"],
    }
    for n, parts in expected.items():
        assert len(by_line[n]) == len(parts), (n, by_line[n])
        assert all(any(part in problem for problem in by_line[n]) for part in parts), (n, by_line[n])


def test_the_same_id_twice_names_the_first_place(tmp_path: Path) -> None:
    problems = refused(tmp_path, b'{"prompt": "a", "id": 7}\n{"prompt": "b"}\n{"prompt": "c", "id": "7"}')
    assert problems == ["p.jsonl:3: id '7' is taken by p.jsonl:1"]


def test_a_prompt_without_id_never_takes_a_given_one(tmp_path: Path) -> None:
    prompts = read_file(
        tmp_path, b'{"prompt": "a"}\n{"prompt": "b", "id": "0"}\n{"prompt": "c", "id": "0.1"}\n{"prompt": "d"}'
    )
    ids = [p.id for p in prompts]
    assert ids[1:3] == ["0", "0.1"]
    assert ids[3] == "3"
    assert len(set(ids)) == 4


@pytest.mark.parametrize(
    ("data", "name", "part"),
    [
        (b"", "p.jsonl", "not a single prompt"),
        (b"\n\n", "p.txt", "not a single prompt"),
        (b"x", "p.doc", "ends in .doc"),
        ("x".encode("utf-16"), "p.txt", "UTF-16"),
        (b"[" * 200_000, "p.jsonl", "nested too deeply"),
    ],
)
def test_files_that_are_no_prompts(tmp_path: Path, data: bytes, name: str, part: str) -> None:
    assert part in refused(tmp_path, data, name)[0]


def test_a_missing_file_is_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(PromptSource("gone.jsonl", None), tmp_path)
    says = f"gone.jsonl: prompts: gone.jsonl, that is {tmp_path}/gone.jsonl, can't be read: No such file or directory"
    assert str(caught.value).startswith(says)


def test_a_path_that_begins_where_the_command_runs_is_told_as_it_must_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("data", "sweeps"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "p.txt").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    for written, hint in (
        ("data/p.txt", "a relative path begins at the sweep file's folder: write ../data/p.txt"),
        ("../data/q.txt", "did you mean p.txt?"),
        ("data/q.txt", f"there is no folder {tmp_path}/sweeps/data"),
        ("$DATA/q.txt", NOT_FILLED_IN),
        ("q.txt", "a relative path begins at the sweep file's folder"),
        (f"{tmp_path}/sweeps/q.txt", ""),
        (f"{'a' * 300}.txt", "a relative path begins at the sweep file's folder"),
    ):
        with pytest.raises(InputError) as caught:
            read(PromptSource(written, None), tmp_path / "sweeps")
        assert caught.value.problems[0].suggestion == hint


def test_what_most_lines_have_wrong_is_told_of_ten_and_the_last(tmp_path: Path) -> None:
    lines = b'{"x": "a"}\n' * 30 + b'{"prompt": ""}\n'
    found = refused(tmp_path, lines)
    assert found[:2] == [f"p.jsonl:{n}: has neither `prompt` nor `messages`, but x" for n in (1, 2)]
    assert found[9:] == [
        "p.jsonl:10: has neither `prompt` nor `messages`, but x",
        "p.jsonl:30: has neither `prompt` nor `messages`, but x; the last of 20 more like it",
        "p.jsonl:31: prompt: is empty",
    ]
    assert len(refused(tmp_path, b'{"text": "a"}\n' * 11)) == 11


def test_mistakes_of_which_no_two_are_alike_are_bounded_too(tmp_path: Path) -> None:
    names = ["".join(chr(ord("a") + int(digit)) for digit in str(n)) for n in range(3000)]
    found = refused(tmp_path, "\n".join(json.dumps({name: "it's"}) for name in names).encode())
    assert len(found) == KINDS + ALIKE + 1
    assert found[0].startswith("p.jsonl:1: has neither")
    assert found[-1].startswith("p.jsonl:3000: ")
    assert f"the last of {3000 - KINDS - ALIKE} more" in found[-1]


@pytest.mark.parametrize("line", [b"{'prompt': 'a'}", b'{"prompt": "a"},', b"{", b"plain text"])
def test_lines_that_are_no_json_get_an_example(tmp_path: Path, line: bytes) -> None:
    assert refused(tmp_path, line)[0].endswith('(each line is one object, like {"prompt": "hello"})')


def test_a_field_whose_name_is_nearly_one_of_ours_is_warned_of(tmp_path: Path) -> None:
    lines = b'{"prompt": "a", "image": "x.png", "topic": 1}\n{"prompt": "b", "continuaton": "c", "context": "d"}\n'
    found = tokenise(Gathered(read_file(tmp_path, lines)), SCRIPTED, inline("x"), None, Launcher(), home=tmp_path)
    assert found.warnings == (
        "prompt 0: nothing reads the field image, which is only kept: did you mean images?",
        "prompt 1: nothing reads the field continuaton, which is only kept: did you mean continuation?",
    )


def test_inline_prompts_are_checked_as_files_are(tmp_path: Path) -> None:
    assert [p.text for p in read(inline("a", {"prompt": "b", "id": "x"}), tmp_path).prompts] == ["a", "b"]
    with pytest.raises(InputError) as caught:
        read(inline("", 3, {"prompt": "a\0"}, {"prompt": "a", "x": float("nan")}), tmp_path)
    assert [p.key for p in caught.value.problems] == [f"prompts[{n}]{'.prompt' * (n == 0)}" for n in range(4)]


@given(st.lists(st.one_of(st.text(), st.dictionaries(st.text(), st.text() | st.none() | st.integers()))))
def test_whatever_is_given_is_read_or_refused(values: list[Any]) -> None:
    prompts: tuple[RawPrompt, ...] | None = None
    with suppress(InputError):
        prompts = read(inline(*values), Path("/")).prompts
    if prompts is not None:
        json.dumps([p.source() for p in prompts], ensure_ascii=False).encode()
        assert len({p.id for p in prompts}) == len(values)


# --- tokenising -----------------------------------------------------------------


def scripted(source: PromptSource) -> PromptSet:
    return tokenise(read(source, Path("/")), SCRIPTED, source, None, Launcher(), home=Path("/nowhere"))


def test_the_scripted_model_takes_utf8_bytes() -> None:
    found = scripted(inline("hé", {"messages": [{"role": "user", "content": "x"}], "id": "m"}))
    assert unpack_ids(found.prompts[0].token_ids) == list("hé".encode())
    assert bytes(unpack_ids(found.prompts[1].token_ids)) == b"user: x\nassistant: "
    assert not found.templated
    assert found.tokenised
    assert bytes(unpack_ids(scripted(inline("x", chat_template="on")).prompts[0].token_ids)).startswith(b"user: x")


def test_the_digest_is_over_ids_and_tokens_in_order() -> None:
    one = scripted(inline({"prompt": "a", "id": "x"}, {"prompt": "b", "id": "y"}))
    assert one.digest == scripted(inline({"prompt": "a", "id": "x", "note": 1}, {"prompt": "b", "id": "y"})).digest
    others = [
        inline({"prompt": "b", "id": "y"}, {"prompt": "a", "id": "x"}),
        inline({"prompt": "a", "id": "x"}, {"prompt": "b", "id": "z"}),
        inline({"prompt": "a", "id": "x"}, {"prompt": "c", "id": "y"}),
    ]
    assert len({one.digest, *(scripted(other).digest for other in others)}) == 4


def test_a_continuation_is_kept_apart_and_joined_for_scoring_alone() -> None:
    only = scripted(inline({"prompt": "ab", "continuation": " c"})).prompts[0]
    plain = scripted(inline("ab")).prompts[0]
    assert only.source == {"prompt": "ab", "continuation": " c"}
    assert (only.token_ids, only.digest) == (plain.token_ids, plain.digest)
    assert only.sent("generate") == plain.sent("generate") == PromptInput("0", pack_ids(b"ab"))
    assert only.sent("score") == PromptInput("0", pack_ids(b"ab c"), score_from=2)
    assert (only.sent_tokens("generate"), only.sent_tokens("score")) == (2, 4)
    sent = hashlib.sha256(pack_ids(b"ab c")).hexdigest()[:16]
    assert (only.sent_digest("generate"), only.sent_digest("score")) == (plain.digest, sent)
    assert as_line(only)["continuation_ids"] == list(b" c")
    assert "continuation_ids" not in as_line(plain)


def test_another_continuation_is_another_set_of_prompts() -> None:
    sets = [scripted(inline({"prompt": "a", **more})) for more in ({}, {"continuation": "b"}, {"continuation": "c"})]
    assert len({one.digest for one in sets}) == 3
    assert scripted(inline({"prompt": "a", "continuation": None})).digest == sets[0].digest


def test_a_continuation_is_text_and_not_empty(tmp_path: Path) -> None:
    lines = (
        b'{"prompt": "a", "continuation": 3}\n{"prompt": "a", "continuation": ""}\n{"prompt": "a", "continuation": "b"}'
    )
    assert refused(tmp_path, lines) == [
        "p.jsonl:1: continuation: is a number, not text",
        "p.jsonl:2: continuation: is empty",
    ]


def test_a_stand_in_says_that_it_is_one() -> None:
    found = provisional(read(inline("a"), Path("/")), inline("a"))
    assert not found.tokenised
    assert as_line(found.prompts[0]) == {
        "id": "0",
        "digest": found.prompts[0].digest,
        "token_ids": [],
        "source": {"prompt": "a"},
    }


class WordTokenizer:
    """A tokenizer with a begin-of-sequence token that both it and its template add; words are ids by length."""

    bos_token = "<s>"

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        ids = [1 if word == "<s>" else 10 + len(word) for word in text.replace("<s>", "<s> ").split()]
        return {"input_ids": [1, *ids] if add_special_tokens else ids}

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        if messages[0]["role"] == "system":
            raise ValueError("no system prompts here")
        text = "<s>" + " ".join(m["content"] for m in messages)
        today = options["strftime_now"]("%Y") if "strftime_now" in str(self.chat_template) else ""
        return f"{text} {today}" + (" assistant" if options["add_generation_prompt"] else "")


def tool_ids(tokenizer: WordTokenizer, setting: str, *prompts: dict[str, Any]) -> list[list[int]]:
    found = in_tool(tokenizer, setting, list(prompts))
    assert not found["problems"]
    return [unpack_ids(base64.b64decode(ids)) for ids in found["ids"]]


CHAT = {"messages": [{"role": "user", "content": "hey"}]}


def test_no_special_token_is_added_twice() -> None:
    both = WordTokenizer("template")
    assert tool_ids(both, "auto", {"prompt": "hey"}, CHAT) == [[1, 13, 19], [1, 13, 19]]
    assert tool_ids(both, "off", {"prompt": "hey"}, {"prompt": "<s>hey"}, CHAT) == [[1, 13], [1, 13], [1, 13, 19]]
    assert tool_ids(WordTokenizer(None), "auto", {"prompt": "hey"}) == [[1, 13]]


def test_an_unfinished_answer_is_continued() -> None:
    chat = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "Well"}]}
    assert tool_ids(WordTokenizer("template"), "auto", chat) == [[1, 13, 14]]


def test_a_continuation_gets_no_special_token_and_leaves_its_prompt_alone() -> None:
    tokenizer = WordTokenizer("template")
    for setting in ("auto", "off"):
        found = in_tool(tokenizer, setting, [{"prompt": "hey", "continuation": "you there"}, {"prompt": "hey"}])
        assert found["ids"][0] == found["ids"][1]
        assert [unpack_ids(base64.b64decode(ids)) for ids in found["continuations"]] == [[13, 15], []]


def test_a_continuation_of_no_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def tool(*_: Any, **__: Any) -> dict[str, Any]:
        return in_tool(WordTokenizer(None), "auto", [{"prompt": "hey", "continuation": " "}])

    monkeypatch.setattr(prompttokens, "run_tool", tool)
    source = inline({"prompt": "hey", "continuation": " "})
    model = replace(SCRIPTED, path="/models/m")
    env = EngineEnv("hf", "hf", "/python", Fingerprint.of("3.11", {}, ""), "user")
    with pytest.raises(InputError, match="continuation comes to no token at all"):
        tokenise(read(source, Path("/")), model, source, env, Launcher(), home=Path("/nowhere"))


def test_what_a_template_cannot_do_is_said_per_prompt() -> None:
    system = {"messages": [{"role": "system", "content": "x"}]}
    found = in_tool(WordTokenizer("template"), "auto", [CHAT, system])
    assert found["problems"] == [(1, "the model's chat template refuses it: no system prompts here")]
    assert found["ids"][1] == ""
    lacking = in_tool(WordTokenizer(None), "on", [CHAT, {"prompt": "x"}])
    assert [index for index, _ in lacking["problems"]] == [None, 0, 1]


def test_a_template_with_a_date_gets_a_fixed_one() -> None:
    found = in_tool(WordTokenizer("strftime_now"), "auto", [CHAT])
    assert found["dated"]
    assert datetime.now() > TEMPLATE_DATE
    assert not in_tool(WordTokenizer("strftime_now"), "off", [{"prompt": "x"}])["dated"]


# --- places of what is wrong --------------------------------------------------------


def test_inline_prompts_are_placed_by_the_key_the_user_wrote() -> None:
    text = "name: a\nmodel: demo\nmethods: [hf_sdpa]\nprompts:\n"
    for head, key in (("", "prompts"), ("  inline:\n", "prompts.inline")):
        source = parse(f'{text}{head}    - one\n    - ""\n    - {{prompt: x, id: ""}}\n', "s.yaml").prompts
        with pytest.raises(InputError) as caught:
            read(source, Path("/"))
        first = 6 + bool(head)
        assert [(p.where, p.key) for p in caught.value.problems] == [
            (f"s.yaml:{first}", f"{key}[1].prompt"),
            (f"s.yaml:{first + 1}", f"{key}[2].id"),
        ]


def test_problems_come_in_the_order_of_the_lines(tmp_path: Path) -> None:
    lines = [b'{"prompt": "a", "id": 1}', b'{"prompt": ""}', b"{", b'{"prompt": "b", "id": 1}', b"\xff", b'{"x": 1}']
    found = refused(tmp_path, b"\n".join(lines))
    assert [text.split(":")[1] for text in found] == ["2", "3", "4", "5", "6"]


@pytest.mark.parametrize(
    ("given", "key", "says"),
    [
        ("prmpts.jsonl", "prompts", "did you mean prompts.jsonl?"),
        ("hello", "prompts", "known endings: .arrow, .csv, .json, .jsonl, .ndjson, .parquet, .tsv, .txt"),
        ("{file: gone/p.txt}", "prompts.file", "there is no folder"),
    ],
)
def test_a_file_that_can_t_be_read_is_placed_in_the_sweep_file(tmp_path: Path, given: str, key: str, says: str) -> None:
    (tmp_path / "prompts.jsonl").touch()
    source = parse(f"name: a\nmodel: demo\nprompts: {given}\nmethods: [hf_sdpa]\n", "s.yaml").prompts
    with pytest.raises(InputError) as caught:
        read(source, tmp_path)
    (found,) = caught.value.problems
    assert (found.where, found.key) == ("s.yaml:3", key)
    assert says in found.suggestion
