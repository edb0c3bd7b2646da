"""The promises of the Ray back end (raycases.py), each on a Ray cluster of the tests' own.

Without an environment that has Ray (scripts/install-ray makes it), or the right to make namespaces, these are skipped;
where AIRLOCK_TEST_RAY is "required" they fail.
"""

from __future__ import annotations

import pytest

from tests.clusters import raycases, raytold

ALL_S = 300.0


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> raytold.Told:
    return raytold.told(raycases, tmp_path_factory.mktemp("ray"), {}, ALL_S)


@pytest.mark.parametrize("case", raytold.cases(raycases))
def test_ray_keeps(case: str, told: raytold.Told) -> None:
    raytold.hold(case, told)
