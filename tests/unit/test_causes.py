"""Failures are classed by what torch, CUDA, NCCL, vLLM, SGLang and the kernel really say."""

from __future__ import annotations

from pathlib import Path

import msgspec.structs
import pytest

from orchestrator.outcomes import Cause
from orchestrator.run.autopsy import Autopsy
from orchestrator.run.causes import Kills, classify, from_error, is_fatal, refine
from orchestrator.run.life import Exited
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
        # numpy, by its name here and in tracebacks
        ("busy", "MemoryError", "Unable to allocate 8.00 PiB for an array with shape (1125899906842624,)", "oom"),
        ("busy", "_ArrayMemoryError", "", "oom"),
        ("busy", "ValueError", "Unable to allocate 3.0 GiB for an array with shape (9, 9)", "oom"),
        ("loading", "RuntimeError", "Unable to allocate a distinct stream", "engine_error"),
        # torch
        ("loading", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "oom"),
        ("busy", "RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to", "oom"),
        ("busy", "RuntimeError", "could not create a primitive", "oom"),
        ("busy", "RuntimeError", "could not create a primitive descriptor for a matmul", "engine_error"),
        ("busy", "RuntimeError", "memory allocation of 134217728 bytes failed", "oom"),
        ("busy", "RuntimeError", "CUDA error: out of memory", "oom"),
        ("busy", "RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom"),
        ("busy", "OSError", "[Errno 12] Cannot allocate memory", "oom"),
        ("busy", "RuntimeError", "cudaErrorMemoryAllocation", "oom"),
        ("busy", "AssertionError", "not enough shared memory. This configuration will be skipped.", "engine_error"),
        ("loading", "ValueError", "max_num_seqs is too large: lower it to avoid out of memory", "config"),
        ("loading", "CannotHonour", "tensor_parallel_size 2 does not divide the model's heads", "config"),
        ("loading", "UnknownCacheShape", "the KV cache of this architecture is compressed or mixed", "config"),
        ("loading", "StrictDataclassFieldValidationError", "Validation error for field 'hidden_act'", "model"),
        ("loading", "StrictDataclassClassValidationError", "Class validation error", "model"),
        ("busy", "CannotHonour", "tells no log-probabilities", "engine_error"),
        ("loading", "ValueError", "lower it to avoid running out of memory", "config"),
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
        ("busy", "RuntimeError", "cudaErrorECCUncorrectable", "device_lost"),
        ("loading", "RuntimeError", "cudaErrorDevicesUnavailable", "busy_device"),
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
        ("RuntimeError", "cudaErrorMemoryAllocation", False),
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


@pytest.mark.parametrize("kills", [Kills(anywhere=2), Kills(ours=2, anywhere=2)])
@pytest.mark.parametrize("cause", [CRASH, GONE, POINTS])
def test_a_kill_while_the_kernel_killed_for_memory_is_oom(cause: Cause, kills: Kills) -> None:
    better = refine(cause, oom_kills=kills)
    assert (better.cls, better.message) == (
        "oom",
        f"{cause.message}; the kernel's out-of-memory killer acted 2 times meanwhile",
    )


def ended(how: str, *, signal: str | None = None) -> Cause:
    return Cause(cls="engine_crash", message=f"the worker ended by {how}", phase="busy", signal=signal)


TOLD = from_error("busy", ErrorInfo(type="KeyError", message="'x'"))


@pytest.mark.parametrize(
    "cause",
    [
        ended("SIGSEGV", signal="SIGSEGV"),
        ended("SIGABRT", signal="SIGABRT"),
        ended("exit status 1"),
        from_error("busy", ErrorInfo(type="EngineDead", message="EngineCore (pid 7) was ended by SIGSEGV")),
        TOLD,
        msgspec.structs.replace(TOLD, signal="SIGKILL"),  # by us, as it did not go
    ],
    ids=lambda cause: cause.message,
)
def test_the_kernels_killer_is_not_to_blame_for_what_ended_otherwise(cause: Cause) -> None:
    assert refine(cause, oom_kills=Kills(ours=1, anywhere=1)) == cause


