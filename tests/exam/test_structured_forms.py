"""Untrained models have no structured forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnworks
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.tiny_models import TINY, transformers

SIZES = ((16, 2, 2), (48, 6, 1), (96, 4, 2))
"""Width, heads and layers."""


def untrained(family: str, size: tuple[int, int, int], seed: int, spread: float) -> Any:
    """As Hugging Face initialises it, with weights of this standard deviation."""
    names = "hidden_size", "num_attention_heads", "num_hidden_layers"
    names = ("n_embd", "n_head", "n_layer") if family == "gpt2" else names
    settings = TINY[family].settings | dict(zip(names, size, strict=True)) | {"initializer_range": spread}
    if family == "llama":
        settings |= {"num_key_value_heads": size[1], "head_dim": size[0] // size[1]}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = getattr(transformers, TINY[family].config)(**settings)
        return getattr(transformers, TINY[family].model)(config).eval()


@pytest.mark.parametrize("spread", [0.02, 1.0], ids=["even", "sharp"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_untrained_heads_have_no_structured_form(family: str, spread: float) -> None:
    for size in SIZES:
        for seed in range(2):
            model = untrained(family, size, seed, spread)
            tokenizer = tiny_tokenizer(model.config.model_type)
            exam = attnworks.examine(model, LINES, tokenizer=tokenizer, measures=["structure"], pin=[])
            assert {*sum(exam["structure.form"].value, ())} == {"none"}, (size, seed)
            assert not [finding for finding in exam.findings if "structure.form" in finding.readings]
