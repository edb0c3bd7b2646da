from __future__ import annotations

import base64
import json
import os
import shutil
import struct
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestrator.definition.inputs import DIGEST_SCHEME, FIRST_SCHEME, SCRIPTED, scheme_of
from orchestrator.definition.sources import ModelRef
from orchestrator.errors import EnvironmentFailed, InputError
from orchestrator.launcher import Launcher
from orchestrator.stores.demo import DemoModel
from orchestrator.stores.modelfiles import END_BYTES, SAMPLES, WHOLE_BYTES, digest_of, problems_of
from orchestrator.stores.models import ModelStore
from protocol.specs import pack_ids
from workers.tokenizing import TEKKEN, tokenizer_of
from workers.tools import fetch_hub, model_info, vocabulary
from workers.tools.model_info import attributes, context_length, dtype_name, kv_bytes_per_token, stop_ids
from workers.tools.model_shape import cache_layers


def safetensors(size: int) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "model.safetensors").write_bytes(safetensors(100))
    (model / "tokenizer.json").write_text("{}")
    return model


def store(home: Path) -> ModelStore:
    return ModelStore(home, Launcher(), lambda _: None, base=home)


# --- folders --------------------------------------------------------------------


def test_a_complete_folder_has_no_problems(folder: Path) -> None:
    assert problems_of(folder) == []


def test_an_empty_folder_lists_all_that_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        store(tmp_path).check(ModelRef("path", "."))
    messages = [problem.message.removeprefix(f"., that is {tmp_path}, ") for problem in caught.value.problems]
    assert [m.split(" (")[0] for m in messages] == ["has no config.json", "has no weights", "has no tokenizer"]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("config.json", b"{", "config.json can't be read"),
        ("config.json", b"[]", "neither model_type nor architectures"),
        ("model.safetensors", b"", "is empty"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("model.safetensors", safetensors(100)[:-1], "is damaged"),
        ("model.safetensors", b"\xff" * 20, "nothing that makes sense"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}',
            "lacks 2 of 2",
        ),
        ("model.safetensors.index.json", b"[]", "index.json can't be read"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(folder: Path, name: str, content: bytes, part: str) -> None:
    (folder / name).write_bytes(content)
    found = problems_of(folder)
    assert len(found) == 1
    assert part in found[0]


POINTER = b"version https://git-lfs.github.com/spec/v1\n"
BIN_INDEX = b'{"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}'
SAFE_INDEX = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'


@pytest.mark.parametrize(
    "extra",
    [
        {"pytorch_model.bin.index.json": BIN_INDEX},
        {"pytorch_model.bin.index.json": b"[]"},
        {"pytorch_model.bin": POINTER},
        {"training_args.bin": b"", "optimizer.pt": POINTER, "rng_state.pth": b""},
        {"consolidated.00.pth": POINTER},
        {"consolidated.safetensors.index.json": BIN_INDEX},
    ],
    ids=str,
)
@pytest.mark.parametrize("sharded", [False, True])
def test_what_no_engine_reads_beside_safetensors_is_not_missed(
    folder: Path, extra: dict[str, bytes], sharded: bool
) -> None:
    """The hub's copies hold pickles too, which are not fetched; their index is, or the files are left as pointers."""
    if sharded:
        (folder / "consolidated.safetensors").write_bytes(POINTER)
        for shard in ("model-1.safetensors", "model-2.safetensors"):
            (folder / shard).write_bytes(safetensors(10))
        (folder / "model.safetensors").rename(folder / "of_another.safetensors")
        (folder / "of_another.safetensors").write_bytes(POINTER)
        (folder / "model.safetensors.index.json").write_bytes(SAFE_INDEX)
    for name, content in extra.items():
        (folder / name).write_bytes(content)
    assert problems_of(folder) == []


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({"pytorch_model.bin.index.json": BIN_INDEX}, "lacks 2 of 2 weight files that pytorch_model.bin.index.json"),
        ({"pytorch_model.bin": POINTER}, "pytorch_model.bin is a Git LFS pointer"),
        (
            {"pytorch_model.bin": b"x", "model.safetensors.index.json": SAFE_INDEX},
            "lacks 2 of 2 weight files that model",
        ),
        ({"consolidated.safetensors": POINTER}, "consolidated.safetensors is a Git LFS pointer"),
        (
            {"model.safetensors": safetensors(1), "consolidated.safetensors": POINTER},
            "consolidated.safetensors is a Git LFS pointer",
        ),
        ({"model-1.safetensors": POINTER, "model-2.safetensors": safetensors(1)}, "model-1.safetensors is a Git LFS"),
    ],
    ids=str,
)
def test_what_an_engine_would_read_is_missed(folder: Path, files: dict[str, bytes], part: str) -> None:
    (folder / "model.safetensors").unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (found,) = problems_of(folder)
    assert part in found


