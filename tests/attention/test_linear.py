"""Linear attention: the chunked kernel against the plain formula, one step at a time, every map in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

from attnworks.attention import AttentionCost, Context, Geometry, Mask, MechanismSpec
from attnworks.attention.check_cases import RandomQKV
from attnworks.attention.engines import prefix
from attnworks.attention.engines.prefix import guarded, linear_attention
from attnworks.attention.feature_maps import RandomFeatures, Taylor, orthogonal_normals
from attnworks.attention.linear import Linear, LinearState
from attnworks.core.errors import AttnworksError, UsageError
from attnworks.core.tensors import Scratch
from attnworks.models import build as build_model
from attnworks.models import load_model, save_model
from tests.covering import covering
from tests.helpers import assert_close, qkv, unchecked
from tests.model_helpers import attention_config, transformer_config

MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda X: F.elu(X) + 1,
    "relu": torch.relu,
    "exp": torch.exp,
    "identity": lambda X: X,
}
both_directions = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
LENGTHS = [(1, 1), (63, 63), (64, 64), (65, 65), (511, 511), (513, 513), (1031, 1031), (5, 131), (131, 331), (67, 513)]


def tensor(data: object) -> Tensor:
    return torch.tensor(data, dtype=torch.float64)


def plain(Q: Tensor, K: Tensor, V: Tensor, real: Tensor | None, causal: bool) -> Tensor:
    """sum_j (q_i.k_j) v_j / sum_j q_i.k_j by a table of all pairs, 0 where it would be 0 / 0."""
    A = Q @ K.mT
    A = A if real is None else A * real[:, None, None, :]
    A = A.tril(K.shape[2] - Q.shape[2]) if causal else A
    total = A.sum(-1, keepdim=True)
    return A @ V / torch.where(total == 0, 1.0, total)


def inputs(i: int, j: int, feature: str = "elu", dtype: torch.dtype = torch.float64) -> RandomQKV:
    Q, K, V = qkv(2, 3, i, j, 5, 7)
    if feature == "identity":
        Q, K = Q.abs(), K.abs()
    return RandomQKV(*(T.to(dtype).requires_grad_() for T in (Q, K, V)))


def holes(b: int, j: int) -> Tensor:
    """Real keys, the first of them hidden in one sequence and shown in the other."""
    real = torch.rand(b, j, generator=torch.Generator().manual_seed(37)) < 0.7
    real[:, 0] = torch.arange(b) % 2 == 0
    return real


# --- the kernel -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("causal", "feature", "lengths", "padded", "rows"),
    covering((False, True), list(MAPS), LENGTHS, (False, True), (256, prefix.ROWS_AT_ONCE)),
    ids=str,
)
def test_the_kernel_equals_the_plain_formula(
    causal: bool, feature: str, lengths: tuple[int, int], padded: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rows` of 256 gives many stretches, the usual number few."""
    i, j = lengths
    monkeypatch.setattr(prefix, "ROWS_AT_ONCE", rows)
    X = inputs(i, j, feature)
    real = holes(2, j) if padded else None
    G = torch.randn(2, 3, i, 7, dtype=torch.float64)
    got = linear_attention(*X, real, causal=causal, feature=feature)
    want = plain(MAPS[feature](X.Q), MAPS[feature](X.K), X.V, real, causal)
    assert_close(got, want)
    gradients = (torch.autograd.grad((Y * G).sum(), X) for Y in (got, want))
    for name, mine, theirs in zip("QKV", *gradients, strict=True):
        assert_close(mine / theirs.abs().max().clamp(min=1), theirs / theirs.abs().max().clamp(min=1), message=name)


@both_directions
@pytest.mark.parametrize("feature", MAPS)
def test_float32_keeps_its_digits_over_many_chunks(feature: str, causal: bool) -> None:
    X, x = inputs(1031, 1031, feature), inputs(1031, 1031, feature, torch.float32)
    pairs = [(T, linear_attention(*T, causal=causal, feature=feature)) for T in (x, X)]
    assert_close(pairs[0][1], pairs[1][1], torch.float32)
    for mine, exact in zip(*(torch.autograd.grad(Y.square().sum(), T) for T, Y in pairs), strict=True):
        assert_close(mine / exact.abs().max(), exact / exact.abs().max(), torch.float32)


