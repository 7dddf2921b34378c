"""Models to and from Hugging Face's Llama format: config.json and model.safetensors, without transformers installed.

A trained run for transformers' `AutoModelForCausalLM.from_pretrained("my-llama")`:

    export_llama(from_state(Path("study/states/0a1b.safetensors"), recipe.setup.model, 64), Path("my-llama"))
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from isotune.errors import InputError
from isotune.model.transformer import Transformer
from isotune.recipe import ModelShape
from isotune.recipe.quantities import require_positive_int, show

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

# Our tensors, and those of Llama that make them when stacked along their first dimension.
OUTER_NAMES: Mapping[str, tuple[str, ...]] = {
    "embedding.weight": ("model.embed_tokens.weight",),
    "norm.weight": ("model.norm.weight",),
    "head.weight": ("lm_head.weight",),
}
BLOCK_NAMES: Mapping[str, tuple[str, ...]] = {
    "attention_norm.weight": ("input_layernorm.weight",),
    "query_key_value.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "attention_out.weight": ("self_attn.o_proj.weight",),
    "ffn_norm.weight": ("post_attention_layernorm.weight",),
    "gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down.weight": ("mlp.down_proj.weight",),
}

# What transformers assumes where a config says nothing; sizes must be said.
DEFAULT_ROPE_BASE, DEFAULT_NORM_EPSILON = 10_000.0, 1e-6

READABLE_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def export_llama(model: Transformer, folder: Path) -> None:
    """Writes the model as a folder that `LlamaForCausalLM.from_pretrained` loads."""
    folder = Path(folder)
    if (folder / CONFIG).exists():
        raise InputError(f"{folder} already holds a model: give a new folder, or delete its {CONFIG} first")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{folder} is not a folder: give the name of a new one") from None
    tensors = {name: tensor.to("cpu").contiguous() for name, tensor in llama_state_dict(model).items()}
    # transformers asks for this entry, and refuses files without it.
    _write_whole(folder / WEIGHTS, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    # Last, so that a folder with a config is a whole model.
    text = json.dumps(llama_config(model), indent=2) + "\n"
    _write_whole(folder / CONFIG, lambda path: path.write_text(text))


def import_llama(folder: Path, sequence_length: int) -> Transformer:
    """The model in a folder that `save_pretrained` or `export_llama` wrote, in float32, for windows of this length."""
    folder = Path(folder)
    shape = shape_of_config(_read_json(folder / CONFIG), str(folder / CONFIG))
    model = Transformer(shape, require_positive_int("sequence_length", sequence_length))
    files = _tensor_files(folder)
    names = llama_names(shape.num_layers)
    _require_names(folder, {name for parts in names.values() for name in parts}, set(files))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parts = [_read_tensor(files[part], part) for part in names[name]]
            expected = (parameter.shape[0] // len(parts), *parameter.shape[1:])
            for part, tensor in zip(names[name], parts, strict=True):
                _require_tensor(files[part], part, tensor, expected)
            parameter.copy_(torch.cat(parts))
    return model


def from_state(path: Path, shape: ModelShape, sequence_length: int) -> Transformer:
    """The model whose parameters lie in a study's state file; its shape is that of the study's recipes."""
    path = Path(path)
    model = Transformer(shape, require_positive_int("sequence_length", sequence_length))
    parameters = {f"parameter.{name}": parameter for name, parameter in model.named_parameters()}
    found = {name for name in _names(path) if name.startswith("parameter.")}
    if not found:
        raise InputError(f"{path} is not a state: give a file from the states folder of a study")
    if found != set(parameters):
        raise InputError(
            f"{path} and a model of {shape.num_layers} layers differ in {_some(found ^ set(parameters))}: "
            f"give the shape of the run's recipe"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            tensor = _read_tensor(path, name)
            _require_tensor(path, name, tensor, tuple(parameter.shape))
            parameter.copy_(tensor)
    return model


def llama_state_dict(model: Transformer) -> dict[str, Tensor]:
    """The model's parameters under Llama's names, as views."""
    return as_llama({name: parameter.detach() for name, parameter in model.named_parameters()})


def as_llama(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One tensor for each of our parameters (its value, its gradient ...) under Llama's names, as views."""
    names = llama_names(1 + max(_layer(name) for name in tensors))
    parts = [zip(names[name], tensor.chunk(len(names[name])), strict=True) for name, tensor in tensors.items()]
    return dict(pair for pairs in parts for pair in pairs)


