"""Sweep files that are good in all that they say, covering all sections, and what nobody would write into one."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from ruamel.yaml import YAML

from orchestrator.definition.sections import SECTIONS

#: Names of keys and numbers of entries, from the outermost to the innermost.
Steps = tuple[str | int, ...]


class Raw(str):
    """A value as YAML has it."""


#: `of_gpus`: planned for a machine that has two.
FILES: tuple[dict[str, Any], ...] = tuple(
    YAML(typ="safe", pure=True).load_all(
        r"""
name: odd
model: scripted
prompts:
  file: p.jsonl
  chat_template: auto
  format: jsonl
  columns: {id: qid, expected: "answers[0]"}
  template: Q {q}
  filter: {min_prompt_tokens: 1, max_prompt_tokens: 900, min_chars: 1, max_chars: 900}
  sample: {count: 2, seed: 1}
  unusable: leave_out
methods:
  - scripted
  - {name: own, engine: scripted, engine_args: {a: {b: 1}}, env_vars: {A: b}, summary: a line}
settings: {max_model_len: 1000, dtype: auto}
sampling: {temperature: 0.5, top_p: 0.9, ignore_eos: false}
matrix: {batch_size: [1, 2], max_new_tokens: [3, 4]}
zip: {seed: [1, 2], logprobs: [0, 1]}
repeats: 3
warmup: 1
answers: {judge: [exact, numeric], normalise: {case: keep}, tolerance: 0.5}
measurement:
  order: random
  order_seed: 3
  reference: own
  drift: true
  stop_early: 0.1
  least_repeats: 2
  confidence: 0.9
  agreement_gap: 0.1
  slo_ttft_s: 1.5
limits: {load_s: 60.0, batch_s: 5, strangers_mib: 1, tmp_free_mib: 0, artefacts_mib: 1}
policies:
  oom: give_up
  hang: {do: halve, times: 4, loads: 1}
  busy_device: {wait_s: 36.5}
  disk: {do: wait, wait_s: 1}
environments: {vllm: vllm}
repairs: {keep: [torchvision]}
devices: {cpus: ["0"], slots: 1, exclusive: false, share_cpus: true, standby: auto}
stop_after: 1h30m
notify:
  command: [[./tell, "{event}", "{{x}}"]]
  webhook: [{url: "https://ntfy.sh/x", headers: {X-Lab: "7"}, format: json}]
  on: [end, failure]
---
name: of_gpus
model: scripted
prompts: {random: {count: 3, input_tokens: {lognormal: {median: 5.5, sigma: 0.3}, min: 2, max: 9}, seed: 4}}
methods: [scripted]
measurement: {order: interleaved}
devices: {use: [0, GPU-1f]}
repairs: "off"
notify: {command: [./tell, "{run}"], webhook: "https://ntfy.sh/x"}
---
name: odd
model: scripted
prompts:
  shared_prefix:
    groups: 2
    prompts_per_group: 2
    system_tokens: {normal: {mean: 4.5, stddev: 1.5}}
    question_tokens: {uniform: [2, 5]}
    order: grouped
methods: [{name: own, base: scripted, worker: [/bin/true, a]}]
settings: {kv_cache_bytes: 1048576, tensor_parallel_size: 1}
---
name: odd
model: scripted
prompts: {random: {input_tokens: {file: lengths.txt}}}
methods: [scripted]
stop_after: 90
---
name: odd
model: scripted
prompts: {file: p.csv, delimiter: ;, columns: {prompt: q}, sample: {count: 1}}
methods: [scripted]
sampling: {task: generate, max_new_tokens: 4}
---
name: of_gpus
model: {path: ./model, trust_remote_code: false}
prompts:
  inline:
    - hello
    - {prompt: 2 + 3 =, expected: b, id: a, continuation: " 5"}
    - {messages: [{role: system, content: be brief}, {role: user, content: x}], expected: [A]}
