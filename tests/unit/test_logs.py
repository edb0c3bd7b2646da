"""What is read out of a worker's log: the first traceback that means something, the tail, the slow paths."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from orchestrator.stores import logs
from orchestrator.stores.logs import first_traceback, last_lines, last_words, log_tail, slow_paths, text_since
from orchestrator.stores.tracebacks import MAX_CHARACTERS, Finder, Found, exceptions

PLAIN = """\
Traceback (most recent call last):
  File "/x/engine.py", line 3, in load
    raise MemoryError
ValueError: the first
"""
OTHER = PLAIN.replace("the first", "another")
VLLM = "(EngineCore pid=77) ERROR 11-29 21:14:57 [core.py:1166] "
CHILD = "(VllmWorker rank=1 pid=78) ERROR 11-29 21:14:57 [multiproc_executor.py:900] "
WARNING = "(MainProcess pid=76) WARNING 11-29 21:14:57 [base.py:380] "
RENDERER = f"{WARNING}Chat template warmup failed\n" + "".join(f"{WARNING}{line}\n" for line in PLAIN.splitlines())


def prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}".rstrip() + "\n" for line in text.splitlines())


def chained(link: str) -> str:
    return f"{PLAIN}\n{link}\n\n{OTHER}"


CONTEXT = "During handling of the above exception, another exception occurred:"
CAUSE = "The above exception was the direct cause of the following exception:"
CUDA = PLAIN.replace(
    "ValueError: the first",
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call.\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
)
SGLANG = f"[2026-02-03 10:00:00 TP0] Scheduler hit an exception: {PLAIN}\n[2026-02-03 10:00:01] Received sigquit\n"
CRASH = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f0000000740 (most recent call first):
  File "/x/engine.py", line 3 in load

Extension modules: numpy.core, torch._C (total: 2)
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/x/engine.py", line 3, in load
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: the first
    +------------------------------------
"""

