"""What a method names is known by its content: a change in place, at the same size and time, is a change."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.stores.envstate import EngineEnv, Fingerprint
from orchestrator.stores.methodfiles import changed, files_in, files_of
from protocol.specs import MethodSpec

Named = Callable[[str], dict[str, Any]]


def args(**values: Any) -> dict[str, Any]:
    return {"engine_args": values}


#: Kind of thing → how a method names the path of it.
FILES: dict[str, Named] = {
    "a chat template": lambda path: args(chat_template=path),
    "a configuration": lambda path: args(quantization_param_path=path),
    "a plugin's class": lambda path: args(logits_processors=[f"{path}:Cls"]),
    "a library": lambda path: {"env_vars": {"LD_PRELOAD": f"/no/such.so:{path}"}},
    "a configuration in a variable": lambda path: {"env_vars": {"SGLANG_SETTINGS": path}},
    "the program": lambda path: {"worker": (path,)},
    "the script of an interpreter": lambda path: {"worker": (sys.executable, "-u", path)},
    "a file among the program's words": lambda path: {"worker": ("/bin/sh", f"--config={path}")},
}
FOLDERS: dict[str, Named] = {
    "an adapter": lambda path: args(lora_paths=[f"mine={path}"]),
    "adapters by name": lambda path: args(lora_modules={"mine": {"path": path}}),
    "a draft model": lambda path: args(speculative_config={"model": path, "num_speculative_tokens": 3}),
    "a draft model in JSON": lambda path: args(speculative_config=json.dumps({"model": path})),
    "a draft model of SGLang": lambda path: args(speculative_draft_model_path=path),
    "a tokenizer": lambda path: args(tokenizer=path),
    "kernels' settings in a variable": lambda path: {"env_vars": {"VLLM_TUNED_CONFIG_FOLDER": path}},
}


def method(named: dict[str, Any]) -> MethodSpec:
    return MethodSpec(name="m", engine="vllm", **named)


def change_in_place(file: Path) -> None:
    """No size and no time tells of it."""
    before = file.stat()
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a file"
    path.write_bytes(b"what decides")
    path.chmod(0o755)
    # Only a value that is nothing but the path may hold a space.
    link = tmp_path / "file"
    link.symlink_to(path)
    return link


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "adapter_model.safetensors").write_bytes(b"weights")
    return path


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_known_by_its_content(kind: str, file: Path) -> None:
    found = method(FILES[kind](str(file)))
    before = files_of(found)
    assert str(file) in before
    assert files_of(found) == before
    change_in_place(file)
    assert files_of(found)[str(file)] != before[str(file)]


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_is_known_by_its_content(kind: str, folder: Path) -> None:
    found = method(FOLDERS[kind](str(folder)))
    before = files_of(found)
    assert list(before) == [str(folder)]
    change_in_place(folder / "adapter_model.safetensors")
    assert files_of(found)[str(folder)] != before[str(folder)]


def test_a_path_with_a_space_is_found_where_it_is_all_of_a_value(file: Path) -> None:
    spaced = str(file.resolve())
    assert " " in spaced
    assert list(files_of(method(args(chat_template=spaced)))) == [spaced]


def test_a_program_is_the_one_that_path_leads_to(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(file.parent), prepend=os.pathsep)
    assert list(files_of(method({"worker": ("file", "--fast")}))) == [str(file)]


def test_a_folder_that_python_runs_is_a_program(folder: Path) -> None:
    words = ("/bin/sh", str(folder))
    assert str(folder) not in files_of(method({"worker": words})), "it may be one that the program writes"
    (folder / "__main__.py").write_text("print(1)")
    before = files_of(method({"worker": words}))[str(folder)]
    change_in_place(folder / "__main__.py")
    assert files_of(method({"worker": words}))[str(folder)] != before


def test_a_draft_model_on_the_hub_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    named = method(args(speculative_config={"model": "owner/draft", "method": "eagle"}))
    assert files_of(named) == {}, "not fetched yet"
    refs = tmp_path / "models--owner--draft" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("c0ffee")
    assert files_of(named) == {"owner/draft": "c0ffee"}


@pytest.mark.parametrize(
    "named",
    [
        lambda path: args(download_dir=path),
        lambda path: args(compilation_config={"cache_dir": path}),
        lambda path: args(offload_folder=path),
        lambda path: {"env_vars": {"HF_HOME": path}},
        lambda path: {"env_vars": {"VLLM_CACHE_ROOT": path}},
        lambda path: {"env_vars": {"TMPDIR": path}},
    ],
)
def test_what_an_engine_writes_is_no_part_of_it(named: Named, folder: Path) -> None:
    assert files_of(method(named(str(folder)))) == {}


def test_what_is_no_path_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run in folders of their own, where a relative path leads elsewhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "auto").write_text("x")
    values = args(dtype="auto", a=["./auto", "/no/such/file", "", "\0", "/dev/null", "x" * 5000], n=3, none=None)
    assert files_of(method({**values, "env_vars": {"A": "auto"}})) == {}


def test_what_can_not_be_read_is_told_apart() -> None:
    assert files_of(method(args(chat_template="/proc/self/mem"))) == {
        "/proc/self/mem": "can't be read: Input/output error"
    }


# --- environments -----------------------------------------------------------------


def an_env(**values: Any) -> EngineEnv:
    packages = {"vllm": "1", "my-plugin": "2", "other": "3"}
    return EngineEnv("e", "vllm", "/python", Fingerprint.of("3.11", packages, ""), "user", installed=packages, **values)


@pytest.mark.parametrize("name", ["vllm/engine.py", "setup.py", "csrc/kernel.cu", "vllm/_C.abi3.so"])
def test_an_editable_package_is_known_by_its_code(folder: Path, name: str) -> None:
    code = folder / name
    code.parent.mkdir(exist_ok=True)
    code.write_text("a")
    env = an_env(editable={"vllm": str(folder)})
    before = files_in(env)
    assert list(before) == [str(folder)]
    change_in_place(code)
    assert files_in(env) != before


@pytest.mark.parametrize("name", ["results/run.json", ".git/hook.py", "vllm/__pycache__/engine.py", "tests/test_a.py"])
def test_what_else_lies_in_a_checkout_is_no_code(folder: Path, name: str) -> None:
    env = an_env(editable={"vllm": str(folder)})
    before = files_in(env)
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("a")
    assert files_in(env) == before


def test_a_plugin_is_known_by_its_version_where_the_fingerprint_has_it_not() -> None:
    assert files_in(an_env(plugins=("vllm", "my-plugin"))) == {"my-plugin": "2"}


# --- what --resume says -----------------------------------------------------------

RUN_DIR = Path("/runs/mine")


def test_each_file_that_changed_is_told_once_with_its_methods() -> None:
    then = {"a": {"/w.sh": "1", "/same": "s"}, "b": {"/w.sh": "1"}, "c": {"/gone": "g"}}
    now = {"a": {"/w.sh": "2", "/same": "s"}, "b": {"/w.sh": "2"}, "c": {}}
    assert list(changed(then, now, RUN_DIR)) == [
        "/w.sh of a, b is not what this run began with (1 then, 2 now)",
        "/gone of c is not what this run began with (g then, not there now)",
    ]


@pytest.mark.parametrize("then", [{}, {"a": {}}, {"b": {"/w.sh": "2"}}])
def test_what_was_not_known_then_says_nothing(then: dict[str, dict[str, str]]) -> None:
    """A run of an earlier Airlock, or a file that the first start made."""
    assert list(changed(then, {"a": {"/w.sh": "1"}}, RUN_DIR)) == []


def test_what_the_run_itself_writes_is_never_the_same_twice(tmp_path: Path) -> None:
    inside, beside = f"{tmp_path}/run/lock", f"{tmp_path}/run2/lock"
    then, now = {"a": {inside: "1", beside: "1"}}, {"a": {inside: "2", beside: "2"}}
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for run_dir in (tmp_path / "run", tmp_path / "link"):
        assert [line.split()[0] for line in changed(then, now, run_dir)] == [beside]
