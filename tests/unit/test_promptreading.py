"""Files of prompts of any kind: encodings, line ends, lists, tables of text."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import InputError
from orchestrator.readers.delimited import rows
from orchestrator.readers.found import Fault, Record, Unreadable
from orchestrator.readers.jsontext import json_lines as read_lines
from orchestrator.readers.jsontext import json_list
from orchestrator.readers.lines import numbered
from tests.unit.promptfiles import gathered, json_lines, refusals, said

# --- bytes ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p.txt", "p.jsonl", "p.json", "p.csv", "p.tsv", "p.ndjson"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-be-mark", "utf-32-be-mark"])
def test_wide_encodings_are_named(tmp_path: Path, name: str, encoding: str) -> None:
    plain = encoding.removesuffix("-mark")
    mark = "\ufeff".encode(plain) if plain != encoding else b""
    data = mark + '{"prompt": "a"}\n'.encode(plain)
    assert refusals(tmp_path, name, data) == [f"{name}: is UTF-{'16' if '16' in plain else '32'} (save it as UTF-8)"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_encodings_without_a_mark_are_told_by_their_nuls(tmp_path: Path, encoding: str) -> None:
    (line,) = refusals(tmp_path, "p.jsonl", '{"prompt": "a"}\n'.encode(encoding) * 100)
    assert line == "p.jsonl: begins with a NUL among its first characters, as UTF-16 and UTF-32 do (save it as UTF-8)"


LATIN = "caf\xe9".encode("latin-1")


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("p.txt", b"a\n" + LATIN, "p.txt:2: is not UTF-8: byte 4 of the line"),
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt": "' + LATIN + b'"}\n', "p.jsonl:2: is not UTF-8: byte 16 of the line"),
        ("p.json", b'[{"prompt": "a"},\n{"prompt": "' + LATIN + b'"}]', "p.json:2: is not UTF-8: byte 16 of the line"),
        ("p.csv", b"prompt,n\na,1\n" + LATIN + b",2\n", "p.csv:3: is not UTF-8: byte 4 of the line"),
        ("p.csv", b"prompt," + LATIN + b"\na,1\n", "p.csv:1: is not UTF-8: byte 11 of the line"),
    ],
)
def test_what_is_no_utf8_is_refused_with_line_and_byte(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    found = refusals(tmp_path, name, data)
    assert found[0].startswith(says)
    assert "iconv" in found[0]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_every_line_end_and_mark_is_taken(tmp_path: Path, end: str, mark: str) -> None:
    texts = ["one \x0c\u2028 still", " two\x85"]
    for name, lines in {
        "p.txt": texts,
        "p.jsonl": [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts],
        "p.csv": ["prompt,n", *(f"{text},1" for text in texts)],
    }.items():
        data = mark + end.join([*lines, ""]).replace(f"{end}{end}", end)
        found = gathered(tmp_path, name, data.encode())
        assert [one.text for one in found.prompts] == texts
        assert found.prompts[0].where == f"{name}:{2 if name == 'p.csv' else 1}"


def test_packed_files_are_read_and_broken_ones_told(tmp_path: Path) -> None:
    whole = gzip.compress(json_lines(*({"prompt": f"p{n}"} for n in range(100))).encode())
    assert len(gathered(tmp_path, "p.jsonl.gz", whole).prompts) == 100
    for data in (whole[:-20], whole[:60] + b"\0" * 20 + whole[80:]):
        assert refusals(tmp_path, "p.jsonl.gz", data)[-1].startswith("p.jsonl.gz: is no whole gzip file")
    assert refusals(tmp_path, "p.txt.gz", b"plain")[0].startswith("p.txt.gz: is no whole gzip file: Not a gzipped file")


def test_a_line_is_bounded() -> None:
    with pytest.raises(Unreadable, match="is longer than"):
        list(numbered(io.BytesIO(b"a\n" + b"b" * 100).readline, most=50))
    found = json_list(io.BytesIO(b'[1, "' + b"x" * 3_000_000 + b'"]').read, most=1000)
    assert next(found) == Record(1, 1)
    with pytest.raises(Unreadable, match="begins a value of more than"):
        next(found)


# --- lists ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[{"prompt": "a"},\n {"prompt": "b"},\n]', "p.json:2: is not valid JSON: a comma before the end of the list"),
        ('[{"prompt": "a"}\n {"prompt": "b"}]', "p.json:2: is not valid JSON: a comma or the end of the list is mis"),
        (
            '[{"prompt": "a"},\n {"prompt": "b"',
            "p.json:2: is not valid JSON: Expecting ',' delimiter, at character 15: ",
        ),
        ('[{"prompt": "a"},\n {"prompt":\n "b', "p.json:3: is not valid JSON: Unterminated string starting at, at"),
        ('[{"prompt": "a"}\n', "p.json:2: is not valid JSON: the file ends before its list does"),
        ('[{"prompt": "a"}]\n]', "p.json:2: is not valid JSON: something follows the end of the list"),
        ('[{"prompt": "a"},\n{\'prompt\': 1}, {}]', "p.json:2: is not valid JSON: Expecting property name"),
        ('[{"prompt": "a"},\n{"prompt": "b", "n": NaN},\n3]', "p.json:2: is not valid JSON: NaN is not a JSON value"),
        ('[{"prompt": "a"},\n{"prompt": "b", "prompt": 1}]', "p.json:2: is not valid JSON: 'prompt' is given twice"),
        ('[{"prompt": "a"},\n' + "[" * 100_000, "p.json:2: is nested too deeply"),
        ('[{"prompt": "a", "n": ' + "1" * 5000 + "}]", "p.json:1: is not valid JSON: Exceeds the limit"),
        ('[{"prompt": "a"}, null]', "p.json:1: is null: a prompt is a text or a mapping"),
        ("[]", "p.json: prompts.file: there is not a single prompt"),
        ("", "p.json: prompts.file: there is not a single prompt"),
        ('{\n "data": [{"prompt": "a"}]\n}', "p.json:1: begins an object that goes on in the"),
        ('[{"prompt": "a", "x": "\\ud800"}]', "p.json:1: x has a lone surrogate"),
        ('["a", {"prompt": "b\\u0000"}]', "p.json:1: prompt has a NUL"),
    ],
)
def test_what_is_wrong_with_a_list_has_its_line(tmp_path: Path, text: str, says: str) -> None:
    assert any(line.startswith(says) for line in refusals(tmp_path, "p.json", text)), refusals(tmp_path, "p.json", text)


def test_what_stands_before_the_end_of_a_cut_off_list_is_told_too(tmp_path: Path) -> None:
    found = refusals(tmp_path, "p.json", '[{"prompt": ""},\n{"prompt": "a"},\n{"pro')
    assert [line.partition(": ")[0] for line in found] == ["p.json:1", "p.json:3"]


def test_a_json_file_may_hold_lines_and_a_jsonl_file_a_list(tmp_path: Path) -> None:
    assert said(tmp_path, "p.json", '{"prompt": "a"}\n{"prompt": "b"}\n')[1] == {"id": "1", "prompt": "b"}
    assert said(tmp_path, "p.jsonl", '\n [\n"a", {"prompt": "b"}]') == [
        {"id": "0", "prompt": "a"},
        {"id": "1", "prompt": "b"},
    ]


def drips(data: bytes, size: int) -> Callable[[int], bytes]:
    """Reads that give less than was asked for, as they may."""
    file = io.BytesIO(data)
    return lambda most: file.read(min(size, most))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=6), st.integers(4, 40), st.sampled_from([None, 1]), st.booleans())
def test_a_list_read_bit_by_bit_is_what_json_reads(
    values: list[Any], size: int, indent: int | None, ascii_only: bool
) -> None:
    data = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    with suppress(Unreadable):  # of lone surrogates alone
        found = [one for one in json_list(drips(data, size)) if isinstance(one, Record)]
        assert [one.value for one in found] == values
        lines = data.decode().split("\n")
        assert all(0 < one.place <= len(lines) for one in found)


@given(st.binary(max_size=200), st.integers(1, 9))
def test_no_bytes_break_a_reader(data: bytes, size: int) -> None:
    readers: list[Iterator[Record | Fault]] = [
        json_list(drips(data, size)),
        read_lines(io.BytesIO(data).readline),
        rows(io.BytesIO(data).readline, None),
        rows(io.BytesIO(data).readline, ";"),
    ]
    for one in readers:
        with suppress(Unreadable):
            assert all(found.place > 0 for found in one)


PIECES = st.sampled_from(
    ['{"', "prompt", '": "', '"}', "[", "]", ",", "\n", "\r", "é", '"', "conversations", ": ", "1", "\ufeff"]
)


@given(st.lists(PIECES, max_size=30), st.sampled_from(["p.json", "p.jsonl", "p.csv", "p.tsv", "p.txt", "p.json.gz"]))
def test_whatever_is_in_a_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], name: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    with suppress(InputError):
        found = gathered(folder, name, "".join(pieces))
        assert found.prompts
        json.dumps([one.source() for one in found.prompts]).encode()


# --- CSV --------------------------------------------------------------------------


def test_cells_hold_quotes_delimiters_and_line_ends(tmp_path: Path) -> None:
    data = 'prompt,answer,id\r\n"a, ""b""\r\nc",1,x\r\n\r\nd,,y\r\n'
    found = gathered(tmp_path, "p.csv", data, columns={"prompt": "prompt", "expected": "answer"})
    assert [(one.id, one.text, one.where, one.fields) for one in found.prompts] == [
        ("x", 'a, "b"\r\nc', "p.csv:2", {"expected": "1"}),
        ("y", "d", "p.csv:5", {}),
    ]
    assert found.tally.notes() == ("prompts: columns.expected finds nothing (1 of 2)",)


@pytest.mark.parametrize(
    ("sign", "name"), [(",", "p.csv"), (";", "p.csv"), ("|", "p.csv"), ("\t", "p.csv"), ("\t", "p.tsv")]
)
def test_the_delimiter_is_the_one_that_the_header_shows(tmp_path: Path, sign: str, name: str) -> None:
    (found,) = said(tmp_path, name, f'prompt{sign}"x,y;z"\na{sign}b\n')
    assert found == {"id": "0", "prompt": "a", "x,y;z": "b"}


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "sep=|", "sep=#"])
def test_the_delimiter_may_stand_in_a_line_of_its_own(tmp_path: Path, first: str) -> None:
    sign = first.strip('"')[-1]
    data = f"\ufeff{first}\r\nid{sign}prompt\r\n7{sign}a, b\r\n"
    (one,) = gathered(tmp_path, "t.csv", data).prompts
    assert (one.id, one.text, one.where) == ("7", "a, b", "t.csv:3")


def test_an_empty_cell_says_nothing_of_what_a_prompt_may_lack(tmp_path: Path) -> None:
    data = "id,prompt,expected,continuation,note\ny,a,,,\nx,b,1, c,d\n"
    assert said(tmp_path, "t.csv", data) == [
        {"id": "y", "prompt": "a", "note": ""},
        {"id": "x", "prompt": "b", "expected": "1", "continuation": " c", "note": "d"},
    ]


@pytest.mark.parametrize("name", ["p.json", "p.jsonl"])
def test_an_object_over_several_lines_is_one_mistake(tmp_path: Path, name: str) -> None:
    (line,) = refusals(tmp_path, name, json.dumps({"data": [{"prompt": "a"}] * 1000}, indent=1))
    assert line.startswith(f"{name}:1: begins an object that goes on in the next line")
    assert "one list of them" in line


def test_a_delimiter_is_given_where_the_header_shows_two(tmp_path: Path) -> None:
    data = "prompt;a,b\nx,y;1\n"
    assert refusals(tmp_path, "p.csv", data) == [
        'p.csv:1: has commas and semicolons in its header: which of them parts the columns? (write delimiter: ",")'
    ]
    assert said(tmp_path, "p.csv", data, delimiter=";") == [{"id": "0", "prompt": "x,y", "a,b": "1"}]


def test_a_column_of_its_own_needs_no_delimiter_and_an_index_no_name(tmp_path: Path) -> None:
    assert said(tmp_path, "p.csv", "prompt\na\n\nb\n")[1] == {"id": "1", "prompt": "b"}
    assert said(tmp_path, "q.csv", ",prompt\n0,a\n") == [{"id": "0", "column_1": "0", "prompt": "a"}]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("prompt,n\na,1\nb\nc,1,2\n", ["p.csv:3: has 1 cells, and the header has 2", "p.csv:4: has 3 cells"]),
        ('prompt,n\na,1\n"b,1\nc,2\n', ["p.csv:3: opens a quote that is never closed"]),
        ('prompt,n\n"a"b,1\nc,2\n,3\n', ["p.csv:2: is no row: ',' expected after '\"'", "p.csv:4: prompt: is empty"]),
        ('prompt,"n\na,1\n', ["p.csv:1: opens a quote that is never closed"]),
        ("prompt,prompt\na,b\n", ["p.csv:1: names 'prompt' twice in its header"]),
        ("prompt,n\n", ["p.csv: prompts.file: there is not a single prompt"]),
        ("question,n\na,1\n", ["p.csv:2: has neither `prompt` nor `messages`, but question, n"]),
        ("prompt,id\na,1\nb,1\nc,\n", ["p.csv:3: id '1' is taken by p.csv:2", "p.csv:4: id: is empty"]),
    ],
)
def test_what_is_wrong_with_a_table_has_its_line(tmp_path: Path, data: str, says: list[str]) -> None:
    found = refusals(tmp_path, "p.csv", data)
    assert len(found) == len(says)
    assert all(line.startswith(start) for line, start in zip(found, says, strict=True)), found


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6), st.sampled_from([",", ";", "\t"]))
def test_what_is_written_as_csv_is_read_as_that(table: list[tuple[str, str]], sign: str) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=sign, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *table])
    found = rows(io.BytesIO(text.getvalue().encode()).readline, sign)
    expected = [{"a": one, "b": other} for one, other in table if one or other]
    assert [one.value for one in found if isinstance(one, Record)] == expected
