"""Paths by length against every single path, parts carried to the end, counts, and the claims they stand on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.attention.softmax import entropy
from attnworks.exam.linalg.residual import relative_residual
from attnworks.models import PureAttention
from attnworks.models.anatomy import own_anatomy
from attnworks.models.multihead import Observation
from attnworks.traces.paths import (
    FrozenNorm,
    Hop,
    PathStep,
    Source,
    attend_frozen,
    attention_constant,
    carried,
    cotangents,
    path_counts,
    paths_by_length,
    rollout,
    rollout_step,
)
from tests.helpers import assert_close
from tests.model_helpers import attention_config, filled, pure_config, the

B, N, D_E, D_V, HEADS = 2, 5, 7, 2, 3


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def norm(*, centred: bool = True) -> FrozenNorm:
    return FrozenNorm(randn(B, N, 1).exp(), randn(D_E), randn(D_E), centred)


def hop(
    heads: int = HEADS,
    d_v: int = D_V,
    *,
    before: FrozenNorm | None = None,
    after: FrozenNorm | None = None,
    bias: bool = True,
) -> Hop:
    P, b_V, b_O = randn(B, heads, N, N).softmax(-1), randn(heads, d_v), randn(D_E)
    weights = randn(heads, D_E, d_v), randn(heads, d_v, D_E)
    return Hop(lambda: P, *weights, b_V if bias else None, b_O if bias else None, before, after)


def stack(kind: str) -> list[PathStep]:
    """Three attention layers, mostly with an MLP after each."""
    mlp = [Source(randn(B, N, D_E)) for _ in range(3)]
    if kind == "plain":
        return [PathStep((hop(bias=False),)) for _ in mlp]
    if kind == "ragged":
        return [PathStep((hop(heads, d_v),)) for heads, d_v in ((1, 5), (3, 2), (2, 11))]
    if kind == "no skip":
        return [PathStep((hop(),), skip=False) for _ in mlp]
    if kind == "pre":
        return [step for source in mlp for step in (PathStep((hop(before=norm(centred=False)),)), PathStep((source,)))]
    if kind == "post":
        return [step for source in mlp for step in (PathStep((hop(),), norm=norm()), PathStep((source,), norm=norm()))]
    if kind == "norm after":
        return [PathStep((hop(before=norm(centred=False), after=norm()),)) for _ in mlp]
    if kind == "parallel":
        return [PathStep((source, hop(before=norm()))) for source in mlp]
    assert kind == "cross"
    cross = [PathStep((Source(randn(B, N, D_E), length=1, paths=2),), norm=norm()) for _ in mlp]
    return [step for seen in cross for step in (PathStep((hop(),), norm=norm()), seen)]


KINDS = ("plain", "ragged", "no skip", "pre", "post", "norm after", "parallel", "cross")
kinds = pytest.mark.parametrize("kind", KINDS)


def one_head(branch: Hop, h: int, Z: Tensor) -> Tensor:
    Z = Z if branch.norm is None else branch.norm.linear(Z)
    added = branch.maps()[:, h] @ (Z @ branch.W_V[h]) @ branch.W_O[h]
    return added if branch.after is None else branch.after.linear(added)


class Beginning(NamedTuple):
    """What paths begin with, its length so far, the step after which it is in the stream, and whether it counts."""

    T: Tensor
    length: int
    after: int
    paths: int


def beginnings(entry: Tensor, steps: Sequence[PathStep]) -> Iterator[Beginning]:
    yield Beginning(entry, 0, -1, 1)
    for at, step in enumerate(steps):
        for branch in step.branches:
            if isinstance(branch, Source):
                T, length, paths = branch.output, branch.length, branch.paths
            else:
                T, length, paths = constant_by_hand(branch).expand_as(entry), 1, 0
                T = T if branch.after is None else branch.after.linear(T) + the(branch.after.beta)
            yield Beginning(T if step.norm is None else step.norm.linear(T), length, at, paths)
        if step.norm is not None:
            yield Beginning(the(step.norm.beta).expand_as(entry), 0, at, 0)


def constant_by_hand(branch: Hop) -> Tensor:
    total = torch.zeros(D_E, dtype=torch.float64) if branch.b_O is None else branch.b_O
    for h in range(branch.paths):
        read = 0.0 if branch.norm is None else the(branch.norm.beta) @ branch.W_V[h]
        bias = torch.zeros_like(branch.W_V[h, 0]) if branch.b_V is None else branch.b_V[h]
        total = total + (bias + read) @ branch.W_O[h]
    return total


def single_paths(entry: Tensor, steps: Sequence[PathStep]) -> Iterator[tuple[int, Tensor, int]]:
    """Length and value of every path, one after the other: each hop is skipped, or taken through one head."""
    for begin in beginnings(entry, steps):
        rest = steps[begin.after + 1 :]
        choices: list[list[tuple[Hop, int] | None]] = []
        for step in rest:
            choices.append([None] if step.skip else [])
            choices[-1] += [(own, h) for own in step.branches if isinstance(own, Hop) for h in range(own.paths)]
        for path in product(*choices):
            T = begin.T
            for step, choice in zip(rest, path, strict=True):
                T = T if choice is None else one_head(*choice, T)
                T = T if step.norm is None else step.norm.linear(T)
            yield begin.length + sum(choice is not None for choice in path), T, begin.paths


@kinds
def test_paths_by_length_against_every_path(kind: str) -> None:
    entry, steps = randn(B, N, D_E), stack(kind)
    C = paths_by_length(entry, steps)
    expected, counts = torch.zeros_like(C), [0] * len(C)
    for length, path, paths in single_paths(entry, steps):
        expected[length] += path
        counts[length] += paths
    assert len(C) == 4
    assert path_counts(steps) == counts
    scale = expected.abs().max()
    assert_close(C / scale, expected / scale)


def real_forward(entry: Tensor, steps: Sequence[PathStep]) -> Tensor:
    x = entry
    for step in steps:
        y = x if step.skip else torch.zeros_like(x)
        for branch in step.branches:
            if isinstance(branch, Source):
                y = y + branch.output
            else:
                read = x if branch.norm is None else branch.norm.linear(x) + the(branch.norm.beta)
                V = read.unsqueeze(1) @ branch.W_V + (0 if branch.b_V is None else branch.b_V.unsqueeze(1))
                added = (branch.maps() @ V @ branch.W_O).sum(1) + (0 if branch.b_O is None else branch.b_O)
                y = y + (added if branch.after is None else branch.after.linear(added) + the(branch.after.beta))
        x = y if step.norm is None else step.norm.linear(y) + the(step.norm.beta)
    return x


@kinds
def test_lengths_add_up_to_the_exit(kind: str) -> None:
    entry, steps = randn(B, N, D_E), stack(kind)
    exit = real_forward(entry, steps)
    scale = exit.abs().max()
    assert_close(paths_by_length(entry, steps).sum(0) / scale, exit / scale)


@given(st.integers(1, 9), st.integers(1, 5))
def test_counts_are_binomial(layers: int, heads: int) -> None:
    """S0.12: C(L, l) H^l, in all (H + 1)^L."""
    one = Hop(torch.Tensor, torch.zeros(heads, 3, 1), torch.zeros(heads, 1, 3))
    counts = path_counts([PathStep((one,))] * layers)
    assert counts == [math.comb(layers, length) * heads**length for length in range(layers + 1)]
    assert sum(counts) == (heads + 1) ** layers


@kinds
def test_parts_carried_to_the_end_add_up(kind: str) -> None:
    """The last hop of every path: the entry, heads, sources, constants and betas are all there is in the exit."""
    entry, steps = randn(B, N, D_E), stack(kind)
    exit, G = real_forward(entry, steps), randn(B, N, D_E)
    at_entry, at_steps = cotangents(G, steps)
    begin = carried(entry, [PathStep(()), *steps])
    total, share = begin, (entry * at_entry).sum()
    for at, step in enumerate(steps):
        x = real_forward(entry, steps[:at])
        parts: list[Tensor] = []
        for branch in step.branches:
            if isinstance(branch, Source):
                parts.append(branch.output)
            else:
                parts += [one_head(branch, h, x) for h in range(branch.paths)]
                parts.append(attention_constant(branch, branch.maps()))
        for part in parts:
            total = total + carried(part, steps[at:])
            share = share + (part * at_steps[at].before).sum()
        if step.norm is not None and step.norm.beta is not None:
            beta = step.norm.beta.expand_as(entry)
            total = total + carried(beta, [PathStep(()), *steps[at + 1 :]])
            share = share + (beta * at_steps[at].after).sum()
    scale = exit.abs().max()
    assert_close(total / scale, exit / scale)
    assert_close(share / scale, (exit * G).sum() / scale)


@kinds
def test_readers_are_the_transposed(kind: str) -> None:
    steps, G, T = stack(kind), randn(B, N, D_E), randn(B, N, D_E)
    at_entry, at_steps = cotangents(G, steps)
    for at, reader in enumerate(at_steps):
        scale = carried(T, steps[at:]).abs().max().clamp_min(1.0)
        assert_close((T * reader.before).sum() / scale, (carried(T, steps[at:]) * G).sum() / scale)
    expected = (carried(T, [PathStep(()), *steps]) * G).sum()
    assert_close((T * at_entry).sum() / expected.abs().clamp_min(1.0), expected / expected.abs().clamp_min(1.0))


@given(st.integers(0, 10_000), st.booleans())
def test_frozen_norm_is_linear_and_transposes(seed: int, centred: bool) -> None:
    torch.manual_seed(seed)
    frozen, Z, G = norm(centred=centred), randn(B, N, D_E), randn(B, N, D_E)
    assert_close(frozen.linear(2 * Z - G), 2 * frozen.linear(Z) - frozen.linear(G))
    assert (frozen.linear(Z) * G).sum().item() == pytest.approx((Z * frozen.transposed(G)).sum().item(), abs=1e-9)


def test_heads_one_by_one() -> None:
    branch, Z = hop(before=norm()), randn(4, B, N, D_E)
    together = attend_frozen(branch, branch.maps(), Z)
    for T, expected in zip(Z, together, strict=True):
        assert_close(sum((one_head(branch, h, T) for h in range(HEADS)), torch.zeros(1)), expected)


def test_a_query_that_sees_nothing_gets_the_output_bias_alone() -> None:
    branch = hop(before=norm())
    P = branch.maps().clone()
    P[1, :, 2] = 0.0
    assert branch.b_O is not None
    assert_close(attention_constant(branch, P)[1, 2], branch.b_O)
    assert_close(attention_constant(branch, P)[0], attention_constant(branch, branch.maps())[0])


class Seen:
    """The maps of every layer."""

    def __init__(self) -> None:
        self.P: list[Tensor] = []

    def __call__(self, seen: Observation) -> None:
        self.P.append(seen.P.detach())


def frozen(model: PureAttention, X: Tensor) -> list[PathStep]:
    seen = Seen()
    model(X, observe=seen)
    weights = [the(block.parts[0].weights)() for block in the(own_anatomy(model))]
    return [
        PathStep((Hop(lambda P=P: P, own.W_V, own.W_O, own.b_V, own.b_O),), model.config.skip)
        for P, own in zip(seen.P, weights, strict=True)
    ]


@pytest.mark.parametrize("skip", [False, True])
def test_attention_only_networks(skip: bool) -> None:
    """S0.11 and S0.12 on a real forward pass: without skip every path from the input is as long as the network."""
    model, X = filled(PureAttention(pure_config(layers=4, skip=skip, mlp=False, norm=False))).double(), randn(2, 5, 7)
    steps = frozen(model, X)
    assert_close(paths_by_length(X, steps).sum(0), model(X))
    assert path_counts(steps) == ([math.comb(4, j) * 3**j for j in range(5)] if skip else [0, 0, 0, 0, 81])
    assert len(paths_by_length(X[:, :1], frozen(model, X[:, :1]))) == 5


def test_many_long_paths_are_the_collapsed_ones() -> None:
    """S1.17: in a network with skip of L = 6, H = 2, the relative residual falls with the length of paths."""
    config = pure_config(layers=6, mlp=False, norm=False, skip=True, attention=attention_config(heads=2, bias=False))
    medians: list[list[float]] = []
    for seed in range(5):
        torch.manual_seed(seed)
        model, X = PureAttention(config).double(), randn(1, 11, 7)
        medians.append(relative_residual(paths_by_length(X, frozen(model, X))).squeeze(1).tolist())
    residuals = torch.tensor(medians).median(0).values
    assert (residuals[0] > 0.5) and (residuals[6] < 0.1 * residuals[0])
    assert (residuals[1:] < residuals[:-1]).sum() >= 5


def test_rollout() -> None:
    P = [randn(B, HEADS, N, N).softmax(-1) for _ in range(3)]
    P[1][0, :, 2] = 0.0
    A = [rollout_step(maps) for maps in P]
    product_of_all = rollout(A)
    expected = torch.eye(N, dtype=torch.float64)
    for maps, got in zip(P, product_of_all, strict=True):
        mixed = maps.mean(1) / 2 + torch.eye(N) / 2
        expected = (mixed / mixed.sum(-1, keepdim=True)) @ expected
        assert_close(got, expected)
    assert_close(product_of_all.sum(-1), torch.ones(3, B, N, dtype=torch.float64))
    assert_close(A[1][0, 2], torch.eye(N, dtype=torch.float64)[2])
    uniform = torch.full((1, 2, N, N), 1 / N, dtype=torch.float64)
    assert entropy(rollout([rollout_step(uniform)] * 60)[-1]).exp().min().item() == pytest.approx(N)
