"""Models in GGUF files: config, tokenizer and weights in one file. Quantised weights are read as float32.

The tables of transformers say what the entries of a GGUF file are called in a config, and which tensor is which. They
are given a header that was checked (`gguf_header.py`), and tensors one by one.
"""

from __future__ import annotations

import importlib.util
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnworks.core.errors import AttnworksError, MissingExtraError, short_message
from attnworks.core.folders import load_error
from attnworks.hf import quiet
from attnworks.hf.files.contract import StoredTensor, WeightFiles
from attnworks.hf.files.gguf_header import MAGIC, BlockType, GGUFHeader, read_header

ARCHITECTURE = "general.architecture"
PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MAX_TEXT = 4096
"""Longer texts are no part of a config: templates of chats, licenses."""
ONE_NUMBER = struct.pack("<IQIQ", 1, 1, 0, 0)
"""Of a tensor: one dimension of size 1, float32, at the beginning."""


class GGUFFile(WeightFiles):
    """One GGUF file."""

    def __init__(self, path: Path) -> None:
        if importlib.util.find_spec("gguf") is None:
            remedy = "pip install 'attnworks[hf]'"
            raise MissingExtraError(f"open {path}", "the package gguf", "an environment without it", remedy)
        self.path = path
        self.header = read_header(path, _block_types())
        self.tensors = {
            name: StoredTensor(tensor.shape, PLAIN_TYPES.get(tensor.type.name, torch.float32), _blocks(tensor.type))
            for name, tensor in self.header.tensors.items()
        }

    def config(self) -> dict[str, Any]:
        """The entries of a config.json."""
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        values = self.header.values
        self._check_architecture(values.get(ARCHITECTURE))
        try:
            with tempfile.TemporaryDirectory() as folder, quiet():
                file = Path(folder) / "header.gguf"
                file.write_bytes(_without_tokenizer(self.path, self.header))
                config = load_gguf_checkpoint(str(file))["config"]
        except Exception as error:
            got = f"one that transformers cannot read ({short_message(error)})"
            raise load_error(self.path, "the entries of a config", got, "choose another file") from error
        config.pop("_model_name_or_path", None)
        if "vocab_size" not in config and (words := self.header.counts.get("tokenizer.ggml.tokens")) is not None:
            config["vocab_size"] = words
        return {"architectures": _model_class(config.get("model_type")), **config}

    def _check_architecture(self, found: Any) -> None:
        from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES, TENSOR_PROCESSORS

        known = {*GGUF_SUPPORTED_ARCHITECTURES, *TENSOR_PROCESSORS} - {"general", "tokenizer"}
        if not isinstance(found, str) or found not in known:
            got = "none" if found is None else repr(found)[:80]
            expected = f"an architecture that transformers can read: {', '.join(sorted(known))}"
            raise load_error(self.path, expected, got, "open the model as safetensors")
        scaling = self.header.values.get(f"{found}.rope.scaling.type", "none")
        if scaling != "none" or "rope_freqs.weight" in self.tensors:
            got = "scaled ones, which transformers does not read from GGUF"
            raise load_error(self.path, "rotary positions without scaling", got, "open the model as safetensors")

    def tokenizer(self) -> Any:
        """The tokenizer of the file; None if it has none."""
        if "tokenizer.ggml.tokens" not in self.header.counts:
            return None
        from transformers import PreTrainedTokenizerFast
        from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer, get_gguf_tokenizer

        try:
            with quiet():
                architecture, described, settings = get_gguf_tokenizer(str(self.path))
                made, more = convert_gguf_tokenizer(architecture, described)
                return PreTrainedTokenizerFast(tokenizer_object=made, **settings, **more)
        except Exception as error:
            got = f"one that fails: {short_message(error)}"
            raise load_error(self.path, "a tokenizer that transformers can load", got, "check the file") from error

    def read(self, model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

        architecture = self.header.values[ARCHITECTURE]
        read: dict[str, Tensor] = {}
        try:
            with quiet():
                processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
                names = self._names(model, processor)
                data = np.memmap(self.path, mode="r")
                for name in self.tensors:
                    made = processor.process(
                        weights=self._numbers(data, name),
                        name=name,
                        tensor_key_mapping=names,
                        parsed_parameters={"tensors": read},
                    )
                    if made.name is None:  # the processor has put it into `read` itself
                        continue
                    if made.name not in names:
                        got = f"also {name[:80]}"
                        raise load_error(self.path, "tensors that the model has", got, "open the model as safetensors")
                    read[names[made.name]] = torch.from_numpy(np.array(made.weights, order="C"))
        except AttnworksError:
            raise
        except Exception as error:
            got = f"others: {short_message(error)}"
            raise load_error(self.path, "tensors that fit the model", got, "choose another file") from error
        return read

    def _names(self, model: Any, processor: Any) -> dict[str, str]:
        """Name in the file -> name in the model. Some models (Bloom) have the names of their inner model."""
        from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

        names = get_gguf_hf_weights_map(_WithoutParts(model, model.config), processor)
        if not self.tensors.keys() <= names.keys():
            for name, part in model.named_children():
                inner = _WithoutParts(part, model.config)
                names = {**get_gguf_hf_weights_map(inner, processor, qual_name=f"{name}."), **names}
        return names

    def _numbers(self, data: np.memmap, name: str) -> np.ndarray:
        """A tensor as float32."""
        from gguf import GGMLQuantizationType, dequantize

        tensor = self.header.tensors[name]
        stored = data[tensor.start : tensor.start + tensor.bytes].reshape(*tensor.shape[:-1], -1)
        return dequantize(stored, GGMLQuantizationType[tensor.type.name])


class _WithoutParts:
    """A model whose parts are not looked into: for each of them transformers would build its table of names anew."""

    def __init__(self, model: Any, config: Any) -> None:
        self.config, self.state_dict = config, model.state_dict

    def named_children(self) -> list[Any]:
        return []


def _blocks(kind: BlockType) -> str | None:
    return None if kind.name in PLAIN_TYPES else kind.name


def _model_class(model_type: Any) -> list[str]:
    """The class that writes text, which a GGUF file does not name."""
    from transformers.models.auto import modeling_auto

    for table in ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"):
        if isinstance(found := getattr(modeling_auto, table).get(model_type), str):
            return [found]
    return []


@cache
def _block_types() -> dict[int, BlockType]:
    """All types that the package gguf names. Those of which it can read a block are readable."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    def readable(kind: GGMLQuantizationType, size: int) -> bool:
        try:
            dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError:
            return False
        return True

    return {
        kind.value: BlockType(kind.name, numbers, size, readable(kind, size))
        for kind, (numbers, size) in GGML_QUANT_SIZES.items()
    }


def _without_tokenizer(path: Path, header: GGUFHeader) -> bytes:
    """A GGUF file with the same entries but long ones, and tensors of the same names with one number each.

    transformers reads a config from a file alone, and takes a kilobyte of memory for every word of the tokenizer.
    """
    kept = [key for key in header.entries if key in header.values and not _is_long(header.values[key])]
    with path.open("rb") as file:

        def entry(place: slice) -> bytes:
            file.seek(place.start)
            return file.read(place.stop - place.start)

        entries = b"".join(entry(header.entries[key]) for key in kept)
    names = (name.encode() for name in header.tensors)
    tensors = b"".join(struct.pack("<Q", len(name)) + name + ONE_NUMBER for name in names)
    head = MAGIC + struct.pack("<IQQ", 3, len(header.tensors), len(kept)) + entries + tensors
    return head + bytes(-len(head) % 32 + 4)


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > MAX_TEXT
