"""What an engine's own method was given or gave, looked at while the engine works as it always does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def watched(owner: Any, method: str, pick: Callable[..., Any]) -> Iterator[list[Any]]:
    """Gives what `pick` makes of each call meanwhile; it gets the result, then the arguments. The method of the
    owner's class is hidden on this one object and stays as it is."""
    kept: list[Any] = []
    inner = getattr(owner, method)

    def looked_at(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        kept.append(pick(result, *args, **kwargs))
        return result

    setattr(owner, method, looked_at)
    try:
        yield kept
    finally:
        delattr(owner, method)
