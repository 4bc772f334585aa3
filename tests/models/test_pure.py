"""Attention-only networks: switches against hand-written loops, the path decomposition, rank collapse."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.attention import Mask
from attnworks.models import PureAttention, build
from attnworks.models.block import Block
from tests.model_helpers import Recorder, attention_config, close, filled, pure_config, randn, the

B, N, D_E, HEADS = 2, 5, 7, 3


def pure(spread: float = 0.4, **changes: Any) -> PureAttention:
    return filled(build(pure_config(**changes)), spread=spread).double()


def blocks(model: PureAttention) -> list[Block]:
    found = [layer for layer in model.layers if isinstance(layer, Block)]
    assert len(found) == model.config.layers
    return found


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("mlp", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_switches_match_loops(skip: bool, mlp: bool, norm: bool) -> None:
    ours, X = pure(skip=skip, mlp=mlp, norm=norm, norm_eps=0.1), randn(B, N, D_E)
    x = X
    for block in blocks(ours):
        W_QK, W_VO, b = block.attention.folded()
        u = torch.zeros_like(x)
        for head in range(HEADS):
            key = block.attention
            Q = x @ key.W_Q[head] + the(key.b_Q)[head]
            K = x @ key.W_K[head] + the(key.b_K)[head]
            u = u + (Q @ K.mT / 5**0.5).softmax(-1) @ x @ W_VO[head]
        assert W_QK.shape == (HEADS, D_E, D_E)
        x = finish(block.attention_residual, x, u + b, skip, norm)
        if mlp:
            ff = the(block.mlp)
            z = (x @ ff.W_1 + ff.b_1).clamp_min(0) @ ff.W_2 + ff.b_2
            x = finish(the(block.mlp_residual), x, z, skip, norm)
        else:
            assert block.mlp is None
    close(ours(X), x, scale=10)


def finish(residual: Any, x: Tensor, y: Tensor, skip: bool, norm: bool) -> Tensor:
    y = x + y if skip else y
    if not norm:
        assert residual.norm is None
        return y
    centred = y - y.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + 0.1).sqrt()
    return residual.norm.gamma * centred / spread + residual.norm.beta


def test_documented_norm_reaches_the_blocks() -> None:
    ours = pure(norm=True, norm_kind="documented", norm_eps=0.3)
    assert {(the(b.attention_residual.norm).kind, the(b.attention_residual.norm).eps) for b in blocks(ours)} == {
        ("documented", 0.3)
    }


def test_states_are_input_and_every_layer() -> None:
    ours, X = pure(layers=3, skip=True), randn(B, N, D_E)
    mask = Mask(causal=True)
    states = ours.states(X, mask)
    assert len(states) == 4 and states[0] is X
    for before, block, after in zip(states, blocks(ours), states[1:], strict=False):
        assert torch.equal(block(before, mask), after)
    assert torch.equal(states[-1], ours(X, mask))
    assert not torch.allclose(states[-1], ours(X))


def test_observer_sees_layers_in_order() -> None:
    ours, recorder, X = pure(layers=3), Recorder(), randn(B, N, D_E)
    close(ours(X, observe=recorder), ours(X))
    assert [str(seen.slot) for seen in recorder.seen] == ["enc.0", "enc.1", "enc.2"]
    for seen, state in zip(recorder.seen, ours.states(X), strict=False):
        close(seen.X, state)


# Paths ---------------------------------------------------------------------------------------------------------------


def frozen(ours: PureAttention, X: Tensor) -> tuple[Tensor, list[list[Tensor]], list[list[Tensor]], list[Tensor]]:
    """The output, and of each layer the P_h of this very pass, W_h and the one bias; head 0 is the skip if there is."""
    recorder = Recorder()
    got = ours(X, observe=recorder)
    P, W, b = [], [], []
    for layer, block in enumerate(blocks(ours)):
        _, W_VO, bias = block.attention.folded()
        maps, weights = list(recorder.P(f"enc.{layer}").unbind(1)), list(W_VO.unbind(0))
        if ours.config.skip:
            maps.insert(0, torch.eye(X.shape[1], dtype=X.dtype).expand_as(maps[0]))
            weights.insert(0, torch.eye(X.shape[2], dtype=X.dtype))
        P.append(maps)
        W.append(weights)
        b.append(bias)
    return got, P, W, b


@pytest.mark.parametrize("skip", [False, True])
def test_path_decomposition(skip: bool) -> None:
    """S0.9-S0.12: sum over H^L paths (with skip (H+1)^L) of P_2 P_1 X W_1 W_2, plus one row of biases."""
    ours, X = pure(skip=skip), randn(B, N, D_E)
    got, P, W, b = frozen(ours, X)
    paths = list(product(range(len(P[0])), range(len(P[1]))))
    assert len(paths) == (16 if skip else 9)
    bias = b[0] @ torch.stack(W[1]).sum(0) + b[1]
    terms = [P[1][second] @ P[0][first] @ X @ W[0][first] @ W[1][second] for first, second in paths]
    close(torch.stack(terms).sum(0) + bias, got)
    printed = [P[0][first] @ P[1][second] @ X @ W[0][first] @ W[1][second] for first, second in paths]
    assert (torch.stack(printed).sum(0) + bias - got).abs().max() > 1e-3
    swapped = [P[1][second] @ P[0][first] @ X @ W[1][second] @ W[0][first] for first, second in paths]
    assert (torch.stack(swapped).sum(0) + bias - got).abs().max() > 1e-3


# Rank collapse -------------------------------------------------------------------------------------------------------


def relative_residual(X: Tensor) -> float:
    """||X - 1 mean^T||_F / ||X||_F."""
    X = X.detach()
    return float((X - X.mean(-2, keepdim=True)).norm() / X.norm())


def diameter(X: Tensor) -> float:
    X = X.detach()
    return float(torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist").max())


def collapsing(**changes: Any) -> PureAttention:
    attention = attention_config(heads=1, d_k=D_E, d_v=D_E, bias=False)
    return pure(0.25, layers=6, attention=attention, **changes)


def test_rank_collapses_doubly_exponentially_without_skip() -> None:
    """S0.15, S0.17 (B): each layer takes the diameter to at most |W_VO| |W_QK| / (4 sqrt(k)) times its cube."""
    ours, X = collapsing(), randn(1, N, D_E)
    states = ours.states(X)
    curve = [relative_residual(state) for state in states]
    assert curve[0] > 0.5
    assert all(after < before for before, after in pairwise(curve[:4]))
    assert curve[2] < 0.2 and curve[-1] < 1e-12
    for block, before, after in zip(blocks(ours), states, states[1:], strict=False):
        W_QK, W_VO, _ = block.attention.folded()
        beta = (torch.linalg.matrix_norm(W_VO[0], 2) * torch.linalg.matrix_norm(W_QK[0], 2)).item()
        factor = beta / (4 * D_E**0.5)
        rounding = 1e-14 * float(after.detach().norm())
        assert diameter(after) <= factor * diameter(before) ** 3 + rounding


def test_skip_keeps_the_spread() -> None:
    """S0.19: the same weights with skip keep rows apart."""
    with_skip, X = collapsing(skip=True), randn(1, N, D_E)
    states = with_skip.states(X)
    assert relative_residual(states[-1]) > 0.05
    assert diameter(states[-1]) > 0.5 * diameter(X)


def test_hard_attention_keeps_the_rank() -> None:
    """S0.15: W_QK = 5 I, W_V = I, X = 3 I_6: nothing is lost after many layers."""
    d = 6
    config = pure_config(d_e=d, layers=50, attention=attention_config(heads=1, d_k=d, d_v=d, bias=False))
    ours, eye = build(config).double(), torch.eye(d, dtype=torch.float64)
    with torch.no_grad():
        for block in blocks(ours):
            for W, factor in ((block.attention.W_Q, 5.0), (block.attention.W_K, 1.0), (block.attention.W_V, 1.0)):
                W.copy_(factor * eye[None])
            block.attention.W_O.copy_(eye[None])
    out = ours(3 * eye[None]).detach()
    assert relative_residual(out) == pytest.approx(0.91287, abs=1e-4)
    assert int(torch.linalg.matrix_rank(out[0])) == 6


def test_shared_config_does_not_mean_shared_weights() -> None:
    first, second = blocks(build(pure_config(), seed=3))
    assert not torch.equal(first.attention.W_Q, second.attention.W_Q)
