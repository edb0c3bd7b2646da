"""Images in prompts: what is read, what is refused with its place, and the digest that covers them."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import PromptSource
from orchestrator.definition.inputs import SCRIPTED, PromptSet
from orchestrator.errors import InputError
from orchestrator.launcher import Launcher
from orchestrator.stores import images
from orchestrator.stores.prompts import RawPrompt, as_line, read, tokenise
from protocol.digests import prompt_digest
from protocol.specs import pack_ids, unpack_ids
from tests.unit.pictures import BLUE, RED, data_url

JPEG, WEBP = b"\xff\xd8\xff\xe0rest", b"RIFF\x04\0\0\0WEBPrest"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "blue.png").write_bytes(BLUE)
    (tmp_path / "a.jpg").write_bytes(JPEG)
    (tmp_path / "a.webp").write_bytes(WEBP)
    return tmp_path


def read_lines(folder: Path, *lines: dict[str, Any]) -> tuple[RawPrompt, ...]:
    """From a prompt file beside the images, named by a sweep file in another folder."""
    (folder / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return read(PromptSource(f"{folder.name}/p.jsonl", None), folder.parent).prompts


def refused(folder: Path, *lines: dict[str, Any]) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_lines(folder, *lines)
    return [str(problem) for problem in caught.value.problems]


def chat(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **more}


TEXT = {"type": "text", "text": "What is it?"}


def test_images_are_files_beside_the_prompt_file_or_data_urls(folder: Path) -> None:
    found = read_lines(
        folder,
        {"prompt": "a", "images": ["red.png", "a.jpg", data_url(BLUE), str(folder / "a.webp")]},
        chat({"type": "image", "image": "red.png"}, TEXT, {"type": "image_url", "image_url": {"url": data_url(BLUE)}}),
        chat({"type": "image_url", "image_url": "blue.png"}, TEXT, {"type": "image", "path": "a.jpg"}),
        chat(
            {"type": "image"}, TEXT, {"type": "image", "url": "a.webp"}, {"type": "image"}, images=["red.png", "a.jpg"]
        ),
        {"prompt": "none", "images": []},
        {"prompt": "null", "images": None},
    )
    assert [one.images for one in found] == [
        (RED, JPEG, BLUE, WEBP),
        (RED, BLUE),
        (BLUE, JPEG),
        (RED, WEBP, JPEG),
        (),
        (),
    ]


def test_a_prompt_shows_its_images_without_their_bytes(folder: Path) -> None:
    [one] = read_lines(folder, {"prompt": "a", "images": ["red.png", data_url(BLUE)], "topic": "colours"})
    shown = one.source()
    assert (shown["prompt"], shown["images"][0], shown["topic"]) == ("a", "red.png", "colours")
    assert shown["images"][1].startswith("data:image/png;base64,")
    assert len(shown["images"][1]) < 80 < len(data_url(BLUE))


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("green.png", "green.png, can't be read: No such file or directory (did you mean red.png?)"),
        ("no/a.png", "no/a.png, can't be read: No such file"),
        ("a" * 300, "can't be read: File name too long"),
        ("../red.png", "can't be read"),
        ("p.jsonl", "neither PNG, JPEG nor WebP"),
        ("", "write a file's name or a data URL"),
        (3, "write a file's name or a data URL"),
        (".", "no regular file"),
        ("http://example.org/cat.png", "nothing is downloaded"),
        ("HTTPS://example.org/cat.png", "nothing is downloaded"),
        ("file:///cat.png", "nothing is downloaded"),
        ("data:image/png,abc", "of the form data:image/png;base64"),
        ("data:image/png;base64,!!!", "no valid base64"),
        ("data:image/png;base64,", "is empty"),
        ("data:image/png;base64,YWJj", "neither PNG, JPEG nor WebP"),
        ("a\0b", "NUL"),
    ],
)
def test_what_is_no_image_is_refused_with_its_line(folder: Path, reference: Any, says: str) -> None:
    whole = {"prompt": "a", "images": ["red.png", reference]}
    [problem] = refused(folder, {"prompt": "good"}, whole)
    assert says in problem
    assert problem.startswith(f"{folder.name}/p.jsonl:2")
    if "\0" not in str(reference):
        assert "images[1]" in problem
        [problem] = refused(folder, chat({"type": "image_url", "image_url": {"url": reference}}, TEXT))
        assert "messages[0].content[0].image_url.url" in problem


def test_every_image_that_is_wrong_is_listed(folder: Path) -> None:
    found = refused(
        folder,
        {"prompt": "a", "images": ["one.png", "two.png"]},
        {"prompt": "b", "images": "red.png"},
        chat({"type": "image"}, TEXT),
        chat({"type": "image"}, TEXT, images=["red.png", "blue.png"]),
        chat({"type": "audio", "audio": "a.wav"}, TEXT),
    )
    parts = ("images[0]", "images[1]", "no list of files", "names no image", "has 2, and 1 parts", "is neither")
    assert len(found) == len(parts)
    assert all(part in problem for part, problem in zip(parts, found, strict=True)), found


def test_an_image_is_bounded_and_no_pipe_is_waited_for(folder: Path) -> None:
    with (folder / "large.png").open("wb") as file:
        file.write(RED)
        file.truncate(images.MAX_IMAGE_BYTES)
    assert len(read_lines(folder, {"prompt": "a", "images": ["large.png"]})[0].images[0]) == images.MAX_IMAGE_BYTES
    os.truncate(folder / "large.png", images.MAX_IMAGE_BYTES + 1)
    assert "more than 32 MiB" in refused(folder, {"prompt": "a", "images": ["large.png"]})[0]
    os.mkfifo(folder / "pipe.png")
    assert "no regular file" in refused(folder, {"prompt": "a", "images": ["pipe.png"]})[0]


def test_inline_prompts_are_read_from_the_sweep_files_folder(folder: Path) -> None:
    [one] = read(PromptSource(None, ({"prompt": "a", "images": ["red.png"]},)), folder).prompts
    assert one.images == (RED,)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda t: st.lists(t) | st.dictionaries(st.text(), t)
    )
)
def test_whatever_stands_there_is_read_or_refused(junk: Any) -> None:
    for said in (
        {"prompt": "a", "images": junk},
        chat({"type": "image", "image": junk}),
        chat({"type": "image_url", "image_url": junk}),
    ):
        with suppress(InputError):
            assert read(PromptSource(None, (said,)), Path("/nowhere")).prompts[0].images == ()


# --- the digest -------------------------------------------------------------------

IDS = st.lists(st.integers(0, 2**32 - 1)).map(pack_ids)
FILES = st.lists(st.binary(), max_size=4).map(tuple)


@given(IDS, FILES, IDS, FILES)
def test_a_digest_tells_ids_and_images_apart(
    ids: bytes, files: tuple[bytes, ...], ids2: bytes, files2: tuple[bytes, ...]
) -> None:
    same = (ids, files) == (ids2, files2)
    assert (prompt_digest(ids, files) == prompt_digest(ids2, files2)) == same
    assert len(prompt_digest(ids, files)) == 16


@given(IDS, st.binary(), st.binary())
def test_the_order_and_the_bounds_of_images_count(ids: bytes, one: bytes, two: bytes) -> None:
    assert (prompt_digest(ids, [one, two]) == prompt_digest(ids, [two, one])) == (one == two)
    assert prompt_digest(ids, [one, two]) != prompt_digest(ids, [one + two])
    assert prompt_digest(ids, [one]) != prompt_digest(ids)


# --- the scripted model -------------------------------------------------------------


def scripted(folder: Path, *said: dict[str, Any]) -> PromptSet:
    source = PromptSource(None, said)
    return tokenise(read(source, folder), SCRIPTED, source, None, Launcher(), home=Path("/nowhere"))


def test_what_is_sent_has_one_placeholder_and_is_counted_by_what_the_model_sees(folder: Path) -> None:
    plain, pictured = scripted(folder, {"prompt": "ab"}, {"prompt": "ab", "images": ["red.png"]}).prompts
    assert (plain.sent_tokens("generate"), plain.sent("generate").widened) == (2, b"")
    sent = pictured.sent("generate")
    assert unpack_ids(sent.token_ids) == [255, 97, 98]
    assert unpack_ids(sent.seen) == [255] * 4 + [97, 98]
    assert (sent.images, pictured.sent_tokens("generate")) == ((RED,), 6)
    assert pictured.sent_digest("generate") == prompt_digest(sent.seen, (RED,))
    assert as_line(pictured)["images"][0] == {
        "sha256": as_line(pictured)["images"][0]["sha256"],
        "bytes": len(RED),
        "kind": "png",
    }


def test_another_image_is_another_set_of_prompts(folder: Path) -> None:
    red, blue = ({"prompt": "a", "images": [name]} for name in ("red.png", "blue.png"))
    assert scripted(folder, red).digest != scripted(folder, blue).digest
    both = ({"type": "image", "image": "red.png"}, TEXT, {"type": "image", "image": "blue.png"})
    [one] = scripted(folder, chat(*both)).prompts
    assert unpack_ids(one.token_ids).count(255) == 2
    assert one.images == (RED, BLUE)
