"""The metric in which growth is measured: how the softmax answers to a change of scores, on a sample of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Inexact
from torch import Tensor


class ScoreSample(NamedTuple):
    """What a layer's queries and keys are made from, and its weights, in n sentences; P is zero where nothing is seen.

    For a bias of the queries, X has a column of ones. States of padding may be anything finite.

    slopes    by how much a score grows for one more of s Q K^T, where scores are capped
    angle     theta of the pairs to add; 0 for plain columns
    """

    X: Float[Tensor, "n i e"]
    Y: Float[Tensor, "n j f"]
    P: Float[Tensor, "n h i j"]
    slopes: Float[Tensor, "n h i j"] | None = None
    angle: float = 0.0

    def of_heads(self, heads: Sequence[int]) -> ScoreSample:
        """The sample of some heads."""
        index = list(heads)
        return self._replace(P=self.P[:, index], slopes=None if self.slopes is None else self.slopes[:, index])


def rotated(X: Float[Tensor, "n i e"], angle: float) -> Inexact[Tensor, "n i e"]:
    """diag(e^{i theta i}) X with positions i from zero; X itself for the angle 0."""
    if not angle:
        return X
    phases = angle * torch.arange(X.shape[1], dtype=X.dtype, device=X.device)
    return torch.polar(torch.ones_like(phases), phases).unsqueeze(-1) * X


class Metric(NamedTuple):
    """F(dS)_i = d_i o J_i (d_i o dS_i) with J_i = diag(p_i) - p_i p_i^T and the slopes d_i of a cap; d = 1 without one.

    Where scores are capped, S' = c tanh(S / c) changes by d dS to first order; the curvature of tanh is left out.

    bent    P o d, and P itself without a cap
    twice   P o d o d
    """

    bent: Float[Tensor, "n h i j"]
    twice: Float[Tensor, "n h i j"]

    @classmethod
    def of(cls, sample: ScoreSample) -> Metric:
        if sample.slopes is None:
            return cls(sample.P, sample.P)
        bent = sample.P * sample.slopes
        return cls(bent, bent * sample.slopes)

    def heads(self, index: Tensor) -> Metric:
        bent = self.bent[:, index]
        return Metric(bent, bent if self.twice is self.bent else self.twice[:, index])

    def __call__(self, q: Inexact[Tensor, "n h i p"], k: Inexact[Tensor, "n h j p"]) -> Float[Tensor, "n h i j"]:
        """F(dS) of dS = Re(q k^H)."""
        change = as_real_columns(q) @ as_real_columns(k).mT
        bent = self.twice * change
        sums = bent if self.twice is self.bent else change.mul_(self.bent)
        return bent.addcmul_(self.bent, sums.sum(-1, keepdim=True), value=-1.0)

    def curvature(self, q: Inexact[Tensor, "n h i p"], k: Inexact[Tensor, "n h j p"]) -> Float[Tensor, " h"]:
        """mean_n <dS, F(dS)> of dS = Re(q k^H)."""
        return (self(q, k) @ as_real_columns(k) * as_real_columns(q)).sum((-2, -1)).mean(0)


def as_real_columns(columns: Inexact[Tensor, "*a p"]) -> Float[Tensor, "*a w"]:
    """Real and imaginary part of every complex column, side by side; real columns as they are."""
    return torch.view_as_real(columns).flatten(-2) if columns.is_complex() else columns


def whitening(sample: ScoreSample, cutoff: float) -> tuple[Float[Tensor, "e q"], Float[Tensor, "f k"]]:
    """W_x, W_y with W_x^T C_x W_x = I and W_y^T C_y W_y = I, over what of C is not zero; the same for any angle."""
    pairs = (sample.P > 0).to(sample.P.dtype).mean(1)
    return _whitening(sample.X, pairs.sum(2), cutoff), _whitening(sample.Y, pairs.sum(1), cutoff)


def _whitening(states: Tensor, seen: Tensor, cutoff: float) -> Tensor:
    """W with W^T C W = I for C = sum_i seen_i x_i x_i^T / sum_i seen_i, over what of C is not zero."""
    flat, weight = states.flatten(0, 1), seen.flatten()
    W = inverse_root(flat.mT @ (ratio(weight, weight.sum()).unsqueeze(-1) * flat), cutoff)
    return W[:, W.any(0)]


def inverse_root(C: Tensor, cutoff: float) -> Tensor:
    """C^-1/2 up to a rotation: a column per eigenvector, zero where the eigenvalue counts as zero."""
    values, vectors = torch.linalg.eigh(C)
    kept = values > cutoff * values[..., -1:]
    return vectors * torch.where(kept, values, torch.inf).rsqrt().unsqueeze(-2)


def projected(X: Inexact[Tensor, "n i e"], a: Inexact[Tensor, "h e p"]) -> Inexact[Tensor, "n h i p"]:
    """X_n a_h, for every sentence and head."""
    return torch.einsum("nie,hep->nhip", X, a).contiguous()


def pulled(X: Inexact[Tensor, "n i e"], q: Inexact[Tensor, "n h i p"]) -> Inexact[Tensor, "h e p"]:
    """mean_n X_n^H q_nh, what `projected` is the transpose of; flattened, einsum makes one product of it."""
    return torch.einsum("xe,xhp->hep", X.conj().flatten(0, 1), q.transpose(1, 2).flatten(0, 1)) / len(X)


def weighted_rows(weights: Float[Tensor, "*a i j"], k: Inexact[Tensor, "*a j p"]) -> Inexact[Tensor, "*a i p"]:
    """Real weights times columns, which may be complex."""
    if not k.is_complex():
        return weights @ k
    return torch.view_as_complex((weights @ as_real_columns(k)).unflatten(-1, (-1, 2)))


def best_gain(slope: Float[Tensor, "*h"], curvature: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """slope^2 / (2 curvature), and 0 where the loss does not fall."""
    falls = (slope > 0) & (curvature > 0)
    return torch.where(falls, ratio(slope.square(), 2 * curvature), 0.0)


def real_product(x: Tensor, y: Tensor) -> Tensor:
    """Re tr(x^H y)."""
    return (x.conj() * y).real.sum((-2, -1))


def ratio(x: Tensor, y: Tensor) -> Tensor:
    """x / y, and 0 where y is 0."""
    return torch.where(y != 0, x / torch.where(y != 0, y, 1.0), 0.0)
