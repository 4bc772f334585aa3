"""Tiny random models of any model type of transformers, and tiny twins of a given model.

>>> tiny = tiny_model("llama")
>>> tiny.model(**tiny.inputs).logits.shape
torch.Size([1, 11, 149])
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.core.errors import short_message
from attnworks.hf import quiet
from attnworks.hf.model_classes import model_classes, package_classes, takes_token_ids
from attnworks.hf.registration import plain_types
from attnworks.hf.tiny_config import VARIANTS, tiny_config
from attnworks.hf.tiny_sizes import SIZES
from attnworks.hf.tiny_text import word_ids

MOST_PARAMETERS = 30_000_000
OTHER_INPUTS = {
    "pixel_values": "pictures",
    "pixel_values_videos": "pictures",
    "bbox": "boxes of words on a page",
    "visual_feats": "features of pictures",
    "vision_embeds": "features of pictures",
    "states": "states, actions and returns",
    "state": "pictures and states",
    "input_features": "sound",
    "input_values": "sound",
    "input_values_cutoffs": "sound",
    "timm": "the package timm",
    "detectron2": "the package detectron2",
    "codebook": "several token ids at each place",
}
"""What a model needs besides token ids, by parameters of its forward and by words in its error."""


@dataclass(frozen=True)
class TinyModel:
    """A tiny model and its inputs, or the reason why there is none.

    inputs    keyword arguments of the model: token ids, the same number from each call with the same seed
    reason    one line, if model is None
    """

    model_type: str
    model: Any = None
    inputs: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


def tiny_model(model_type: str, seed: int = 0, sizes: str = "first") -> TinyModel:
    """A model of this type with random weights, whose sizes all differ. It is in float64 if its code allows that.

    Args:
        model_type: A key of transformers' CONFIG_MAPPING.
        seed: Random seed of weights and inputs.
        sizes: "first", or "second" for other numbers: to check that nothing depends on one set of sizes.
    """
    from transformers import CONFIG_MAPPING

    with quiet():
        try:
            config = CONFIG_MAPPING[model_type]()
        except Exception as error:
            return TinyModel(model_type, reason=f"its config has no defaults: {short_message(error)}")
        return _first_that_runs(config, None, seed, sizes, like=False)


def tiny_like(model: Any, seed: int = 0, sizes: str = "first") -> TinyModel:
    """A twin of this model: the same class, options of the config and kinds of layers, and small sizes that differ.

    Equal numbers of heads and groups stay equal, and one group stays one.
    """
    with quiet():
        return _first_that_runs(model.config, type(model), seed, sizes, like=True)


def tiny_inputs(model: Any, seed: int = 0, sizes: str = "first", *, batch: int = 1, padding: int = 0) -> dict[str, Any]:
    """Random token ids for this model, as keyword arguments: [batch, tokens] of encoder and decoder.

    With `padding`, this number of tokens at the end of each sentence but the first is masked.
    """
    chosen, takes = SIZES[sizes], inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(seed + 1)
    words = torch.tensor(word_ids(model.config))

    def ids(tokens: int) -> Tensor:
        return words[torch.randint(len(words), (batch, tokens), generator=generator)]

    inputs: dict[str, Any] = {"input_ids": ids(chosen.encoder_tokens)}
    if "attention_mask" in takes:
        mask = torch.ones_like(inputs["input_ids"])
        if padding:
            mask[1:, -padding:] = 0
        inputs["attention_mask"] = mask
    if "decoder_input_ids" in takes and model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids(chosen.decoder_tokens)
    if "use_cache" in takes:
        inputs["use_cache"] = False
    return inputs


@functools.cache
def text_model_types() -> tuple[str, ...]:
    """The model types of transformers that have a model which takes token ids."""
    from transformers import CONFIG_MAPPING

    with quiet():
        return tuple(
            sorted(name for name in plain_types() if any(map(takes_token_ids, package_classes(CONFIG_MAPPING[name]))))
        )


def _first_that_runs(config: Any, model_class: type | None, seed: int, sizes: str, *, like: bool) -> TinyModel:
    """The first of all variants, classes and types of numbers that runs on token ids and gives finite numbers."""
    name, errors, tried = config.model_type, [], []
    for variant in VARIANTS:
        for dtype in (torch.float64, torch.float32):
            try:
                small = tiny_config(config, SIZES[sizes], variant, like=like)
            except Exception as error:
                errors.append(short_message(error))
                break
            for chosen in [model_class] if model_class is not None else model_classes(small):
                tried.append(chosen)
                try:
                    model = _built(chosen, small, dtype, seed)
                    inputs = tiny_inputs(model, seed, sizes)
                    _check_runs(model, inputs)
                except Exception as error:
                    errors.append(f"{chosen.__name__}: {short_message(error)}")
                else:
                    return TinyModel(name, model, inputs)
    return TinyModel(name, reason=_reason(errors, tried))


def _built(model_class: Any, config: Any, dtype: torch.dtype, seed: int) -> Any:
    with torch.device("meta"):
        count = sum(weight.numel() for weight in model_class._from_config(copy.deepcopy(config)).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count / 1e6:.0f} million parameters, more than {MOST_PARAMETERS / 1e6:.0f}")
    torch.manual_seed(seed)
    config = copy.deepcopy(config)
    try:  # experts in plain PyTorch, which can compute in float64
        model = model_class._from_config(config, dtype=torch.float32, experts_implementation="eager")
    except ValueError:
        model = model_class._from_config(config, dtype=torch.float32)
    model = model.eval().to(dtype)
    draw_weights(model, seed)
    return model


@torch.no_grad()
def draw_weights(model: nn.Module, seed: int) -> None:
    """Draw every parameter anew: matrices with activations of about one, vectors near their initial values."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if not weight.is_floating_point():
            continue
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.dtype)
        if weight.ndim >= 2 and min(weight.shape) > 1:
            weight.copy_(noise * (0.6 if "embed" in name else weight.shape[-1] ** -0.5))
        else:
            weight.nan_to_num_().add_(0.2 * noise)


@torch.no_grad()
def _check_runs(model: Any, inputs: dict[str, Any]) -> None:
    outputs = model(**inputs)
    first = next((each for each in outputs.values() if isinstance(each, Tensor) and each.is_floating_point()), None)
    if first is None or not first.isfinite().all():
        raise ValueError("its outputs are not finite")


def _reason(errors: list[str], tried: list[Any]) -> str:
    """One line: what the model needs besides text, or the first error."""
    if not errors:
        return "transformers has no class for it that takes token ids"
    for word, what in OTHER_INPUTS.items():
        if all(re.search(rf"\b{word}\b", error) for error in errors):
            return f"needs {what}"
    if "NoneType" in errors[0] or "missing" in errors[0]:
        takes = {name for each in tried for name in inspect.signature(each.forward).parameters}
        if needed := [what for name, what in OTHER_INPUTS.items() if name in takes]:
            return f"needs {needed[0]}"
    return errors[0]
