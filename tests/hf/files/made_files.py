"""Small models in files of every format, and the bytes of GGUF files put together by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

from tests.exam_helpers import save_tiny
from tests.tiny_models import TINY

CONFIG_NAMES = {
    "llama": {
        "context_length": "max_position_embeddings", "block_count": "num_hidden_layers",
        "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.dimension_count": "head_dim",
        "vocab_size": "vocab_size",
    },
    "gpt2": {
        "context_length": "n_ctx", "block_count": "n_layer", "embedding_length": "n_embd",
        "feed_forward_length": "n_inner", "attention.head_count": "n_head",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
    },
}  # fmt: skip
CONFIG_NAMES["qwen2"] = {key: name for key, name in CONFIG_NAMES["llama"].items() if "dimension_count" not in key}
CONV = ("attn_qkv.weight", "ffn_down.weight", "ffn_up.weight", "attn_output.weight")
LETTERS = "abcdefghijklmnopqrstuvwxyz."
SPACE = "\u0120"


def gguf_words() -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges and types of a byte-level tokenizer of the words in tests; two special tokens come first."""
    tokens, merges = ["<s>", "</s>", *LETTERS, SPACE], []
    for word in ("the", "cat", "sees", "bird"):
        parts = [SPACE, *word]
        while len(parts) > 1:
            merge = f"{parts[0]} {parts[1]}"
            parts[:2] = [parts[0] + parts[1]]
            if merge not in merges:
                merges.append(merge)
                tokens.append(parts[0])
    return tokens, merges, [3, 3, *[1] * (len(tokens) - 2)]


def write_gguf(
    model: Any,
    path: Path,
    *,
    quantisation: str = "F32",
    texts: Mapping[str, str] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    words: bool = True,
) -> Path:
    """A model as llama.cpp writes it. Matrices with rows of whole blocks are quantised."""
    kind, config = model.config.model_type, model.config
    writer = gguf.GGUFWriter(path, kind)
    for key, name in CONFIG_NAMES[kind].items():
        value: Any = getattr(config, name if name != "n_ctx" else "n_positions")
        if isinstance(value, float):
            writer.add_float32(f"{kind}.{key}", value)
        else:
            writer.add_uint32(f"{kind}.{key}", value)
    if kind != "gpt2":
        writer.add_float32(f"{kind}.rope.freq_base", config.rope_parameters["rope_theta"])
    for key, text in (texts or {}).items():
        writer.add_string(key, text)
    if words:
        tokens, merges, types = gguf_words()
        tokens += [f"[{number}]" for number in range(config.vocab_size - len(tokens))]
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(tokens)
        writer.add_token_merges(merges)
        writer.add_token_types(types + [1] * (config.vocab_size - len(types)))
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
    chosen = gguf.GGMLQuantizationType[quantisation]
    for name, data in {**gguf_arrays(model), **(tensors or {})}.items():
        fits = data.ndim == 2 and data.shape[-1] % gguf.GGML_QUANT_SIZES[chosen][0] == 0
        used = chosen if fits else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(data, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_arrays(model: Any) -> dict[str, np.ndarray]:
    """The weights of a model by their names in GGUF, in the layout of llama.cpp."""
    kind, config, state = model.config.model_type, model.config, model.state_dict()
    names = get_gguf_hf_weights_map(model, TensorProcessor())
    made: dict[str, np.ndarray] = {}
    for name, theirs in names.items():
        if theirs == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = state[theirs].float().numpy()
        if kind == "llama" and (".attn_q." in name or ".attn_k." in name):
            heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
            data = data.reshape(heads, 2, -1, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
        if kind == "gpt2" and name.endswith(CONV):
            data = data.T
        made[name] = np.ascontiguousarray(data)
    return made


def tiny_llama(**changes: Any) -> nn.Module:
    """A Llama without biases, which GGUF files of Llama cannot have."""
    return TINY["llama"].build(dtype=torch.float32, attention_bias=False, **changes)


def quantisable_llama() -> nn.Module:
    """Rows of 64 and 256 numbers, so that every type of blocks fits somewhere."""
    return tiny_llama(hidden_size=64, intermediate_size=256, head_dim=32, num_attention_heads=2, num_key_value_heads=1)


def as_torch(folder: Path, name: str = "pytorch_model.bin", **more: Any) -> Path:
    """A folder with safetensors, with its weights written by torch.save instead."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**tensors, **more}, folder / name)
    return folder


def as_shards(folder: Path, count: int, *, torch_files: bool = False) -> Path:
    """A folder with safetensors, with its weights split over several files with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem, suffix = ("pytorch_model", "bin") if torch_files else ("model", "safetensors")
    where: dict[str, str] = {}
    for number in range(count):
        name = f"{stem}-{number + 1:05d}-of-{count:05d}.{suffix}"
        part: dict[str, Tensor] = {key: tensors[key] for key in [*tensors][number::count]}
        (torch.save if torch_files else save_file)(part, folder / name)
        where |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 4 * sum(tensor.numel() for tensor in tensors.values())}, "weight_map": where}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return folder


def bert_copy(folder: Path) -> Path:
    return save_tiny("bert", folder)


def gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_bytes(
    values: Mapping[str, tuple[int, bytes]],
    tensors: Mapping[str, tuple[tuple[int, ...], int, int]],
    data: bytes = b"",
    *,
    counts: tuple[int, int] | None = None,
    version: int = 3,
) -> bytes:
    """A GGUF file of values (type, bytes) and tensors (sizes, type, offset), right or wrong."""
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(values))))
    head += b"".join(gguf_text(key) + struct.pack("<I", kind) + value for key, (kind, value) in values.items())
    for name, (sizes, kind, offset) in tensors.items():
        head += gguf_text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", kind, offset)
    return head + bytes(-len(head) % 32) + data