@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer.model", "vocab.json", "qwen.tiktoken", "tiktoken.model", "sentencepiece.bpe.model"),
        "tokenization_kimi.py",
    ],
)
def test_tokenizers_have_many_names(folder: Path, name: str) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer_config.json")
    assert [one.split(" (")[0] for one in problems_of(folder)] == ["has no tokenizer"]
    (folder / name).write_text("{}")
    assert problems_of(folder) == []


def test_neither_nothing_nor_a_file_is_a_model(folder: Path) -> None:
    assert problems_of(folder / "gone") == ["does not exist"]
    assert "is a file" in problems_of(folder / "config.json")[0]


def test_a_relative_path_is_taken_from_the_sweep_files_folder(folder: Path) -> None:
    found = store(folder.parent)
    found.check(ModelRef("path", "./model"))
    assert found.present(ModelRef("path", "./model"))
    with pytest.raises(InputError, match="does not exist"):
        found.check(ModelRef("path", "./other"))


def test_a_missing_folder_is_placed_and_gets_the_nearest_name(folder: Path) -> None:
    for name, hint in (("./modle", "did you mean model?"), ("./x", "begins at"), ("./no/x", "there is no folder")):
        with pytest.raises(InputError) as caught:
            store(folder.parent).check(ModelRef("path", name, where="s.yaml:2", key="model.path"))
        (found,) = caught.value.problems
        assert (found.where, found.key) == ("s.yaml:2", "model.path")
        assert hint in found.suggestion


# --- digest ---------------------------------------------------------------------


def test_the_digest_follows_names_sizes_and_content(folder: Path) -> None:
    digests = [digest_of(folder)]
    (folder / "config.json").write_text('{"model_type": "LLAMA"}')
    digests.append(digest_of(folder))
    (folder / "config.json").rename(folder / "other.json")
    digests.append(digest_of(folder))
    (folder / "extra.json").write_bytes(b"")
    digests.append(digest_of(folder))
    assert len(set(digests)) == 4


def test_notes_hidden_files_and_subfolders_do_not_change_the_digest(folder: Path) -> None:
    before = digest_of(folder)
    (folder / "README.md").write_text("x")
    (folder / ".cache").write_text("x")
    (folder / "model.json").write_text("x")
    (folder / "original").mkdir()
    (folder / "original" / "x.bin").write_text("x")
    assert digest_of(folder) == before


def test_of_a_large_file_both_ends_count(folder: Path) -> None:
    large = folder / "large.bin"
    with large.open("wb") as file:
        file.truncate(WHOLE_BYTES)
    digests = {digest_of(folder)}
    for place in (0, END_BYTES - 1, WHOLE_BYTES - END_BYTES, WHOLE_BYTES - 1):
        with large.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        digests.add(digest_of(folder))
    assert len(digests) == 5


LARGE_BYTES = 64 * 1024 * 1024


@pytest.fixture
def large(folder: Path) -> Path:
    path = folder / "model-00002.safetensors"
    with path.open("wb") as file:
        file.truncate(LARGE_BYTES)
    return path


