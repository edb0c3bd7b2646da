"""JSON in pieces is the JSON that there would be in one."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.view.jsonout import pieces, whole

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def lazy(value: Any) -> Any:
    """Every list an iterator."""
    if isinstance(value, list):
        return map(lazy, value)
    return {name: lazy(one) for name, one in value.items()} if isinstance(value, dict) else value


@given(plain)
def test_in_pieces_as_in_one(value: Any) -> None:
    assert "".join(pieces(lazy(value))) == json.dumps(value, indent=2)
    assert "".join(pieces(value)) == json.dumps(value, indent=2)


def test_whole_has_lists_again() -> None:
    value = {"rows": [1, 2], "agreement": {"rows": [{"x": 1}], "reference": "hf"}, "name": "n"}
    made = {"rows": iter([1, 2]), "agreement": {"rows": iter([{"x": 1}]), "reference": "hf"}, "name": "n"}
    assert whole(made) == value
