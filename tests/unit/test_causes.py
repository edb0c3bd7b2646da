"""Failures are classed by what torch, CUDA, NCCL, vLLM, SGLang and the kernel really say."""

from __future__ import annotations

import msgspec.structs
import pytest

from orchestrator.events import Cause
from orchestrator.run.causes import classify, from_error, is_fatal, refine
from protocol.records import ErrorInfo

ILLEGAL = "CUDA error: an illegal memory access was encountered"
UTILISATION = (
    "Free memory on device cuda:0 (60.1/79.2 GiB) on startup is less than desired GPU memory utilization (0.9, 71.28"
    " GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
PROFILING = (
    "Error in memory profiling. Initial free memory 60.00 GiB, current free memory 70.00 GiB. This happens when other"
    " processes sharing the same container release GPU memory while vLLM is profiling during initialization."
)
KV_CACHE = (
    "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is larger"
    " than the available KV cache memory (3.2 GiB)."
)
NCCL_OOM = "NCCL error in: /x/ProcessGroupNCCL.cpp:3690, unhandled cuda error. Cuda failure 2 'out of memory'"
TLS = "/x/libgomp.so.1: cannot allocate memory in static TLS block"
POINTER = "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"


@pytest.mark.parametrize(
    ("phase", "kind", "message", "expected"),
    [
        ("importing", "ImportError", "libcuda.so.1: cannot open shared object file", "environment"),
        ("importing", "AttributeError", "module 'torch.utils._pytree' has no attribute …", "environment"),
        ("importing", "ImportError", TLS, "environment"),
        ("loading", "ModuleNotFoundError", "Could not import module 'LlamaConfig'. Are this object's …", "environment"),
        ("busy", "ModuleNotFoundError", "No module named 'sklearn'", "engine_error"),
        ("importing", "MemoryError", "", "oom"),
        # torch
        ("loading", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "oom"),
        ("busy", "RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to", "oom"),
        ("busy", "RuntimeError", "could not create a primitive", "oom"),
        ("busy", "RuntimeError", "could not create a primitive descriptor for a matmul", "engine_error"),
        ("busy", "RuntimeError", "memory allocation of 134217728 bytes failed", "oom"),
        ("busy", "RuntimeError", "CUDA error: out of memory", "oom"),
        ("busy", "RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom"),
        ("busy", "OSError", "[Errno 12] Cannot allocate memory", "oom"),
        ("busy", "MemoryError", "std::bad_alloc", "oom"),
        ("busy", "MemoryError", "", "oom"),
        ("busy", "AcceleratorError", ILLEGAL, "engine_error"),
        # vLLM
        ("loading", "ValueError", "No available memory for the cache blocks. Try increasing `gpu_memory_util…", "oom"),
        ("loading", "ValueError", KV_CACHE, "oom"),
        ("loading", "RuntimeError", "Failed to load model - not enough GPU memory. Try lowering --gpu-m…", "oom"),
        ("loading", "ValueError", UTILISATION, "busy_device"),
        ("loading", "ValueError", UTILISATION.replace("GPU memory util", "CPU memory util"), "busy_device"),
        ("loading", "AssertionError", PROFILING, "busy_device"),
        # SGLang
        ("loading", "RuntimeError", "Not enough memory. Please try to increase --mem-fraction-static.", "oom"),
        ("loading", "ValueError", "Loaded weights leave no GPU memory for the KV cache under --mem-fra…", "oom"),
        ("busy", "RuntimeError", "Prefill out of memory. Try to lower your batch size.", "oom"),
        ("loading", "ValueError", "The memory capacity is unbalanced. Some GPUs may be occupied by…", "busy_device"),
        # the driver
        ("loading", "AcceleratorError", "CUDA error: CUDA-capable device(s) is/are busy or unavailable", "busy_device"),
        ("busy", "AcceleratorError", "CUDA error: uncorrectable ECC error encountered", "device_lost"),
        ("busy", "RuntimeError", "CUDA error: uncorrectable NVLink error detected during the execution", "device_lost"),
        ("busy", "NVMLError_GpuIsLost", "GPU is lost", "device_lost"),
        ("busy", "RuntimeError", "Xid (PCI:0000:65:00): 79, GPU has fallen off the bus. Out of memory", "device_lost"),
        # disks
        ("busy", "OSError", "[Errno 28] No space left on device: '/tmp/x'", "disk"),
        ("loading", "OSError", "[Errno 122] Disk quota exceeded", "disk"),
        ("loading", "RuntimeError", "shared memory segment /dev/shm/nccl, error: No space left on device (28)", "disk"),
        ("loading", "TypeError", "unexpected keyword argument 'blok_size'", "config"),
        ("loading", "OSError", "no file named model.safetensors found", "model"),
        ("busy", "EngineDead", "EngineCore is gone", "engine_crash"),
        ("standby", "OutOfTurn", "Run before Init", "protocol"),
    ],
)  # fmt: skip
def test_class(phase: str, kind: str, message: str, expected: str) -> None:
    assert classify(phase, ErrorInfo(type=kind, message=message)) == expected


def traced(*exceptions: str) -> str:
    link = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    frame = '  File "/x.py", line 1, in f\n    except torch.cuda.OutOfMemoryError:\n'
    return link.join(f"Traceback (most recent call last):\n{frame}{one}" for one in exceptions)


def test_what_an_error_was_raised_over_counts_and_source_lines_do_not() -> None:
    over = ErrorInfo(type="RuntimeError", message="capture failed", traceback=traced("MemoryError", "RuntimeError: c"))
    assert classify("busy", over) == "oom"
    beside = ErrorInfo(type="KeyError", message="'x'", traceback=traced("KeyError: 'x'"))
    assert classify("busy", beside) == "engine_error"


def test_the_message_is_one_line_and_the_error_is_kept() -> None:
    error = ErrorInfo(type="RuntimeError", message="first line\nsecond line", traceback="Traceback …")
    cause = from_error("busy", error)
    assert cause.message == "RuntimeError: first line"
    assert cause.error == error


@pytest.mark.parametrize(
    ("kind", "message", "fatal"),
    [
        ("AcceleratorError", ILLEGAL, True),
        ("RuntimeError", "CUDA error: device-side assert triggered", True),
        ("RuntimeError", "CUDA error: unspecified launch failure", True),
        ("RuntimeError", "CUDA error: the launch timed out and was terminated", True),
        ("RuntimeError", "CUDA driver error: unknown error", True),
        ("RuntimeError", "Triton Error [CUDA]: an illegal memory access was encountered", True),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(…)`", True),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", True),
        ("RuntimeError", "HIP error: an illegal memory access was encountered", True),
        ("DistBackendError", "NCCL error in: …, remote process exited or there was a network error", True),
        ("DistBackendError", NCCL_OOM, True),
        ("EngineDeadError", "EngineCore encountered an issue. See stack trace (above) for the root cause.", True),
        ("EngineDead", "the scheduler is gone", True),
        ("RuntimeError", "CUDA error: uncorrectable ECC error encountered", True),
        # the next batch may well do
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", False),
        ("RuntimeError", "CUDA error: out of memory", False),
        ("RuntimeError", "Triton Error [CUDA]: out of memory", False),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", False),
        ("RuntimeError", "CUDA error: invalid configuration argument", False),
        ("RuntimeError", "CUDA error: too many resources requested for launch", False),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul(…)`", False),
        ("ValueError", "The decoder prompt (length 9000) is longer than the maximum model length", False),
        ("MemoryError", "", False),
        ("KeyError", "'x'", False),
    ],
)
def test_after_some_errors_the_process_is_of_no_more_use(kind: str, message: str, fatal: bool) -> None:
    assert is_fatal(ErrorInfo(type=kind, message=message)) == fatal
    assert is_fatal(ErrorInfo(type=kind, message=message, fatal=True))


CRASH = Cause(cls="engine_crash", message="the worker ended by SIGKILL", phase="busy", signal="SIGKILL")
GONE = from_error("busy", ErrorInfo(type="EngineDead", message="vLLM's engine process is gone", fatal=True))
POINTS = from_error("loading", ErrorInfo(type="RuntimeError", message=POINTER))
ROOM = "TMPDIR /tmp/x is full: it has 0 B free"


def test_without_evidence_a_cause_stays_what_it_is() -> None:
    assert refine(GONE) == GONE
    assert refine(POINTS) == POINTS


@pytest.mark.parametrize("cause", [CRASH, GONE, POINTS])
@pytest.mark.parametrize("where", ["first_traceback", "log_tail"])
def test_memory_that_ran_out_in_a_child_is_found_in_the_log(cause: Cause, where: str) -> None:
    log = traced("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "RuntimeError: dead")
    better = refine(cause, **{where: log})  # type: ignore[arg-type]
    assert better.cls == "oom"
    assert "its log says: torch.OutOfMemoryError: CUDA out of memory" in better.message


def test_source_lines_in_the_log_name_exceptions_that_never_happened() -> None:
    assert refine(GONE, first_traceback=traced("KeyError: 'x'"), log_tail=traced("KeyError: 'x'")).cls == "engine_crash"


@pytest.mark.parametrize(
    ("root", "cls"),
    [
        ("ValueError: unknown attention backend FLASH", "config"),
        ("OSError: /m has no config.json", "model"),
        ("RuntimeError: something else", "engine_error"),
    ],
)
def test_an_error_that_points_elsewhere_gets_the_class_and_the_words_of_its_root(root: str, cls: str) -> None:
    better = refine(POINTS, first_traceback=traced(root, f"RuntimeError: {POINTER}"))
    assert (better.cls, better.message) == (cls, f"{POINTS.message}; its log says: {root}")
    told = from_error("loading", ErrorInfo(type="KeyError", message="'rope'"))
    assert refine(told, first_traceback=traced(root)) == told


@pytest.mark.parametrize("cause", [CRASH, GONE])
def test_a_kill_while_the_kernel_killed_for_memory_is_oom(cause: Cause) -> None:
    better = refine(cause, oom_kills=2)
    assert (better.cls, better.message) == (
        "oom",
        f"{cause.message}; the kernel's out-of-memory killer acted 2 times meanwhile",
    )


def test_any_other_kill_is_not_and_says_what_is_known() -> None:
    assert "did not act" in refine(CRASH, oom_kills=0).message
    assert "possibly" in refine(CRASH, oom_kills=None).message
    assert {refine(CRASH, oom_kills=kills).cls for kills in (0, None)} == {"engine_crash"}
    error = from_error("busy", ErrorInfo(type="KeyError", message="'x'"))
    assert refine(error, oom_kills=3) == error


@pytest.mark.parametrize("cls", ["engine_crash", "engine_error", "hang", "oom"])
def test_a_device_that_the_driver_lost_explains_all_that_came_of_it(cls: str) -> None:
    cause = msgspec.structs.replace(GONE, cls=cls)
    assert refine(cause, device_lost=True, first_traceback=traced("MemoryError")).cls == "device_lost"


def test_no_space_left_is_believed_of_a_disk_only_where_one_is_full() -> None:
    cause = from_error("busy", ErrorInfo(type="OSError", message="[Errno 28] No space left on device"))
    assert refine(cause, disk=ROOM).message == f"{cause.message}; {ROOM}"
    unproven = refine(cause)
    assert unproven.cls == "disk"
    assert "is full" not in unproven.message
    assert "quota" in unproven.message
    assert refine(unproven) == unproven


@pytest.mark.parametrize("name", ["/psm_5e7d5890", "/dev/shm/sem.mp-x", "/torch_4_5_6"])
def test_shared_memory_that_vanished_is_no_fault_of_the_model_and_the_usual_reason_is_named(name: str) -> None:
    message = f"[Errno 2] No such file or directory: '{name}'"
    told = from_error("loading", ErrorInfo(type="FileNotFoundError", message=message))
    assert told.cls == "engine_error"
    assert "RemoveIPC" in refine(told).message
    assert "RemoveIPC" in refine(GONE, first_traceback=traced(f"FileNotFoundError: {message}")).message
    assert from_error("loading", ErrorInfo(type="FileNotFoundError", message="No such file: 'x'")).cls == "model"


def test_no_space_left_in_a_child_is_found_in_the_log() -> None:
    better = refine(GONE, first_traceback=traced("OSError: [Errno 28] No space left on device"), disk=ROOM)
    assert better.cls == "disk"
    assert better.message.endswith(ROOM)


def test_a_page_that_no_disk_could_give_ends_in_sigbus() -> None:
    bus = msgspec.structs.replace(CRASH, signal="SIGBUS", message="the worker ended by SIGBUS")
    assert refine(bus, disk=ROOM).cls == "disk"
    assert refine(bus).cls == "engine_crash"


@pytest.mark.parametrize("cls", ["protocol", "interrupted", "bad_prompt", "hang", "busy_device"])
def test_classes_that_say_enough_are_left_alone(cls: str) -> None:
    cause = msgspec.structs.replace(CRASH, cls=cls)
    assert refine(cause, first_traceback=traced("MemoryError"), oom_kills=1, disk=ROOM) == cause


REFUSAL = "airlock: /env/bin/python: zmq can't be imported (No module named 'zmq'); install with: -m pip install pyzmq"


@pytest.mark.parametrize(
    ("phase", "status", "tail", "cls", "message"),
    [
        ("launching", 78, f"a warning\n{REFUSAL}\n", "environment", REFUSAL.removeprefix("airlock: ")),
        ("launching", 78, "", "environment", "the worker ended"),
        ("launching", 1, REFUSAL, "engine_crash", "the worker ended"),
        ("loading", 78, REFUSAL, "engine_crash", "the worker ended"),
    ],
)
def test_a_worker_that_refuses_its_environment(phase: str, status: int, tail: str, cls: str, message: str) -> None:
    cause = Cause(cls="engine_crash", message="the worker ended", phase=phase, exit_status=status)
    found = refine(cause, log_tail=tail)
    assert (found.cls, found.message) == (cls, message)