#: A log, and the first traceback in it.
LOGS: dict[str, tuple[str, str]] = {
    "none": ("one line\nanother\n", ""),
    "plain": (f"before\n{PLAIN}after\n\n{OTHER}", PLAIN + "after"),
    "cut off at the end": (PLAIN.rstrip("\n"), PLAIN),
    "cut off in its frames": ("".join(PLAIN.splitlines(keepends=True)[:2]), PLAIN[: PLAIN.index("    raise")]),
    "with its context": (f"{chained(CONTEXT)}\nafter\n", chained(CONTEXT)),
    "with its cause": (f"{chained(CAUSE)}\nafter\n", chained(CAUSE)),
    "long message": (f"{CUDA}\nafter\n", CUDA),
    "long message with a context": (f"{CUDA}\n{CONTEXT}\n\n{OTHER}\nafter\n", f"{CUDA}\n{CONTEXT}\n\n{OTHER}"),
    "two at once": (f"{PLAIN}{OTHER}", PLAIN),
    "vLLM": (
        f"{prefixed(VLLM, chained(CAUSE))}{VLLM.replace('ERROR', 'INFO')}going on\n",
        f"(EngineCore pid=77)\n{chained(CAUSE)}",
    ),
    "vLLM, in colours": (
        prefixed(f"\x1b[0;36m(EngineCore pid=77)\x1b[0;0m {VLLM.split(' ', 2)[2]}", PLAIN),
        f"(EngineCore pid=77)\n{PLAIN}",
    ),
    "two processes in turns": (
        "".join(f"{VLLM}{a}\n{CHILD}{b}\n" for a, b in zip(PLAIN.splitlines(), OTHER.splitlines(), strict=True)),
        f"(EngineCore pid=77)\n{PLAIN}",
    ),
    "torch.distributed": (prefixed("[rank3]: ", PLAIN), f"[rank3]:\n{PLAIN}"),
    "SGLang": (SGLANG, f"[2026-02-03 10:00:00 TP0] Scheduler hit an exception: {PLAIN}"),
    "SGLang, another's line in its frames": (
        SGLANG.replace("    raise", "[2026-02-03 10:00:00 TP1] Decode batch\n    raise"),
        f"[2026-02-03 10:00:00 TP0] Scheduler hit an exception: {PLAIN}",
    ),
    "a crash": (f"before\n{CRASH}", CRASH),
    "a group": (f"{GROUP}after\n", GROUP),
    "a warning, and nothing else": (prefixed(WARNING, PLAIN), f"(MainProcess pid=76)\n{PLAIN}"),
    "a warning first": (f"{prefixed(WARNING, OTHER)}{prefixed(VLLM, PLAIN)}", f"(EngineCore pid=77)\n{PLAIN}"),
    "known as harmless, and nothing else": (RENDERER, ""),
    "known as harmless first": (f"{RENDERER}\n{PLAIN}", PLAIN),
    "not Unicode": (f"\udcff\udcfe\n{PLAIN}", PLAIN),
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def first_of(lines: Iterable[str]) -> str:
    """The first traceback in `lines`, "" if there is none."""
    finder = Finder()
    for line in lines:
        finder.feed(line)
        if finder.done:
            break
    return finder.found().text


def write(log: Path, text: str) -> None:
    log.write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("kind", LOGS)
def test_first_traceback(log: Path, kind: str) -> None:
    text, expected = LOGS[kind]
    write(log, text)
    assert first_traceback(log) == Found(expected.rstrip(), mild=kind == "a warning, and nothing else")
    assert first_of(text.splitlines()) == expected.rstrip()


@pytest.mark.parametrize("padding", range(0, 170, 7))
def test_wherever_a_block_of_the_reading_ends(log: Path, monkeypatch: pytest.MonkeyPatch, padding: int) -> None:
    monkeypatch.setattr(logs, "CHUNK_BYTES", 160)
    write(log, f"{'x' * padding}\n{RENDERER}{PLAIN}")
    assert first_traceback(log).text == PLAIN.rstrip()


def test_the_wardens_holes_and_lines_without_end_cost_nothing(log: Path) -> None:
    with log.open("wb") as file:
        file.write(b"x" * (4 << 20) + b"\n")
        file.seek(8 << 20, os.SEEK_CUR)
        file.write(b"\n" + PLAIN.encode())
    assert first_traceback(log).text == PLAIN.rstrip()
    assert last_lines(log)[-1] == "ValueError: the first"


def bar(updates: int) -> str:
    """As tqdm draws it: each state over the one before, and without the end of a line."""
    return "".join(f"\rLoading shards: {'█' * (n % 100)}| {n}/{updates}" for n in range(updates))


@pytest.mark.parametrize("updates", [3, 100, 2000])
@pytest.mark.parametrize("prefix", ["", VLLM[: VLLM.index("ERROR")]], ids=["plain", "vLLM"])
@pytest.mark.parametrize("padding", range(3))
def test_a_traceback_in_the_line_of_a_progress_bar(
    log: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, updates: int, padding: int
) -> None:
    monkeypatch.setattr(logs, "CHUNK_BYTES", 1 << 14)
    begins = f"before\n{prefix}{'x' * padding}{bar(updates)}"
    write(log, begins + prefixed(prefix, PLAIN).removeprefix(prefix) + f"{prefix}\n{prefixed(prefix, OTHER)}")
    found = first_traceback(log).text.removeprefix(f"{prefix.strip()}\n")
    assert found == f"Loading shards: {'█' * ((updates - 1) % 100)}| {updates - 1}/{updates}{PLAIN}".rstrip()


def test_a_progress_bar_is_one_line_of_the_tail(log: Path) -> None:
    write(log, f"{PLAIN}{bar(3000)}\nnext\r\n{bar(9)}")
    assert log_tail(log) == f"{PLAIN}Loading shards: {'█' * 99}| 2999/3000\nnext\nLoading shards: {'█' * 8}| 8/9"


def test_only_the_head_is_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "HEAD_BYTES", 1 << 20)
    write(log, "x" * 100 + "\n" + "y\n" * (2 << 20) + PLAIN)
    assert first_traceback(log).text == ""
    assert log_tail(log).endswith("ValueError: the first")