@both_directions
def test_heads_beside_each_other_as_models_have_them(causal: bool) -> None:
    X = inputs(131, 131)
    beside = [T.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for T in X]
    Y, want = (linear_attention(*T, causal=causal, feature="elu") for T in (beside, X))
    assert_close(Y, want)
    assert Y.transpose(1, 2).is_contiguous(), "a copy for the output projection"
    for mine, theirs in zip(
        torch.autograd.grad(Y.square().sum(), beside), torch.autograd.grad(want.square().sum(), X), strict=True
    ):
        assert_close(mine, theirs)


@both_directions
def test_buffers_do_not_grow_with_the_length(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Recording(Scratch):
        def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
            asked.append(math.prod(shape))
            return super().empty(name, shape, dtype, device)

    monkeypatch.setattr(prefix, "Scratch", Recording)
    largest = []
    for n in (4099, 8209):
        asked.clear()
        Q, K, V = qkv(1, 2, n, n, 5, 7, torch.float32, grad=True)
        linear_attention(Q, K, V, causal=causal, feature="elu").sum().backward()
        largest.append(max(asked))
    assert largest[0] == largest[1] <= prefix.ROWS_AT_ONCE * max(prefix.KEYS_PER_CHUNK, 7 + prefix.CHUNK_PADDING)
    _, den, states = prefix._forward(*qkv(1, 2, 8209, 8209, 5, 7, torch.float32), None, causal, "elu", 0.0)
    assert den.numel() == 2 * 8209 and states.numel() <= (8209 * 2 / prefix.ROWS_AT_ONCE + 2) * 2 * 5 * (
        7 + prefix.CHUNK_PADDING
    )


@pytest.mark.parametrize(("i", "j"), [(0, 0), (0, 5), (3, 0)])
@both_directions
def test_no_queries_or_no_keys(i: int, j: int, causal: bool) -> None:
    if causal and i > j:
        return
    X = inputs(i, j)
    Y = Linear()(*X, Mask(causal=causal)).Y
    assert Y.shape == (2, 3, i, 7) and (Y == 0).all()
    for T, gradient in zip(X, torch.autograd.grad(Y.sum(), X), strict=True):
        assert gradient.shape == T.shape and (gradient == 0).all()


@both_directions
def test_torch_finds_nothing_wrong_with_the_operator(causal: bool) -> None:
    with unchecked():  # sizes are symbols here
        opcheck(prefix._forward, (*inputs(67, 71), holes(2, 71), causal, "elu", 0.0))


@pytest.mark.slow
@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize(
    ("mechanism", "padded", "causal"),
    [
        (Linear(), False, True),
        (Linear(feature="exp"), True, False),
        (Linear(feature="random", features=16, d_k=5), True, True),
    ],
)
def test_compiles_without_a_graph_break(mechanism: Linear, padded: bool, causal: bool) -> None:
    mask = Mask(torch.rand(2, 131) < 0.7 if padded else None, causal)
    X = [torch.randn(2, 131, 3, width).transpose(1, 2).requires_grad_() for width in (5, 5, 7)]

    def run(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        return mechanism(Q, K, V, mask).Y.square()

    want, got = run(*X), torch.compile(run, fullgraph=True)(*X)
    torch.testing.assert_close(got, want)
    G = torch.randn_like(want)
    for mine, theirs in zip(torch.autograd.grad(got, X, G), torch.autograd.grad(want, X, G), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


# --- one position at a time -------------------------------------------------------------------------------------------

EVERY_MAP = ["elu", "relu", "exp", "taylor", "random"]


@pytest.mark.parametrize("feature", EVERY_MAP)
@pytest.mark.parametrize("scale", [None, -0.7])
def test_steps_equal_the_causal_form(feature: str, scale: float | None) -> None:
    mechanism, context = Linear(feature=feature, d_k=5).double(), Context(scale=scale)
    Q, K, V = inputs(71, 71)
    want = mechanism(Q, K, V, Mask(causal=True), context).Y
    state: LinearState | None = None
    for n in range(71):
        y, state = mechanism.step(Q[:, :, n : n + 1], K[:, :, n : n + 1], V[:, :, n : n + 1], state, context)
        assert_close(y, want[:, :, n : n + 1], message=f"position {n}")


@pytest.mark.parametrize("feature", EVERY_MAP)
def test_the_empty_state_is_none(feature: str) -> None:
    mechanism = Linear(feature=feature, features=256, d_k=5).double()
    q, k, v = inputs(1, 1)
    empty = mechanism.start(2, Geometry(3, 5, 7), dtype=torch.float64)
    (y, state), (same, other) = mechanism.step(q, k, v, empty), mechanism.step(q, k, v)
    assert_close(y, same)
    assert state.S.shape == other.S.shape == empty.S.shape and state.z.shape == other.z.shape == empty.z.shape
    assert (empty.S == 0).all(), "a state is never written to"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_steps_of_half_precision_remember_in_float32(dtype: torch.dtype) -> None:
    Q, K, V = (T.detach().to(dtype) for T in inputs(1, 1))
    y, state = Linear().step(Q, K, V)
    assert y.dtype == dtype and state.S.dtype == state.z.dtype == torch.float32


# --- the maps ---------------------------------------------------------------------------------------------------------


def test_taylor_in_closed_form() -> None:
    """(sum V + q^ sum k^ V) / (n + q^ sum k^), which S4.103 prints without its sums."""
    Q, K, V = inputs(5, 7)
    q, k = F.normalize(Q, dim=-1), F.normalize(K, dim=-1)
    total = 7 + q @ k.sum(2, keepdim=True).mT
    assert_close(Linear(feature="taylor")(Q, K, V).Y, (V.sum(2, keepdim=True) + q @ (k.mT @ V)) / total)


def test_taylor_expands_the_exponential_of_the_cosine_and_not_of_the_product() -> None:
    """S4.101: near to softmax(cos(Q, K)), far from softmax(Q K^T); at cos = 1 short of e by e - 2."""
    Q, K, V = qkv(2, 3, 31, 37, 5, 7)
    Y = Linear(feature="taylor")(Q, K, V).Y
    cosines = F.normalize(Q, dim=-1) @ F.normalize(K, dim=-1).mT
    near, far = (Y - cosines.softmax(-1) @ V).norm(), (Y - (Q @ K.mT).softmax(-1) @ V).norm()
    assert near < 0.2 * far
    one = Taylor().keys(Q)
    assert_close(math.e - (one * one).sum(-1), torch.full_like(Q[..., 0], math.e - 2))


def test_taylor_of_zero_tiny_and_huge_vectors() -> None:
    Q = tensor([[[[0.0, 0.0], [3e-200, 4e-200], [3e200, -4e200]]]]).requires_grad_()
    features = Taylor().keys(Q)
    assert_close(features, tensor([[[[1, 0, 0], [1, 0.6, 0.8], [1, 0.6, -0.8]]]]))
    (gradient,) = torch.autograd.grad(features[..., 1].sum(), Q)
    assert gradient.isfinite().all() and (gradient[0, 0, 0] == 0).all()


def test_keys_that_all_point_away_leave_taylor_nothing() -> None:
    q = tensor([0.6, 0.8]).expand(1, 1, 1, 2)
    Y = Linear(feature="taylor")(q, -q.expand(1, 1, 3, 2), torch.ones(1, 1, 3, 1, dtype=torch.float64)).Y
    assert Y.abs().max() < 1e-8


def test_random_features_have_the_exponential_as_their_mean() -> None:
    Q, K, _ = qkv(1, 1, 3, 5, 4, 2)
    Q, K = 0.5 * Q, 0.5 * K
    products = []
    for seed in range(2000):
        phi = RandomFeatures(4, 8, seed).double()
        W = phi.W
        queries = (Q @ W.mT - Q.square().sum(-1, keepdim=True) / 2).exp() * 8**-0.5
        products.append(queries @ phi.keys(K).mT)
        if seed == 0:  # as `queries` has it, up to a factor of each row
            ratio = phi.queries(Q) / queries
            assert_close(ratio, ratio[..., :1].expand_as(ratio))
    drawn = torch.stack(products)
    wrong = (drawn.mean(0) - (Q @ K.mT).exp()).abs() / (drawn.std(0) / 2000**0.5)
    assert wrong.max() < 4, "more than four standard errors away"


def test_the_error_of_random_features_falls_like_one_over_the_root_of_their_number() -> None:
    Q, K, V = qkv(1, 2, 11, 13, 7, 3)
    Q, K = 0.3 * Q, 0.3 * K  # larger ones have tails so heavy that the law is met only by many thousands
    exact = F.scaled_dot_product_attention(Q, K, V)

    def error(features: int) -> float:
        drawn = [
            Linear(feature="random", features=features, seed=seed, d_k=7).double()(Q, K, V).Y for seed in range(40)
        ]
        return float(torch.stack([(Y - exact).square().mean() for Y in drawn]).mean().sqrt())

    few, more, many = error(16), error(256), error(4096)
    assert 3 < few / more < 5 and 3 < more / many < 5


def test_random_directions_are_orthogonal_and_normal() -> None:
    W = orthogonal_normals(3 * 400, 3, 5)
    groups = W.unflatten(0, (400, 3))
    gram = groups @ groups.mT
    assert_close(gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1)), torch.zeros_like(gram))
    assert abs(float(W.mean())) < 0.1 and abs(float(W.square().mean()) - 1) < 0.1
    assert abs(float(W.pow(4).mean()) - 3) < 0.6, "the fourth moment of a normal number"
    assert orthogonal_normals(2, 5, 0).shape == (2, 5) and not torch.equal(W[:2], orthogonal_normals(2, 3, 6))


def test_random_features_stay_finite_for_long_queries_and_keys() -> None:
    Q, K, V = (T.detach().float() for T in inputs(7, 7))
    Y = Linear(feature="random", d_k=5)(1e4 * Q, K, V, Mask(causal=True)).Y
    assert Y.isfinite().all() and (Y != 0).any(-1).all()
    assert Linear(feature="random", d_k=5)(Q, 1e4 * K, V).Y.isfinite().all()


@pytest.mark.parametrize("weights", [False, True], ids=["fused", "explicit"])
def test_features_of_elu_are_not_lost_far_below_zero(weights: bool) -> None:
    Q, K, V = (T.detach().float() for T in inputs(7, 7))
    got = Linear()(Q - 40, K, V, weights=weights).Y
    assert_close(got, Linear()(Q.double() - 40, K.double(), V.double()).Y, torch.float32)


# --- a map of one's own -----------------------------------------------------------------------------------------------


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(3, 5, 4, dtype=torch.float64))

    def forward(self, X: Tensor) -> Tensor:
        return F.softplus(X @ self.W)


