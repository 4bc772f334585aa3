"""Anatomy of attnworks's own models, the identity of the residual stream, and which passes are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance
from attnworks.models import PureAttention, Transformer, build
from attnworks.models.anatomy import BlockAnatomy, Part, own_anatomy
from attnworks.traces.forward import stream_identity_error
from tests.model_helpers import (
    BATCH,
    SOURCE,
    TARGET,
    TARGET_VOCABULARY,
    VOCABULARY,
    attention_config,
    close,
    filled,
    pure_config,
    randn,
    recurrent_config,
    stream_errors,
    the,
    tokens,
    transformer,
)


def forward(model: Transformer) -> Any:
    source, target = tokens(VOCABULARY, BATCH, SOURCE), tokens(TARGET_VOCABULARY, BATCH, TARGET)
    return model(source, target)


def pure(**changes: Any) -> PureAttention:
    return filled(build(pure_config(**changes))).double()


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_own_transformers(norm: str, dtype: torch.dtype) -> None:
    model = transformer(dtype, norm=norm, decoder_layers=3).eval()
    blocks = the(own_anatomy(model))
    assert [(block.kind, block.layer) for block in blocks] == [
        *(("encoder", layer) for layer in range(2)),
        *(("decoder", layer) for layer in range(3)),
    ]
    assert [part.role for part in blocks[0].parts] == ["self", "mlp"]
    assert [part.role for part in blocks[2].parts] == ["self", "cross", "mlp"]
    assert {(block.norm, block.parallel, block.skip) for block in blocks} == {(norm, False, True)}
    errors = stream_errors(the(own_anatomy(model)), lambda: forward(model))
    assert list(errors) == [(block.kind, block.layer) for block in blocks]
    assert max(errors.values()) <= 10 * tolerance(dtype).atol


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("mlp", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_own_attention_only_networks(skip: bool, mlp: bool, norm: bool) -> None:
    model, X = pure(skip=skip, mlp=mlp, norm=norm), randn(2, 5, 7)
    blocks = the(own_anatomy(model))
    assert all(block.skip == skip and block.norm == ("post" if norm else None) for block in blocks)
    assert max(stream_errors(the(own_anatomy(model)), lambda: model(X)).values()) <= 1e-11


def test_own_weights_are_the_parameters() -> None:
    model = transformer(attention=attention_config(bias=False, scale=0.5))
    part = the(own_anatomy(model))[0].parts[0]
    weights = the(part.weights)()
    own = the(part.attention)
    assert weights.W_Q is own.W_Q and weights.W_O is own.W_O and weights.b_O is None
    assert (weights.groups, weights.scale) == (3, 0.5) and part.branch is own


def test_a_side_may_be_left_out() -> None:
    model = transformer()
    source, target = tokens(VOCABULARY, BATCH, SOURCE), tokens(TARGET_VOCABULARY, BATCH, TARGET)
    Z = model.encode(source)
    assert set(stream_errors(the(own_anatomy(model)), lambda: model.decode(target, Z))) == {
        ("decoder", 0),
        ("decoder", 1),
    }


def test_other_models_have_no_anatomy() -> None:
    assert own_anatomy(nn.Linear(2, 3)) is None
    assert own_anatomy(build(recurrent_config())) is None


@pytest.mark.parametrize(("times", "got"), [(0, "got none"), (2, "got 2")])
def test_one_forward_pass_is_asked_for(times: int, got: str) -> None:
    model = transformer()
    with pytest.raises(UsageError, match=got):
        stream_errors(the(own_anatomy(model)), lambda: [forward(model) for _ in range(times)])
    assert hooks_of(model) == 0


def test_hooks_go_even_if_the_run_fails() -> None:
    model = transformer()
    during: list[int] = []

    def run() -> None:
        during.append(hooks_of(model))
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        stream_errors(the(own_anatomy(model)), run)
    assert during[0] > 0 and hooks_of(model) == 0


def test_dropout_breaks_the_identity() -> None:
    model = transformer(dropout=0.5).train()
    assert max(stream_errors(the(own_anatomy(model)), lambda: forward(model)).values()) > 1e-3


def block_of(order: Any, *, skip: bool = True, parts: int = 2, norm: nn.Module | None = None) -> BlockAnatomy:
    made = tuple(Part("mlp", nn.Identity(), norm, None, None, step=step) for step in range(parts))
    return BlockAnatomy("encoder", 0, nn.Identity(), made, order, skip)


@given(st.integers(1, 5), st.integers(1, 3), st.floats(1e-3, 1e3))
def test_error_is_relative_to_the_exit(rows: int, parts: int, size: float) -> None:
    entry = size * randn(2, rows, 7)
    outputs = [size * randn(2, rows, 7, seed=number) for number in range(1, parts + 1)]
    exit = entry + torch.stack(outputs).sum(0)
    assert stream_identity_error(block_of("pre", parts=parts), entry, exit, outputs) <= 1e-12
    off = stream_identity_error(block_of("pre", parts=parts), entry, 1.25 * exit, outputs)
    assert off == pytest.approx(0.2)


def test_post_norm_part_by_part() -> None:
    norm = filled(nn.LayerNorm(7, dtype=torch.float64))
    x, f, g = (randn(2, 5, 7, seed=seed) for seed in range(3))
    block = block_of("post", norm=norm)
    assert stream_identity_error(block, x, norm(norm(x + f) + g), [f, g]) <= 1e-12
    assert stream_identity_error(replace(block, skip=False), x, norm(g), [f, g]) <= 1e-12
    assert stream_identity_error(block, x, norm(x + g), [None, g]) <= 1e-12
    assert stream_identity_error(block, x, norm(x + f + g), [f, g]) > 1e-2


def test_parallel_parts_are_summed_with_and_without_skip() -> None:
    x, f, g = (randn(2, 5, 7, seed=seed) for seed in range(3))
    one = block_of("pre")
    block = replace(one, parts=tuple(replace(part, step=0) for part in one.parts))
    assert stream_identity_error(block, x, x + f + g, [f, g]) <= 1e-12
    assert stream_identity_error(replace(block, skip=False), x, f + g, [f, g]) <= 1e-12
    assert stream_identity_error(replace(block, skip=False), x, g, [None, g]) <= 1e-12
    assert stream_identity_error(replace(block, skip=False), x, g, [f, g]) > 1e-2


def test_zeros_and_nan() -> None:
    zero, one = torch.zeros(1, 1, 7), torch.ones(1, 1, 7)
    assert stream_identity_error(block_of("pre", parts=1), zero, zero, [zero]) == 0.0
    assert stream_identity_error(block_of("pre", parts=1), zero, zero, [one]) == 1.0
    assert not stream_identity_error(block_of("pre", parts=1), zero, one, [one * torch.nan]) <= 1.0


def test_flattened_branches_count_too() -> None:
    entry, output = randn(2, 5, 7), randn(2, 5, 7, seed=1)
    close(entry + output, (entry.flatten(0, 1) + output.flatten(0, 1)).reshape(2, 5, 7))
    assert stream_identity_error(block_of(None, parts=1), entry, entry + output, [output.flatten(0, 1)]) <= 1e-12
