"""S2: CS224N attention exploration on copying values and extracting vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnworks.attention import Context
from attnworks.attention.dense import Dense
from attnworks.attention.softmax import masked_softmax
from attnworks.theory.cases import Draws, maximise
from attnworks.theory.contract import CONDITION, HOLDS, TYPO, ClaimResult, between, statement
from attnworks.theory.retrieval import (
    attention_weights,
    copy_error,
    copy_gap,
    oblique_extractor,
    projecting_extractor,
    transposed_extractor,
)
from attnworks.theory.sides import at_most, same

STANDARD_ERRORS = 6.0
"""How many standard errors a mean of random draws may be away from its expectation."""


def orthonormal_means(draw: Draws, n: int) -> Tensor:
    """n orthonormal rows, with three coordinates to spare."""
    return draw.orthonormal(n + 3, n).mT


def _with_gap(draw: Draws, n: int, k: int, gap: float) -> tuple[Tensor, Tensor]:
    """Keys, and a query whose score for the first key is `gap` above the next one."""
    K, q = draw.normal(n, k), draw.normal(k)
    wanted = (K[1:] @ q).max() + gap
    K[0] += (wanted - K[0] @ q) * q / q.square().sum()
    return K, q


def _level(n: int, gap: float) -> tuple[Tensor, Tensor]:
    """The same with all other keys on one score."""
    return torch.eye(n, dtype=torch.float64), gap * torch.eye(n, dtype=torch.float64)[0]


@statement("S2.1", "1", HOLDS).says(
    r"$c = \sum_i \alpha_i v_i$ with $\alpha_i = \exp(k_i^\top q) / \sum_j \exp(k_j^\top q)$",
    correction=r"Scores are not divided by $\sqrt d$ here.",
    compares="coordinate of $c$ by the formula, and of our attention's output",
)
@between(n=(2, 13), d=(2, 11), v=(2, 11))
def attention_of_one_query(draw: Draws, n: int = 5, d: int = 7, v: int = 3) -> ClaimResult:
    K, V, q = draw.normal(n, d), draw.normal(n, v), draw.normal(d)
    exponentials = torch.stack([torch.exp(k @ q) for k in K])
    c = sum((e / exponentials.sum() * row for e, row in zip(exponentials, V, strict=True)), torch.zeros_like(V[0]))
    one_query = q.view(1, 1, 1, d), K.view(1, 1, n, d), V.view(1, 1, n, v)
    unscaled = Dense()(*one_query, context=Context(scale=1.0)).Y.flatten()
    scaled = Dense()(*one_query).Y.flatten()
    figures = {"change of c when scores are divided by the root of d": float((scaled - c).norm())}
    return ClaimResult(same(c, unscaled), figures=figures)


@statement("S2.2", "1 (a) i", HOLDS).says(
    r"$0 \le \alpha_i \le 1$ and $\sum_i \alpha_i = 1$, so that $\alpha$ is a distribution",
    correction=r"For finite scores and $n \ge 2$ even $0 < \alpha_i < 1$, underflow aside.",
    compares="sum of the weights (or of their absolute values), and 1",
)
@between(n=(2, 13), d=(2, 11), scale=(0.0, 100.0))
def weights_are_a_distribution(draw: Draws, n: int = 5, d: int = 7, scale: float = 1.0) -> ClaimResult:
    """The sum of absolute values is one as well: so no weight is negative, and none above one."""
    alpha = attention_weights(draw.normal(n, d), draw.normal(d, scale=scale))
    figures = {"least weight": float(alpha.min()), "largest weight": float(alpha.max())}
    return ClaimResult(same(torch.stack([alpha.sum(), alpha.abs().sum()]), 1.0), figures=figures)


@statement("S2.3", "1 (a) ii", CONDITION, heavy=True).says(
    r"$\alpha_j \approx 1$ when $k_i^\top q \ll k_j^\top q$ or $k_i^\top q = -\infty$ for $i \neq j$",
    correction=r"For all $i \neq j$, and with a gap $\Delta = k_j^\top q - \max_{i \neq j} k_i^\top q \gg \ln n$: $1 - "
    r"\alpha_j \le (n-1) e^{-\Delta}$.",
    compares=r"weight of all keys but $j$, and $(n-1)e^{-\Delta}$; without: the weight at a gap of only $\ln(n-1)$",
)
@between(n=(2, 13), d=(2, 11), missing=(1e-6, 0.4))
def weight_of_the_best_key(draw: Draws, n: int = 5, d: int = 7, missing: float = 0.01) -> ClaimResult:
    """The gap is ln((n - 1) / missing); without the condition it is ln(n - 1), with all other keys level."""
    K, q = _with_gap(draw, n, d, math.log((n - 1) / missing))
    K_level, q_level = _level(n, math.log(n - 1))
    figures = {
        "gap of scores": math.log((n - 1) / missing),
        "tightest ratio found": maximise(lambda K, q: copy_gap(K, q, 0).ratio, [K, q], steps=40),
    }
    return ClaimResult(
        at_most(copy_gap(K, q, 0).value, missing),
        without=at_most(copy_gap(K_level, q_level, 0).value, missing),
        figures=figures,
    )


@statement("S2.4", "1 (a) iii", CONDITION, heavy=True).says(
    "Under that condition $c = v_j$.",
    correction=r"Equal only with scores of $-\infty$; else $c \approx v_j$, with $\lVert c - v_j \rVert \le (1 - "
    r"\alpha_j) \max_i \lVert v_i - v_j \rVert$.",
    compares="coordinate of $c$, and of $v_j$, if all other keys are hidden; without: if they score lower by a finite "
    "gap",
)
@between(n=(2, 13), d=(2, 11), v=(2, 11), gap=(0.0, 10.0))
def copy_of_one_value(draw: Draws, n: int = 5, d: int = 7, v: int = 3, gap: float = 5.0) -> ClaimResult:
    """With the condition all other keys are hidden; without it they score lower by a finite gap."""
    (K, q), V = _with_gap(draw, n, d, gap), draw.normal(n, v)
    only = (torch.arange(n) == 0).unsqueeze(0)
    error = copy_error(K, q, V, 0)
    figures = {
        "distance from the value at a finite gap": float(error.value),
        "its bound": float(error.bound),
        "tightest ratio found": maximise(lambda K, q, V: copy_error(K, q, V, 0).ratio, [K, q, V], steps=40),
    }
    return ClaimResult(
        same(masked_softmax((K @ q).unsqueeze(0), only) @ V, V[:1]),
        without=same(attention_weights(K, q) @ V, V[0]),
        figures=figures,
    )


@statement("S2.5", "1 (a) iv", CONDITION).says(
    r"The weights of all $i \neq j$ are 0, and $c$ is a copy of $v_j$, as $q$ is very similar to $k_j$.",
    correction=r"As in S2.4: they go to zero with the gap $\Delta$, and $\lVert c - v_j \rVert \le (n-1) e^{-\Delta} "
    r"\max_i \lVert v_i - v_j \rVert$.",
    compares=r"distance of $c$ from $v_j$ (or its bound by $1 - \alpha_j$), and its bound; without: the distance at a "
    r"gap of only $\ln(n-1)$",
)
@between(n=(2, 13), d=(2, 11), v=(2, 11), missing=(1e-6, 0.4))
def copy_up_to_an_error(draw: Draws, n: int = 5, d: int = 7, v: int = 3, missing: float = 0.01) -> ClaimResult:
    """The gap is ln((n - 1) / missing); without the condition ln(n - 1), all other keys level and with one value."""
    (K, q), V = _with_gap(draw, n, d, math.log((n - 1) / missing)), draw.normal(n, v)
    K_level, q_level = _level(n, math.log(n - 1))
    two_values = torch.cat([V[:1], V[1:2].expand(n - 1, -1)])
    close, far = copy_error(K, q, V, 0), copy_error(K_level, q_level, two_values, 0)
    figures = {"weight of all other keys": float(copy_gap(K, q, 0).value)}
    longest = (V - V[0]).norm(dim=-1).max()
    return ClaimResult(
        at_most(torch.stack([close.value, close.bound]), torch.stack([close.bound, missing * longest])),
        without=at_most(far.value, missing * (V[1] - V[0]).norm()),
        figures=figures,
    )


@statement("S2.6", "1 (b) i", TYPO).says(
    r"$v_a = Ac$ and $v_b = Bd$ with $A \in \mathbb R^{d \times m}$, $B \in \mathbb R^{d \times p}$, $c \in \mathbb "
    r"R^d$ and $d \in \mathbb R^d$",
    correction=r"$c \in \mathbb R^m$ and $d \in \mathbb R^p$; $M_s$, $A_c$, $B_d$ mean $Ms$, $Ac$, $Bd$.",
    compares="length of the coordinates $c$ (or $d$), and width of the values; corrected: and columns of $A$ (or $B$)",
)
@between(m=(1, 5), p=(1, 5), spare=(0, 3))
def lengths_of_coordinates(draw: Draws, m: int = 2, p: int = 3, spare: int = 2) -> ClaimResult:
    d = m + p + spare
    A, B = draw.orthonormal(d, m), draw.orthonormal(d, p)
    c, other = (
        torch.linalg.lstsq(basis, basis @ draw.normal(basis.shape[1], 1)).solution.squeeze(-1) for basis in (A, B)
    )
    lengths = torch.tensor([len(c), len(other)])
    return ClaimResult(same(lengths, d), corrected=same(lengths, torch.tensor([m, p])))


@statement("S2.7", "1 (b) i", CONDITION).says(
    r"$M = AA^\top$ gives $M(v_a + v_b) = v_a$ (and $M = A^\top$ gives $c$).",
    correction=r"Needs $A^\top A = I$ and $A^\top B = 0$. If the columns of $A$ are not orthonormal: $A(A^\top "
    r"A)^{-1}A^\top$. If the subspaces are only independent: $M = [A\ 0][A\ B]^+$.",
    compares="coordinate of what is extracted, and of $v_a$ (or $c$); without: if the columns of $A$ are not "
    "orthonormal",
)
@between(m=(1, 5), p=(1, 5), spare=(0, 3))
def one_of_two_summed_vectors(draw: Draws, m: int = 2, p: int = 3, spare: int = 2) -> ClaimResult:
    d = m + p + spare
    basis = draw.orthonormal(d, m + p)
    A, B, x, y = basis[:, :m], basis[:, m:], draw.normal(m), draw.normal(p)
    mixed = A @ (draw.orthonormal(m, m) * torch.linspace(2.0, 3.0, m, dtype=torch.float64))
    leaning = B + A[:, :1] / 2
    summed = A @ x + B @ y
    found = [transposed_extractor(A) @ summed, A.mT @ summed, projecting_extractor(mixed) @ (mixed @ x + B @ y)]
    found.append(oblique_extractor(mixed, leaning) @ (mixed @ x + leaning @ y))
    figures = {
        "error of the projection, subspaces not orthogonal": _miss(projecting_extractor(mixed), mixed @ x, leaning @ y),
        "error of the oblique one": _miss(oblique_extractor(mixed, leaning), mixed @ x, leaning @ y),
    }
    return ClaimResult(
        same(torch.cat(found), torch.cat([A @ x, x, mixed @ x, mixed @ x])),
        without=same(transposed_extractor(mixed) @ (mixed @ x + B @ y), mixed @ x),
        figures=figures,
    )


def _miss(M: Tensor, v_a: Tensor, v_b: Tensor) -> float:
    return float((M @ (v_a + v_b) - v_a).norm())