@both_directions
@pytest.mark.parametrize("weights", [False, True], ids=["fused", "explicit"])
def test_a_module_of_ones_own_is_trained(causal: bool, weights: bool) -> None:
    mechanism, X, real = Linear(feature=Learned()), inputs(67, 67), holes(2, 67)
    ((name, W),) = mechanism.named_parameters()
    assert name in mechanism.state_dict()
    got = mechanism(*X, Mask(real, causal), weights=weights).Y
    want = plain(F.softplus(X.Q @ W), F.softplus(X.K @ W), X.V, real, causal)
    assert_close(got, want)
    for mine, theirs in zip(*(torch.autograd.grad(Y.square().sum(), (*X, W)) for Y in (got, want)), strict=True):
        assert_close(mine, theirs)
    assert mechanism.cost(5, 7, Geometry(3, 5, 7)).flops == 2 * 3 * 4 * (7 * 7 + 5 * 8)


def test_padding_of_a_map_of_ones_own_is_mapped_as_zeros() -> None:
    seen: list[Tensor] = []

    def spy(X: Tensor) -> Tensor:
        seen.append(X.detach())
        return X.exp()

    Q, K, V = inputs(5, 5)
    real = torch.tensor([[True, True, False, True, False]]).expand(2, 5)
    Linear(feature=spy)(Q, K, V, Mask(real))
    assert (seen[1].transpose(1, 2)[~real] == 0).all() and torch.equal(seen[0], Q)


