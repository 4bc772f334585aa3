"""Multi-head attention against torch's own, against its folded and augmented forms, and head by head."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnworks.attention import MECHANISMS, Geometry, Mask
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.models import AttentionConfig, MultiHead
from attnworks.theory.claims.s3_heads import augment, augment_weight
from tests.model_helpers import (
    FLOATS,
    Recorder,
    attention_config,
    close,
    filled,
    gradient,
    multihead_in_torch_layout,
    randn,
    the,
    value,
)

B, N, J, HEADS, WIDTH = 2, 5, 7, 3, 11
D_E = HEADS * WIDTH
PADDING = torch.tensor([[True] * 4 + [False] * 3, [True] * 7])


def multihead(dtype: torch.dtype = torch.float64, d_e: int = D_E, **changes: Any) -> MultiHead:
    config = attention_config(**({"heads": HEADS, "d_k": WIDTH, "d_v": WIDTH} | changes))
    return filled(MultiHead(d_e, config)).to(dtype)


# Against torch.nn.MultiheadAttention ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", ["self", "cross", "causal", "padding", "cross padding", "causal padding"])
def test_equals_torch(case: str, bias: bool, dtype: torch.dtype) -> None:
    ours = multihead(dtype, bias=bias)
    theirs = nn.MultiheadAttention(D_E, HEADS, bias=bias, batch_first=True, dtype=dtype)
    theirs.load_state_dict(multihead_in_torch_layout(ours, value))
    causal, real = "causal" in case, PADDING if "padding" in case else None
    X = randn(B, N if "cross" in case else J, D_E, dtype=dtype).requires_grad_()
    Z = randn(B, J, D_E, dtype=dtype, seed=1).requires_grad_() if "cross" in case else X

    got = ours(X, Z, Mask(real, causal))
    expected, _ = theirs(
        X,
        Z,
        Z,
        key_padding_mask=None if real is None else ~real,
        attn_mask=torch.ones(J, J, dtype=torch.bool).triu(1) if causal else None,
        need_weights=False,
    )
    close(got, expected)

    G = randn(*got.shape, dtype=dtype, seed=2)
    inputs = (X,) if Z is X else (X, Z)
    for mine, other in zip(
        torch.autograd.grad((got * G).sum(), inputs, retain_graph=True),
        torch.autograd.grad((expected * G).sum(), inputs, retain_graph=True),
        strict=True,
    ):
        close(mine, other, scale=10)
    (got * G).sum().backward()
    (expected * G).sum().backward()
    layout = multihead_in_torch_layout(ours, gradient)
    assert layout.keys() == {name for name, _ in theirs.named_parameters()}
    for name, parameter in theirs.named_parameters():
        close(layout[name], gradient(parameter), scale=10)


# Sizes and counts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_widths_are_free_of_d_e_over_heads(bias: bool) -> None:
    h, d_k, d_v, d_e = 3, 5, 2, 7
    ours = multihead(heads=h, d_k=d_k, d_v=d_v, d_e=d_e, bias=bias)
    X = randn(B, N, d_e)
    expected = torch.zeros(B, N, d_e, dtype=torch.float64)
    for head in range(h):
        Q, K, V = X @ ours.W_Q[head], X @ ours.W_K[head], X @ ours.W_V[head]
        if bias:
            Q, K, V = Q + the(ours.b_Q)[head], K + the(ours.b_K)[head], V + the(ours.b_V)[head]
        expected = expected + (Q @ K.mT / d_k**0.5).softmax(-1) @ V @ ours.W_O[head]
    if bias:
        expected = expected + the(ours.b_O)
    close(ours(X), expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_parameter_count_does_not_depend_on_heads(heads: int, bias: bool) -> None:
    """S3.7 with d_e = 64 and all heads together 32 wide in keys, 48 in values."""
    d_e, d_k, d_v = 64, 32 // heads, 48 // heads
    ours = MultiHead(d_e, AttentionConfig(heads=heads, d_k=d_k, d_v=d_v, bias=bias))
    count = sum(parameter.numel() for parameter in ours.parameters())
    assert 2 * d_e * heads * d_k + 2 * d_e * heads * d_v == 10_240
    assert count == 10_240 + (2 * 32 + 48 + d_e if bias else 0)


def test_scale_is_used_in_place_of_one_over_root_k() -> None:
    scaled, plain = multihead(scale=0.3), multihead()
    X = randn(B, N, D_E)
    S = 0.3 * plain.queries(X) @ plain.keys_values(X)[0].mT
    close(scaled(X), plain.output(S.softmax(-1) @ plain.keys_values(X)[1]))
    assert not torch.allclose(scaled(X), plain(X))


def test_glorot_bounds_see_all_heads_as_one_matrix() -> None:
    torch.manual_seed(0)
    h, d_e, d_k, d_v = 4, 64, 8, 32
    ours = MultiHead(d_e, AttentionConfig(heads=h, d_k=d_k, d_v=d_v))
    for W, width in ((ours.W_Q, d_k), (ours.W_K, d_k), (ours.W_V, d_v), (ours.W_O, d_v)):
        bound = (6 / (d_e + h * width)) ** 0.5
        assert 0.97 * bound < W.abs().max() <= bound
    assert all(not the(b).any() for b in (ours.b_Q, ours.b_K, ours.b_V, ours.b_O))


# Folded and augmented forms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_folded_weights_give_the_forward_pass(bias: bool) -> None:
    """S0.6, S0.8: SA(X) = sum_h P_h X W_h + 1 b^T, with b_V and b_O in one b."""
    ours, recorder = multihead(heads=3, d_k=5, d_v=2, d_e=7, bias=bias), Recorder()
    X = randn(B, N, 7)
    got = ours(X, observe=recorder)
    W_QK, W_VO, b = ours.folded()
    P = recorder.P("enc.0")
    expected = sum((P[:, head] @ X @ W_VO[head] for head in range(3)), torch.zeros(())) + b
    close(got, expected)
    assert bool(b.any()) == bias
    if not bias:
        scores = torch.einsum("bie,hef,bjf->bhij", X, W_QK, X) / 5**0.5
        close(P, scores.softmax(-1))


def test_folded_bias_is_the_written_sum() -> None:
    ours = multihead(heads=3, d_k=5, d_v=2, d_e=7)
    expected = the(ours.b_O) + sum((the(ours.b_V)[head] @ ours.W_O[head] for head in range(3)), torch.zeros(()))
    close(ours.folded()[2], expected)


def test_biases_are_a_row_of_augmented_weights() -> None:
    """S3.8: [X | 1] [W; b^T] = X W + 1 b^T, for the projections and for the output."""
    ours = multihead(heads=3, d_k=5, d_v=2, d_e=7)
    X = randn(B, N, 7)
    X1 = augment(X).unsqueeze(1)
    Q, K, V = (
        X1 @ augment_weight(W, the(b)) for W, b in ((ours.W_Q, ours.b_Q), (ours.W_K, ours.b_K), (ours.W_V, ours.b_V))
    )
    close(ours.queries(X), Q)
    close(ours.keys_values(X)[0], K)
    close(ours.keys_values(X)[1], V)
    H = ((Q @ K.mT / 5**0.5).softmax(-1) @ V).transpose(1, 2).flatten(2)
    close(ours(X), augment(H) @ augment_weight(ours.W_O.flatten(0, 1), the(ours.b_O)))


def test_key_bias_changes_nothing_and_value_bias_adds_one_row() -> None:
    ours = multihead(heads=3, d_k=5, d_v=2, d_e=7)
    X = randn(B, N, 7)
    before = ours(X)
    with torch.no_grad():
        the(ours.b_K).add_(3.0)
    close(ours(X), before)
    with torch.no_grad():
        added = randn(3, 2, seed=5)
        the(ours.b_V).add_(added)
    close(ours(X) - before, torch.einsum("hv,hve->e", added, ours.W_O).expand_as(before))


# A mechanism for each head -------------------------------------------------------------------------------------------

MIXED = ("dense", "luong-dot", "luong-multiplicative", "dense", "luong-dot")
# Grouped by mechanism the heads are 0 3 1 4 2, whose inverse is another order.


def head_by_head(ours: MultiHead, X: Tensor, Z: Tensor, masks: list[Mask]) -> Tensor:
    """The same layer, each head computed alone by a mechanism of its own."""
    Q, (K, V) = ours.queries(X), ours.keys_values(Z)
    parts = []
    for head, name in enumerate(MIXED):
        options: dict[str, Any] = {"heads": 1, "d_k": 5} if name == "luong-multiplicative" else {}
        mechanism = MECHANISMS[name](**options).double()
        if name == "luong-multiplicative":
            group = [names for names, _ in zip(dict.fromkeys(MIXED), ours.mechanisms, strict=True)].index(name)
            mechanism.load_state_dict(ours.mechanisms[group].state_dict())
        one = slice(head, head + 1)
        parts.append(mechanism(Q[:, one], K[:, one], V[:, one], masks[head]).Y)
    return ours.output(torch.cat(parts, 1))


@pytest.mark.parametrize("kind", ["none", "padding", "shared", "per head", "per batch and head", "additive per head"])
def test_mixed_heads_equal_each_head_alone(kind: str) -> None:
    ours = multihead(heads=5, d_k=5, d_v=2, d_e=7, mechanism=MIXED)
    X, Z = randn(B, N, 7), randn(B, J, 7, seed=1)
    shapes = {
        "shared": (N, J),
        "per head": (5, N, J),
        "per batch and head": (B, 5, N, J),
        "additive per head": (5, N, J),
    }
    if kind in shapes:
        dense = randn(*shapes[kind], seed=3)
        dense = dense if kind.startswith("additive") else dense > -0.5
        mask = Mask(PADDING, dense=dense)
        per_head = [dense if dense.dim() == 2 else dense[..., head : head + 1, :, :] for head in range(5)]
        masks = [Mask(PADDING, dense=part) for part in per_head]
    else:
        mask = Mask(PADDING if kind == "padding" else None)
        masks = [mask] * 5
    recorder = Recorder()
    got = ours(X, Z, mask)
    close(got, head_by_head(ours, X, Z, masks))
    close(ours(X, Z, mask, recorder), got)
    P = recorder.P("enc.0")
    assert P.shape == (B, 5, N, J)
    close(ours.output(P @ recorder["enc.0"].V), got)


def test_mixed_heads_are_not_all_dense() -> None:
    mixed = multihead(heads=5, d_k=5, d_v=2, d_e=7, mechanism=("dense",) * 3 + ("luong-dot",) * 2)
    dense = multihead(heads=5, d_k=5, d_v=2, d_e=7)
    dense.load_state_dict(mixed.state_dict())
    X = randn(B, N, 7)
    assert not torch.allclose(mixed(X), dense(X), atol=1e-6)
    close(mixed.attend(mixed.queries(X), *mixed.keys_values(X), Mask()).Y[:, :3],
          dense.attend(dense.queries(X), *dense.keys_values(X), Mask()).Y[:, :3])  # fmt: skip


def test_each_group_is_built_for_its_own_number_of_heads() -> None:
    ours = MultiHead(7, AttentionConfig(heads=5, d_k=5, d_v=2, mechanism=MIXED))
    assert ours.mechanisms.heads == ((0, 3), (1, 4), (2,))
    shapes = {name: tuple(p.shape) for name, p in ours.mechanisms.named_parameters()}
    assert shapes == {"2.W_a": (1, 5, 5)}
    assert ours.config.geometry == Geometry(5, 5, 2)


# Memory --------------------------------------------------------------------------------------------------------------


def is_one_matrix(W: Tensor) -> bool:
    """All heads of [h e k] seen as [h k, e] without a copy."""
    return W.mT.flatten(0, 1).data_ptr() == W.data_ptr()


def test_memory_layout_survives_copies_casts_and_loads() -> None:
    ours = multihead(heads=3, d_k=5, d_v=2, d_e=7)
    X = randn(B, N, 7)
    expected = ours(X)
    loaded = MultiHead(7, ours.config).double()
    loaded.load_state_dict({name: tensor.contiguous() for name, tensor in ours.state_dict().items()})
    there_and_back = copy.deepcopy(ours).to(torch.bfloat16)
    for name, module in {
        "fresh": MultiHead(7, ours.config),
        "filled": ours,
        "deepcopy": copy.deepcopy(ours),
        "cast": there_and_back,
        "loaded": loaded,
    }.items():
        for W in (module.W_Q, module.W_K, module.W_V):
            assert is_one_matrix(W), f"{name}: strides {W.stride()}"
    assert torch.equal(loaded(X), expected)
    assert torch.equal(copy.deepcopy(ours)(X), expected)
    low = there_and_back(X.bfloat16()).double()
    torch.testing.assert_close(low, expected, rtol=0.06, atol=0.2)


def test_contiguous_weights_give_the_same_result() -> None:
    """Whatever the strides, the numbers are those of the [h e k] tensor."""
    ours = multihead(heads=3, d_k=5, d_v=2, d_e=7)
    X = randn(B, N, 7)
    expected = ours(X)
    for W in (ours.W_Q, ours.W_K, ours.W_V, ours.W_O):
        W.data = W.data.contiguous()
    assert not is_one_matrix(ours.W_Q)
    close(ours(X), expected)


# Observing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("real", [None, PADDING[:, :N]])
def test_observer_sees_the_true_tensors(real: Tensor | None, causal: bool) -> None:
    ours = MultiHead(7, AttentionConfig(heads=3, d_k=5, d_v=2), slot=Slot.parse("dec.1")).double()
    filled(ours)
    X, recorder, mask = randn(B, N, 7), Recorder(), Mask(real, causal)
    silent, watched = ours(X, mask=mask), ours(X, mask=mask, observe=recorder)
    assert torch.equal(watched, silent)
    (seen,) = recorder.seen
    assert str(seen.slot) == "dec.1"
    assert seen.X is X and seen.Z is X and seen.mask is mask
    assert torch.equal(seen.Q, ours.queries(X))
    assert torch.equal(seen.K, ours.keys_values(X)[0]) and torch.equal(seen.V, ours.keys_values(X)[1])
    P = seen.P
    close(P.sum(-1), torch.ones(B, 3, N, dtype=torch.float64))
    allowed = the(mask.allowed(N, N)) if real is not None or causal else torch.ones(1, 1, N, N, dtype=torch.bool)
    assert not P.masked_select(~allowed).any() and (P.masked_select(allowed) > 0).all()
    close(P, (seen.Q @ seen.K.mT / 5**0.5).masked_fill(~allowed, -torch.inf).softmax(-1))
    close(seen.Y, P @ seen.V)
    close(ours.output(seen.Y), watched)


def test_observing_leaves_gradients_alone() -> None:
    ours, X = multihead(), randn(B, N, D_E)
    gradients = []
    for observe in (None, Recorder()):
        ours.zero_grad()
        ours(X, observe=observe).square().sum().backward()
        gradients.append([gradient(p).clone() for p in ours.parameters()])
    for one, other in zip(*gradients, strict=True):
        close(one, other, scale=100)


def test_cross_attention_shows_both_inputs() -> None:
    ours, recorder = multihead(), Recorder()
    X, Z = randn(B, N, D_E), randn(B, J, D_E, seed=1)
    ours(X, Z, observe=recorder)
    assert recorder["enc.0"].X is X and recorder["enc.0"].Z is Z
    assert recorder.P("enc.0").shape == (B, HEADS, N, J)


def test_a_mask_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"one boolean per key, shape \[2, 5\]"):
        multihead()(randn(B, N, D_E), mask=Mask(PADDING))
