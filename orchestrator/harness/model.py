"""A model of EleutherAI's lm-evaluation-harness whose answers come from Airlock's workers.

Each call of the harness, which hands over all requests of a kind at once, becomes one sweep of one method: isolated,
resumable, with the proof and the report of any other. Tokens are made here as the harness's own `hf` model makes them,
and the engines get ids; so the same task has the same requests on every engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jinja2.exceptions import TemplateError
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
    resolve_max_length,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import AutoConfig, AutoTokenizer

from orchestrator.errors import InputError
from orchestrator.harness import arguments, calls
from orchestrator.harness.calls import Call, Unanswered
from orchestrator.harness.sweeps import Sweeps, anchored, base_of
from orchestrator.record.output import Record
from orchestrator.run import prepare
from orchestrator.verbs import say
from orchestrator.view.wording import counted

NAME = "airlock"
MAX_GEN_TOKS = 256  # where a task does not say; that of the harness's own models


@register_model(NAME)
class AirlockLM(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """`method`: one of Airlock's, or of the file. `model`: as a sweep file names it. `sweep`: a sweep file whose other
    sections hold (devices, limits, settings, engine arguments of own methods). `runs`: where the run directories go.
    `on_failure`: "empty" takes a prompt that failed for an empty answer, or for one without any likelihood, and says
    how many; "raise" does not go on. Raises InputError with all that is wrong."""

    def __init__(
        self,
        method: str = "",
        model: str = "",
        sweep: str = "",
        runs: str = "runs/harness",
        dtype: str = "",
        max_length: int | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
        on_failure: str = "raise",
        add_bos_token: bool | None = None,
        trust_remote_code: bool = False,
        **unknown: Any,
    ) -> None:
        super().__init__()
        texts = {
            "method": method,
            "model": model,
            "sweep": sweep,
            "runs": runs,
            "dtype": dtype,
            "on_failure": on_failure,
        }
        of_tokens = {"max_length": max_length, "add_bos_token": add_bos_token, "trust_remote_code": trust_remote_code}
        theirs = {"batch_size": batch_size, "max_batch_size": max_batch_size, "device": device}
        if wrong := list(arguments.problems({**texts, **of_tokens, **theirs}, unknown)):
            raise InputError(wrong)
        said = {"model": anchored(model, Path())} if model else {}
        settings = {"dtype": dtype or None, "max_model_len": max_length}
        base = base_of(
            Path(sweep) if sweep else None, method, said, {name: one for name, one in settings.items() if one}
        )
        base["sampling"] = {"batch_size": int(batch_size)}
        self._sweeps = Sweeps(base, Path(runs))
        self._on_failure, self._add_bos = on_failure, add_bos_token
        folder = _folder(self._sweeps, {**texts, **of_tokens})
        self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        shape = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        self.max_length = max_length or resolve_max_length(shape, self.tokenizer)

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else int(begin)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_more: Any) -> list[int]:
        if add_special_tokens is None:
            begun = has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id))
            add_special_tokens = False if begun else self._add_bos
        special = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(string, **special))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        say = partial(
            self.tokenizer.apply_chat_template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        try:
            return str(say(chat_history))
        except TemplateError:  # that knows no system message, which the harness's own models then leave out
            _say("the chat template refuses a chat: its system message is left out")
            return str(say([message for message in chat_history if message["role"] != "system"]))

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_more: Any
    ) -> list[tuple[float, bool]]:
        if not requests:
            return []
        found = self._records(calls.scoring([(context, scored) for _, context, scored in requests], self.max_length))
        answers = []
        for record, (both, _, scored) in zip(found, requests, strict=True):
            answers.append((float("-inf"), False) if record is None else calls.likelihood(record, scored))
            if both is not None and record is not None:  # of one that failed nothing is kept
                self.cache_hook.add_partial("loglikelihood", both, answers[-1])
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        del disable_tqdm
        windows = [
            (number, None, *make_disjoint_window(window))
            for number, request in enumerate(requests)
            for window in get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,  # a window's last token is scored, and so is sent
                context_len=1,
            )
        ]
        sums = [0.0] * len(requests)
        told = self._loglikelihood_tokens([window[1:] for window in windows])
        for (number, *_), (value, _) in zip(windows, told, strict=True):
            sums[number] += value
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        del disable_tqdm
        answers = [""] * len(requests)
        for again, numbers in calls.alike([request.args for request in requests]):
            found = self._generated([requests[number].args for number in numbers], again)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer or ""
                if answer is not None:
                    self.cache_hook.add_partial("generate_until", requests[number].args, answer)
        return answers

    def _generated(self, alike: Sequence[tuple[str, Any]], again: int) -> list[str | None]:
        """Of requests that ask the same; None for one that failed."""
        asked = dict(normalize_gen_kwargs(alike[0][1], MAX_GEN_TOKS))
        until = handle_stop_sequences(
            asked.pop("until", None), eos=self.tokenizer.decode(self.eot_token_id, skip_special_tokens=False)
        )
        contexts = [self.tok_encode(context) for context, _ in alike]
        found = self._records(calls.generating(contexts, asked, self.max_length, again))
        return [None if one is None else self._text(one, until) for one in found]

    def _text(self, record: Record, until: list[str]) -> str:
        text = self.tokenizer.decode(record.token_ids, skip_special_tokens=True)
        return str(postprocess_generated_text(text, until, None))

    def _records(self, call: Call) -> list[Record | None]:
        """In the order of the call's prompts; None for one that failed, where that is allowed. Raises Unanswered."""
        if call.cut:
            _say(f"{counted(call.cut, 'prompt')} too long for the model: the beginning is left out")
        run_dir, found = self._sweeps.records(call)
        records = [found.get(str(line["id"])) for line in call.prompts]
        good = [one if one is not None and one.error is None else None for one in records]
        failed = [one.error.message for one in records if one is not None and one.error is not None]
        if None in good:
            why = f": {failed[0]}" if failed else ""
            text = f"{run_dir}: {good.count(None)} of {len(good)} prompts have no answer{why}"
            if self._on_failure == "raise":
                raise Unanswered(f"{text}; on_failure=empty takes them for wrong, and the same command tries again")
            _say(f"{text}; they count as wrong")
        return good


def _folder(sweeps: Sweeps, said: Mapping[str, Any]) -> str:
    """The model's folder, once all that the sweeps say is found to be right. `said`: the arguments that they are made
    of. Raises InputError, EnvironmentFailed."""
    with TemporaryDirectory(prefix="airlock-harness-") as folder:
        call = Call({"max_new_tokens": 1}, ({"id": "trial", "prompt": [1]},))
        trial = replace(sweeps, folder=Path(folder)).written(call)
        try:
            return prepare.prepare(prepare.survey(trial, (), _say), _say).model.path
        except InputError as exc:
            own = not isinstance(sweeps.base["methods"][0], str)
            raise InputError(arguments.attributed(exc.problems, str(trial), said, own)) from exc


def _say(text: str) -> None:
    say(f"airlock: {text}")
