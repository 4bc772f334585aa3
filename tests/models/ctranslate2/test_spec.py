"""What CTranslate2 can express, and the name of what it cannot."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attnworks.models import build
from attnworks.models.ctranslate2 import inexpressible_part
from attnworks.models.ctranslate2.spec import make_spec
from tests.model_helpers import attention_config, recurrent_config, transformer_config
from tests.models.ctranslate2.ctranslate2_helpers import CASES, model_of


@pytest.mark.parametrize("name", CASES)
def test_what_can_be_expressed(name: str) -> None:
    assert inexpressible_part(*model_of(name)) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"slots": {"enc.1": attention_config(mechanism="window:window=2")}}, "window:window=2 in enc.1.0"),
        ({"slots": {"dec.0": attention_config(mechanism=("dense", "dense", "linear"))}}, "linear in dec.0.2"),
        ({"slots": {"enc.0": attention_config(mechanism=("pooling", "dense", "dense"))}}, "pooling in enc.0.0"),
        ({"norm_kind": "documented"}, "norms of the kind documented"),
        ({"positions": "normalised-index"}, "positions of the kind normalised-index"),
        ({"encoder_layers": 0}, "a Transformer without encoder"),
        ({"decoder_layers": 0}, "a Transformer without decoder"),
        ({"vocabulary": 18}, "a vocabulary of 17 tokens for 18 embeddings"),
    ],
)
def test_what_cannot_be_expressed_is_named(changes: dict[str, Any], named: str) -> None:
    _, vocabularies = model_of("post")
    found = inexpressible_part(build(transformer_config(**changes), seed=0), vocabularies)
    assert found is not None and found.endswith(named)


def test_recurrent_models_and_numbers_that_are_not_finite() -> None:
    model, vocabularies = model_of("post")
    assert (
        inexpressible_part(build(recurrent_config(), seed=0), vocabularies) == "a Recurrent in place of a Transformer"
    )
    with torch.no_grad():
        model.output.weight[3, 2] = math.nan
    assert inexpressible_part(model, vocabularies) == "NaN or infinity in output.weight"


def test_heads_that_are_missing_are_zeros() -> None:
    """cross.0 has no heads in a stack of 3, and enc.0 has one."""
    pytest.importorskip("ctranslate2")
    variables: Any = make_spec(*model_of("uneven")).variables()

    def heads_with_numbers(name: str, parts: int) -> list[bool]:
        weight = variables[name].tensor.unflatten(0, (parts, 3, -1))
        return weight.abs().sum((0, 2, 3)).gt(0).tolist()

    assert heads_with_numbers("encoder/layer_0/self_attention/linear_0/weight", 3) == [True, False, False]
    assert heads_with_numbers("encoder/layer_1/self_attention/linear_0/weight", 3) == [True, True, True]
    assert heads_with_numbers("decoder/layer_0/attention/linear_1/weight", 2) == [False, False, False]


def test_tied_embeddings_are_stored_once() -> None:
    pytest.importorskip("ctranslate2")
    variables = make_spec(*model_of("tied all")).variables()
    kept = [name for name, value in variables.items() if not isinstance(value, str) and value.shape == [17, 14]]
    assert len(kept) == 1
