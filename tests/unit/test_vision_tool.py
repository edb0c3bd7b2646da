"""Images in the tokenising tool: where their placeholders come from, and what is said where one is wrong."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, cast

from protocol.specs import unpack_ids
from workers.tools.model_info import takes_images
from workers.tools.tokenize import tokenise
from workers.vision import CantSee, Sight

PLACE = 7
PICTURES = {"red": b"R", "blue": b"B"}


class Words:
    """A tokenizer of words by their length; <image> is one of its own. Its template takes contents as `form` says."""

    bos_token = None

    def __init__(self, form: str | None) -> None:
        self.chat_template, self.form = form, form

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {
            "input_ids": [
                PLACE if w == "<image>" else 10 + len(w) for w in text.replace("<image>", " <image> ").split()
            ]
        }

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> str:
        return " ".join(self._content(m["content"]) for m in messages)

    def _content(self, content: Any) -> str:
        if isinstance(content, str):
            return "" if self.form == "parts" else content  # as templates do that pick parts by their type
        if self.form == "text":
            return str(content)  # as templates do that know of no parts
        return " ".join("<image>" if part["type"] == "image" else part["text"] for part in content)


class Doubling:
    """A processor that sees two features in an image."""

    placeholder, placeholder_id, chat_template = "<image>", PLACE, None

    def widen(self, ids: Sequence[int], images: Sequence[bytes]) -> list[int]:
        if list(ids).count(PLACE) != len(images):
            raise CantSee(f"{len(images)} images, {list(ids).count(PLACE)} places")
        return [one for token in ids for one in ([PLACE] * 2 if token == PLACE else [token])]


def asked(form: str | None, *prompts: dict[str, Any], setting: str = "auto") -> dict[str, Any]:
    return tokenise(Words(form), setting, list(prompts), cast(Sight, Doubling()), PICTURES)


def ids_of(found: dict[str, Any], part: str) -> list[list[int]]:
    return [unpack_ids(base64.b64decode(one)) for one in found[part]]


def chat(*content: Any) -> dict[str, Any]:
    """Text as it stands, an image for each name in a tuple."""
    parts = [{"type": "text", "text": c} if isinstance(c, str) else {"type": "image"} for c in content]
    return {"messages": [{"role": "user", "content": parts}], "images": [c[0] for c in content if isinstance(c, tuple)]}


def test_an_image_is_one_id_in_what_is_sent_and_many_in_what_is_seen() -> None:
    found = asked("both", chat("is", ("red",), "it"), chat(("red",), ("blue",)))
    assert not found["problems"]
    assert ids_of(found, "ids") == [[12, PLACE, 12], [PLACE, PLACE]]
    assert ids_of(found, "widened") == [[12, PLACE, PLACE, 12], [PLACE] * 4]


def test_images_beside_a_plain_prompt_stand_before_it_unless_it_says_where() -> None:
    both = {"prompt": "is it", "images": ["red", "blue"]}
    placed = {"prompt": "is <image> it", "images": ["red"]}
    assert ids_of(asked("both", both, placed), "ids") == [[PLACE, PLACE, 12, 12], [12, PLACE, 12]]
    found = asked(None, placed, {"prompt": "is it", "images": ["red"]})
    assert ids_of(found, "ids")[0] == [12, PLACE, 12]
    assert found["problems"] == [(1, "1 images, 0 places")], "without a template nobody knows where it goes"


def test_a_text_is_told_in_the_form_that_the_template_takes() -> None:
    texts: list[dict[str, Any]] = [{"prompt": "is it"}, {"messages": [{"role": "user", "content": "is it"}]}]
    for form in ("both", "parts", "text"):
        found = asked(form, *texts)
        assert (ids_of(found, "ids"), found["problems"]) == ([[12, 12]] * 2, []), form
        assert found["widened"] == ["", ""]


def test_a_template_that_places_no_images_is_told_per_prompt() -> None:
    found = asked("text", {"prompt": "is it"}, chat(("red",), "it"))
    assert found["problems"] == [(1, "1 images, 0 places")]


def test_a_placeholder_that_is_typed_and_has_no_image_is_refused() -> None:
    found = asked("both", {"prompt": "is <image> it"}, {"prompt": "a <image> b <image>", "images": ["red"]})
    assert found["problems"] == [(0, "0 images, 1 places"), (1, "1 images, 2 places")]


def test_a_checkpoint_is_judged_by_its_class_and_type() -> None:
    vision, text = {"both": "BothForSeeing", "seeing": "OnlySeeing"}, {"both", "text"}
    eyes: dict[str, Any] = {"vision_config": {"depth": 2}}

    def judged(kind: str, *classes: str, **more: Any) -> bool:
        return takes_images({"model_type": kind, "architectures": list(classes), **more}, vision, text)

    assert judged("seeing", "OnlySeeing", **eyes)
    assert judged("seeing", **eyes)
    assert judged("both", "BothForSeeing", **eyes)
    assert judged("both", **eyes)
    assert not judged("both", "BothForText", **eyes), "the text part of such a model, saved by itself"
    assert not judged("both", "BothForSeeing")
    assert not judged("text", "AnyForText", **eyes)
    assert not judged("unheard_of", "OnlySeeing", **eyes)


def test_a_model_of_text_takes_a_placeholder_for_any_word() -> None:
    found = tokenise(Words(None), "auto", [{"prompt": "is <image> it"}])
    assert (ids_of(found, "ids"), found["widened"], found["problems"]) == ([[12, PLACE, 12]], [""], [])
