from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.errors import EnvironmentFailed, InputError
from orchestrator.run.environments import doubts
from orchestrator.stores import recipes
from orchestrator.stores.envbuild import (
    Progress,
    check_disk,
    find_uv,
    installer_environment,
    interpreter,
    phases,
    pip_config_files,
    size_bytes,
)
from orchestrator.stores.envstate import EngineEnv, Fingerprint, Stored, load, save
from orchestrator.stores.recipes import WORKER_MODULES, Kind, Recipe
from orchestrator.stores.tools import cause_in, tail

KINDS: tuple[Kind, ...] = ("cpu", "cuda")


def all_recipes() -> list[Recipe]:
    found = [recipes.recipe(engine, kind) for engine in recipes.engines() for kind in KINDS]
    assert None not in found
    return [one for one in found if one is not None]


def test_each_engine_has_a_pinned_recipe_for_each_kind_of_machine() -> None:
    assert recipes.engines() == ("hf", "vllm", "sglang")
    for one in all_recipes():
        names = {package.split("=")[0].split(">")[0] for package in one.packages}
        assert set(WORKER_MODULES.values()) <= names
        ranged = [package for package in one.packages if "==" not in package]
        assert {package.split(">=")[0] for package in ranged} == set(WORKER_MODULES.values())
        assert one.disk_bytes > 0
        assert one.build_s > 0
    assert recipes.recipe("scripted", "cpu") is None


def test_only_what_was_run_counts_as_proven() -> None:
    assert {(one.engine, one.kind) for one in all_recipes() if one.proven} == {(e, "cpu") for e in recipes.engines()}


def test_the_digest_covers_all_that_gets_installed(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text("a = 1")
    base = Recipe("hf", "cpu", ("a==1", "b==2"), remove=("c",), plugins=(tmp_path,))
    before = base.digest
    assert base.digest == before
    changed = [
        replace(base, packages=("a==1", "b==3")),
        replace(base, kind="cuda"),
        replace(base, remove=()),
        replace(base, packages=("a==1",), remove=("b==2", "c")),
        replace(base, plugins=()),
    ]
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "plugin.pyc").write_text("x")
    assert base.digest == before
    (tmp_path / "plugin.py").write_text("a = 2")
    assert len({before, base.digest, *(one.digest for one in changed[:-1]), changed[-1].digest}) == 7


def test_a_python_out_of_range_is_refused_with_the_range() -> None:
    one = Recipe("hf", "cpu", (), pythons=((3, 11), (3, 13)))
    assert one.refuses((3, 11)) is None
    assert one.refuses((3, 13)) is None
    assert one.refuses((3, 14)) == "the recipe for hf needs Python 3.11 to 3.13, this is 3.14"
    assert one.refuses((3, 9))


def test_phases_install_then_remove_then_add_plugins(tmp_path: Path) -> None:
    one = Recipe("vllm", "cpu", ("vllm==1",), remove=("torchvision",))
    for uv in (None, "/bin/uv"):
        commands = [phase.argv for phase in phases(one, tmp_path, [tmp_path / "plugin"], uv)]
        python = str(interpreter(tmp_path))
        assert len(commands) == 4
        assert "venv" in commands[0]
        assert commands[1][-1] == "vllm==1"
        assert "uninstall" in commands[2]
        assert commands[2][-1] == "torchvision"
        assert commands[3][-2:] == ("--no-deps", str(tmp_path / "plugin"))
        assert all(python in command for command in commands[1:])
    assert "--without-pip" in phases(Recipe("hf", "cpu", ()), tmp_path, [], None)[0].argv


def test_pip_settings_of_the_user_are_kept_but_cannot_divert(tmp_path: Path) -> None:
    given = {"PIP_INDEX_URL": "x", "PIP_TARGET": "/elsewhere", "PIP_USER": "1", "UV_INDEX": "y", "TMPDIR": "/small"}
    given |= {"PIP_NO_DEPS": "1", "UV_SYSTEM_PYTHON": "1", "UV_OVERRIDE": "overrides.txt"}
    found = installer_environment(given, tmp_path)
    assert found == {"PIP_INDEX_URL": "x", "UV_INDEX": "y", "PIP_USER": "0", "TMPDIR": str(tmp_path)}