methods:
  - hf_sdpa
  - hf_rocket
  - name: own
    base: vllm_default
    eager: true
    ngram: {min_n: 1, max_n: 3, draft_tokens: 2}
    engine_args: {max_num_seqs: 64}
  - {name: other, base: sglang_triton, attention: triton, rocket_bucket: true}
settings:
  bucket_batch_sizes: [1, 2]
  bucket_lengths: [64, 128]
  gpu_memory_utilization: 0.5
  sglang_mem_fraction_static: 0.5
  torch_compile_mode: default
  torch_compile_cache_size_limit: 8
  max_num_batched_tokens: 512
  prefix_caching: false
  expert_load: false
  input_mode: auto
  pipeline_parallel_size: 1
sampling: {task: generate}
answers: {judge: choice, choices: [A, B]}
---
name: odd
model: ./vision
prompts:
  - {prompt: "what?", images: [cat.png]}
  - messages: [{role: user, content: [{type: text, text: x}, {type: image, image: cat.png}]}]
methods: [hf_sdpa, vllm_default]
settings: {input_mode: vision}
---
name: odd
model: {hub: org/name, revision: main}
prompts: p.jsonl
methods: [vllm_default, sglang_ngram]
answers: {judge: [exact, bleu], threshold: 0.5}
launcher: slurm
cluster:
  slots: 2
  gpus: 1
  cpus: 4
  memory_mib: 1000
  time_limit: 8h
  options: [--partition=gpu]
  python: /usr/bin/python3
  listen: tcp://127.0.0.1:7000
  silence_s: 60
  attempts: 3
---
name: odd
model: demo
prompts: [x, {messages: [{role: user, content: y}]}]
methods: [hf_sdpa]
launcher: ray
cluster: {address: auto, listen: "tcp://127.0.0.1", options: [big=1], ray_python: /usr/bin/python3}
notify: {command: ["true"], webhook: {url: "env:HOOK", format: slack}}
"""
    )
)

NESTED: Any = "x"
for _ in range(90):
    NESTED = [NESTED]
# fmt: off
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 65, 2**31, 10**4, 10**7 + 1, 2**62, 2**63 - 1, 2**63, -(2**63), 10**400,
    Raw("0x" + "f" * 999), 0.0, -0.0, 0.5, -0.5, 1.5, 5e-324, 1e-09, 1000000000.0, 1e+300, 1.7e+308, -1.7e+308,
    math.nan, math.inf, -math.inf, "", " ", "\n", "a", "{", "}", "{}", "{{", "{q", "{a[}", "{q!r}{", "{event!x}",
    "{event:{run}}", "{event:9999}", "{event.x}", "{0}", "a[0", "a..b", "a[" + "9" * 5000 + "]", "[", "(", "*",
    "(?P<answer>", "\\", "(a+)+$", ";;", "\u0000", "a\u0000b", "\ud800", "\u2028", "\u00e9", "\u0661", "\u200b",
    "~", "~nobody-like-this/x", "~/x", ".", "..", "/", "./fifo", "fifo", "loop", "/dev/zero", "/dev/full",
    "/proc/self/mem", "x/" * 3000, "a" * 5000, "model/" + "b" * 300, "p.jsonl", "p.csv", "lengths.txt", "cat.png",
    "cat.png.gz", "fifo.jsonl", "loop.jsonl", "data:image/png;base64,", "data:", "http://x/y", "https://",
    "https://user:pw@h/x?token=y", "env:", "env:A B", "$HOME", "http://[", "tcp://", "tcp://[",
    "tcp://127.0.0.1:" + "9" * 5000, "tcp://[::1]:1", "9" * 5000, "1e999", "1.5e-999 ms", "8h9h", "9" * 60 + "h",
    "0-8191", "0-99999999", "3-1", "GPU-", "MIG-", "null", "auto", "on", "off", "local", "slurm", "score", "random",
    "--wrap=x", "a=" + "9" * 400, [], [[]], [None], [""], [0], [1, [2]], ["a", "a"], [{}], [math.nan], [True, 1],
    [10**400], ["x"] * 300, NESTED, [[1]], [[1, 1]], [[10**9]], [2**62], [-1], list(range(400)), {}, {"": ""},
    {"a": {}}, {"a": math.nan}, {"do": None}, {"file": "p.jsonl"}, {"a": NESTED}, {"b\u0000": 1}, {"=": "x"},
    {str(n): n for n in range(300)}, {"x" * 5000: 1}, {"fixed": 1}, {"uniform": [1]},
    {"lognormal": {"median": 1e+300, "sigma": 10}}, {"normal": {"mean": 1.7e+308, "stddev": 1.7e+308}},
    {"prompt": "x", "messages": []}, {"messages": [{}]}, {"messages": ""}, Raw("!x 1"), Raw("!!set {a}"),
    Raw("!!binary aGk="), Raw("2001-01-01"), Raw("*a"), Raw("&a [*a]"), Raw("? [a]"), Raw("- x"), Raw("|"),
    Raw("{a: b"), Raw(".5"), Raw("0o9"), Raw("{<<: {a: 1}}"), Raw("{<<: 3}"), Raw("{1: 2}"), Raw("{null: 2}"),
    Raw("{a: 1, a: 2}"), Raw("'\t'"), Raw('"\\uD83D\\uDE00"'), {"event": NESTED}, Raw("{<<: [{a: 1}, {a: 2}]}"),
    {"times": Raw("!x 1")}, Raw("&b x"), "refs/pr/1", "../../../../dev/zero",
)
# fmt: on
NUMBERS = tuple(one for one in ODD if isinstance(one, int | float) and not isinstance(one, bool))
TEXTS = tuple(one for one in ODD if isinstance(one, str) and not isinstance(one, Raw))


def places(value: Any, outer: Steps = ()) -> Iterator[Steps]:
    """Of all that is in it."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in steps:
        yield (*outer, step)
        yield from places(part, (*outer, step))


