"""Transformers called directly, in a process of its own: what Airlock is measured against.

Run in the environment of Transformers. On stdin comes one line of JSON with the model's folder, attention, new tokens
and threads; then a line for each batch, its prompts as lists of ids, answered by one line of JSON with the seconds of
the call and the new ids.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    order = json.loads(sys.stdin.readline())
    torch.set_num_threads(order["threads"])
    loaded = AutoModelForCausalLM.from_pretrained(
        order["model"], dtype=torch.float32, attn_implementation=order["attention"]
    )
    model = loaded.eval()
    settings = GenerationConfig(
        max_new_tokens=order["new"],
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        use_cache=True,
        disable_compile=True,
    )
    tell({"ready": True})
    for line in sys.stdin:
        prompts = json.loads(line)
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts])
        started = time.perf_counter()
        with torch.inference_mode():
            made = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings).tolist()
        tell({"s": time.perf_counter() - started, "ids": [row[width:] for row in made]})


def tell(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
