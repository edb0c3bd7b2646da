"""What `methods` shows, held to what the workers really tell their engines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.definition.enginewords import sets
from orchestrator.definition.requirements import needs_of
from orchestrator.devices import Machine
from orchestrator.errors import InputError
from orchestrator.methods import builtin, misfits, refuse
from orchestrator.nvml import Device
from orchestrator.stores.envstate import EngineEnv, Fingerprint, Stored, save
from orchestrator.view import methodlist
from protocol.specs import BackendConfig, MethodSpec, NgramSpec
from workers.backends import sglang_args, vllm_args
from workers.backends.hf_paged import Paged

BUILTIN = builtin()
CPU = Machine("cpu", (), 2, 1 << 30, ())


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without a GPU and without an environment, whatever this one has."""
    monkeypatch.setenv("AIRLOCK_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr(methodlist, "discover", lambda: CPU)


def shown(name: str | None = None) -> str:
    return "\n".join(methodlist.methods(name, as_json=False))


def entry(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads("\n".join(methodlist.methods(name, as_json=True)))
    return found


def told(method: MethodSpec, folder: Path) -> dict[str, Any]:
    """The arguments that the worker of this engine gives to it."""
    (folder / "config.json").write_text("{}")
    config = BackendConfig(method=method, model_path=str(folder), device="cuda", batch_size=8)
    if method.engine == "vllm":
        return vllm_args.engine_args(config)
    return sglang_args.engine_args(config, print)


@pytest.mark.parametrize("name", [n for n, m in BUILTIN.items() if m.engine in ("vllm", "sglang")])
def test_what_is_shown_is_what_the_engine_is_told(name: str, tmp_path: Path) -> None:
    """And nothing else is told that a method without a choice of its own is not told too."""
    method = BUILTIN[name]
    bare = told(MethodSpec("bare", method.engine), tmp_path)
    given = {k: v for k, v in told(method, tmp_path).items() if bare.get(k) != v} | method.engine_args
    words = [one for one in sets(method) if not one.endswith(" in the environment")]
    assert {one.partition("=")[0] for one in words} == set(given)
    for one in words:
        argument, _, value = one.partition("=")
        said = eval(value.replace("… ", ""), {"batch_size": 8})
        # Of the sizes of graphs the largest is told once more.
        assert said.items() <= given[argument].items() if isinstance(said, dict) else said == given[argument]


@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_what_is_shown_of_a_paged_cache_is_what_transformers_is_told(attention: str) -> None:
    method = MethodSpec("m", "hf", attention, continuous_batching=True)
    config = BackendConfig(method=method, model_path="", batch_size=8)
    (shown,) = [one for one in sets(method) if one.startswith("continuous_batching_config=")]
    given = Paged(config, None, 64, print).ours()
    said = eval(shown.partition("=")[2], {"ContinuousBatchingConfig": dict, "batch_size": 8})
    assert said.items() <= given.items()


def test_environment_variables_and_nested_arguments_are_shown_as_python_writes_them() -> None:
    method = MethodSpec("m", "vllm", engine_args={"a": {"b": [1, "x"], "c": None}}, env_vars={"V": "1"})
    assert sets(method) == ['a={"b": [1, "x"], "c": None}', "V=1 in the environment"]
    assert sets(MethodSpec("m", "hf", "eager")) == ['attn_implementation="eager"']
    assert sets(MethodSpec("m", "hf", ngram=NgramSpec(1, 2, 5))) == [
        "prompt_lookup_num_tokens=5",
        "max_matching_ngram_size=2",
    ]
    assert sets(BUILTIN["vllm_default"]) == []


def test_the_guide_shows_every_method_as_it_is() -> None:
    lines = (Path(__file__).parents[2] / "docs" / "methods.md").read_text().splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    assert list(rows) == list(BUILTIN)
    for name, method in BUILTIN.items():
        _, _, summary, words, where, _ = rows[name].split("|")
        assert summary.strip() == method.summary
        assert words.strip() == ("<br>".join(f"`{one}`" for one in sets(method)) or "nothing")
        on_cpu = not (refuse(method, "cpu") or misfits(BackendConfig(method=method, model_path="", kv_cache_bytes=1)))
        assert ("CPU" in where or where.strip() == "everywhere") == on_cpu, name
        assert all(f"`{package}`" in where for package in needs_of(method).packages)
        least = needs_of(method).least
        assert (f"GPU {least[0]}.{least[1]} " in where) == (least > (0, 0))


def test_every_method_is_listed_with_what_it_is_and_whether_it_runs_here() -> None:
    text = shown()
    blocks = re.split(r"\n(?=  \S)", text)
    assert [block.split()[0] for block in blocks[1:]] == list(BUILTIN)
    for block, method in zip(blocks[1:], BUILTIN.values(), strict=True):
        flat = " ".join(block.split())
        assert method.summary in flat
        config = BackendConfig(method=method, model_path="", kv_cache_bytes=1)
        reason = refuse(method, "cpu") or "; ".join(misfits(config))
        assert (f"not on this machine: {reason}" if reason else "can run here") in flat
    assert max(map(len, text.splitlines())) <= 90


def test_what_runs_on_cpus_is_not_said_to_use_cuda_graphs_there() -> None:
    for method in BUILTIN.values():
        config = BackendConfig(method=method, model_path="", kv_cache_bytes=1)
        if not (refuse(method, "cpu") or misfits(config)) and "CUDA graphs" in method.summary:
            assert "on a GPU" in method.summary or "no CUDA graphs" in method.summary


def test_one_in_full_shows_every_field() -> None:
    text = shown("hf_ngram")
    assert {line.split()[0] for line in text.splitlines() if not line.startswith(" ")} == {
        *MethodSpec.__struct_fields__,
        *("origin", "sets", "here"),
    }
    assert '{"min_n": 1, "max_n": 3, "draft_tokens": 3}' in text
    assert "nothing: all is left to the engine" in shown("vllm_default")
    with pytest.raises(InputError, match="did you mean hf_ngram"):
        shown("hf_ngrm")


def test_a_gpu_that_is_too_old_and_an_environment_without_the_package_are_reasons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda = Machine("cuda", (Device(0, "GPU-a", "Tesla T4", None, (7, 5)),), 2, 1 << 30, ())
    monkeypatch.setattr(methodlist, "discover", lambda: cuda)
    assert entry("hf_flash")["refused"] == (
        "flash_attention_2 needs compute capability 8.0 or more, and GPU 0 (GPU-a) Tesla T4 has 7.5"
    )
    assert entry("sglang_flashinfer")["refused"] is None, "nothing is known of an environment that is not built"
    env = EngineEnv("sglang", "sglang", "/python", Fingerprint.of("3.11", {"sglang": "0.5"}, ""), "user")
    folder = tmp_path / "envs" / "sglang"
    folder.mkdir(parents=True)
    save(folder, Stored.now(env, "0.5"))
    assert "needs flashinfer-python (flashinfer-python: not installed) in environment sglang" in str(
        entry("sglang_flashinfer")["refused"]
    )
