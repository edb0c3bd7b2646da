"""Points by optimum-benchmark, each in a process of its own. Run where that is installed, by scripts/bench.

Its log goes to the folder that is its argument. On stdin: JSON with the model's folder, prompt tokens, new tokens,
threads, and (attention, batch size, batches) of each point.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module


def main() -> None:
    theirs = import_module("optimum_benchmark")
    order = json.load(sys.stdin)
    os.chdir(sys.argv[1])
    new = order["new"]
    for attention, size, batches in order["points"]:
        scenario = theirs.InferenceConfig(
            iterations=batches,
            duration=0,  # else at least ten seconds of each
            warmup_runs=1,
            input_shapes={"batch_size": size, "sequence_length": order["prompt_tokens"]},
            generate_kwargs={"max_new_tokens": new, "min_new_tokens": new},
        )
        backend = theirs.PyTorchConfig(
            model=order["model"],
            device="cpu",
            torch_dtype="float32",
            attn_implementation=attention,
            intra_op_num_threads=order["threads"],
        )
        name = f"{attention}-{size}"
        launcher = theirs.ProcessConfig()
        config = theirs.BenchmarkConfig(name=name, launcher=launcher, scenario=scenario, backend=backend)
        theirs.Benchmark.launch(config)


if __name__ == "__main__":
    main()