def test_uv_is_used_where_pip_has_no_settings_of_its_own(tmp_path: Path) -> None:
    uv, config = tmp_path / "uv", tmp_path / "pip.conf"
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    here = {"PATH": str(tmp_path)}
    assert find_uv(here, [config]) == str(uv)
    assert find_uv({**here, "PIP_INDEX_URL": "x"}, [config]) is None
    assert find_uv({**here, "PIP_INDEX_URL": "x", "AIRLOCK_INSTALLER": "uv"}, [config]) == str(uv)
    assert find_uv({**here, "AIRLOCK_INSTALLER": "pip"}, [config]) is None
    assert find_uv({"PATH": str(tmp_path / "none")}, [config]) is None
    config.write_text("[global]\n")
    assert find_uv(here, [config]) is None
    assert tmp_path / ".config" / "pip" / "pip.conf" in pip_config_files({"HOME": str(tmp_path)})
    for wrong in ({"AIRLOCK_INSTALLER": "conda"}, {"AIRLOCK_INSTALLER": "uv", "PATH": ""}):
        with pytest.raises(InputError, match="AIRLOCK_INSTALLER"):
            find_uv(wrong)


PIP_LOG = """\
WARNING: Location 'file:///some/where' is ignored: it is either a non-existing path or lacks a specific scheme.
Collecting nosuch==1
  WARNING: Location 'file:///some/where' is ignored
ERROR: Could not find a version that satisfies the requirement nosuch==1 (from versions: none)
ERROR: No matching distribution found for nosuch==1
WARNING: There was an error checking the latest version of pip.
[notice] A new release of pip is available
"""
UV_LOG = """\
Using Python 3.11.7 environment at: x
  × No solution found when resolving dependencies:
  ╰─▶ Because nosuch was not found in the package registry and you require
      nosuch, we can conclude that your requirements are unsatisfiable.
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (PIP_LOG, "Could not find a version that satisfies the requirement nosuch==1 (from versions: none)"),
        ("ERROR: Exception:\nTraceback (most recent call last):\n  File x\nKeyError: 'a'\n", "KeyError: 'a'"),
        (
            "  error: subprocess-exited-with-error\n  × Building\nERROR: Failed building wheel for x\n",
            "Failed building wheel for x",
        ),
        (
            "The venv was not created because ensurepip is not available.\n",
            "The venv was not created because ensurepip is not available.",
        ),
        (
            "error: No solution found\n  cause: Because a\n  cause: and b\nUsing x\n",
            "No solution found: Because a: and b",
        ),
        ("WARNING: one\nWARNING: two\n", ""),
        ("", ""),
        (
            UV_LOG,
            "No solution found when resolving dependencies: Because nosuch was not found in the package registry and"
            " you require nosuch, we can conclude that your requirements are unsatisfiable.",
        ),
    ],
)
def test_the_cause_is_never_a_warning(log: str, cause: str) -> None:
    assert cause_in(log) == cause


def test_a_tail_leaves_out_warnings(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(PIP_LOG)
    assert "WARNING" not in tail(tmp_path / "log")
    assert tail(tmp_path / "none") == ""


def test_progress_is_said_every_ten_seconds(tmp_path: Path) -> None:
    now, said = [0.0], list[str]()
    (tmp_path / "log").write_text("Collecting torch==2.13.0 (from x)\nWARNING: x\n")
    (tmp_path / "venv").write_bytes(b"x" * 100_000)
    progress = Progress("hf", tmp_path, tmp_path / "log", said.append, lambda: now[0])
    progress.begin("installing")
    for now[0] in (3.0, 9.9, 10.0, 12.0, 20.5):
        progress.tick()
    assert len(said) == 3
    assert said[1].startswith("  hf: installing, 10 s, ")
    assert "Collecting torch==2.13.0" in said[1]
    assert size_bytes(tmp_path) >= 100_000


def test_too_small_a_disk_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    check_disk("hf", 1, tmp_path)
    with pytest.raises(EnvironmentFailed, match=r"needs about .* TiB"):
        check_disk("hf", 1 << 60, tmp_path)


# --- versions of other environments ----------------------------------------------


@pytest.mark.parametrize("recipe", all_recipes(), ids=lambda recipe: f"{recipe.engine}-{recipe.kind}")
def test_the_recipes_own_versions_are_tested(recipe: Recipe) -> None:
    pins = dict(one.split("==") for one in recipe.packages if "==" in one)
    assert recipes.untested(recipe.engine, pins) == ""


@pytest.mark.parametrize(
    ("engine", "installed", "told"),
    [
        ("hf", {"transformers": "5.19.3"}, ""),
        ("hf", {"transformers": "5.19.0+git.0123456789ab"}, ""),
        ("hf", {"transformers": "4.57.1"}, "it holds transformers 4.57.1, and Airlock is made for 5.19.0: "),
        ("hf", {"transformers": "5.20.0.dev0"}, "it holds transformers 5.20.0.dev0, "),
        ("vllm", {"vllm": "0.32.1"}, ""),
        ("vllm", {"vllm": "0.11.0"}, "it holds vllm 0.11.0, and Airlock is made for 0.32.0 and 0.33.0: "),
        ("sglang", {"sglang": "0.5.24"}, "it holds sglang 0.5.24, "),
        ("sglang", {"torch": "2"}, ""),
        ("scripted", {"transformers": "4"}, ""),
    ],
)
def test_an_engine_of_another_version_is_told(engine: Any, installed: dict[str, str], told: str) -> None:
    found = recipes.untested(engine, installed)
    assert found.startswith(told)
    assert bool(found) == bool(told)
    env = EngineEnv("mine", engine, "/python", Fingerprint.of("3.11", installed, ""), "user", installed=installed)
    assert doubts({engine: env}) == ([f"environment mine: {found}"] if told else [])


# --- fingerprints and their file ------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *(
            "xformers",
            "mamba-ssm",
            "causal-conv1d",
            "flash-linear-attention",
            "fla-core",
            "sageattention",
            "flash-attn-3",
        ),
        *("gptqmodel", "autoawq", "auto-gptq", "optimum", "hqq", "pillow", "timm", "mistral-common", "mkl"),
    ],
)
def test_what_brings_kernels_or_numbers_of_its_own_is_of_the_fingerprint(name: str) -> None:
    before, after = (Fingerprint.of("3.11", {name: version, "requests": version}, "") for version in ("1", "2"))
    assert before.drift(after) == (f"{name} 1 → 2",)
    assert before.digest != after.digest


def test_what_an_earlier_airlock_did_not_look_at_has_not_changed() -> None:
    packages = {"torch": "2", "pillow": "1"}
    made = EngineEnv("e", "hf", "/python", Fingerprint("3.11", {"torch": "2"}, "r", "earlier"), "recipe")
    now = Fingerprint.of("3.11", packages, "r")
    assert msgspec.structs.replace(made, installed=packages).known.drift(now) == ()
    assert made.known == made.fingerprint


def fingerprint(**packages: str) -> Fingerprint:
    return Fingerprint.of("3.11.7", {name.replace("_", "-"): v for name, v in packages.items()}, "r")


def test_a_fingerprint_heeds_what_matters_and_names_what_changed() -> None:
    before = fingerprint(torch="2.13.0", nvidia_cudnn_cu13="9", pytest="1")
    assert before.packages == {"torch": "2.13.0", "nvidia-cudnn-cu13": "9"}
    assert before.digest == fingerprint(torch="2.13.0", nvidia_cudnn_cu13="9", pytest="2", rich="3").digest
    now = fingerprint(torch="2.14.0", triton="3")
    assert now.digest != before.digest
    changes = ("nvidia-cudnn-cu13 9 → not installed", "torch 2.13.0 → 2.14.0", "triton not installed → 3")
    assert before.drift(now) == changes
    assert before.drift(Fingerprint.of("3.12.0", before.packages, "r")) == ("python 3.11.7 → 3.12.0",)
    assert Fingerprint.of("3.11.7", {}, "a").digest != Fingerprint.of("3.11.7", {}, "b").digest


def test_the_state_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    env = EngineEnv("hf", "hf", "/x/bin/python", fingerprint(torch="1"), "recipe")
    assert load(tmp_path, "hf") is None
    save(tmp_path, Stored(env=env, kind="cpu", engine_version="5"))
    found = load(tmp_path, "hf")
    assert found is not None
    assert found.env == env
    (tmp_path / "env.json").write_text((tmp_path / "env.json").read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(EnvironmentFailed, match="format 9"):
        load(tmp_path, "hf")
    (tmp_path / "env.json").write_text("{")
    with pytest.raises(EnvironmentFailed, match="can't be read"):
        load(tmp_path, "hf")
