"""How the weights of a new Transformer are drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnworks.core.errors import UnknownNameError
from attnworks.models import TransformerConfig, build
from attnworks.models.config import Initialisation
from tests.model_helpers import transformer_config


def drawn(kind: Initialisation, **changes: object) -> dict[str, Tensor]:
    config = replace(transformer_config(), encoder_layers=2, decoder_layers=3, initialisation=kind, **changes)  # pyright: ignore
    return dict(build(config, seed=0).named_parameters())


def wide() -> dict[str, object]:
    """Sizes at which a standard deviation is known to a few percent."""
    return {"d_e": 64, "d_ff": 128, "vocabulary": 101, "target_vocabulary": 103}


def test_normal_weights_have_one_standard_deviation() -> None:
    for name, weight in drawn("normal", **wide()).items():
        if weight.dim() > 1 and ".b_" not in name:
            assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.15), name
        elif "gamma" not in name:
            assert not weight.any(), name


def test_scaled_weights_are_smaller_where_they_write_into_the_stream() -> None:
    """Two residual sums to a block of the encoder, three to one of the decoder."""
    weights = drawn("scaled", **wide())
    for name, weight in weights.items():
        if weight.dim() > 1 and ".b_" not in name:
            sums = 2 * 2 if name.startswith("encoder") else 3 * 3
            expected = 0.02 / sums**0.5 if name.endswith(("W_O", "W_2")) else 0.02
            assert float(weight.detach().std()) == pytest.approx(expected, rel=0.15), name


def test_glorot_is_what_the_layers_draw() -> None:
    """Weights of one seed stay what they were before there was a choice."""
    weights = drawn("glorot")
    config = replace(transformer_config(), encoder_layers=2, decoder_layers=3)
    assert TransformerConfig.__dataclass_fields__["initialisation"].default == "glorot"
    for name, weight in build(config, seed=0).named_parameters():
        assert torch.equal(weight, weights[name])


def test_shared_embeddings_are_drawn_once() -> None:
    tied = build(replace(transformer_config(), target_vocabulary=None, tie="all", initialisation="normal"), seed=0)
    assert tied.source_embedding is tied.target_embedding
    assert tied.output.weight is tied.source_embedding.weight  # pyright: ignore[reportOptionalMemberAccess]


def test_another_name() -> None:
    with pytest.raises(UnknownNameError, match="initialisation 'xavier'"):
        replace(transformer_config(), initialisation="xavier")  # pyright: ignore[reportArgumentType]
