"""Environment variables and arguments: what no method may set, and what is a secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

#: Names that smell of a secret: their values are never written down or shown.
SECRET: Final = re.compile(r"TOKEN(?!IZER|S_(?:PER|ESTIMATION))|KEY|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|BEARER")
#: Names that can be nothing else, as a method may not have them.
_SURELY: Final = re.compile(
    r"(^|_)(TOKEN|API_?KEY|(ACCESS|PRIVATE|SECRET)_KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?|COOKIE)$"
)
#: The same of engine_args, where pad_token and the like are no secrets.
_ARGUMENTS: Final = frozenset({"hf_token", "token", "use_auth_token", "auth_token", "api_key", "password", "secret"})
#: In an address, before its host.
_PASSWORD: Final = re.compile(r"//[^/\s?#:@]*:[^/\s?#@]+@")
#: Of a query: ?token=…, &X-Amz-Signature=…
_QUERIED: Final = re.compile(
    r"([?&][^=?&\s#]{0,64}(?:token|key|secret|passw|auth|sig|credential)[^=?&\s#]{0,64}=)[^&\s#]+", re.I
)
HIDDEN: Final = "(set; not recorded)"
LEFT_OUT: Final = "…"
MOST_CHARACTERS: Final = 1000

#: What engines compile, by the folder inside a worker's own: nobody waits for another's lock, reads what another left
#: half-written, or fills a home directory. Not FlashInfer's, which also holds kernels that can't be made here.
CACHES: Final[Mapping[str, str]] = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "VLLM_CACHE_ROOT": "vllm",
    "SGLANG_CACHE_DIR": "sglang",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "TILELANG_CACHE_DIR": "tilelang",
    "QUACK_CACHE_DIR": "quack",
    "CUTE_DSL_CACHE_DIR": "cute",
    "TVM_FFI_CACHE_DIR": "tvm",
    "NUMBA_CACHE_DIR": "numba",
    "OUTLINES_CACHE_DIR": "outlines",
}
_OURS: Final[Mapping[str, str]] = {
    "CUDA_VISIBLE_DEVICES": "the slot decides it, by which memory, energy and clocks are read",
    "CUDA_DEVICE_ORDER": "devices are counted as NVML counts them",
    "TMPDIR": "each worker has a folder of its own",
    **dict.fromkeys(CACHES, "each worker has its own, so that a load is known to be cold or warm"),
}
_INHERIT: Final = "set it where you start Airlock: workers inherit it, and only that it is set is recorded"


def refused(variables: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Those that a method can't have: name, what is wrong, what to do."""
    found = ((name, _wrong(name, value)) for name, value in variables.items())
    return [(name, f"{name!r} can't be set: {why[0]}", why[1]) for name, why in found if why]


def _wrong(name: str, value: str) -> tuple[str, str] | None:
    if not name or "=" in name or "\0" in name:
        return "no environment variable has such a name", "write NAME: value"
    if name.startswith("AIRLOCK_"):
        return "these names are Airlock's own", "leave it out"
    if name in _OURS:
        return _OURS[name], "leave it out"
    if _SURELY.search(name.upper()) or _PASSWORD.search(value):
        return "a secret would be kept in the run directory", _INHERIT
    return None


def secret_arguments(arguments: Mapping[str, object]) -> list[tuple[str, ...]]:
    """The paths of those that are secrets, at whatever depth."""
    own = [(str(name),) for name in arguments if str(name).lower() in _ARGUMENTS]
    inner = {name: secret_arguments(value) for name, value in arguments.items() if isinstance(value, Mapping)}
    return own + [(str(name), *path) for name, paths in inner.items() for path in paths]


def recorded(variables: Mapping[str, str]) -> dict[str, str]:
    """As they may be written down or shown: no value of a secret, and none in an address."""
    return {name: HIDDEN if SECRET.search(name.upper()) else plain(value) for name, value in variables.items()}


def hidden(methods: Iterable[Mapping[str, str]]) -> list[str]:
    """Of the variables of several methods those whose values hold a secret."""
    every = {variable for each in methods for variable in each.items()}
    return sorted({name for name, value in every if SECRET.search(name.upper()) or _bare(value) != value})


def told(overrides: Iterable[str], names: Collection[str]) -> list[str]:
    """Of --set: without the value where that speaks of one of these variables."""
    return [f"{one.partition('=')[0]}={LEFT_OUT}" if any(name in one for name in names) else one for one in overrides]


def plain(value: str) -> str:
    """As JSON and a terminal can take it; an address without the password, token or key in it."""
    shown = _bare(value).encode("utf-8", "replace").decode()
    return shown if len(shown) <= MOST_CHARACTERS else shown[:MOST_CHARACTERS] + "…"


def _bare(value: str) -> str:
    bare = re.sub(r"(//[^/\s?#:@]*:)[^/\s?#]*@", r"\1…@", value)
    bare = re.sub(r"(//)[^/\s?#:@…]+@", r"\1…@", bare)
    return _QUERIED.sub(r"\1…", bare)