@pytest.mark.parametrize("cause", [CRASH, GONE])
def test_a_neighbours_kill_is_not_ours_where_the_log_tells_what_happened(cause: Cause) -> None:
    told, echo = traced("KeyError: 'x'"), traced("EngineDeadError: EngineCore encountered an issue.")
    assert refine(cause, oom_kills=Kills(anywhere=1), first_traceback=told).cls == "engine_crash"
    assert refine(cause, oom_kills=Kills(anywhere=1), first_traceback=echo).cls == "oom"
    assert refine(cause, oom_kills=Kills(ours=1, anywhere=1), first_traceback=told).cls == "oom"


def test_any_other_kill_is_not_and_says_what_is_known() -> None:
    nobody_counts = Kills(anywhere=None)
    assert "did not act" in refine(CRASH).message
    assert "possibly" in refine(CRASH, oom_kills=nobody_counts).message
    assert {refine(CRASH, oom_kills=kills).cls for kills in (Kills(), nobody_counts)} == {"engine_crash"}


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
    assert refine(cause, first_traceback=traced("MemoryError"), oom_kills=Kills(1, 1), disk=ROOM) == cause


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


# --- what engines log ---------------------------------------------------------

#: What a line may look like that its writer does not call an error, by who writes it.
MILD = {
    "vLLM, debug": "(EngineCore pid=77) DEBUG 11-29 21:14:57 [core.py:1166] {}",
    "vLLM, info": "(EngineCore pid=77) INFO 11-29 21:14:57 [core.py:1166] {}",
    "vLLM, warning": "(VllmWorker rank=1 pid=78) WARNING 11-29 21:14:57 [gpu_worker.py:791] {}",
    "vLLM, in colours": "\x1b[0;36m(EngineCore pid=77)\x1b[0;0m \x1b[33mWARNING\x1b[0m 11-29 21:14:57 [core.py:1] {}",
    "older vLLM": "INFO 11-29 21:14:57 [worker.py:8] {}",
    "SGLang": "[2026-02-03 10:00:00] {}",
    "SGLang, a child": "[2026-02-03 10:00:00 TP0] {}",
    "SGLang, milliseconds": "[2026-02-03 10:00:00.123 DP1 TP0] {}",
    "Transformers": "[transformers] {}",
    "Transformers, detail": "WARNING [transformers.modeling_utils:12] 2026-02-03 10:00:00,123 {}",
    "Transformers, explicit": "[WARNING|modeling_utils.py:12] 2026-02-03 10:00:00,123 >> {}",
    "FlashInfer": "2026-02-03 10:00:00,123 - WARNING - core.py:12 - flashinfer.jit: {}",
    "torch": "W0203 10:00:00.123000 4 torch/_inductor/codecache.py:995] [0/8] {}",
    "torch in C++": "[rank0]:[W203 10:00:00.123456789 CUDAAllocatorConfig.h:28] Warning: {} (function operator())",
    "NCCL": "host:12:34 [0] NCCL INFO {}",
    "logging": "WARNING:root:{}",
    "warnings": "/x/modeling.py:12: UserWarning: {}",
    "print": "{}",
}
#: What engines say of a normal start, or of a step that they do without.
SAID_MILDLY = (
    # SGLang
    "Available memory 3GB is less than required memory 5GB for warmup, reducing max_m to 96 to avoid out of memory",
    "FlashInfer extend autotune skipped: not enough free memory for a 8192-token dummy forward.",
    "Multimodal preprocessing ran out of memory on cuda:0; retrying on CPU",
    "retract_decode: aborted request 7: Out of memory even after retracting all other requests in the decode batch.",
    "You need to set proper --max-total-tokens to avoid the out-of-memory error.",
    # vLLM
    "If you are running out of memory, consider decreasing `gpu_memory_utilization` or enforcing eager mode.",
    "checkpoint total size (80.0 GiB) exceeds 90% of available RAM. This may cause out of memory errors.",
    "Could not initialize the EC registered buffer: CUDA out of memory. Tried to allocate 2.00 GiB",
    "SymmMemCommunicator: symmetric memory initialization failed: CUDA error: out of memory",
    "Engram huge-page allocation failed ([Errno 12] Cannot allocate memory); using pinned memory.",
    "not cached; shm cache full, consider raising --mm-processor-cache-gb. (MemoryError)",
    # Transformers
    "Failed to warm up: CUDA out of memory. Tried to allocate 2.00 GiB. Graph pool may fragment and OOM under load.",
    "Skipping caching allocator warmup for cuda:0: could not query device memory (GPU is lost)",
    # other classes
    "Weight cache unusable ([Errno 28] No space left on device); falling back to disk loading",
    "Could not write the compile cache: [Errno 28] No space left on device: '/x'",
    "nvidia-smi can't be asked: GPU is lost. NVML_ERROR_GPU_IS_LOST",
    "Call to ibv_reg_mr failed; CUDA-capable device(s) is/are busy or unavailable",
    UTILISATION,
)
ONE_OF_EACH = ("reducing max_m to 96 to avoid out of memory", *SAID_MILDLY[-4:])
SEGFAULT = ended("SIGSEGV", signal="SIGSEGV")


