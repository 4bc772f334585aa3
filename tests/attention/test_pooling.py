"""Attention pooling: similarities by hand, and the parent of dense, Luong's, linear and graph attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attnworks.attention import Context, Geometry, Mask, Mechanism, MechanismSpec
from attnworks.attention.dense import Dense
from attnworks.attention.linear import Linear
from attnworks.attention.luong import LuongDot
from attnworks.attention.pooling import Pooling
from attnworks.core.errors import UnknownNameError, UsageError
from tests.helpers import B, H, assert_close, qkv, unchecked

REAL = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]]).bool()
ADDED = torch.linspace(-2, 2, 35, dtype=torch.float64).reshape(5, 7).masked_fill(torch.eye(5, 7).bool(), -torch.inf)


def row(f: list[float], **options: str) -> Tensor:
    """Weights of one query 1.0 for keys of one number each, at scale 1."""
    Q, K = torch.ones(1, 1, 1, 1).double(), torch.tensor(f).double().reshape(1, 1, -1, 1)
    P = Pooling(**options)(Q, K, K, None, Context(scale=1.0), weights=True).P
    assert P is not None
    return P.flatten()


def normalised(*f: float) -> Tensor:
    return torch.tensor(f, dtype=torch.float64) / sum(f)


def test_similarities_by_hand() -> None:
    keys = [2.0, -1.0, 0.5]
    assert_close(row(keys, similarity="exp"), normalised(*(math.exp(k) for k in keys)))
    assert_close(row(keys, similarity="gaussian"), normalised(*(math.exp(-((1 - k) ** 2) / 2) for k in keys)))
    assert_close(row(keys, similarity="polynomial"), normalised(9, 0, 2.25))
    assert_close(row(keys, similarity="elu"), normalised(3, math.exp(-1), 1.5))


def test_elu_keeps_its_digits_far_below_zero() -> None:
    """phi(-20) = exp(-20) cancels: weights 2/5 and 3/5 of the values 1 and 3. As elu(-20) + 1 it has no digits left."""
    Q, K, V = (torch.tensor(x, dtype=torch.float32).reshape(1, 1, -1, 1) for x in ([-20.0], [1.0, 2.0], [1.0, 3.0]))
    assert Pooling(similarity="elu")(Q, K, V).Y.item() == pytest.approx(2.2, rel=1e-6)
    assert Linear(feature="elu")(Q, K, V).Y.item() == pytest.approx(2.2, rel=1e-6)
    small = torch.full((1, 1, 1, 1), -700.0, dtype=torch.float64)
    assert Pooling(similarity="elu")(small, K.double(), V.double()).Y.item() == pytest.approx(2.2, rel=1e-12)


def test_values_by_hand() -> None:
    Q, K, V = qkv()
    P = Dense()(Q, K, V, weights=True).P
    assert P is not None
    assert_close(Pooling(values="relu")(Q, K, V).Y, P @ V.clamp_min(0))
    assert_close(Pooling(values="tanh")(Q, K, V).Y, P @ V.tanh())
    assert_close(Pooling(values=lambda V: V[..., :3] ** 2)(Q, K, V).Y, P @ V[..., :3] ** 2)


def test_keys_of_one_length_make_gaussian_and_exp_the_same() -> None:
    """||q - k||^2 = ||q||^2 + ||k||^2 - 2 q.k, and only the last term differs between keys."""
    Q, K, V = qkv()
    K = K / K.norm(dim=-1, keepdim=True)
    assert_close(Pooling(similarity="gaussian")(Q, K, V).Y, Pooling()(Q, K, V).Y)
    assert (
        Pooling(similarity="gaussian")(Q, 3 * V[..., :11], V).Y - Pooling()(Q, 3 * V[..., :11], V).Y
    ).abs().max() > 0.1


# --- the parent of the others -----------------------------------------------------------------------------------------


MASKS = {
    "none": Mask(),
    "padding": Mask(REAL),
    "causal": Mask(causal=True),
    "causal-padding": Mask(REAL, True),
    "additive": Mask(dense=ADDED),
    "all": Mask(REAL, True, ADDED > 0),
}
CHILDREN: dict[str, tuple[Mechanism, Pooling]] = {
    "dense": (Dense(), Pooling()),
    "luong-dot": (LuongDot(), Pooling(similarity=lambda Q, K: (Q @ K.mT).exp())),
    "linear-elu": (Linear(feature="elu"), Pooling(similarity="elu")),
    "linear-relu": (Linear(feature="relu"), Pooling(similarity=lambda Q, K: Q.relu() @ K.relu().mT)),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name, (child, _) in CHILDREN.items()
        for kind, mask in MASKS.items()
        if mask.dense is None or "dense" in child.supported_masks
    ],
)
def test_it_is_the_parent_of(name: str, kind: str) -> None:
    (child, parent), mask = CHILDREN[name], MASKS[kind]
    inputs = qkv(grad=True)
    G = torch.randn(B, H, 5, 13, dtype=torch.float64)
    got, want = parent(*inputs, mask), child(*inputs, mask)
    assert_close(got.Y, want.Y)
    for ours, theirs in zip(*(torch.autograd.grad((T.Y * G).sum(), inputs) for T in (got, want)), strict=True):
        assert_close(ours, theirs)


def test_a_graph_is_a_similarity_that_is_zero_without_an_edge() -> None:
    Q, K, V = qkv()
    edges = torch.rand(5, 7, generator=torch.Generator().manual_seed(3)) < 0.4
    edges[2] = False
    pooled = Pooling(similarity=lambda Q, K: (Q @ K.mT / 11**0.5).exp() * edges)(Q, K, V)
    assert_close(pooled.Y, Dense()(Q, K, V, Mask(dense=edges)).Y)
    assert (pooled.Y[:, :, 2] == 0).all()


@pytest.mark.parametrize("similarity", ["exp", "gaussian", "polynomial", "elu"])
def test_an_additive_mask_multiplies_by_its_exponential(similarity: str) -> None:
    Q, K, V = qkv()
    plain = Pooling(similarity=similarity)(Q, K, V, weights=True).P
    assert plain is not None
    want = plain * ADDED.exp()
    got = Pooling(similarity=similarity)(Q, K, V, Mask(dense=ADDED), weights=True).P
    assert_close(got, want / want.sum(-1, keepdim=True))


@pytest.mark.parametrize("similarity", ["polynomial", "elu"])
def test_a_huge_additive_mask_does_not_overflow(similarity: str) -> None:
    Q, K, V = qkv(dtype=torch.float32)
    added = torch.zeros(5, 7).index_fill(1, torch.tensor([3]), 1e4)
    assert_close(Pooling(similarity=similarity)(Q, K, V, Mask(dense=added)).Y, V[:, :, 3:4].expand(B, H, 5, 13))


def test_a_query_that_is_like_nothing_gives_zeros() -> None:
    Q, K, V = qkv(grad=True)
    far = torch.where(torch.arange(5)[:, None] == 3, -1.0, 1.0) * Q.detach().abs()
    Y = Pooling(similarity=lambda Q, K: Q.relu() @ K.abs().mT)(far.requires_grad_(), K, V).Y
    assert (Y[:, :, 3] == 0).all() and (Y[:, :, :3] != 0).all()
    for gradient in torch.autograd.grad(Y.sum(), (far, K, V)):
        assert gradient.isfinite().all()


# --- functions of one's own -------------------------------------------------------------------------------------------


def test_a_linear_map_of_values_is_trained_with_the_rest() -> None:
    """g(v) = W_v v of eq. 18, into another width."""
    Q, K, V = qkv()
    pooling = Pooling(values=nn.Linear(13, 3, bias=False)).double()
    assert [name for name, _ in pooling.named_parameters()] == ["values.weight"]
    (W,) = pooling.parameters()
    Y = pooling(Q, K, V).Y
    assert_close(Y, Dense()(Q, K, V @ W.mT).Y)
    Y.sum().backward()
    assert W.grad is not None and (W.grad != 0).all()


def test_options_in_text() -> None:
    pooling = MechanismSpec.parse("pooling:similarity=gaussian,values=relu").build(Geometry(2, 11, 13))
    assert isinstance(pooling, Pooling)
    assert (pooling.similarity, pooling.values) == ("gaussian", "relu")
    assert pooling.dot_scale(11, Context()) is None


@pytest.mark.parametrize(
    ("option", "known"), [("similarity", "elu, exp, gaussian, polynomial"), ("values", "identity, relu, tanh")]
)
def test_unknown_names_list_the_known(option: str, known: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        MechanismSpec.parse(f"pooling:{option}=cosine").build(Geometry(2, 11, 13))
    assert str(caught.value).startswith(f"pooling with {option} 'cosine': expected one of {known}, got an unknown name")


@pytest.mark.parametrize(
    ("f", "got"),
    [
        (lambda Q, K: Q @ K.mT, "negative numbers or NaN"),
        (lambda Q, K: (Q @ K.mT).log(), "negative numbers or NaN"),
        (lambda Q, K: (K @ Q.mT).exp(), "shape [3, 2, 7, 5]"),
    ],
    ids=["negative", "nan", "transposed"],
)
def test_a_similarity_that_is_none_is_refused(f: Callable[[Tensor, Tensor], Tensor], got: str) -> None:
    """S4.124, S4.125: scores 1 and -.99 would give the weights 100 and -99."""
    with unchecked(), pytest.raises(UsageError) as caught:
        Pooling(similarity=f)(*qkv())
    assert str(caught.value) == (
        "pooling attention with a similarity of one's own: expected numbers from 0 of shape [3, 2, 5, 7], "
        f"got {got}; give f(Q, K) >= 0 for every pair, for instance by exp, relu or square"
    )


def test_a_map_that_loses_values_is_refused() -> None:
    with unchecked(), pytest.raises(UsageError) as caught:
        Pooling(values=lambda V: V.mean(2))(*qkv())
    assert str(caught.value) == (
        "pooling attention with a map of values of one's own: expected shape [3, 2, 7, any], got shape [3, 2, 13]; "
        "give g(V) with one row for each row of V"
    )