@pytest.mark.parametrize("weights", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize(
    ("products", "eps", "divisor"),
    [((2.0, -0.5), 0.1, 1.5), ((0.5, -2.0), 0.1, -1.5), ((1.0, -0.95), 0.1, 0.1), ((0.95, -1.0), 0.1, -0.1),
     ((1.0, -1.0), 0.1, 0.1), ((1.0, -1.0), None, 1e-6), ((1.0, -0.5), None, 0.5)],
)  # fmt: skip
def test_signed_denominators_stay_away_from_zero(
    products: tuple[float, float], eps: float | None, divisor: float, weights: bool
) -> None:
    """Y = (a v + b w) / d with d = sign(a + b) max(|a + b|, eps); where eps is larger, d has no gradient."""
    mechanism = Linear(feature=lambda X: X, eps=eps)
    (a, b), (v, w) = products, (3.0, 5.0)
    K = tensor(products).view(1, 1, 2, 1).requires_grad_()
    Y = mechanism(tensor([1.0]).view(1, 1, 1, 1), K, tensor([v, w]).view(1, 1, 2, 1), weights=weights).Y
    assert_close(Y.squeeze(), tensor((a * v + b * w) / divisor))
    through = (a * v + b * w) / divisor**2 if abs(a + b) > (1e-6 if eps is None else eps) else 0.0
    (gradient,) = torch.autograd.grad(Y.sum(), K)
    assert_close(gradient.flatten(), tensor([v / divisor - through, w / divisor - through]))


def test_guarded_denominators() -> None:
    den = tensor([2.0, 0.0, -0.0, 1e-310, -3.0])
    assert guarded(den, 0.0).tolist() == [2.0, math.inf, math.inf, math.inf, math.inf]
    assert guarded(den, 0.5).tolist() == [2.0, 0.5, 0.5, 0.5, -3.0]
    assert guarded(tensor([-0.1, -0.5]), 0.5).tolist() == [-0.5, -0.5]


# --- options, cost, folders -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feature", ["elu", "random"])
def test_autocast_changes_nothing(feature: str) -> None:
    mechanism = Linear(feature=feature, d_k=5)
    X = [T.detach().bfloat16() for T in inputs(67, 67)]
    for weights in (False, True):
        want = mechanism(*X, Mask(causal=True), weights=weights).Y
        with torch.autocast("cpu", torch.bfloat16):
            got = mechanism(*X, Mask(causal=True), weights=weights).Y
        assert torch.equal(got, want) and got.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("text", "width", "mapping"),
    [("linear", 11, 0), ("linear:feature=taylor", 12, 0), ("linear:feature=random,features=16", 16, 2 * 11 * 16)],
)
@both_directions
def test_cost_is_what_torch_counts_for_the_formula(text: str, width: int, mapping: int, causal: bool) -> None:
    geometry = Geometry(3, 11, 13)
    queries, keys, V = torch.ones(3, 5, width), torch.ones(3, 7, width), torch.ones(3, 7, 13)
    with FlopCounterMode(display=False) as counted:
        _ = (queries @ (keys.mT @ V)) / (queries @ keys.sum(1).unsqueeze(-1))
    cost = MechanismSpec.parse(text).build(geometry).cost(5, 7, geometry, causal=causal)
    stored = 3 * (5 + 7) * width if text != "linear" else 0
    assert cost == AttentionCost(
        edges=3 * (5 + 7),
        flops=counted.get_total_flops() + 3 * (5 + 7) * mapping,
        bytes=4 * (3 * 5 * 14 + 3 * width * 14 + stored),
    )


