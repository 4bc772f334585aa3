"""All paths through a stack whose attention and norms are frozen, summed by length or by head.

A stack is an entry and steps. Each step adds what its branches give to the stream, or puts it in the stream's place,
and may norm the result. A `Hop` is an attention layer: linear in the stream once P and the norm's scales are frozen.
A `Source` does not depend on the stream any more: MLPs, which add no length, and cross-attention, of length one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """N(z) = inverse_i gamma (z - mean(z)) for row i, to which the norm adds beta; without the mean if not `centred`.

    inverse    1 / sqrt(var + eps) of each row in the real forward pass
    """

    inverse: Float[Tensor, "b i 1"]
    gamma: Float[Tensor, " e"]
    beta: Float[Tensor, " e"] | None
    centred: bool

    def linear(self, Z: Float[Tensor, "*a b i e"]) -> Float[Tensor, "*a b i e"]:
        Z = Z - Z.mean(-1, keepdim=True) if self.centred else Z
        return Z * (self.inverse * self.gamma)

    def transposed(self, G: Float[Tensor, "*a b i e"]) -> Float[Tensor, "*a b i e"]:
        """N^T, so that <N(Z), G> = <Z, N^T(G)>."""
        G = G * (self.inverse * self.gamma)
        return G - G.mean(-1, keepdim=True) if self.centred else G


@dataclass(frozen=True, eq=False)
class Hop:
    """S(Z) = sum_h P_h N(Z) W_V,h W_O,h, and the constant that attention adds to it.

    maps     returns P [b h i i]; called when the hop is taken, so that maps of one layer at a time are in memory
    norm     of what attention reads, if the norm comes first
    after    of what attention computes, before it is added to the stream
    """

    maps: Callable[[], Tensor]
    W_V: Float[Tensor, "h e v"]
    W_O: Float[Tensor, "h v e"]
    b_V: Float[Tensor, "h v"] | None = None  # noqa: N815
    b_O: Float[Tensor, " e"] | None = None  # noqa: N815
    norm: FrozenNorm | None = None
    after: FrozenNorm | None = None

    @property
    def paths(self) -> int:
        return self.W_V.shape[0]


@dataclass(frozen=True, eq=False)
class Source:
    """A new beginning of paths: its output enters those of the given length.

    paths    how many paths it stands for in `path_counts`: one for each head of cross-attention, none for an MLP
    """

    output: Float[Tensor, "b i e"]
    length: int = 0
    paths: int = 0


@dataclass(frozen=True, eq=False)
class PathStep:
    """x -> norm(x + sum of branches at x), without x if not `skip`; a parallel block is one step of two branches."""

    branches: tuple[Hop | Source, ...]
    skip: bool = True
    norm: FrozenNorm | None = None


def paths_by_length(entry: Float[Tensor, "b i e"], steps: Sequence[PathStep]) -> Float[Tensor, "l b i e"]:
    """C_j = sum over all paths of length j, where length counts the attention layers passed; sum_j C_j is the exit.

    C_0 = entry, and for each step C_j <- N(C_j + S(C_{j-1})), with every C of a layer in the same matrix products.
    Source: D1 (S0.11, S0.12); L (L + 1) / 2 applications of attention stand for (H + 1)^L paths.
    Holds when: P and the scales of the norms are those of the real forward pass; recomputing them inside partial sums
    gives other terms.
    Departs: constants of attention enter C_1 (D1), MLPs and beta of norms after the sum C_0, cross-attention C_1.
    """
    C = entry.unsqueeze(0)
    for step in steps:
        given = [_given(branch, C) for branch in step.branches]
        C = _sum([C, *given] if step.skip else given)
        if step.norm is not None:
            C = step.norm.linear(C)
            if step.norm.beta is not None:
                C[0] += step.norm.beta
    return C


def path_counts(steps: Sequence[PathStep]) -> list[int]:
    """How many paths of each length begin at the entry or in cross-attention: C(L, j) H^j with L layers of H heads.

    Source: S0.12; for layers of different H_l the elementary symmetric polynomials of H_1 .. H_L. Exact integers.

    >>> W = torch.zeros(2, 3, 1), torch.zeros(2, 1, 3)
    >>> path_counts([PathStep((Hop(torch.Tensor, *W),))] * 6)
    [1, 12, 60, 160, 240, 192, 64]
    """
    counts = [1]
    for step in steps:
        terms = [counts] if step.skip else []
        for branch in step.branches:
            if isinstance(branch, Hop):
                terms.append([0, *(branch.paths * count for count in counts)])
            else:
                terms.append([0] * branch.length + [branch.paths])
        counts = [sum(same_length) for same_length in zip_longest(*terms, fillvalue=0)]
    return counts


def attend_frozen(hop: Hop, P: Float[Tensor, "b h i i"], Z: Float[Tensor, "l b i e"]) -> Float[Tensor, "l b i e"]:
    """S(Z) = sum_h P_h N(Z) W_V,h W_O,h for several Z at once: W_V, then P, then W_O, all heads in one product each.

    Source: D1; W_V W_O (S0.6) is never formed, as d_v is mostly far below d_e.
    """
    h, e, v = hop.W_V.shape
    V = (Z if hop.norm is None else hop.norm.linear(Z)) @ hop.W_V.transpose(0, 1).reshape(e, h * v)
    V = V.unflatten(-1, (h, v)).permute(1, 3, 2, 0, 4).flatten(-2)  # [l b i (h v)] -> [b h i (l v)]
    Y = (P @ V).unflatten(-1, (len(Z), v)).permute(3, 0, 2, 1, 4).flatten(-2)  # [b h i (l v)] -> [l b i (h v)]
    added = Y @ hop.W_O.flatten(0, 1)
    return added if hop.after is None else hop.after.linear(added)


def attention_constant(hop: Hop, P: Float[Tensor, "b h i i"]) -> Float[Tensor, "b i e"]:
    """1 b^T with b = b_O + sum_h (beta W_V,h + b_V,h) W_O,h, all of attention that does not depend on the stream.

    Source: D2 (S0.5, S0.10); beta is that of the norm before attention. A norm after it is applied to the constant.
    Departs: rows of P that sum to zero (queries that see no key) have b_O alone.
    """
    bias = hop.W_O.new_zeros(hop.W_O.shape[:2]) if hop.b_V is None else hop.b_V
    if hop.norm is not None and hop.norm.beta is not None:
        bias = bias + hop.norm.beta @ hop.W_V
    constant = torch.einsum("bhi,he->bie", P.sum(-1), torch.einsum("hv,hve->he", bias, hop.W_O))
    constant = constant if hop.b_O is None else constant + hop.b_O
    if hop.after is None:
        return constant
    constant = hop.after.linear(constant)
    return constant if hop.after.beta is None else constant + hop.after.beta


def carried(T: Float[Tensor, "*a b i e"], steps: Sequence[PathStep]) -> Float[Tensor, "*a b i e"]:
    """The part of the exit that comes from a summand T of the first step: T through the norms, past later branches.

    With T = Y_h W_O,h it is the sum of all paths whose last hop is that head; these, the entry, MLPs and constants add
    up to the exit.
    Source: S0.11, by the last hop of each path. A later step without skip leaves nothing of T.
    """
    for number, step in enumerate(steps):
        T = T if step.skip or number == 0 else torch.zeros_like(T)
        T = T if step.norm is None else step.norm.linear(T)
    return T


class StepCotangents(NamedTuple):
    """Gradients of <exit, G> by the summands of a step (`before` its norm) and by its result (`after` the norm)."""

    before: Float[Tensor, "b i e"]
    after: Float[Tensor, "b i e"]


def cotangents(
    G: Float[Tensor, "b i e"], steps: Sequence[PathStep]
) -> tuple[Float[Tensor, "b i e"], list[StepCotangents]]:
    """G_0 for the entry and G_p for each step p, so that <carried(T), G> = <T, G_p> for every summand T of step p.

    Source: the transposed of `carried`: one walk back serves all heads of all layers.
    """
    found: list[StepCotangents] = []
    for step in reversed(steps):
        before = G if step.norm is None else step.norm.transposed(G)
        found.append(StepCotangents(before, after=G))
        G = before if step.skip else torch.zeros_like(G)
    return G, found[::-1]


def forward_rounding(dtype: torch.dtype, steps: int, largest: float) -> float:
    """eps sqrt(steps) max |x|: the error of a forward pass that rounds each of its sums once, at random.

    `largest` is max |x| over the streams of all depths. Paths recompose the exit within ten times this.
    """
    return torch.finfo(dtype).eps * math.sqrt(steps) * largest


def rollout_step(P: Float[Tensor, "b h i i"]) -> Float[Tensor, "b i i"]:
    """A = (mean_h P_h + I) / 2, each row divided by its sum.

    Source: Abnar and Zuidema 2020, attention rollout. The sum differs from one only where a query sees no key.
    """
    A = P.mean(1) + torch.eye(P.shape[-1], dtype=P.dtype, device=P.device)
    return A / A.sum(-1, keepdim=True)


def rollout(steps: Sequence[Float[Tensor, "b i i"]]) -> Float[Tensor, "l b i i"]:
    """A_l ... A_1 for every layer l: how much of each input token is in each token after the layer.

    Source: Abnar and Zuidema 2020.
    Departs: W_V, W_O, MLPs and norms have no influence on it, unlike on `carried`.
    """
    products = [steps[0]]
    for A in steps[1:]:
        products.append(A @ products[-1])
    return torch.stack(products)


def _given(branch: Hop | Source, C: Tensor) -> Tensor:
    """What a branch adds to paths of length 0, 1, ...: [l b i e]."""
    if isinstance(branch, Source):
        return torch.cat([C.new_zeros(branch.length, *C.shape[1:]), branch.output.unsqueeze(0)])
    P = branch.maps().to(C.dtype)  # a model may compute scores in float32
    longer = attend_frozen(branch, P, C)
    longer[0] += attention_constant(branch, P)
    return torch.cat([C.new_zeros(1, *C.shape[1:]), longer])


def _sum(terms: Sequence[Tensor]) -> Tensor:
    """Terms of several lengths, a missing one counting as zero."""
    longest = max(terms, key=len)
    total = longest.clone()
    for term in terms:
        if term is not longest:
            total[: len(term)] += term
    return total
