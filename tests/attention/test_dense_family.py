"""Dense, Luong and Bahdanau attention in closed form, by hand, and against what torch counts."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnworks.attention import AttentionCost, Context, Geometry, Mask
from attnworks.attention.bahdanau import Bahdanau
from attnworks.attention.check_cases import RandomQKV
from attnworks.attention.contract import dense_edges
from attnworks.attention.dense import Dense
from attnworks.attention.luong import LuongDot, LuongMultiplicative
from attnworks.attention.softmax import bahdanau_additive, entropy, scaled_dot
from attnworks.core.errors import UsageError
from tests.helpers import B, H, assert_close, build, qkv, unchecked

FAMILY = ["dense", "luong-dot", "luong-multiplicative", "bahdanau-additive"]


def tensor(data: object) -> Tensor:
    return torch.tensor(data, dtype=torch.float64)


def weights_of(mechanism: nn.Module, Q: Tensor, K: Tensor, mask: Mask | None = None) -> Tensor:
    """P [i j] of one head and one sequence, for Q [i k] and K [j k]."""
    V = torch.zeros(1, 1, len(K), 1, dtype=Q.dtype)
    P = mechanism(Q[None, None], K[None, None], V, mask, weights=True).P
    return P[0, 0]


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 1.0, 5.0, -2.0])
def test_two_keys_are_a_sigmoid(beta: float) -> None:
    """alpha_a = 1 / (1 + e^-2beta) for the scores beta, -beta (S2.16, whose printed form lacks the 2 and the sign)."""
    P = weights_of(LuongDot(), tensor([[beta]]), tensor([[1.0], [-1.0]]))
    alpha = 1 / (1 + math.exp(-2 * beta))
    assert_close(P, tensor([[alpha, 1 - alpha]]))


@pytest.mark.parametrize("beta", [1.0, 5.0, 10.0])
@pytest.mark.parametrize("n", [2, 3, 11])
def test_a_query_between_two_orthonormal_keys(n: int, beta: float) -> None:
    """q = beta (k_a + k_b) gives alpha_a = alpha_b = e^beta / (n - 2 + 2 e^beta), where S2.8 prints (alpha - 2)."""
    K, _ = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))
    P = weights_of(LuongDot(), beta * (K[:1] + K[1:2]), K)
    total = n - 2 + 2 * math.exp(beta)
    want = torch.full((1, n), 1 / total, dtype=torch.float64)
    want[0, :2] = math.exp(beta) / total
    assert_close(P, want)


def test_a_query_between_two_orthonormal_keys_in_numbers() -> None:
    # n = 10: the figures recorded for S2.8.
    for beta, alpha in ((1.0, 0.2023), (5.0, 0.4869), (10.0, 0.49991)):
        K = torch.eye(10, dtype=torch.float64)
        P = weights_of(LuongDot(), beta * (K[:1] + K[1:2]), K)
        assert abs(float(P[0, 0]) - alpha) < 5e-5


def test_one_dominant_key_copies_its_value() -> None:
    """1 - alpha_j <= (n - 1) e^-gap, and ||c - v_j|| <= (1 - alpha_j) max_i ||v_i - v_j|| (S2.3, S2.4)."""
    n = 7
    Q, K, V = qkv(1, 1, 1, n, 11, 13)
    K = torch.eye(n, 11, dtype=torch.float64)[None, None]
    for gap in (2.0, 12.0, 40.0):
        Q = gap * K[:, :, 3:4]
        got = LuongDot()(Q, K, V, weights=True)
        assert got.P is not None
        missing = float(1 - got.P[0, 0, 0, 3])
        assert missing <= (n - 1) * math.exp(-gap) + 1e-15
        farthest = float((V - V[:, :, 3:4]).norm(dim=-1).max())
        assert float((got.Y - V[:, :, 3:4]).norm()) <= missing * farthest + 1e-14
        assert missing > (n - 1) * math.exp(-gap) / 2 - 1e-15


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("weights", [False, True])
def test_equal_keys_give_the_mean_of_the_values_seen(name: str, weights: bool) -> None:
    Q, K, V = qkv()
    K = K[:, :, :1].expand_as(K)
    mechanism = build(name, Geometry(H, 11, 13))
    assert_close(mechanism(Q, K, V, weights=weights).Y, V.mean(2, keepdim=True).expand(B, H, 5, 13))
    want = torch.stack([V[:, :, : last + 1].mean(2) for last in range(2, 7)], 2)
    assert_close(mechanism(Q, K, V, Mask(causal=True), weights=weights).Y, want)


@pytest.mark.parametrize("weights", [False, True])
def test_dense_is_the_textbook_formula(weights: bool) -> None:
    """softmax(Q K^T / sqrt(k)) V (S0.1, S4.42)."""
    Q, K, V = qkv()
    S = torch.einsum("bhik,bhjk->bhij", Q, K) / math.sqrt(11)
    P = S.exp() / S.exp().sum(-1, keepdim=True)
    assert_close(Dense()(Q, K, V, weights=weights).Y, torch.einsum("bhij,bhjv->bhiv", P, V))


def test_dense_is_torchs_multihead_attention() -> None:
    """S0.1: the same through nn.MultiheadAttention with its own projections."""
    torch.manual_seed(5)
    theirs = nn.MultiheadAttention(22, 2, bias=False, batch_first=True, dtype=torch.float64)
    X = torch.randn(3, 7, 22, dtype=torch.float64)
    W_Q, W_K, W_V = theirs.in_proj_weight.chunk(3)
    Q, K, V = ((X @ W.mT).unflatten(-1, (2, 11)).transpose(1, 2) for W in (W_Q, W_K, W_V))
    Y = Dense()(Q, K, V, Mask(causal=True)).Y.transpose(1, 2).flatten(2) @ theirs.out_proj.weight.mT
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    assert_close(Y, theirs(X, X, X, attn_mask=hidden, need_weights=False)[0])


# --- the scale --------------------------------------------------------------------------------------------------------


def test_the_scale_is_one_over_root_k_and_not_one_over_k() -> None:
    Q, K, V = qkv()
    got = Dense()(Q, K, V).Y
    assert_close(LuongDot()(Q / math.sqrt(11), K, V).Y, got)
    assert (LuongDot()(Q / 11, K, V).Y - got).abs().max() > 0.1


def test_one_over_k_would_make_attention_nearly_uniform() -> None:
    """k = 64, n = 128: entropy about 4.844 of ln 128 = 4.852 with 1/k, 4.375 with 1/sqrt(k), .66 unscaled (S4.42)."""
    Q, K, V = qkv(1, 4, 128, 128, 64, 64, seed=3)
    means = {}
    for label, mechanism, context in (
        ("1/k", Dense(), Context(scale=1 / 64)),
        ("1/sqrt(k)", Dense(), None),
        ("1", LuongDot(), None),
    ):
        P = mechanism(Q, K, V, None, context, weights=True).P
        assert P is not None
        means[label] = float(entropy(P).mean())
    assert abs(means["1/k"] - 4.844) < 0.005
    assert abs(means["1/sqrt(k)"] - 4.375) < 0.05
    assert abs(means["1"] - 0.663) < 0.1


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_scale_of_zero_is_uniform_over_the_keys_seen(name: str, weights: bool, causal: bool) -> None:
    real = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]]).bool()
    Q, K, V = qkv()
    mechanism = build(name, Geometry(H, 11, 13))
    Y = mechanism(Q, K, V, Mask(real, causal), Context(scale=0.0), weights=weights).Y
    for batch in range(B):
        for query in range(5):
            last = query + 2 if causal else 6
            seen = [key for key in range(last + 1) if real[batch, key]]
            want = V[batch, :, seen].mean(1) if seen else torch.zeros(H, 13, dtype=torch.float64)
            assert_close(Y[batch, :, query], want)


@pytest.mark.parametrize("weights", [False, True])
def test_without_padding_a_causal_scale_of_zero_is_uniform_too(weights: bool) -> None:
    Q, K, V = qkv()
    Y = Dense()(Q, K, V, Mask(causal=True), Context(scale=0.0), weights=weights).Y
    assert_close(Y, torch.stack([V[:, :, : last + 1].mean(2) for last in range(2, 7)], 2))


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask.from_lengths([7, 5, 3], causal=True)], ids=str)
def test_a_negative_scale_turns_the_queries_round(weights: bool, mask: Mask) -> None:
    Q, K, V = qkv()
    got = Dense()(Q, K, V, mask, Context(scale=-0.3), weights=weights).Y
    assert_close(got, Dense()(-Q, K, V, mask, Context(scale=0.3), weights=weights).Y)


# --- Luong and Bahdanau by hand (S4.13-S4.15) -------------------------------------------------------------------------

q, keys = [1.0, 2.0], [[3.0, -1.0], [0.5, 4.0]]


def test_luong_dot_by_hand() -> None:
    P = weights_of(LuongDot(), tensor([q]), tensor(keys))
    assert_close(P, F.softmax(tensor([[1 * 3 - 2 * 1, 1 * 0.5 + 2 * 4]]), -1))


def test_luong_multiplicative_by_hand() -> None:
    mechanism = LuongMultiplicative(d_k=2).double()
    mechanism.load_state_dict({"W_a": tensor([[[0.0, 1.0], [2.0, 0.5]]])})
    # q W_a = (2 * 2, 1 * 1 + 2 * 0.5) = (4, 2); the transposed matrix would give (2, 3).
    P = weights_of(mechanism, tensor([q]), tensor(keys))
    assert_close(P, F.softmax(tensor([[4 * 3 - 2 * 1, 4 * 0.5 + 2 * 4]]), -1))


def test_bahdanau_by_hand() -> None:
    mechanism = Bahdanau(d_k=2, d_a=3).double()
    W_q, W_k = tensor([[[0.1, 0.2, -0.3], [0.4, 0.0, 0.5]]]), tensor([[[-0.2, 0.1, 0.0], [0.3, -0.4, 0.6]]])
    mechanism.load_state_dict({"W_q": W_q, "W_k": W_k, "v_a": tensor([[1.0, -2.0, 0.5]])})
    # q W_q = (0.9, 0.2, 0.7); k_1 W_k = (-0.9, 0.7, -0.6); k_2 W_k = (1.1, -1.55, 2.4)
    first = math.tanh(0.0) - 2 * math.tanh(0.9) + 0.5 * math.tanh(0.1)
    second = math.tanh(2.0) - 2 * math.tanh(-1.35) + 0.5 * math.tanh(3.1)
    P = weights_of(mechanism, tensor([q]), tensor(keys))
    assert_close(P, F.softmax(tensor([[first, second]]), -1))


def test_bahdanau_uses_its_own_weights_in_every_head() -> None:
    Q, K, V = qkv()
    both = build("bahdanau-additive", Geometry(H, 11, 13))
    assert isinstance(both, Bahdanau)
    want = both(Q, K, V, weights=True).P
    for head in range(H):
        single = Bahdanau(d_k=11).double()
        single.load_state_dict({name: p[head : head + 1] for name, p in both.state_dict().items()})
        one = slice(head, head + 1)
        assert_close(single(Q[:, one], K[:, one], V[:, one], weights=True).P, want[:, one])


def test_scores_pair_by_pair() -> None:
    Q, K, _ = qkv()
    W_q, W_k = torch.randn(2, H, 11, 17, dtype=torch.float64).unbind()
    v_a = torch.randn(H, 17, dtype=torch.float64)
    dot = scaled_dot(Q, K, 0.5)
    additive = bahdanau_additive(Q, K, W_q, W_k, v_a)
    assert dot.shape == additive.shape == (B, H, 5, 7)
    for b, h, i, j in ((0, 0, 0, 0), (2, 1, 4, 6), (1, 0, 3, 5)):
        x, y = Q[b, h, i], K[b, h, j]
        assert_close(dot[b, h, i, j], 0.5 * x.dot(y))
        assert_close(additive[b, h, i, j], v_a[h] @ torch.tanh(torch.cat([W_q[h], W_k[h]]).mT @ torch.cat([x, y])))


def test_multiplicative_with_the_identity_is_the_dot_score() -> None:
    Q, K, V = qkv()
    mechanism = LuongMultiplicative(heads=H, d_k=11).double()
    mechanism.load_state_dict({"W_a": torch.eye(11).expand(H, 11, 11)})
    assert_close(mechanism(Q, K, V).Y, LuongDot()(Q, K, V).Y)


# --- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_an_additive_mask_may_have_another_dtype(weights: bool, dtype: torch.dtype) -> None:
    Q, K, V = qkv(dtype=dtype)
    added = torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(5, 7)
    got = Dense()(Q, K, V, Mask(dense=added), weights=weights).Y
    assert got.dtype == dtype
    S = Q.double() @ K.double().mT / math.sqrt(11) + added
    assert_close(got, S.softmax(-1) @ V.double())


@pytest.mark.parametrize("weights", [False, True])
def test_the_mask_is_added_after_the_scale(weights: bool) -> None:
    """softmax(Q K^T / sqrt(k) + M) V: for a finite M the order matters (S4.57)."""
    Q, K, V = qkv()
    added = torch.randn(5, 7, dtype=torch.float64)
    got = Dense()(Q, K, V, Mask(dense=added), weights=weights).Y
    assert_close(got, (Q @ K.mT / math.sqrt(11) + added).softmax(-1) @ V)
    assert (got - ((Q @ K.mT + added) / math.sqrt(11)).softmax(-1) @ V).abs().max() > 0.1


def test_masked_attention_is_lower_triangular() -> None:
    """S4.56: zero above the diagonal, positive on and below it."""
    P = Dense()(*qkv(i=7), Mask(causal=True), weights=True).P
    assert P is not None
    assert (P.triu(1) == 0).all() and (P[..., *torch.tril_indices(7, 7)] > 0).all()


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "exact"), [*((name, True) for name in FAMILY[:3]), ("bahdanau-additive", False)])
def test_flops_are_those_that_torch_counts(name: str, exact: bool) -> None:
    geometry = Geometry(H, 11, 13)
    mechanism = build(name, geometry)
    counter = FlopCounterMode(display=False)
    with counter:
        mechanism(*qkv(b=1), weights=True)
    declared, counted = mechanism.cost(5, 7, geometry).flops, counter.get_total_flops()
    # Bahdanau also declares the additions inside tanh, one per pair and hidden unit, which torch does not count.
    assert declared - counted == (0 if exact else H * 5 * 7 * 11)


def test_costs_in_numbers() -> None:
    geometry = Geometry(2, 11, 13)
    assert Dense().cost(5, 7, geometry) == AttentionCost(edges=70, flops=2 * 70 * 24, bytes=4 * 2 * 5 * 14)
    assert Dense().cost(5, 7, geometry, causal=True).edges == 2 * (3 + 4 + 5 + 6 + 7)
    assert Dense().cost(7, 7, geometry, causal=True).edges == 2 * 28
    assert LuongDot().cost(5, 7, geometry) == Dense().cost(5, 7, geometry)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 7), (5, 7), (7, 7)])
def test_dense_edges_count_the_table(queries: int, keys: int) -> None:
    allowed = torch.ones(queries, keys).tril(keys - queries)
    assert dense_edges(queries, keys, causal=True) == int(allowed.sum())
    assert dense_edges(queries, keys, causal=False) == queries * keys


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "got"),
    [
        ({"K": (3, 2, 7, 13)}, "K [3, 2, 7, 13] and V [3, 2, 7, 13]"),
        ({"K": (3, 1, 7, 11)}, "K [3, 1, 7, 11] and V [3, 2, 7, 13]"),
        ({"K": (1, 2, 7, 11)}, "K [1, 2, 7, 11] and V [3, 2, 7, 13]"),
        ({"V": (3, 2, 5, 13)}, "K [3, 2, 7, 11] and V [3, 2, 5, 13]"),
        ({"V": (3, 1, 7, 13)}, "K [3, 2, 7, 11] and V [3, 1, 7, 13]"),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(changed: dict[str, tuple[int, ...]], got: str) -> None:
    inputs = RandomQKV(**(qkv()._asdict() | {letter: torch.zeros(shape) for letter, shape in changed.items()}))
    with unchecked(), pytest.raises(UsageError) as caught:
        Dense()(*inputs)
    assert str(caught.value) == (
        f"dense attention: expected K [3, 2, keys, 11] and V [3, 2, keys, any] for Q [3, 2, 5, 11], got {got}; "
        "give all three the same batch and heads, Q and K one width, K and V one length"
    )


def test_the_error_names_the_mechanism() -> None:
    Q, K, V = qkv()
    with unchecked(), pytest.raises(UsageError, match=r"^luong-dot attention: "):
        LuongDot()(Q, K[..., :5], V)
