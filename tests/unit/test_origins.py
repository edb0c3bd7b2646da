"""Provenance: what is recorded, what never is, and what makes two runs different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator import plan
from orchestrator.definition.variables import HIDDEN, hidden, plain
from orchestrator.provenance import CodeState, DeviceFound, Provenance
from orchestrator.run.provenance import container_of, mattering
from orchestrator.view.origins import NOTHING, differences, lines
from tests.unit.rundirs import HF, a_plan
from tests.unit.test_plan import planned

FOUND = Provenance(
    at=1.0,
    life=1,
    airlock=CodeState(commit="a" * 40, changed=True),
    sweep=None,
    python="3.11.7",
    system="Debian",
    kernel="Linux 6.1",
    libc="glibc 2.36",
    container="docker",
    cpu="EPYC",
    cpus=2,
    governors=["performance"],
    numa_nodes=1,
    memory_bytes=2**34,
    huge_pages="madvise",
    driver="580.1",
    cuda_driver="13.0",
    devices=[DeviceFound(uuid="GPU-1", name="H200", power_limit_w=700.0, ecc=True)],
    variables={"OMP_NUM_THREADS": "2"},
    packages={"hf": {"torch": "2.13.0"}},
)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "VLLM_API_KEY", "SGLANG_SECRET", "HF_PASSWORD", "CUDA_AUTH", "VLLM_BEARER"]
)
def test_no_value_of_a_secret_is_recorded(name: str) -> None:
    assert mattering({name: "hunter2"}) == {name: HIDDEN}


@pytest.mark.parametrize(
    "name",
    [
        *("TOKENIZERS_PARALLELISM", "SGLANG_DETOKENIZER_MAX_STATES", "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION"),
        *("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE"),
    ],
)
def test_what_counts_tokens_is_no_secret(name: str) -> None:
    assert mattering({name: "1"}) == {name: "1"}
    assert hidden([{name: "1"}]) == []


def test_only_secrets_are_hidden_however_long_or_odd_a_value_is() -> None:
    found = hidden([{"LONG": "x" * 2000, "ODD": "\udc9d", "A_KEY": "1"}, {"LONG": "//a:b@c", "PLAIN": "1"}])
    assert found == ["A_KEY", "LONG"]


def test_only_what_matters_is_recorded_and_no_password_in_an_address() -> None:
    environ = {"EDITOR": "vi", "OMP_NUM_THREADS": "2", "HOME": "/root", "AWS_SECRET_ACCESS_KEY": "x"}
    environ |= {"HF_ENDPOINT": "https://me:hunter2@example.org/", "TOKENIZERS_PARALLELISM": "false"}
    assert mattering(environ) == {
        "HF_ENDPOINT": "https://me:…@example.org/",
        "OMP_NUM_THREADS": "2",
        "TOKENIZERS_PARALLELISM": "false",
    }


#: Each makes an engine compute other numbers, by other code, or slower, without a word in its settings.
@pytest.mark.parametrize(
    "name",
    [
        *("TORCHDYNAMO_DISABLE", "TORCHDYNAMO_SUPPRESS_ERRORS", "TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_MAX_AUTOTUNE"),
        *("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"),
        *("NVIDIA_TF32_OVERRIDE", "FLASH_ATTENTION_DETERMINISTIC", "FLASH_ATTN_CUTE", "BITSANDBYTES_NOWELCOME"),
        *("BNB_CUDA_VERSION", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "GOTO_NUM_THREADS", "TILELANG_CACHE"),
        *("CUTE_DSL_ARCH", "TVM_FFI_X", "NVSHMEM_X", "UCX_TLS", "GLOO_SOCKET_IFNAME", "LMCACHE_CONFIG_FILE"),
        *("SAFETENSORS_FAST_GPU", "TORCHAO_X", "CC", "CXX", "CPATH", "LIBRARY_PATH"),
    ],
)
def test_what_changes_numbers_or_code_is_recorded(name: str) -> None:
    assert mattering({name: "1"}) == {name: "1"}


@pytest.mark.parametrize("name", ["CCACHE_DIR", "CXXFLAGS_OLD", "LDAP_HOST", "ATENTION", "XDG_CC"])
def test_what_only_looks_alike_is_not_recorded(name: str) -> None:
    assert mattering({name: "1"}) == {}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://me:a@b:c@example.org/x", "https://me:…@example.org/x"),
        ("https://ghp_hunter2@example.org/x", "https://…@example.org/x"),
        ("http://:hunter2@[::1]:80 ftp://a:b@c/", "http://:…@[::1]:80 ftp://a:…@c/"),
        ("https://example.org:80/a?mail=a@b.c", "https://example.org:80/a?mail=a@b.c"),
        ("/a//b@c/d", "/a//…@c/d"),
        ("https://x.org/?a=1&token=abc&b=2", "https://x.org/?a=1&token=…&b=2"),
        (
            "https://x.org/?X-Amz-Signature=abc#k=1 https://y.org/?sig=x",
            "https://x.org/?X-Amz-Signature=…#k=1 https://y.org/?sig=…",
        ),
        ("--a-key=1 b?=2", "--a-key=1 b?=2"),
        ("?token" * 20_000, "?token" * 166 + "?tok…"),
    ],
)
def test_what_is_secret_in_an_address_is_not_shown(value: str, shown: str) -> None:
    assert plain(value) == shown


def test_a_value_that_is_no_unicode_or_very_long_can_be_stored() -> None:
    assert mattering({"AIRLOCK_CHAT": "https://x.org/abc", "HF_HOME": "/x"}, {"AIRLOCK_CHAT", "OTHER"}) == {
        "AIRLOCK_CHAT": HIDDEN,
        "HF_HOME": "/x",
    }
    found = mattering({"CUDA_X": "a\udcff", "LD_LIBRARY_PATH": "x" * 5000})
    assert found["CUDA_X"].encode()
    assert len(found["LD_LIBRARY_PATH"]) < 2000


def test_what_a_methods_variables_hold_is_compared_and_not_shown() -> None:
    one, other, none = (
        a_plan((replace(HF, env_vars=own),)) for own in ({"MY_API_KEYS": "hunter2"}, {"MY_API_KEYS": "x"}, {})
    )
    name = "methods.hf_sdpa.method.env_vars.MY_API_KEYS"
    assert differences((one, none), (None, None)) == [(name, HIDDEN, NOTHING)]
    assert differences((one, other), (None, None)) == [(name, HIDDEN, HIDDEN)]
    assert differences((one, one), (None, None)) == []


@pytest.mark.parametrize(
    ("marks", "environ", "expected"),
    [
        ((), {}, ""),
        ((".dockerenv",), {}, "docker"),
        (("run/.containerenv",), {}, "podman"),
        ((), {"KUBERNETES_SERVICE_HOST": "x"}, "kubernetes"),
        ((), {"APPTAINER_CONTAINER": "/images/a.sif"}, "apptainer /images/a.sif"),
    ],
)
def test_containers(tmp_path: Path, marks: tuple[str, ...], environ: dict[str, str], expected: str) -> None:
    (tmp_path / "run").mkdir()
    for mark in marks:
        (tmp_path / mark).touch()
    assert container_of(tmp_path, environ) == expected


def test_lines_name_what_is_known_and_nothing_else() -> None:
    shown = dict(lines(FOUND))
    assert shown["Airlock"] == "a" * 40 + ", changed since"
    assert shown["driver"] == "580.1 CUDA 13.0"
    assert shown["GPU GPU-1"] == "H200, 700 W, ECC True"
    assert "sweep file" not in shown
    assert "driver" not in dict(lines(replace(FOUND, driver=None, cuda_driver=None)))


def changed(**fields: Any) -> list[tuple[str, str, str]]:
    same = planned()
    return differences((same, same), (FOUND, replace(FOUND, **fields)))


def test_two_lives_that_are_alike_do_not_differ() -> None:
    assert changed(at=9.0, life=2, notes=["x"]) == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"driver": "590.2"}, ("driver", "580.1", "590.2")),
        ({"driver": None}, ("driver", "580.1", NOTHING)),
        ({"packages": {"hf": {"torch": "2.14.1"}}}, ("packages.hf.torch", "2.13.0", "2.14.1")),
        ({"variables": {}}, ("variables.OMP_NUM_THREADS", "2", NOTHING)),
        ({"kernel": "Linux 6.2"}, ("kernel", "Linux 6.1", "Linux 6.2")),
        (
            {"devices": [DeviceFound(uuid="GPU-2", name="H200", power_limit_w=350.0, ecc=True)]},
            ("devices[0].power_limit_w", "700.0", "350.0"),
        ),
    ],
)
def test_each_difference_is_named(fields: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert changed(**fields) == [expected]


def test_settings_and_methods_that_differ_are_named() -> None:
    plans = (planned(), planned("sampling: {seed: 9}\n"))
    assert differences(plans, (FOUND, FOUND)) == [("methods.hf_sdpa.seed", "0", "9")]
    model = replace(plans[0].model, digest="x")
    assert [name for name, *_ in differences((plans[0], replace(plans[0], model=model)), (None, None))] == [
        "model.digest"
    ]
    assert isinstance(plans[0], plan.Plan)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [("abc", "v2-def", False), ("v2-def", "abc", False), ("v2-abc", "v2-def", True), ("abc", "def", True)],
)
def test_digests_of_two_schemes_do_not_say_that_the_model_changed(before: str, after: str, told: bool) -> None:
    plans = tuple(replace(a_plan(), model=replace(a_plan().model, digest=digest)) for digest in (before, after))
    ((name, old, new),) = differences((plans[0], plans[1]), (None, None))
    assert (name, old) == ("model.digest", before)
    assert (new == after) is told
    assert ("can't be told" in new) is not told
