"""A model of Transformers in this process: loading it, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.specs import BackendConfig, CallParams
from workers.backends.admission import CannotHonour
from workers.backends.hf_vision import model_class
from workers.backends.model_folder import dtype_of

#: The entries of a method's engine_args that do not go to from_pretrained.
GENERATE, PAGED = "generate", "continuous_batching"


def model_args(config: BackendConfig) -> dict[str, Any]:
    """What Airlock sets in from_pretrained."""
    args: dict[str, Any] = {"dtype": dtype_of(config), "trust_remote_code": config.trust_remote_code}
    if config.method.attention:
        args["attn_implementation"] = config.method.attention
    if config.pipeline_parallel_size > 1:
        args["device_map"] = "balanced"  # layer after layer over the slot's devices, alike in bytes
    return args


def own_args(config: BackendConfig, entry: str) -> dict[str, Any]:
    """The method's own arguments of one entry of engine_args."""
    return dict(config.method.engine_args.get(entry, {}))


def load_model(config: BackendConfig) -> Any:
    from transformers import GenerationConfig

    own = {key: value for key, value in config.method.engine_args.items() if key not in (GENERATE, PAGED)}
    args = {**model_args(config), **own}
    if config.tensor_parallel_size > 1:
        args["distributed_config"] = _parts(config)
    model = model_class(config).from_pretrained(config.model_path, **args)
    if not {"device_map", "distributed_config"} & args.keys():
        model = model.to(config.device)
    # generate fills whatever we leave open from this object: penalties, top_k and stop ids of the model's folder.
    model.generation_config = GenerationConfig()
    return model.eval()


def _parts(config: BackendConfig) -> Any:
    """The model's own plan for tensor parallelism. Raises CannotHonour where it has none, or its heads can't be shared
    out evenly, which Transformers would find out in the first batch."""
    from transformers import AutoConfig
    from transformers.distributed import DistributedConfig

    model, size = (
        AutoConfig.from_pretrained(config.model_path, trust_remote_code=config.trust_remote_code),
        config.tensor_parallel_size,
    )
    text = model.get_text_config()
    names = ("num_attention_heads", "num_key_value_heads")
    heads = dict.fromkeys((name, getattr(one, name, None)) for name in names for one in layers(text))
    odd = [f"{name} is {count}" for name, count in heads if count and count % size]
    if not getattr(text, "base_model_tp_plan", None):
        raise CannotHonour(f"Transformers has no plan for tensor parallelism of {model.model_type} models")
    if odd:
        raise CannotHonour(f"tensor_parallel_size {size} does not divide the model's heads: {', '.join(odd)}")
    return DistributedConfig(tp_size=size)


def layers(text: Any) -> list[Any]:
    """The config of each layer: where they differ, Transformers does not let the whole be asked for what is theirs."""
    return list(text.per_layer_config) if getattr(text, "is_heterogeneous", False) else [text] * text.num_hidden_layers


def context_length(model: Any) -> int | None:
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(length) if length else None


def vocabulary(model: Any) -> int:
    return int(model.config.get_text_config().vocab_size)


def attention_of(model: Any) -> str:
    return str(model.config.get_text_config()._attn_implementation)


def quantization_of(model: Any) -> str:
    asked = getattr(model.config, "quantization_config", None)
    if asked is None:
        return "none"
    method = asked.get("quant_method") if isinstance(asked, Mapping) else getattr(asked, "quant_method", None)
    return str(getattr(method, "value", method))


def weights_bytes(model: Any) -> int:
    """Of the loaded parameters, as far as they are in this process; tied ones count once."""
    parts = (one.to_local() if hasattr(one, "to_local") else one for one in model.parameters())
    return sum(int(one.numel()) * int(one.element_size()) for one in parts)


def device_names(device: str) -> list[str]:
    if device != "cuda":
        return []
    import torch

    return [str(torch.cuda.get_device_name(index)) for index in range(torch.cuda.device_count())]


def devices_of(model: Any) -> list[str]:
    """Where its parameters lie."""
    return sorted({str(one.device) for one in model.parameters()})


def synchronise(device: str) -> None:
    """Waits for all devices of this worker."""
    if device == "cuda":
        import torch

        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)


def is_device_fault(exc: BaseException) -> bool:
    """After a fault of the device each later call fails too. Running out of memory is not one."""
    import torch

    if isinstance(exc, torch.OutOfMemoryError):
        return False
    return isinstance(exc, getattr(torch, "AcceleratorError", ())) or "CUDA error" in str(exc)


def pad_id(call: CallParams) -> int:
    """Only a filler under the mask: never a token added to the model's vocabulary."""
    return call.stop_token_ids[0] if call.stop_token_ids else 0


def eos_ids(call: CallParams) -> list[int] | None:
    return None if call.ignore_eos or not call.stop_token_ids else list(call.stop_token_ids)


def padded(rows: Sequence[Sequence[int]], width: int, call: CallParams, device: Any) -> dict[str, Any]:
    """Inputs of `width` tokens, padded on the left, with a mask of our own: pad is often an id that also occurs in
    prompts."""
    import torch

    ids = [[pad_id(call)] * (width - len(row)) + list(row) for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return {"input_ids": torch.tensor(ids, device=device), "attention_mask": torch.tensor(mask, device=device)}