def test_a_long_log_is_read_fast(log: Path) -> None:
    with log.open("wb") as file:
        for _ in range(64):
            file.write(b"a line as engines print them, all day long\n" * ((1 << 20) // 43))
    began = time.monotonic()
    assert first_traceback(log).text == ""
    assert slow_paths(log) == []
    assert time.monotonic() - began < 5


def test_what_is_kept_is_bounded_and_has_the_first_and_the_last_word() -> None:
    deep = '  File "/x", line 1, in f\n    f()\n' * 4000
    text = PLAIN.replace("    raise MemoryError\n", deep)
    found = first_of(text.splitlines())
    assert len(found) < MAX_CHARACTERS + 100
    assert found.startswith("Traceback")
    assert "characters left out" in found


def test_exceptions_are_messages_and_not_source_lines() -> None:
    assert exceptions(chained(CAUSE)) == ["ValueError: the first", "ValueError: another"]
    assert exceptions(CUDA)[0].startswith("torch.AcceleratorError: CUDA error: an illegal")
    assert exceptions(CUDA)[0].endswith("device-side assertions.")
    assert exceptions(prefixed(VLLM, PLAIN)) == ["ValueError: the first"]
    assert exceptions("nothing of the kind") == []


def test_a_log_that_is_not_there(log: Path) -> None:
    assert (first_traceback(log).text, log_tail(log), slow_paths(log), text_since(log, 0, 10)) == ("", "", [], "")
    assert last_words(log) == []
    assert logs.size_of(log) == 0


def test_the_last_words_of_a_process_that_died_in_c_are_not_its_threads_stacks(log: Path) -> None:
    write(log, "early\n" * 50 + "what():  std::bad_alloc\n" + CRASH + "  File x\n" * 50)
    assert last_words(log) == ["early"] * (logs.TAIL_LINES - 1) + ["what():  std::bad_alloc"]
    write(log, PLAIN)
    assert last_words(log) == PLAIN.splitlines()


def test_text_since(log: Path) -> None:
    write(log, "before\nafter\0\nend\n")
    assert text_since(log, 7, 100) == "after\nend\n"
    assert text_since(log, 7, 3) == "aft"
    assert text_since(log, 700, 3) == ""


DYNAMO = "W0203 10:00:00.1 4 torch/_dynamo/convert_frame.py:1995] [0/8] torch._dynamo hit config.recompile_limit (8)"
TRITON = "FlashInfer is not usable with this head size; falling back to Triton."


def test_slow_paths_are_found_once_each(log: Path) -> None:
    write(log, f"{DYNAMO}\n{WARNING}{TRITON}\nplain\n{WARNING}{TRITON}\n{VLLM.replace('ERROR', 'INFO')}{TRITON} too\n")
    assert slow_paths(log) == [DYNAMO, TRITON]


@pytest.mark.parametrize("updates", [3, 2000])
def test_a_slow_path_in_the_line_of_a_progress_bar(log: Path, updates: int) -> None:
    write(log, f"{VLLM[: VLLM.index('ERROR')]}{bar(updates)}" + f"\r{TRITON}{bar(updates)}" * 3 + "\n")
    assert slow_paths(log) == [TRITON]
    write(log, f"{VLLM.replace('ERROR', 'INFO')}{bar(updates)}\r{TRITON}\n")
    assert slow_paths(log) == []


SLOW = """\
Using default MoE config. Performance might be sub-optimal! Config file not found at /configs/E=16,N=1536.json
Qwen9ForCausalLM has no vLLM implementation; features may be missing and performance may not be optimal.
Your GPU does not have native support for FP8 computation. This may degrade performance for compute-heavy workloads.
The weights are padded on every forward; performance may be degraded.
sliding window attention will run with reduced performance.
CPU device enabled, using torch native backend, low performance expected.
Cuda graph is disabled because of using torch native attention backend
CUDA graphs were disabled
Overlap scheduler is disabled because of using standalone speculative decoding.
Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.
Async scheduling will be disabled because it is not supported with this executor
W0318 06:57:13.573000 165 torch/_inductor/utils.py:1703] Not enough SMs to use max_autotune_gemm mode
skipping cudagraphs due to multiple devices
Although max_blocks_per_request = 4, the decode fast path is not available because the kernel is not there
Some parameters are on the meta device because they were offloaded to the cpu.
Input type is float16, but bnb_4bit_compute_dtype=torch.float32 (default). This will lead to slow inference
Using FP8 quantized models requires a GPU or XPU, we will default to dequantizing the model to bf16
Unknown vLLM environment variable detected: VLLM_ATTENTION_BACKEND
"""


@pytest.mark.parametrize("line", SLOW.splitlines())
def test_engines_have_many_words_for_a_slow_path(log: Path, line: str) -> None:
    write(log, f"before\n{line}\nafter\n")
    assert slow_paths(log) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "Enforce eager set, disabling torch.compile and CUDAGraphs.",
        "For best performance set OMP_NUM_THREADS.",
        "FLOPS counting is disabled.",
        "Performance mode set to 'balanced'.",
    ],
)
def test_what_is_as_asked_is_no_slow_path(log: Path, line: str) -> None:
    write(log, f"{line}\n")
    assert slow_paths(log) == []


def test_slow_paths_are_bounded(log: Path) -> None:
    write(log, "".join(f"number {i} is slower {'x' * 1000}\n" for i in range(1000)))
    found = slow_paths(log)
    assert len(found) == logs.SLOW_PATHS_MAX
    assert all(len(line) <= logs.SLOW_PATH_CHARACTERS for line in found)
