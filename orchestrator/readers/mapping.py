"""One record made into a prompt, as `format`, `columns` and `template` say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.definition.promptuse import Reading
from orchestrator.readers.fields import NoField, filled, find
from orchestrator.readers.found import Unfit, kind
from orchestrator.readers.shapes import SHAPES
from orchestrator.readers.shaping import Made

#: A record may lack these, or have null or no text there.
OPTIONAL = ("system", "expected", "continuation", "images")


def lacks(target: str) -> str:
    """The remark on a record that has nothing for one of them."""
    return f"columns.{target} finds nothing"


class Mapper:
    """`shape`: the format's name, that of our own where `columns` or `template` say what the prompt is."""

    def __init__(self, reading: Reading, shape: str) -> None:
        self._shape = SHAPES[shape]
        self._template = reading.template
        self._named = reading.columns.given()
        self._replaces = says_prompt(reading)

    def __call__(self, value: Any) -> Made:
        """Raises Unfit and Passed."""
        if not isinstance(value, Mapping):
            if not isinstance(value, str):
                raise Unfit("", f"is {kind(value)}: a prompt is a text or a mapping")
            value = {"prompt": value}
        made = self._of_shape(value)
        return self._with_columns(value, made) if self._named or self._replaces else made

    def _of_shape(self, record: Mapping[str, Any]) -> Made:
        try:
            return self._shape.made(record)
        except Unfit as exc:
            others = [] if self._shape.fits(record) else [name for name, one in SHAPES.items() if one.fits(record)]
            if not others:
                raise
            raise Unfit(exc.key, f"{exc}; the record is as {' and '.join(others)} has it") from exc

    def _with_columns(self, record: Mapping[str, Any], made: Made) -> Made:
        found, lacking = self._found(record)
        used = (*self._named.values(), *(("prompt", "messages") if self._replaces else ()))
        said = {name: value for name, value in made.said.items() if name not in used}
        if self._template is not None:
            said["prompt"] = _of_template(self._template, record)
        system = found.pop("system", None)
        said |= found
        if system is not None:
            said = _instructed(said, system)
        return Made(said, (*made.remarks, *map(lacks, lacking)))

    def _found(self, record: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """What the columns name, by target; and the optional targets that this record has nothing for."""
        found: dict[str, Any] = {}
        lacking = []
        for target, path in self._named.items():
            try:
                value = find(record, path)
            except NoField as exc:
                if target not in OPTIONAL:
                    raise Unfit(f"columns.{target}", str(exc)) from exc
                value = None
            if target in OPTIONAL and (value is None or value in ("", [])):
                lacking.append(target)
            else:
                found[target] = [value] if target == "images" and not isinstance(value, list) else value
        return found, lacking


def _content(said: Mapping[str, Any]) -> Any:
    """A prompt's text, after the prompt's images, as `images` beside a prompt come first."""
    pictures, text = said.get("images"), said.get("prompt")
    if not isinstance(pictures, list) or not pictures:
        return text
    return [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}]


def says_prompt(reading: Reading) -> bool:
    """Whether it is said which field the prompt is, so that no format has to be found."""
    columns = reading.columns
    return reading.template is not None or columns.prompt is not None or columns.messages is not None


def _of_template(template: str, record: Mapping[str, Any]) -> str:
    try:
        return filled(template, record)
    except NoField as exc:
        raise Unfit("template", str(exc)) from exc


def _instructed(said: dict[str, Any], system: Any) -> dict[str, Any]:
    """With a system message before the rest, where a prompt becomes the user's."""
    if not isinstance(system, str):
        raise Unfit("columns.system", f"is {kind(system)}, not text")
    if isinstance(said.get("prompt"), list):
        raise Unfit("columns.system", "goes before a text, and the prompt is token ids")
    messages = said.get("messages", [{"role": "user", "content": _content(said)}])
    if not isinstance(messages, list):
        raise Unfit("messages", f"is {kind(messages)}, not a list")
    others = {name: value for name, value in said.items() if name not in ("prompt", "messages")}
    return {**others, "messages": [{"role": "system", "content": system}, *messages]}