def llama_names(num_layers: int) -> dict[str, tuple[str, ...]]:
    """Of each of our parameters, the Llama tensors it is stacked from."""
    names = dict(OUTER_NAMES)
    for layer in range(num_layers):
        for ours, theirs in BLOCK_NAMES.items():
            names[f"blocks.{layer}.{ours}"] = tuple(f"model.layers.{layer}.{name}" for name in theirs)
    return names


def llama_config(model: Transformer) -> dict[str, Any]:
    """config.json, as transformers 4 and 5 read it."""
    shape, dtype = model.shape, str(model.head.weight.dtype).removeprefix("torch.")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary_size,
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn_width,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_heads,
        "head_dim": shape.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": model.cos_TR.shape[0],
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_base,  # transformers 4
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_base},  # transformers 5
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "torch_dtype": dtype,  # both, 5 calls it dtype
        # A corpus has no such tokens unless its tokenizer says so; Llama's defaults, 1 and 2, would end texts early.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def shape_of_config(config: Mapping[str, Any], source: str) -> ModelShape:
    """The shape that a Llama config describes; refuses, in words, what our decoder does not compute."""
    _require_representable(config, source)
    rope_base = _rope_base(config, source)
    try:
        width, num_heads = config["hidden_size"], config["num_attention_heads"]
        shape = ModelShape(
            width=width,
            num_layers=config["num_hidden_layers"],
            num_heads=num_heads,
            ffn_width=config["intermediate_size"],
            vocabulary_size=config["vocab_size"],
            rope_base=rope_base,
            norm_epsilon=config.get("rms_norm_eps", DEFAULT_NORM_EPSILON),
        )
    except KeyError as error:
        raise InputError(f"{source} lacks {error.args[0]}: restore the model's own {CONFIG}") from None
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    num_kv_heads, head_width = config.get("num_key_value_heads"), config.get("head_dim")
    if num_kv_heads not in (None, num_heads):
        raise InputError(
            f"{source} has {num_heads} heads but num_key_value_heads={show(num_kv_heads)}: isotune's decoder has no "
            f"grouped-query attention, so give a model with a key and a value for each head"
        )
    if head_width not in (None, shape.head_width):
        raise InputError(
            f"{source} has head_dim={show(head_width)}, isotune's decoder only heads of hidden_size / "
            f"num_attention_heads = {shape.head_width}: give such a model"
        )
    return shape


def _require_representable(config: Mapping[str, Any], source: str) -> None:
    kind = config.get("model_type")
    if kind != "llama":
        raise InputError(f"{source} has model_type={show(kind)}, isotune reads 'llama' only: give a Llama model")
    architectures = config.get("architectures") or ["LlamaForCausalLM"]
    if architectures != ["LlamaForCausalLM"]:
        raise InputError(
            f"{source} has architectures={show(architectures)}, isotune reads LlamaForCausalLM only: "
            f"save the model as one"
        )
    if config.get("tie_word_embeddings", False):
        raise InputError(
            f"{source} has tie_word_embeddings=True, isotune's decoder a head of its own: "
            f"give a model with untied embeddings"
        )
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name, False):
            raise InputError(f"{source} has {name}=True, isotune's decoder no biases: give a model without them")
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise InputError(f"{source} has hidden_act={show(activation)}, isotune's decoder silu: give a model with that")
    if config.get("quantization_config"):
        raise InputError(f"{source} describes quantised weights: give the model as it was before quantisation")