def overwrite(path: Path, place: int, size: int) -> None:
    """In place; neither the size nor the time tells of it."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"x" * size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("part", range(1, 12))
def test_a_tensor_that_changed_in_place_makes_another_model(folder: Path, large: Path, part: int) -> None:
    """Wherever it lies, if it is larger than the distance of what is read."""
    before, ends = digest_of(folder), digest_of(folder, FIRST_SCHEME)
    overwrite(large, LARGE_BYTES * part // 12, LARGE_BYTES // SAMPLES)
    assert digest_of(folder) != before
    assert digest_of(folder, FIRST_SCHEME) == ends, "which is why there is another scheme"


@pytest.mark.parametrize("name", ["code/modeling.py", "additional_chat_templates/tools.jinja"])
def test_code_and_templates_in_subfolders_make_another_model(folder: Path, name: str) -> None:
    digests = {digest_of(folder)}
    (folder / name).parent.mkdir()
    for text in ("a", "b"):
        (folder / name).write_text(text)
        digests.add(digest_of(folder))
    assert len(digests) == 3


def test_a_copy_is_the_same_model(folder: Path, large: Path, tmp_path: Path) -> None:
    """With times of its own, as on the next machine."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    os.utime(copy / large.name, (1, 1))
    assert digest_of(copy) == digest_of(folder)


def test_a_digest_tells_how_it_was_made(folder: Path) -> None:
    assert scheme_of(digest_of(folder)) == DIGEST_SCHEME
    assert scheme_of(digest_of(folder, FIRST_SCHEME)) == FIRST_SCHEME
    assert scheme_of(SCRIPTED.digest) not in (DIGEST_SCHEME, FIRST_SCHEME)


@pytest.mark.usefixtures("large")
def test_a_digest_of_the_first_scheme_is_made_as_it_was(folder: Path) -> None:
    """Or runs that were begun with it could not go on."""
    assert digest_of(folder, FIRST_SCHEME) == "e551acedf269692f"


# --- facts of a model -----------------------------------------------------------


def test_stop_ids_are_the_union_of_all_that_says_end() -> None:
    assert stop_ids([2, [1, 106], None, 2]) == [1, 2, 106]
    assert stop_ids([None, -1, []]) == []


NOTHING: dict[str, Any] = {}
LLAMA: dict[str, Any] = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 2 * 30 * 3 * 64 * 2),
        ({"dtype": "torch.float32"}, 2 * 30 * 3 * 64 * 4),
        ({"dtype": None, "torch_dtype": "float16"}, 2 * 30 * 3 * 64 * 2),
        ({"head_dim": 128}, 2 * 30 * 3 * 128 * 2),
        ({"num_key_value_heads": None}, 2 * 30 * 9 * 64 * 2),
        ({"layer_types": ["full_attention", "linear_attention", "sliding_attention"]}, 2 * 2 * 3 * 64 * 2),
        ({"layer_types": ["linear_attention"]}, None),
        ({"kv_lora_rank": 512}, None),
        ({"dtype": None}, None),
        ({"dtype": "float8_e4m3fn"}, None),
        ({"num_key_value_heads": [1, 2]}, None),
        ({"num_hidden_layers": None}, None),
    ],
)
def test_the_kv_cache_of_a_token(change: dict[str, Any], expected: int | None) -> None:
    assert kv_bytes_per_token({**LLAMA, **change}.get) == expected


class Uneven:
    """A config of Transformers whose layers differ: what is each layer's own is not to be read from the whole."""

    def __init__(self, *own: str, **values: Any) -> None:
        self.__dict__.update(values, _own=own, is_heterogeneous=True)

    def __getattribute__(self, name: str) -> Any:
        if name in object.__getattribute__(self, "__dict__").get("_own", ()):
            raise RuntimeError(f"'{name}' is a per-layer attribute and may vary across layers")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("own", [("head_dim",), ("num_key_value_heads", "head_dim"), ("sliding_window",)])
def test_of_a_model_whose_layers_differ_the_rest_is_known(own: tuple[str, ...]) -> None:
    get = attributes(Uneven(*own, **LLAMA, head_dim=64, intermediate_size=9), Uneven(*own, vocab_size=7))
    assert (get("vocab_size"), context_length(get), dtype_name(get)) == (7, 8192, "bfloat16")
    assert all(get(name) is None for name in own)
    assert kv_bytes_per_token(get) is None, "a wrong size would be worse"
    assert cache_layers(get) == []


