"""Half precision, tracing, buffers and wrong types: where models are easily a little wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import attnworks
from attnworks.attention import MECHANISMS, Attended, Context, Mask
from attnworks.attention.dense import Dense
from attnworks.attention.softmax import jacobian_norm
from attnworks.core.errors import UsageError
from attnworks.exam.linalg.residual import relative_residual
from attnworks.models import AttentionConfig, PureConfig, TransformerConfig, build, load_model, preset, save_model
from attnworks.models.counting import Blueprint, count_parameters
from attnworks.models.layers import LayerNorm
from tests.helpers import unchecked

ATTENTION = AttentionConfig(heads=2, d_k=3, d_v=5)


def transformer(**changes: Any) -> TransformerConfig:
    sizes = {"vocabulary": 19, "d_e": 14, "d_ff": 11, "encoder_layers": 1, "decoder_layers": 1, "attention": ATTENTION}
    everything: dict[str, Any] = {**sizes, **changes}
    return TransformerConfig(**everything)


def test_a_forward_on_fake_tensors_leaves_real_ones_real() -> None:
    model = build(transformer(), seed=0).eval()
    source, target = torch.randint(19, (2, 7)), torch.randint(19, (2, 5))
    before = model(source, target)
    with FakeTensorMode():
        fake = build(transformer(), seed=0)
        fake(torch.zeros(2, 7, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.int64))
    assert torch.equal(model(source, target), before)


def test_training_works_after_inference_mode() -> None:
    model = build(transformer(), seed=0)
    source, target = torch.randint(19, (2, 7)), torch.randint(19, (2, 5))
    with torch.inference_mode():
        model(source, target)
    model(source, target).sum().backward()


@pytest.mark.parametrize("scale", [1e-4, 1.0, 200.0, 1000.0])
def test_documented_norm_in_half_precision(scale: float) -> None:
    z = scale * torch.randn(3, 101)
    half = LayerNorm(101, "documented", 1e-6).half()(z.half())
    assert torch.allclose(half.float(), LayerNorm(101, "documented", 1e-6)(z.half().float()), atol=5e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_relative_residual_of_zero_and_of_large_rows(dtype: torch.dtype) -> None:
    assert relative_residual(torch.zeros(3, 5, dtype=dtype)).item() == 0.0
    rows = torch.tensor([[3e4, 0.0], [-3e4, 0.0]], dtype=dtype)
    assert relative_residual(rows).item() == pytest.approx(1.0)


def test_the_gradient_of_the_jacobian_norm_is_finite_where_it_vanishes() -> None:
    s = torch.eye(3, dtype=torch.float64, requires_grad=True)
    jacobian_norm(s).sum().backward()
    assert s.grad is not None and s.grad.isfinite().all()


class Shifted(Dense):
    """Dense attention with a buffer that belongs to its state."""

    name = "shifted"

    def __init__(self) -> None:
        super().__init__()
        self.shift: Tensor
        self.register_buffer("shift", torch.randn(()))

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        return super().attend(Q + self.shift, K, V, mask, context, weights)


def test_buffers_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MECHANISMS._entries, "shifted", Shifted)
    config = PureConfig(d_e=7, layers=1, attention=AttentionConfig(heads=2, d_k=3, d_v=5, mechanism="shifted"))
    model, X = build(config).eval(), torch.randn(2, 5, 7)
    again = load_model(save_model(model, tmp_path / "model"))
    assert torch.equal(again(X), model(X))
    assert not again.training


@pytest.mark.parametrize("value", ["4", 4.0, True])
def test_sizes_are_whole_numbers(value: Any) -> None:
    with pytest.raises((UsageError, TypeError), match=r"a whole number from [01]|whilst checking"):
        AttentionConfig(heads=value, d_k=3, d_v=5)


def test_a_list_of_mechanisms_is_as_good_as_a_tuple() -> None:
    both: Any = ["dense", "luong-dot"]
    assert AttentionConfig(heads=2, d_k=3, d_v=5, mechanism=tuple(both)).mechanism == ("dense", "luong-dot")


def test_a_preset_cannot_be_changed_for_others() -> None:
    config = preset("tiny")
    assert isinstance(config, TransformerConfig)
    config.slots["enc.0"] = ATTENTION
    again = preset("tiny")
    assert isinstance(again, TransformerConfig) and not again.slots


def test_encode_without_an_encoder_says_so() -> None:
    model = build(transformer(encoder_layers=0))
    with pytest.raises(UsageError, match=r"encode by this model.*encoder_layers=0"):
        model.encode(torch.zeros(1, 3, dtype=torch.int64))


def test_a_blueprint_counts_what_a_built_model_has() -> None:
    attention = AttentionConfig(heads=2, d_k=7, d_v=7)
    config = transformer(
        encoder_layers=0, decoder_layers=3, attention=attention, positions="learned", max_length=13, tie="target",
        norm="pre",
    )  # fmt: skip
    blueprint = Blueprint(
        vocabulary=19, positions=13, layers=3, d_e=14, d_ff=11, d_attention=14, d_shared=14, final_norm=True
    )
    assert sum(blueprint.count_parameters().values()) == sum(count_parameters(config).values())


@pytest.mark.parametrize("name", attnworks.models.PRESETS)
def test_every_parameter_of_every_preset_belongs_to_a_part(name: str) -> None:
    assert sum(count_parameters(preset(name)).values()) > 0


@pytest.mark.parametrize("queries", [2, 5, 128, 129, 140])
def test_causal_queries_at_the_end_of_a_longer_sequence(queries: int) -> None:
    Q, K, V = torch.randn(3, 2, 3, 149, 5, dtype=torch.float64).unbind()
    Q = Q[:, :, -queries:]
    real = torch.rand(2, 149) > 0.3
    for mask in (Mask(causal=True), Mask(real, causal=True)):
        explicit, fused = Dense()(Q, K, V, mask, weights=True), Dense()(Q, K, V, mask)
        assert torch.allclose(fused.Y, explicit.Y, atol=1e-12)


def test_only_a_config_can_be_built() -> None:
    name: Any = "tiny"
    with unchecked(), pytest.raises(UsageError, match=r"got 'tiny'; for instance attnworks.preset"):
        build(name)
