"""The arithmetic of `stats` on arrays: the bootstrap, quantiles, Student's t. Imported where a figure is made only:
numpy takes a tenth of a second, Student's t as much again, so that is imported where it is used.

The bootstrap is scipy's to the last bit (a test holds it to that), with the draws, which depend on the number of units
alone, made once: a report has thousands of intervals.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    from orchestrator.view import stats

_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def _without_threads() -> Iterator[None]:
    """Both bring a library for linear algebra, which nobody here does, and which starts a thread for each CPU as it is
    loaded. Workers started later must not inherit this."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before


with _without_threads():
    import numpy as np

RESAMPLES = 2000
#: More units are drawn in blocks of neighbours; what drifts slowly stays together in them.
MOST_UNITS = 256
#: Of more than twice as many values the median of a resample is looked up at so many ranks on each side of it.
_RANKS = 512
_SEED = 20260

#: Of up to MOST_UNITS units, 4 MB each.
_KEPT_DRAWS = 8

Statistic = Callable[["npt.NDArray[Any]"], "npt.NDArray[Any]"]


def rate_error(amounts: Sequence[float], times_s: Sequence[float]) -> float:
    """Standard error of the logarithm of sum / sum; all are above zero."""
    return _error(_blocks(len(amounts)), _log_rate(amounts, times_s))


def ratio_error(ours: stats.Columns, others: stats.Columns) -> float:
    """The same of the quotient of two rates of the same units."""
    mine, theirs = _log_rate(*ours), _log_rate(*others)
    return _error(_blocks(len(ours[0])), lambda drawn: mine(drawn) - theirs(drawn))


def _log_rate(amounts: Sequence[float], times_s: Sequence[float]) -> Statistic:
    had, took = _sums(amounts), _sums(times_s)

    def statistic(drawn: npt.NDArray[Any]) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = np.log(had[drawn].sum(axis=-1) / took[drawn].sum(axis=-1))
        return found

    return statistic


def _sums(values: Sequence[float]) -> npt.NDArray[Any]:
    return np.array([math.fsum(values[part]) for part in _parts(len(values))])


def median_error(units: Sequence[Sequence[float]]) -> float:
    """Standard error of the logarithm of the median of all values of all units; not finite if a resample's is zero."""
    arrays = [np.asarray(unit) for unit in units]
    edges = _edges(np.sort(np.concatenate(arrays)))
    blocks = [np.sort(np.concatenate(arrays[part])) for part in _parts(len(arrays))]
    #: Of each block, a column: how many of its values are no greater than each edge.
    below = np.stack([np.searchsorted(block, edges, side="right") for block in blocks], axis=-1)
    drawn, which = _distinct(len(blocks))
    half = drawn @ below[-1]
    low = _first(below, drawn, half, np.zeros(len(drawn), np.int64))
    # The middle of an even number of values lies between two of them.
    high = _first(below, drawn, half + 1, low)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _spread(np.log((edges[low] + edges[high]) / 2)[which], len(blocks))


def _first(
    below: npt.NDArray[Any], drawn: npt.NDArray[Any], twice: npt.NDArray[Any], low: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """For each resample the first edge from `low` on that twice as many of its values as `twice` says, or more, are no
    greater than."""
    high = np.full(len(drawn), len(below) - 1)
    while (open_ := low < high).any():
        middle = (low + high) // 2
        enough = 2 * np.einsum("ru,ru->r", drawn, below[middle]) >= twice
        low, high = np.where(open_ & ~enough, middle + 1, low), np.where(open_ & enough, middle, high)
    return low


def _edges(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Of sorted values those where the median of a resample is looked up: all, or those at ranks that lie the closer
    together the nearer they are to the middle. The last is the greatest of all."""
    if len(values) > 2 * _RANKS:
        away = np.geomspace(1, len(values) / 2, _RANKS)
        places = np.concatenate([len(values) / 2 - away, len(values) / 2 + away])
        values = values[np.clip(places.astype(np.int64), 0, len(values) - 1)]
    found: npt.NDArray[Any] = np.unique(values).astype(np.float64)
    return found


@lru_cache(_KEPT_DRAWS)
def _draws(count: int) -> npt.NDArray[Any]:
    """Units by their numbers, a row for each resample. The same units give the same error, always."""
    return np.random.default_rng(_SEED).integers(0, count, (RESAMPLES, count))


@lru_cache(_KEPT_DRAWS)
def _distinct(count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """How often each unit was drawn, a row for each resample that is not like another; and which each resample is.
    Few units can't be drawn in many ways."""
    drawn = _draws(count)
    times = np.bincount((drawn + np.arange(len(drawn))[:, None] * count).ravel(), minlength=drawn.size)
    found, which = np.unique(times.reshape(drawn.shape), axis=0, return_inverse=True)
    return found, which.reshape(-1)


def _error(count: int, statistic: Statistic) -> float:
    """Of a statistic of units, which are given by their numbers."""
    return _spread(statistic(_draws(count)), count)


def _spread(resampled: npt.NDArray[Any], count: int) -> float:
    return float(np.std(resampled, ddof=1)) * math.sqrt(count / (count - 1))


def _blocks(count: int) -> int:
    return min(count, MOST_UNITS)


def _parts(count: int) -> list[slice]:
    """Neighbours together, in MOST_UNITS parts or fewer."""
    parts = _blocks(count)
    return [slice(count * n // parts, count * (n + 1) // parts) for n in range(parts)]


def ordered(parts: Sequence[Sequence[float]]) -> list[float]:
    """The values of all parts."""
    found: list[float] = np.sort(np.concatenate([np.asarray(part) for part in parts])).tolist()
    return found


def median(units: Sequence[Sequence[float]]) -> float:
    """Of all their values."""
    return float(np.median(np.concatenate([np.asarray(unit, dtype=np.float64) for unit in units])))


def quantiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    return [float(one) for one in np.quantile(np.asarray(values, dtype=np.float64), shares)]


def sums(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Of rows of counts, a unit each: those of each resample added up."""
    blocks = np.array([np.sum(rows[part], axis=0) for part in _parts(len(rows))])
    found: list[list[int]] = blocks[_draws(len(blocks))].sum(axis=1).tolist()
    return found


def student_t(freedom: float, share: float) -> float:
    """The value that Student's t with so many degrees of freedom stays below with this probability."""
    with _without_threads():
        from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def student_share(freedom: float, value: float) -> float:
    """How likely Student's t with so many degrees of freedom is below this value."""
    with _without_threads():
        from scipy.special import stdtr

    return float(stdtr(freedom, value))