class FieldValidationError(Exception):
    """As huggingface_hub's is, it is no ValueError."""


@pytest.mark.parametrize("refusal", [ValueError, KeyError, ImportError, TypeError, FieldValidationError])
def test_a_config_that_transformers_refuses_is_read_from_the_file(
    refusal: type[Exception], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise refusal("layer_types: sparse_attention is none of those known")

    tokenizer = SimpleNamespace(
        eos_token_id=2, all_special_ids=[2], added_tokens_decoder={}, get_vocab=lambda: {"a": 1}
    )
    fake = ModuleType("transformers")
    fake.__dict__.update(
        AutoConfig=SimpleNamespace(from_pretrained=refuse),
        AutoTokenizer=SimpleNamespace(from_pretrained=lambda *_, **__: tokenizer),
    )
    monkeypatch.setitem(sys.modules, "transformers", fake)
    monkeypatch.setattr(model_info, "families", lambda: ({}, ()))
    (folder / "config.json").write_text(json.dumps({**LLAMA, "layer_types": ["sparse_attention"] * 30}))
    request = {"path": str(folder), "trust_remote_code": False}
    found = model_info.run(request)
    assert (found["stop_token_ids"], found["context_length"], found["dtype"]) == ([2], 8192, "bfloat16")
    assert base64.b64decode(vocabulary.run(request)["ids"]) == pack_ids([1])


@pytest.mark.parametrize(
    ("files", "instead"),
    [
        (["model.safetensors", "pytorch_model.bin", "consolidated.safetensors"], True),
        (["model-00001-of-00002.safetensors", "pytorch_model.bin.index.json"], True),
        (["pytorch_model.bin"], False),
        (["consolidated.safetensors", "pytorch_model.bin"], False),
        (["onnx/model.safetensors", "pytorch_model.bin"], False),
    ],
)
def test_one_form_of_the_weights_is_fetched(monkeypatch: pytest.MonkeyPatch, files: list[str], instead: bool) -> None:
    fake = ModuleType("huggingface_hub")
    fake.__dict__["HfApi"] = lambda: SimpleNamespace(list_repo_files=lambda *_, **__: files)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    left_out = fetch_hub._ignored("a/b", None)
    assert left_out == [*fetch_hub.IGNORED, *(fetch_hub.INSTEAD if instead else ())]
    taken = [file for file in files if not any(fnmatch(file, pattern) for pattern in left_out)]
    assert any(file.endswith((".safetensors", ".bin")) for file in taken)


@pytest.mark.parametrize(("tekken", "told"), [(False, {}), (True, {"mistral_format": False})])
def test_one_tokenizer_is_taken_whatever_else_is_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tekken: bool, told: dict[str, bool]
) -> None:
    """With mistral-common, which vLLM and SGLang bring and Transformers alone does not, a folder with a tekken.json has
    another one, without a template, that makes plain text of control tokens. Versions before know no such argument."""
    if tekken:
        (folder / TEKKEN).write_text("{}")
    fake = ModuleType("transformers")
    fake.__dict__["AutoTokenizer"] = SimpleNamespace(from_pretrained=lambda path, **given: (path, given))
    monkeypatch.setitem(sys.modules, "transformers", fake)
    found = tokenizer_of(str(folder), True, local_files_only=True)
    assert found == (str(folder), {"trust_remote_code": True, "local_files_only": True, **told})


def test_no_worker_takes_another_tokenizer() -> None:
    workers = Path(model_info.__file__).parents[1]
    taking = {path.name for path in workers.rglob("*.py") if "AutoTokenizer.from_pretrained" in path.read_text()}
    assert taking == {"tokenizing.py", "convert_demo.py"}