def at(value: Any, steps: Steps) -> Any:
    for step in steps:
        value = value[step]
    return value


PARTS = [at(file, steps) for file in FILES for steps in places(file)]
NAMES = sorted({*SECTIONS, *(step for file in FILES for steps in places(file) for step in steps if type(step) is str)})
ANY = st.one_of(
    st.sampled_from(ODD),
    st.sampled_from(ODD),
    st.integers(),
    st.floats(),
    st.text(max_size=30),
    st.text("{}[]().:,;!'\"\\*&?|-<>=%@#~0a", max_size=12),
    st.lists(st.sampled_from(ODD), max_size=3),
    st.dictionaries(st.text(max_size=4), st.sampled_from(ODD), max_size=3),
    st.sampled_from(PARTS),
).map(copy.deepcopy)


def like(value: Any) -> st.SearchStrategy[Any]:
    """Odd ones of its kind, which are the likelier to be taken."""
    if isinstance(value, bool | list | dict):
        return ANY
    return st.sampled_from(TEXTS if isinstance(value, str) else NUMBERS)


@st.composite
def odd_files(draw: st.DrawFn) -> dict[str, Any]:
    """One of FILES in which up to three places are replaced, dropped or added to."""
    file: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        found = list(places(file))
        if not found:
            break
        *outer, last = draw(st.sampled_from(found))
        holder = at(file, tuple(outer))
        how = draw(st.sampled_from(["replace", "like", "like", "drop", "add"]))
        if how == "drop":
            del holder[last]
        elif how == "add" and isinstance(holder, list):
            holder.append(draw(ANY))
        elif how == "add":
            holder[draw(st.one_of(st.sampled_from(NAMES), st.text(max_size=5)))] = draw(ANY)
        else:
            holder[last] = draw(like(holder[last]) if how == "like" else ANY)
    return file


def text_of(file: dict[str, Any]) -> str:
    """A section a line."""
    return "".join(f"{_flow(name)}: {_flow(part)}\n" for name, part in file.items())


def _flow(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_flow(name)}: {_flow(part)}' for name, part in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[str(value)]
    return json.dumps(value)
