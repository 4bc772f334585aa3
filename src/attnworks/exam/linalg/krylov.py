"""The leading part of a spectrum, at a fraction of the cost of the whole spectrum.

Block Lanczos: an orthonormal basis Q of the span of B, G B, G^2 B, ... with G = X^T X and B some random columns. The
eigenvalues theta_1 >= theta_2 >= ... of T = Q^T G Q approach those of G from below, the largest first. The error bound
||G v - theta v|| of each is known without more work.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.core.tensors import widened
from attnworks.exam.linalg.spectrum import gram_singular_values, over_threads, rank_for_energy

COLUMNS_SEED = 20210503
"""Seed of the random columns: the same input gives the same output."""
SMALL_MATRIX = 128
"""With fewer rows or columns, the steps cost more than all eigenvalues of the Gram matrix."""


class LeadingSpectrum(NamedTuple):
    """The first `known` values of every spectrum, then zeros; ||X||_F^2; the rank that reaches the wanted share."""

    values: Float[Tensor, "*a r"]
    known: Int[Tensor, "*a"]
    energy: Float[Tensor, "*a"]
    rank: Int[Tensor, "*a"]

    def cumulative_energy(self) -> Float[Tensor, "*a r"]:
        """sum_{r' <= r} s_r'^2 / ||X||_F^2; it stays level after the known values."""
        scale = torch.where(self.energy > 0, self.energy, 1.0).unsqueeze(-1)
        return self.values.square().cumsum(-1) / scale

    def stable_rank(self) -> Float[Tensor, "*a"]:
        """||X||_F^2 / s_1^2; 0 for X = 0."""
        first = self.values[..., 0].square()
        return self.energy / torch.where(first > 0, first, 1.0)


def leading_spectrum(
    X: Float[Tensor, "*a i j"],
    share: float = 0.9,
    precision: float = 1e-5,
    block: int = 16,
    steps: tuple[int, ...] = (3, 6),
) -> LeadingSpectrum:
    """The leading singular values of X, as many as hold `share` of ||X||_F^2, and their number, `rank`.

    Holds when: the certificate does; then their energy is right within `precision` * ||X||_F^2, and `rank` is the same
    for every spectrum within that. Each matrix is checked after the given numbers of steps; without a certificate in
    the end, its whole spectrum is computed by `gram_singular_values`.
    Departs: the certificate is not a proof. It bounds the error of the values found, with the gap to the others
    estimated from those found. A value that the random columns miss goes unnoticed, and so do more than `block` equal
    values, except for rounding, unless too little energy is left to reach the share.
    """
    wide = widened(X).detach()
    flat = wide.reshape(-1, *wide.shape[-2:])
    columns = min(flat.shape[-2:])
    if block * (max(steps) + 1) > columns:
        found = over_threads(lambda part: _whole(part, share), flat)
    else:
        found = over_threads(lambda part: _leading(part, share, precision, block, steps), flat)
    values, (known, rank, energy) = found[:, :-3], found[:, -3:].unbind(-1)
    lead = X.shape[:-2]
    return LeadingSpectrum(
        values[:, : max(1, int(known.max()))].reshape(*lead, -1),
        known.long().reshape(lead),
        energy.reshape(lead),
        rank.long().reshape(lead),
    )


def leading_singular_value(
    X: Float[Tensor, "*a i j"], precision: float = 1e-5, block: int = 2, steps: tuple[int, ...] = (4, 8, 16)
) -> Float[Tensor, "*a"]:
    """s_1 within `precision` * s_1, by a few steps of block Lanczos, or from all eigenvalues if these do not suffice.

    Holds when: as for `leading_spectrum`; the certificate |theta - s_1^2| <= ||G v - theta v|| needs no gap.
    For fewer than `SMALL_MATRIX` rows or columns the whole spectrum is computed, which is faster there.
    """
    wide = widened(X).detach()
    if min(X.shape[-2:]) < max(SMALL_MATRIX, block * (max(steps) + 1)):
        return gram_singular_values(wide)[..., 0]
    flat = wide.reshape(-1, *wide.shape[-2:])
    return over_threads(lambda part: _leading_value(part, precision, block, steps), flat).reshape(X.shape[:-2])


def _leading_value(X: Tensor, precision: float, block: int, steps: tuple[int, ...]) -> Tensor:
    first, open_ = X.new_zeros(X.shape[0]), torch.arange(X.shape[0], device=X.device)
    Q, T = _start(X, block), X.new_zeros(X.shape[0], 0, 0)
    for step in range(1, max(steps) + 1):
        Q, T, C = _step(X, Q, T, block)
        if step not in steps:
            continue
        theta, S = torch.linalg.eigh(T)
        distance = torch.linalg.vector_norm((C @ S[:, -block:, -1:]).squeeze(-1), dim=-1)
        sure = distance <= precision * theta[:, -1]
        first[open_[sure]] = theta[sure, -1].clamp_min(0.0).sqrt()
        open_, X, Q, T = open_[~sure], X[~sure], Q[~sure], T[~sure]
        if not len(open_):
            return first
    first[open_] = gram_singular_values(X)[:, 0]
    return first


def _start(X: Tensor, block: int) -> Tensor:
    source = torch.Generator().manual_seed(COLUMNS_SEED)
    columns = torch.randn(X.shape[-1], block, generator=source, dtype=torch.float64).to(X)
    return torch.linalg.qr(columns).Q.expand(X.shape[0], -1, -1)


def _step(X: Tensor, Q: Tensor, T: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """One more block: G Q = Q T + Q_next C [0 ... 0 I]. Returns [Q Q_next], T and C."""
    W = X.mT @ (X @ Q[..., -block:])
    H = Q.mT @ W
    before = T.shape[-1]
    T = torch.cat([torch.cat([T, H[:, :before].mT], -2), H], -1)
    rest = W - Q @ H
    for _ in range(2):  # after the first time, directions that come from rounding are not yet orthogonal to Q
        rest = torch.linalg.qr(rest - Q @ (Q.mT @ rest)).Q
    return torch.cat([Q, rest], -1), T, rest.mT @ W


def _leading(X: Tensor, share: float, precision: float, block: int, steps: tuple[int, ...]) -> Tensor:
    """[n r+3]: the values, and in the last three columns their number, the rank and the energy."""
    everything, energy = X, X.square().sum((-2, -1))
    found = X.new_zeros(X.shape[0], min(X.shape[-2:]) + 3)
    open_, Q, T = torch.arange(X.shape[0], device=X.device), _start(X, block), X.new_zeros(X.shape[0], 0, 0)
    hard = []
    for step in range(1, max(steps) + 1):
        Q, T, C = _step(X, Q, T, block)
        if step not in steps:
            continue
        theta, S = (part.flip(-1) for part in torch.linalg.eigh(T))
        distance = torch.linalg.vector_norm(C @ S[:, -block:], dim=-2)
        sure, rank = _certify(theta, distance, share * energy, precision * energy)
        found[open_[sure], : theta.shape[-1]] = _first(theta[sure].clamp_min(0.0).sqrt(), rank[sure])
        found[open_[sure], -3:] = torch.stack([rank[sure], rank[sure], energy[sure]], -1).to(X.dtype)
        missing = share * energy - theta.sum(-1)
        hopeless = ~sure & (missing > theta[:, theta.shape[-1] // 2] * block * (max(steps) - step))
        hard.append(open_[hopeless])
        stay = ~sure & ~hopeless
        open_, X, Q, T, energy = open_[stay], X[stay], Q[stay], T[stay], energy[stay]
        if not len(open_):
            break
    hard = torch.cat([*hard, open_])
    if len(hard):
        found[hard] = _whole(everything[hard], share)
    return found


def _whole(X: Tensor, share: float) -> Tensor:
    """The same from all values."""
    s = gram_singular_values(X)
    known = torch.full_like(s[:, 0], s.shape[-1])
    return torch.cat([s, torch.stack([known, rank_for_energy(s, share).to(s), X.square().sum((-2, -1))], -1)], -1)


def _certify(theta: Tensor, distance: Tensor, wanted: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the rank at the wanted energy is certain, and that rank.

    An eigenvalue lies within the distance d of each theta, and within d^2 / gap, with the gap to the values left out.
    """
    reached = theta.cumsum(-1)
    last = (reached < wanted.unsqueeze(-1)).sum(-1, keepdim=True).clamp_max(theta.shape[-1] - 2)
    gap = (theta - (theta + distance).gather(-1, last + 1)).clamp_min(torch.finfo(theta.dtype).tiny)
    error = _first(torch.minimum(distance, distance.square() / gap), last.squeeze(-1) + 1).sum(-1)
    at, before = reached.gather(-1, last).squeeze(-1), (reached - theta).gather(-1, last).squeeze(-1)
    sure = (at >= wanted) & (error <= slack) & ((before + error < wanted) | (last.squeeze(-1) == 0))
    return sure, (last.squeeze(-1) + 1) * (wanted > 0)


def _first(values: Tensor, count: Tensor) -> Tensor:
    """The first `count` of each row, zeros after them."""
    return values * (torch.arange(values.shape[-1], device=values.device) < count.unsqueeze(-1))