def test_heads_of_another_width_in_some_layers_are_seen_in_the_file_too() -> None:
    wide = {**LLAMA, "head_dim": 64, "global_head_dim": 128, "layer_types": ["sliding_attention", "full_attention"]}
    assert kv_bytes_per_token(wide.get) is None
    assert cache_layers({**wide, "num_hidden_layers": 2}.get) == []
    assert kv_bytes_per_token({**wide, "global_head_dim": None}.get)


def test_layers_that_share_the_keys_of_others_keep_none() -> None:
    sharing = {**LLAMA, "num_kv_shared_layers": 10}
    assert kv_bytes_per_token(sharing.get) == 2 * 20 * 3 * 64 * 2
    assert [part["count"] for part in cache_layers(sharing.get)] == [20]
    kinds = ["full_attention"] + ["sliding_attention"] * 2 + ["full_attention"]
    typed = {**sharing, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": kinds, "sliding_window": 9}
    assert kv_bytes_per_token(typed.get) == 2 * 2 * 3 * 64 * 2
    assert [(part["kind"], part["count"]) for part in cache_layers(typed.get)] == [("full", 1), ("sliding", 1)]


def test_context_and_dtype_by_any_of_their_names() -> None:
    assert context_length(LLAMA.get) == 8192
    assert context_length({"n_positions": 1024}.get) == 1024
    assert context_length(NOTHING.get) is None
    assert dtype_name({"torch_dtype": "torch.bfloat16"}.get) == "bfloat16"
    assert dtype_name(NOTHING.get) is None


# --- store ----------------------------------------------------------------------


def test_the_scripted_model_needs_nothing(tmp_path: Path) -> None:
    ref = ModelRef("scripted", "scripted")
    found = store(tmp_path)
    found.check(ref)
    assert found.present(ref)
    assert found.resolve(ref, None) == found.provisional(ref) == SCRIPTED
    assert list(tmp_path.iterdir()) == []


def test_any_other_model_needs_an_environment(folder: Path) -> None:
    with pytest.raises(EnvironmentFailed):
        store(folder).resolve(ModelRef("path", str(folder)), None)


def test_a_stand_in_claims_nothing(tmp_path: Path) -> None:
    found = store(tmp_path).provisional(ModelRef("hub", "org/name", "abc"))
    assert (found.name, found.revision, found.context_length, found.stop_token_ids) == ("org/name", "abc", None, ())


@pytest.mark.parametrize(
    ("config", "vision"),
    [
        ('{"model_type": "llama"}', False),
        ('{"model_type": "llava", "vision_config": {"depth": 1}}', None),
        ("nonsense", None),
        ("[]", None),
        (None, None),
    ],
)
def test_a_stand_in_takes_text_only_if_its_folder_says_nothing_of_images(
    folder: Path, config: str | None, vision: bool | None
) -> None:
    (folder / "config.json").unlink()
    if config is not None:
        (folder / "config.json").write_text(config)
    assert store(folder).provisional(ModelRef("path", str(folder))).vision is vision
    assert store(folder).provisional(ModelRef("demo", "demo")).vision is False


def test_the_demo_model_is_present_only_when_whole(tmp_path: Path) -> None:
    demo = DemoModel(tmp_path, Launcher(), lambda _: None, None)

    def present() -> bool:
        return store(tmp_path).present(ModelRef("demo", "demo"))

    made = tmp_path / "models" / f"demo-{demo.name}"
    made.mkdir(parents=True)
    assert not present()
    (made / "config.json").write_text("{}")
    demo._write_manifest({})
    assert present()
    (made / "config.json").write_text("{} ")
    assert not present()
    (made / "model.json").write_text("[]")
    assert not present()


def test_a_hub_model_is_present_when_its_snapshot_is_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    repo = tmp_path / "hub" / "models--org--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc")
    (repo / "snapshots").mkdir()
    folder.rename(repo / "snapshots" / "abc")
    found = store(tmp_path)
    assert found.present(ModelRef("hub", "org/name"))
    assert found.present(ModelRef("hub", "org/name", "abc"))
    assert not found.present(ModelRef("hub", "org/name", "v2"))
    (repo / "snapshots" / "abc" / "config.json").unlink()
    assert not found.present(ModelRef("hub", "org/name"))
