"""The arithmetic of `stats` on arrays: the bootstrap, quantiles, Student's t. Imported where a figure is made only:
numpy takes a tenth of a second, Student's t as much again, and scipy's bootstrap, which brings all of its statistics,
half a second and 70 MB. So the last two are imported where they are used."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    blocks = (np.concatenate(arrays[part]) for part in _parts(len(arrays)))
    table = np.array([np.bincount(np.searchsorted(edges, block), minlength=len(edges)) for block in blocks])

    def statistic(drawn: npt.NDArray[Any]) -> npt.NDArray[Any]:
        below = np.cumsum(_times_drawn(drawn) @ table, axis=-1)
        # The middle of an even number of values lies between two of them.
        low, high = (np.argmax(2 * below >= below[:, -1:] + add, axis=-1) for add in (0, 1))
        found: npt.NDArray[Any] = np.log((edges[low] + edges[high]) / 2)
        return found

    with np.errstate(divide="ignore", invalid="ignore"):
        return _error(len(table), statistic)


def _edges(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Of sorted values those where the median of a resample is looked up: all, or those at ranks that lie the closer
    together the nearer they are to the middle. The last is the greatest of all."""
    if len(values) > 2 * _RANKS:
        away = np.geomspace(1, len(values) / 2, _RANKS)
        places = np.concatenate([len(values) / 2 - away, len(values) / 2 + away])
        values = values[np.clip(places.astype(np.int64), 0, len(values) - 1)]
    found: npt.NDArray[Any] = np.unique(values).astype(np.float64)
    return found


def _times_drawn(drawn: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """How often each unit was drawn, a row for each resample."""
    count = drawn.shape[-1]
    rows = drawn.reshape(-1, count)
    offsets = np.arange(len(rows))[:, None] * count
    return np.bincount((rows + offsets).ravel(), minlength=rows.size).reshape(rows.shape).astype(np.float64)


def _error(count: int, statistic: Statistic) -> float:
    """Of a statistic of units, which are given by their numbers. The same units give the same error, always."""

    def of_rows(drawn: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
        assert axis == -1
        return statistic(drawn)

    with _without_threads():
        from scipy.stats import DegenerateDataWarning, bootstrap

    with warnings.catch_warnings():
        # Of the logarithm of a median that is zero in some resample. The error is no number then, which says it all.
        warnings.simplefilter("ignore", DegenerateDataWarning)
        found = bootstrap(
            (np.arange(count),),
            of_rows,
            n_resamples=RESAMPLES,
            method="percentile",
            vectorized=True,
            rng=np.random.default_rng(_SEED),
        )
    return float(found.standard_error) * math.sqrt(count / (count - 1))


def _blocks(count: int) -> int:
    return min(count, MOST_UNITS)


def _parts(count: int) -> list[slice]:
    """Neighbours together, in MOST_UNITS parts or fewer."""
    parts = _blocks(count)
    return [slice(count * n // parts, count * (n + 1) // parts) for n in range(parts)]


def median(units: Sequence[Sequence[float]]) -> float:
    """Of all their values."""
    return float(np.median(np.concatenate([np.asarray(unit, dtype=np.float64) for unit in units])))


def quantiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    return [float(one) for one in np.quantile(np.asarray(values, dtype=np.float64), shares)]


def student_t(freedom: float, share: float) -> float:
    """The value that Student's t with so many degrees of freedom stays below with this probability."""
    with _without_threads():
        from scipy.special import stdtrit

    return float(stdtrit(freedom, share))