@pytest.mark.parametrize("form", MILD)
@pytest.mark.parametrize("sentence", SAID_MILDLY)
def test_a_line_that_tells_of_no_error_is_no_evidence(form: str, sentence: str) -> None:
    line = MILD[form].format(sentence)
    for cause in (SEGFAULT, GONE, POINTS, TOLD):
        assert refine(cause, log_tail=f"before\n{line}\nafter") == cause


VLLM = "(EngineCore pid=77) ERROR 11-29 21:14:57 [core.py:1166] "


@pytest.mark.parametrize(
    ("text", "cls"),
    [
        # in Python's form: as printed, by a child, of a rank, in vLLM's log
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom"),
        ("(EngineCore pid=77) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom"),
        ("[rank1]: torch.AcceleratorError: CUDA error: out of memory", "oom"),
        (f"{VLLM}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom"),
        (f"{VLLM}ValueError: {KV_CACHE}", "oom"),
        ("RuntimeError: Prefill out of memory. Try to lower your batch size.", "oom"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "oom"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 PiB for an array with shape", "oom"),
        ("MemoryError", "oom"),
        ("[2026-02-03 10:00:00 TP0] Scheduler hit an exception: " + traced("MemoryError"), "oom"),
        ("ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'", "oom"),
        # with the level
        (f"{VLLM}EngineCore failed to start: CUDA out of memory", "oom"),
        ("ERROR:root:CUDA out of memory", "oom"),
        ("[ERROR|trainer.py:12] 2026-02-03 10:00:00,123 >> CUDA out of memory", "oom"),
        ("[rank0]:[E203 10:00:00.1 x.cpp:2] CUDA error: out of memory", "oom"),
        ("[rank0]:[E1129 10:00:00.123456789 ProcessGroupNCCL.cpp:2057] [PG ID 0] Process group watchdog thread"
         " terminated with exception: CUDA error: uncorrectable ECC error encountered", "device_lost"),
        # of what is not Python
        ("terminate called after throwing an instance of 'std::bad_alloc'", "oom"),
        ("terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: out of memory", "oom"),
        ("memory allocation of 134217728 bytes failed", "oom"),
        ("LLVM ERROR: out of memory", "oom"),
        ("cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes", "oom"),
        ("libgomp: Out of memory allocating 4096 bytes", "oom"),
        ("bash: fork: Cannot allocate memory", "oom"),
        # other classes
        ("torch.AcceleratorError: CUDA error: GPU is lost", "device_lost"),
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", "device_lost"),
        (f"{VLLM}AcceleratorError: CUDA error: uncorrectable NVLink error detected", "device_lost"),
        (f"{VLLM}ValueError: {UTILISATION}", "busy_device"),
        (f"AssertionError: {PROFILING}", "busy_device"),
        ("OSError: [Errno 28] No space left on device: '/x'", "disk"),
        ("/usr/bin/ld: final link failed: No space left on device", "disk"),
        ("Error while creating shared memory segment /dev/shm/nccl-x (size 9), error: No space left on device (28)",
         "disk"),
    ],
)  # fmt: skip
def test_a_line_that_tells_of_an_error_is_evidence(text: str, cls: str) -> None:
    for cause in (SEGFAULT, GONE, POINTS, TOLD):
        assert refine(cause, log_tail=f"before\n{text}\nafter").cls == cls


def settled(log: Path, cause: Cause, text: str) -> Cause:
    log.write_text(text)
    exited = Exited(status=None, signal=cause.signal)
    return Autopsy(log, "tag", "w1").settle(cause, exited, device_lost=False, short="")


def in_vllm(text: str) -> str:
    return "".join(f"{VLLM}{line}\n" for line in text.splitlines())


REFUSED = traced("ValueError: unknown attention backend FLASH", f"RuntimeError: {POINTER}")
#: Logs of workers that failed, line for line, and the class of each.
FAILED: dict[str, tuple[Cause, str, str]] = {
    "nothing but a death": (SEGFAULT, "loading\nrunning\n", "engine_crash"),
    "an error of vLLM": (GONE, in_vllm(traced("KeyError: 'x'", "RuntimeError: dead")), "engine_crash"),
    "an error of SGLang": (GONE, f"[2026-02-03 10:00:00] hit: {traced('KeyError: 1')}\n\n", "engine_crash"),
    "settings that vLLM refused": (POINTS, in_vllm(REFUSED), "config"),
    "settings that SGLang refused": (
        from_error("loading", ErrorInfo(type="EngineDead", message="a child process of SGLang failed")),
        f"[2026-02-03 10:00:00] hit: {traced('ValueError: unknown attention backend FLASH')}\n\n",
        "config",
    ),
    "memory in vLLM": (POINTS, in_vllm(traced("torch.OutOfMemoryError: CUDA out of memory.", POINTER)), "oom"),
    "memory in a child": (GONE, f"[2026-02-03 10:00:00 TP0] hit: {traced('MemoryError')}\n\n", "oom"),
    "memory in C++": (SEGFAULT, "terminate called after …\n  what():  std::bad_alloc\n", "oom"),
    "a device": (GONE, in_vllm(traced("torch.AcceleratorError: CUDA error: uncorrectable ECC error")), "device_lost"),
    "a disk": (GONE, traced("OSError: [Errno 28] No space left on device: '/x'") + "\n\n", "disk"),
}


@pytest.mark.parametrize("form", MILD)
@pytest.mark.parametrize("kind", FAILED)
def test_no_mild_line_anywhere_in_a_log_changes_the_class(tmp_path: Path, kind: str, form: str) -> None:
    cause, text, cls = FAILED[kind]
    lines = text.splitlines(keepends=True)
    assert settled(tmp_path / "log", cause, text).cls == cls
    for at in range(len(lines) + 1):
        mild = (MILD[form].format(sentence) + "\n" for sentence in ONE_OF_EACH)
        changed = "".join([*lines[:at], *mild, *lines[at:]])
        assert settled(tmp_path / "log", cause, changed).cls == cls, changed


def test_a_traceback_that_is_only_a_warning_is_kept_and_is_no_evidence(tmp_path: Path) -> None:
    warned = in_vllm(traced("torch.OutOfMemoryError: CUDA out of memory")).replace("ERROR 11-29", "WARNING 11-29")
    found = settled(tmp_path / "log", SEGFAULT, warned)
    assert found.cls == "engine_crash"
    assert "OutOfMemoryError" in found.first_traceback


def test_the_last_words_before_the_stacks_of_many_threads_are_heard(tmp_path: Path) -> None:
    stacks = "Fatal Python error: Aborted\n\n" + 'Thread 0x7f (most recent call first):\n  File "/x", line 1\n' * 40
    words = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    assert settled(tmp_path / "log", ended("SIGABRT", signal="SIGABRT"), words + stacks).cls == "oom"