def test_random_features_are_saved_with_a_model(tmp_path: Path) -> None:
    config = transformer_config(
        slots={"enc.0": attention_config(mechanism=("linear:feature=random,features=16,seed=3", "dense", "linear"))}
    )
    model = build_model(config)
    (W,) = (buffer for name, buffer in model.named_buffers() if name.endswith("phi.W"))
    with torch.no_grad():
        W.mul_(2)
    save_model(model, tmp_path / "model")
    (again,) = (buffer for name, buffer in load_model(tmp_path / "model").named_buffers() if name.endswith("phi.W"))
    assert torch.equal(W, again)


def test_a_seed_decides_the_random_features() -> None:
    one, same, other = (Linear(feature="random", features=7, seed=seed, d_k=5) for seed in (1, 1, 2))
    X = [T.detach().float() for T in inputs(3, 3)]
    assert torch.equal(one(*X).Y, same(*X).Y) and not torch.equal(one(*X).Y, other(*X).Y)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(*X).Y, other(*X).Y)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"feature": "elo"}, "did you mean 'elu'"),
        ({"feature": 3}, "or a callable, got 3"),
        ({"feature": "random"}, "give d_k="),
        ({"feature": "random", "d_k": 5, "features": 0}, "a whole number from 1, got 0"),
        ({"feature": "random", "d_k": 5, "features": 2.5}, "a whole number from 1, got 2.5"),
        ({"feature": "random", "d_k": 5, "seed": -1}, "a whole number from 0, got -1"),
        ({"features": 16}, "expected feature=random"),
        ({"eps": -1e-3}, "a number from 0, got -0.001"),
        ({"eps": math.nan}, "a number from 0, got nan"),
        ({"eps": "small"}, "a number from 0, got 'small'"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(options: dict[str, object], said: str) -> None:
    with pytest.raises(AttnworksError) as error, unchecked():
        Linear(**options)  # pyright: ignore[reportArgumentType]
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("own", [lambda X: X.sum(-1), lambda X: X.mT, lambda X: 3.0])
def test_a_map_that_returns_something_else_is_refused_in_one_line(own: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(AttnworksError, match=r"map the last axis alone$") as error, unchecked():
        Linear(feature=own)(*inputs(5, 7))
    assert "\n" not in str(error.value)


def test_a_step_takes_one_position() -> None:
    Q, K, V = qkv(1, 2, 2, 2, 3, 5)
    with unchecked(), pytest.raises(UsageError, match=r"q, k and v \[batch, heads, 1, width\]"):
        Linear().step(Q, K, V)
