"""Singular values of many matrices at once, and the ranks read off them.

Rows of zeros change no singular value other than adding zeros: callers set padded rows to zero and need no mask here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.attention.softmax import entropy
from attnworks.core.tensors import safe_sqrt, widened

MIN_PARALLEL_WORK = 2**17
"""With fewer entries, a second thread costs more time than it saves."""


def singular_values(X: Float[Tensor, "*a i j"]) -> Float[Tensor, "*a r"]:
    """s_1 >= s_2 >= ... >= 0, all min(i, j) of them, each within a few eps * s_1 of the truth, eps that of X's dtype.

    Route: for float32, the eigenvalues of the smaller Gram matrix in float64. Squaring halves the digits, and float64
    has twice those of float32; so the error, about 1e-8 s_1, is below that of svdvals in float32, in half the time.
    For float64, svdvals. Half-precision input gives float32 output.
    """
    if X.dtype == torch.float64:
        return over_threads(torch.linalg.svdvals, X)
    return over_threads(lambda part: gram_singular_values(part.double()).float(), X)


def gram_singular_values(X: Float[Tensor, "*a i j"]) -> Float[Tensor, "*a r"]:
    """sqrt of the eigenvalues of X X^T or X^T X, whichever is smaller, in X's own dtype (at least float32).

    Accuracy: an error of eps s_1^2 in the square of each value. A value of size s has the error eps s_1^2 / s, and
    those below sqrt(eps) s_1 (3e-4 s_1 in float32, 1e-8 s_1 in float64) are unreliable. Energies and stable rank lose
    nothing; numerical and effective rank need `singular_values`.
    Entries so small that their products underflow are set to zero: they change nothing and slow the processor down.
    """
    return over_threads(_gram_singular_values, X)


def _gram_singular_values(X: Tensor) -> Tensor:
    wide = widened(X)
    largest = wide.detach().abs().amax((-2, -1), keepdim=True)
    scale = torch.where(largest > 0, largest, 1.0)
    scaled = wide / scale
    scaled = scaled.masked_fill(scaled.abs() < torch.finfo(wide.dtype).tiny ** 0.5, 0.0)
    G = scaled @ scaled.mT if X.shape[-2] <= X.shape[-1] else scaled.mT @ scaled
    return safe_sqrt(torch.linalg.eigvalsh(G).flip(-1)) * scale[..., 0]


# --- ranks and energies -----------------------------------------------------------------------------------------------


def stable_rank(s: Float[Tensor, "*a r"]) -> Float[Tensor, "*a"]:
    """||X||_F^2 / s_1^2 = sum_r s_r^2 / s_1^2, from 1 (rank one) to r (all values equal); 0 for X = 0."""
    return (s / _or_one(s[..., :1])).square().sum(-1)


def effective_rank(s: Float[Tensor, "*a r"]) -> Float[Tensor, "*a"]:
    """exp(H(s / sum s)), the number of equal values with the same entropy; 0 for X = 0.

    Source: Roy and Vetterli 2007.
    """
    return entropy(s / _or_one(s.sum(-1, keepdim=True))).exp() * (s[..., 0] > 0)


def numerical_rank(s: Float[Tensor, "*a r"], size: int | None = None, tol: float | None = None) -> Int[Tensor, "*a"]:
    """The number of s_r > tol * s_1; 0 for X = 0. The default tol is size * eps, with size max(i, j) if given, or r."""
    bound = (size or s.shape[-1]) * torch.finfo(s.dtype).eps if tol is None else tol
    return (s > bound * s[..., :1]).sum(-1)


def cumulative_energy(s: Float[Tensor, "*a r"]) -> Float[Tensor, "*a r"]:
    """sum_{r' <= r} s_r'^2 / sum_r' s_r'^2: the share of ||X||_F^2 that rank r can keep; 0 for X = 0.

    Source: the long-tail curves of Conti 2024, figure 10 (S4.109).
    """
    energy = (s / _or_one(s[..., :1])).square().double().cumsum(-1)
    return (energy / _or_one(energy[..., -1:])).to(s.dtype)


def rank_for_energy(s: Float[Tensor, "*a r"], share: float = 0.9) -> Int[Tensor, "*a"]:
    """The least rank whose best approximation keeps `share` of ||X||_F^2, up to rounding; 0 for X = 0."""
    slack = 4 * torch.finfo(s.dtype).eps
    rank = (cumulative_energy(s) < share - slack).sum(-1) + 1
    return rank.clamp(max=s.shape[-1]) * (s[..., 0] > 0)


def second_ratio(s: Float[Tensor, "*a r"]) -> Float[Tensor, "*a"]:
    """s_2 / s_1, zero exactly for rank one; 0 for X = 0.

    Source: S1.10: small for every matrix near rank one, while the residual is small only near identical rows.
    """
    if s.shape[-1] == 1:
        return torch.zeros_like(s[..., 0])
    return s[..., 1] / _or_one(s[..., 0])


def _or_one(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 1.0)


# --- one matrix at a time per thread ----------------------------------------------------------------------------------


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run torch on `count` threads, then on as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def over_threads(f: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """f(X) for an f that treats each matrix of X on its own; the matrices are divided among threads.

    Several threads on one small matrix do not speed LAPACK up and often slow it down; one thread per matrix does help.
    Where gradients are needed, f runs once on all matrices.
    """
    workers, matrices = torch.get_num_threads(), X.shape[:-2].numel()
    if workers == 1 or matrices < 2 or X.numel() < MIN_PARALLEL_WORK or (X.requires_grad and torch.is_grad_enabled()):
        return f(X)
    with torch_threads(1), ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(torch.no_grad()(f), X.detach().flatten(0, -3).chunk(workers)))
    return torch.cat(parts).unflatten(0, X.shape[:-2])