def _rope_base(config: Mapping[str, Any], source: str) -> Any:
    """The base, wherever this version of transformers wrote it; scaled or partial rotation is refused."""
    base = config.get("rope_theta", DEFAULT_ROPE_BASE)
    for field in ("rope_scaling", "rope_parameters"):
        settings = config.get(field) or {}
        if not isinstance(settings, Mapping):
            raise InputError(f"{source} has {field}={show(settings)}, which is no table: restore the model's {CONFIG}")
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind != "default":
            raise InputError(
                f"{source} has {field} of type {show(kind)}, isotune's decoder no scaled rotary embeddings: "
                f"give a model without {field}"
            )
        base = settings.get("rope_theta") or base
        _require_full_rotation(settings, source)
    _require_full_rotation(config, source)
    return base


def _require_full_rotation(settings: Mapping[str, Any], source: str) -> None:
    part = settings.get("partial_rotary_factor")
    if part not in (None, 1):
        raise InputError(
            f"{source} has partial_rotary_factor={show(part)}, isotune's decoder turns whole heads: "
            f"give a model that does too"
        )


def _tensor_files(folder: Path) -> dict[str, Path]:
    """In which file of the folder each tensor lies."""
    if (folder / WEIGHTS).exists():
        return dict.fromkeys(_names(folder / WEIGHTS), folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise InputError(
            f"{folder} has neither {WEIGHTS} nor {INDEX}: give a folder that save_pretrained wrote "
            f"in the safetensors format"
        )
    places = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(_is_plain_name(file) for file in places.values()):
        raise InputError(f"{folder / INDEX} does not map tensors to files beside it: download or save the model again")
    held = {file: _names(folder / file) for file in sorted(set(places.values()))}
    for name, file in places.items():
        if name not in held[file]:
            raise InputError(f"{folder / file} lacks {name}, which {INDEX} promises: download or save the model again")
    return {name: folder / file for name, file in places.items()}


def _require_names(folder: Path, expected: set[str], found: set[str]) -> None:
    # Frequencies of rotation that early versions of transformers stored; they follow from the config.
    found = {name for name in found if not name.endswith(".rotary_emb.inv_freq")}
    if expected - found:
        raise InputError(
            f"the weights in {folder} lack {_some(expected - found)}: "
            f"give a whole LlamaForCausalLM, with the {CONFIG} that was saved with it"
        )
    if found - expected:
        raise InputError(
            f"the weights in {folder} have {_some(found - expected)}, which isotune's decoder has not: "
            f"give a plain Llama without biases or adapters, of as many layers as its {CONFIG} says"
        )


def _require_tensor(path: Path, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise InputError(
            f"{name} in {path} has shape {tuple(tensor.shape)} where {shape} belongs: "
            f"give the weights of a model of that shape"
        )
    if tensor.dtype not in READABLE_TYPES:
        raise InputError(f"{name} in {path} has type {tensor.dtype}: give the model in float32, bfloat16 or float16")


def _read_tensor(path: Path, name: str) -> Tensor:
    try:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> InputError:
    if not path.exists():
        return InputError(f"{path} does not exist: check the name, or get the missing file")
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return InputError(f"{path} cannot be read ({reason}): copy, download or save it again")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path} does not exist: give a folder that save_pretrained or export_llama wrote") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged ({error}): download or save the model again") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} is no table but {show(value)}: download or save the model again")
    return value


def _write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Through a temporary name: a kill leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _layer(name: str) -> int:
    """The number of the layer that a tensor belongs to; -1 outside of layers."""
    parts = name.split(".")
    return int(parts[parts.index("blocks") + 1]) if "blocks" in parts else -1


def _is_plain_name(file: object) -> bool:
    """Whether this names a file beside the index, and not somewhere else."""
    return isinstance(file, str) and Path(file).name == file != ""


def _some(names: set[str]) -> str:
    first = sorted(names)[0]
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"
