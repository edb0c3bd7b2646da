"""What was probably meant by a value that a field does not take, as what to write instead. Pure.

Only what the field takes is suggested: each reading of the value ("95" as a percentage, "500ms" as half a
second) is held against the field's own type first.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from orchestrator.definition.spelling import likely, oddity

Number = int | float

#: Of a text that is looked at; in a longer one nobody meant a value, and patterns would take long.
LONGEST: Final = 60
_YES: Final = ("yes", "y", "on", "true", "1")
_NO: Final = ("no", "n", "off", "false", "0")
_NOTHING: Final = ("none", "null", "nil", "auto", "default", "unset")
_ALIASES: Final = {
    **{"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"},
    **dict.fromkeys(("transformers", "huggingface"), "hf"),
    **dict.fromkeys(("sbatch", "srun"), "slurm"),
}
#: By its name, how many seconds a unit has.
SECONDS: Final = {
    **dict.fromkeys(("us", "μs", "usec"), Fraction(1, 10**6)),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), Fraction(1, 1000)),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), Fraction(1)),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), Fraction(60)),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), Fraction(3600)),
    **dict.fromkeys(("d", "day", "days"), Fraction(86400)),
}
#: A letter alone means what memory is counted in.
_BYTES: Final = {
    **dict.fromkeys(("b", "byte", "bytes"), Fraction(1)),
    **{unit: Fraction(1024**n) for n, letter in enumerate("kmgt", 1) for unit in (letter, f"{letter}ib")},
    **{f"{letter}b": Fraction(1000**n) for n, letter in enumerate("kmgt", 1)},
}
#: By the end of a field's name: how its unit is called, what it takes, and how large it is itself.
_UNITS: Final = {
    "_s": ("seconds", SECONDS, Fraction(1)),
    "_mib": ("MiB", _BYTES, Fraction(1024**2)),
    "_bytes": ("bytes", _BYTES, Fraction(1)),
}
_NUMBER: Final = r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
_QUANTITY: Final = re.compile(rf"({_NUMBER})\s*([^\W\d]*|%)\.?")
_CLOCK: Final = re.compile(r"(?:(\d+):)?(\d+):(\d\d)")
_DASHES: Final = str.maketrans("‐‑‒–—−", "------")


def hint(kind: Any, value: Any, key: str) -> str:
    """Of a plain `value` that was refused at `key`, where type `kind` is wanted; "" where nothing comes to mind."""
    if isinstance(value, str) and len(value) > LONGEST:
        return ""
    found = [_choice(kind, value), *_readings(kind, value, key), _moved(kind, value, key)]
    said = "; ".join(dict.fromkeys(filter(None, found)))
    return said or _fallback(kind, value)


def list_hint(kind: Any, value: Any) -> str:
    """Where a list of values of type `kind` is wanted: the one that was meant, else an example."""
    meant = _items(kind, value)
    if meant:
        return f"write {_listed(meant)}"
    if is_list(kind):
        return "for example [[1, 2], [4]]"
    examples: list[Any] = _choices(kind)[:2] or ([False, True] if bool in _shapes(kind) else [1, 4])
    return f"for example {_listed(examples)}"


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The types that a value of type `kind` may be of."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def is_list(kind: Any) -> bool:
    return any(get_origin(one) is tuple for one in alternatives(kind))


def fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return not isinstance(value, int) or abs(value) < 2**63


# --- readings of a value --------------------------------------------------------


def _moved(kind: Any, value: Any, key: str) -> str:
    """Several values where one belongs."""
    section, _, name = key.partition(".")
    if is_list(kind):
        return ""
    if isinstance(value, str) and re.search(r"[\s;,][\w.]+=", value):
        return "each value needs a --set of its own"
    several = isinstance(value, list) or (isinstance(value, str) and re.search(r"[,;\s]", value.strip()))
    meant = _items(kind, value) if several else []
    if len(meant) == 1 and isinstance(value, str):
        return f"write {meant[0]}"
    if section in ("sampling", "settings") and (meant or isinstance(value, list)):
        return f"to run several values, move it to matrix.{name}" + (f": {_listed(meant)}" if meant else "")
    return f"write {_listed(meant)}" if section in ("matrix", "zip") and len(meant) > 1 else ""


def _choice(kind: Any, value: Any) -> str:
    choices = _choices(kind)
    if isinstance(value, bool):
        meant = {True: "on", False: "off"}[value]
        return f"did you mean {meant}?" if meant in choices else ""
    if not isinstance(value, str) or not choices:
        return ""
    lower = value.strip().lower()
    switch = "on" if lower in _YES else "off" if lower in _NO else ""
    close = switch if switch in choices else _ALIASES.get(lower.removeprefix("torch.")) or likely(value, choices)
    return f"did you mean {close}?" if close in choices else ""


def _readings(kind: Any, value: Any, key: str) -> Iterator[str]:
    shapes = _shapes(kind)
    if value is None:
        yield "" if str in shapes or dict in shapes else "leave it out for the default"
    if isinstance(value, str) and value.strip().lower() in _NOTHING and not _choices(kind):
        yield "" if str in shapes else "write null" if fits(None, kind) else "leave it out for the default"
    if bool in shapes and isinstance(value, str | int):
        word = str(value).strip().lower()
        meant = "true" if word in _YES else "false" if word in _NO else ""
        yield meant and f"write {meant}" + (", without quotes" if word == meant else "")
    if is_list(kind) and isinstance(value, str | int | float):
        items = next(get_args(one)[0] for one in alternatives(kind) if get_origin(one) is tuple)
        yield list_hint(items, value)
    if shapes & {int, float} and not isinstance(value, bool):
        yield from _numbers(kind, value, key)
    if str in shapes and not shapes & {int, float} and isinstance(value, bool | int | float):
        yield "write it in quotes"
    if dict in shapes and not isinstance(value, dict):
        yield "leave it out" if value is None else f"write {_mapping(kind)}"


def _mapping(kind: Any) -> str:
    structs = [one for one in alternatives(kind) if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    names = [field.name for one in structs for field in msgspec.structs.fields(one)]
    return f"{{{', '.join(f'{name}: …' for name in names or ['NAME'])}}}"


def _numbers(kind: Any, value: Any, key: str) -> Iterator[str]:
    if isinstance(value, str):
        yield from _quantity(kind, value, key)
    elif isinstance(value, float) and value.is_integer() and fits(int(value), kind):
        yield f"write {int(value)}"
    elif isinstance(value, Number) and _percent(value) and fits(value / 100, kind) and not fits(2, kind):
        yield f"for {value:g} % write {value / 100:g}"
    elif isinstance(value, Number) and value <= 0 and fits(None, kind):
        yield "write null to leave it open"


def _percent(value: Number) -> bool:
    return value == 1 or 2 <= value <= 100


def _quantity(kind: Any, text: str, key: str) -> Iterator[str]:
    """A number with quotes, with a unit, or with a comma."""
    plain = unicodedata.normalize("NFKC", text).translate(_DASHES).strip()
    unit, factors, own = next((u for end, u in _UNITS.items() if key.endswith(end)), ("", {}, Fraction(1)))
    named = f", in {unit}" if unit else ""
    if match := _QUANTITY.fullmatch(plain):
        number, suffix = Fraction(Decimal(match[1].replace("_", ""))), match[2].lower()
        if not suffix:
            yield _write(number, kind, ", without quotes" if text == plain else "")
        elif suffix == "%":
            yield _write(number / 100, kind)
        elif suffix in factors:
            yield _write(number * factors[suffix] / own, kind, named)
        elif suffix in ("k", "m") and not unit:
            yield _either(number * 1000 ** (1 + "km".index(suffix)), number * 1024 ** (1 + "km".index(suffix)), kind)
        else:
            yield _write(number, kind, f"{named}, without a unit")
    elif unit == "seconds" and (match := _CLOCK.fullmatch(plain)):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        yield _write(Fraction(hours * 3600 + minutes * 60 + seconds), kind, named)
    elif re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", plain):
        yield _write(Fraction(int(plain.replace(",", ""))), kind)
    elif re.fullmatch(r"[+-]?\d+,\d+", plain) and fits(0.5, kind):
        yield _write(Fraction(Decimal(plain.replace(",", "."))), kind)


def _write(number: Fraction, kind: Any, how: str = "") -> str:
    meant = _exact(number)
    return f"write {meant!r}{how}" if fits(meant, kind) else ""


def _either(first: Fraction, second: Fraction, kind: Any) -> str:
    one, other = _exact(first), _exact(second)
    return f"write {one!r} or {other!r}" if fits(one, kind) and fits(other, kind) else ""


def _exact(number: Fraction) -> Number:
    return number.numerator if number.denominator == 1 else float(number)


def _items(kind: Any, value: Any) -> list[Any]:
    """The values that a text stands for which looks like a list; empty where not all of them fit."""
    if not isinstance(value, str):
        several = value if isinstance(value, list) else [value]
        return several if None not in several and all(fits(one, kind) for one in several) else []
    if len(value) > LONGEST:
        return []
    words = [word for word in re.split(r"[,;\s]+", value.strip().strip("[]()")) if word]
    found = [next((one for one in _values(word) if fits(one, kind)), None) for word in words]
    return found if found and None not in found else []


def _values(word: str) -> Iterator[Any]:
    if re.fullmatch(_NUMBER, word):
        yield _exact(Fraction(Decimal(word.replace("_", ""))))
    yield {"true": True, "false": False}.get(word, word)


def _listed(values: Iterable[Any]) -> str:
    words = {True: "true", False: "false"}
    return f"[{', '.join(words[v] if isinstance(v, bool) else str(v) for v in values)}]"


def _fallback(kind: Any, value: Any) -> str:
    choices = _choices(kind)
    return oddity(value) if isinstance(value, str) and (choices or _shapes(kind) & {int, float}) else ""


# --- what a type takes ----------------------------------------------------------


def _arms(info: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.Metadata):
        yield from _arms(info.type)
    elif isinstance(info, inspect.UnionType):
        for one in info.types:
            yield from _arms(one)
    else:
        yield info


def _shapes(kind: Any) -> set[type]:
    """Of int, float, bool, str and dict, those that a value may be of."""
    return {_SHAPES.get(type(arm), type(None)) for arm in _arms(inspect.type_info(kind))}


_SHAPES: Final[dict[type[inspect.Type], type]] = {
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.BoolType: bool,
    inspect.StrType: str,
    inspect.DictType: dict,
    inspect.StructType: dict,
}


def _choices(kind: Any) -> list[str]:
    arms = _arms(inspect.type_info(kind))
    return [str(v) for arm in arms if isinstance(arm, inspect.LiteralType) for v in arm.values]
