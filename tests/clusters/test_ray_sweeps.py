"""Whole sweeps on a Ray cluster of the tests' own (ray_sweeps.py), under the conditions of test_ray.py.

Its nodes have a stand-in of NVIDIA's driver, with two GPUs of which each node is given one.
"""

from __future__ import annotations

import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clusters import ray_sweeps, raytold
from tests.nvml.fakedriver import FakeDriver, build, compiler
from tests.process.sweeping import Bench

ALL_S = 300.0


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> raytold.Told:
    folder = tmp_path_factory.mktemp("ray")
    return raytold.told(ray_sweeps, folder, nvml(folder) if compiler() else {}, ALL_S)


def nvml(folder: Path) -> Mapping[str, str]:
    driver = FakeDriver(build(folder), folder / "nvml.txt")
    driver.clear("")
    for n, uuid in enumerate(ray_sweeps.GPUS):
        driver.gpu(n, uuid)
    return driver.variables


@pytest.mark.parametrize("case", raytold.cases(ray_sweeps))
def test_a_sweep_on_ray(case: str, told: raytold.Told) -> None:
    raytold.hold(case, told)


def test_a_python_without_ray_is_refused_before_anything_starts(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    bench = Bench(tmp_path / "b")
    bench.write(launcher="ray", cluster={"listen": "tcp://127.0.0.1", "ray_python": python})
    done = bench.run()
    assert done.returncode == 2
    assert f"Ray is not installed for {python}" in done.stderr
    assert "pip install 'engine-airlock[ray]', or name a Python that has it as cluster.ray_python" in done.stderr
    assert not bench.run_dir.exists()
