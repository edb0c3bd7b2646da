"""Random small sweeps of scripted methods, healthy and faulty."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

#: Short, but not so short that a busy machine makes a hang of a healthy worker.
LIMITS = {
    "launch_s": 20,
    "import_s": 6,
    "load_s": 6,
    "batch_s": 4,
    "drain_s": 1,
    "terminate_s": 0.3,
    "kill_s": 10,
    "release_s": 10,
}
WORDS = ("a", "prompt", "Grüße", "☃", "🦙", "of", "some", "words")
#: Of each kind of moment, what may happen there; see `workers.backends.scripted_faults`.
EARLY = ("exit0", "exit1", "segv", "sigkill", "hang", "raise", "wrong_protocol", "wrong_token")
LOAD = (
    *("exit1", "segv", "sigkill", "hang", "hang_ignore_term", "raise", "raise_fatal", "memory_error", "garbage"),
    *("child_plain", "child_ignore_term", "child_setpgid", "child_setsid", "child_double_fork", "child_renamed"),
    *("child_clear_env", "child_hold_log", "child_dies", "shm", "port", "file"),
)
BATCH = (
    *("exit0", "exit1", "sys_exit", "segv", "sigkill", "sigstop", "hang", "hang_ignore_term", "spin", "raise", "ruin"),
    *("raise_fatal", "memory_error", "give_up", "garbage", "late", "late_answer", "out_of_turn", "sigquit_group"),
    *("missing", "duplicate", "surplus", "wrong_digest", "surrogates", "oversized", "unencodable"),
    *("child_double_fork", "child_clear_env"),
)
SHUTDOWN = ("hang", "hang_ignore_term", "exit1", "segv", "raise", "child_setsid", "child_clear_env")
BESIDE = ("exit1", "segv", "sigkill", "give_up")


def random_sweep(rng: Random, folder: Path) -> dict[str, Any]:
    """`folder` takes the marks of faults that strike once."""
    prompts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 5))) + f" {n}" for n in range(rng.randint(1, 6))]
    return {
        "name": "soak",
        "model": "scripted",
        "prompts": prompts,
        "methods": [random_method(rng, f"m{number}", folder, len(prompts)) for number in range(rng.randint(1, 3))],
        "matrix": {"batch_size": rng.choice(([1], [2], [4], [1, 3]))},
        "sampling": {"max_new_tokens": rng.randint(1, 12), "seed": rng.randint(0, 9)},
        "repeats": rng.choice((1, 1, 2)),
        "warmup": rng.choice((0, 0, 1)),
        "limits": LIMITS,
    }


def random_method(rng: Random, name: str, folder: Path, prompts: int) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": name, "base": "scripted"}
    options: dict[str, Any] = {"salt": rng.choice("xyz"), "token_s": rng.choice((0, 0, 0.002, 0.02))}
    options["load_s"] = rng.choice((0, 0, 0.2))
    kind = rng.random()
    if kind < 0.15:
        early = random_fault(rng, f"{name}-e", folder, rng.choice(("hello", "import")), EARLY)
        spec["env_vars"] = {"SCRIPTED_OPTIONS": json.dumps({"fault": early})}
    elif kind < 0.75:
        options["faults"] = [
            random_late_fault(rng, f"{name}-{number}", folder, prompts) for number in range(rng.choice((1, 1, 2)))
        ]
    return {**spec, "engine_args": options}


def random_late_fault(rng: Random, name: str, folder: Path, prompts: int) -> dict[str, Any]:
    at, choice = rng.choice(
        (
            ("load", LOAD),
            (f"batch:{rng.randint(1, 4)}", BATCH),
            (f"batch:{rng.randint(1, 4)}", BATCH),
            (f"prompt:{rng.randrange(prompts)}", BATCH),
            ("shutdown", SHUTDOWN),
            ("beside", BESIDE),
        )
    )
    return random_fault(rng, name, folder, at, choice)


def random_fault(rng: Random, name: str, folder: Path, at: str, choice: Sequence[str]) -> dict[str, Any]:
    """Most strike once only, so that there is something to go on with."""
    once = {"once": str(folder / name)} if rng.random() < 0.7 else {}
    return {"at": at, "do": rng.choice(choice), **once}


def is_healthy(method: Mapping[str, Any]) -> bool:
    return "env_vars" not in method and "faults" not in method.get("engine_args", {})
