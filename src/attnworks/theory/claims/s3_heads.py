"""S3: Burgund on heads, scores and the first order of a loss; biases absorbed into weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnworks.attention import Mask
from attnworks.attention.softmax import scaled_dot
from attnworks.models.block import PureAttention
from attnworks.models.config import AttentionConfig, PureConfig
from attnworks.models.multihead import MultiHead
from attnworks.reshape.growth.solvers import LowRank, lowrank_fit
from attnworks.theory.cases import Draws, filled, maximise
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, TYPO, ClaimResult, between, statement
from attnworks.theory.sides import at_least, at_most, less, same


def augment(X: Float[Tensor, "*a e"]) -> Float[Tensor, "*a e1"]:
    """X' = [X | 1], which turns an affine map into a linear one.

    Source: Burgund, remark 1.2.2 (S3.8).
    """
    return F.pad(X, (0, 1), value=1.0)


def augment_weight(W: Float[Tensor, "*a e k"], b: Float[Tensor, "*a k"]) -> Float[Tensor, "*a e1 k"]:
    """W' = [W; b^T], so that [X | 1] W' = X W + 1 b^T.

    Source: Burgund, remark 1.2.2 (S3.8). A key bias never changes the softmax; a value bias adds a constant row.
    """
    return torch.cat([W, b.unsqueeze(-2)], -2)


class _OneHead(NamedTuple):
    """One head without biases, and a loss of its scores: L(S) = weight / 2 ||softmax(S) U + X - goal||_F^2.

    U    X W_V W_O, what positions give to each other
    """

    X: Float[Tensor, "n e"]
    W_Q: Float[Tensor, "e k"]
    W_K: Float[Tensor, "e k"]
    U: Float[Tensor, "n e"]
    goal: Float[Tensor, "n e"]
    weight: float = 1.0

    @property
    def M(self) -> Float[Tensor, "n n"]:
        """The scores before their scale."""
        return self.X @ self.W_Q @ (self.X @ self.W_K).mT

    @property
    def S(self) -> Float[Tensor, "n n"]:
        return scaled_dot(self.X @ self.W_Q, self.X @ self.W_K, self.scale)

    @property
    def scale(self) -> float:
        return self.W_Q.shape[1] ** -0.5

    def loss(self, S: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
        return self.weight / 2 * (S.softmax(-1) @ self.U + self.X - self.goal).square().sum()

    def gradient(self) -> Float[Tensor, "n n"]:
        """Of the loss, by the scores."""
        S = self.S.requires_grad_()
        return torch.autograd.grad(self.loss(S), S)[0]

    def curvature(self) -> float:
        """c = weight (D^2 / 8 + r D / 4) such that L(S + dS) is within c ||dS||_F^2 of its first order, for any dS.

        D is the largest distance of rows of U, and r that of a row of U from a row of goal - X. Along dS, a row p of
        the softmax has the derivatives p' U = Cov_p(dS, U) and p'' U = E_p[(U - E U)(dS - E dS)^2], with
        Var_p(dS) <= ||dS||^2 / 2 and tr Var_p(U) <= D^2 / 2; so L'' <= weight (D^2 / 4 + r D / 2) ||dS||^2.
        """
        D, r = torch.cdist(self.U, self.U).max(), torch.cdist(self.U, self.goal - self.X).max()
        return self.weight * float(D.square() / 8 + r * D / 4)


def one_head(draw: Draws, X: Float[Tensor, "n e"], k: int, v: int) -> _OneHead:
    e = X.shape[1]
    W_Q, W_K, W_V = (draw.normal(e, width, scale=e**-0.5) for width in (k, k, v))
    U = X @ W_V @ draw.normal(v, e, scale=v**-0.5)
    return _OneHead(X, W_Q, W_K, U, draw.normal(*X.shape))


def states(draw: Draws, n: int, e: int, condition: float = 1.0, rank: int | None = None) -> Float[Tensor, "n e"]:
    """n x e with singular values from one down to one over `condition`, as many as `rank`."""
    r = min(n, e) if rank is None else rank
    s = torch.logspace(0.0, -math.log10(condition), r, dtype=torch.float64)
    return draw.orthonormal(n, r) * s @ draw.orthonormal(e, r).mT


def misfit(B: Float[Tensor, "n n"], X: Float[Tensor, "n e"], Z: Float[Tensor, "e e"]) -> Float[Tensor, ""]:
    """f(Z) = ||B - X Z X^T||_F^2."""
    return (B - X @ Z @ X.mT).square().sum()


def nearest_of_rank(B: Float[Tensor, "n n"], k: int) -> Float[Tensor, "n n"]:
    """[B]_k, the truncated SVD."""
    return lowrank_fit(B, torch.eye(len(B), dtype=B.dtype), k).Z


def lowest_found(B: Float[Tensor, "n n"], X: Float[Tensor, "n e"], start: LowRank) -> float:
    """The least f(left right^T) on the way down from `start`, by gradient."""
    return -maximise(lambda left, right: -misfit(B, X, left @ right.mT), [start.left, start.right], steps=25)


def drawn_layer(
    draw: Draws, e: int, heads: int, k: int, v: int, *, bias: bool = False, scale: float | None = None
) -> MultiHead:
    """Heads that are k and v wide, with normal weights times `scale`, by default 1 / sqrt(e)."""
    config = AttentionConfig(heads=heads, d_k=k, d_v=v, bias=bias)
    return filled(draw, lambda: MultiHead(e, config), e**-0.5 if scale is None else scale)


def maps_and_outputs(
    layer: MultiHead, X: Float[Tensor, "n e"]
) -> tuple[Float[Tensor, "h n n"], Float[Tensor, "h n v"]]:
    """P and Y of every head."""
    Y, P = layer.attend(layer.queries(X[None]), *layer.keys_values(X[None]), Mask(), weights=True)
    assert P is not None
    return P[0], Y[0]


def _by_hand(X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> Tensor:
    """H = [H_1, ..., H_h] with H_i = softmax(Q_i K_i^T / sqrt(d_k / h)) V_i, as printed, head by head."""
    heads = zip(W_Q, W_K, W_V, strict=True)
    return torch.cat([(X @ q @ (X @ k).mT / math.sqrt(q.shape[-1])).softmax(-1) @ (X @ v) for q, k, v in heads], -1)


@statement("S3.1", "1.1", CONDITION).says(
    "Dimensions $b$, $d_e$, $d_s$, $d_k$, $d_v$, $h$, with heads of widths $d_k/h$ and $d_v/h$",
    correction=r"Needs $h \mid d_k$ and $h \mid d_v$.",
    compares="columns of all heads together, and $d_k$ (or $d_v$); without: for widths that $h$ does not divide",
)
@between(h=(2, 5), k=(1, 7), v=(1, 7))
def widths_of_heads(draw: Draws, h: int = 3, k: int = 5, v: int = 7) -> ClaimResult:
    """Without the condition, all heads together miss a column of keys and one of values."""

    def columns(d_k: int, d_v: int) -> Tensor:
        config = AttentionConfig(heads=h, d_k=d_k // h, d_v=d_v // h)
        return torch.tensor([sum(config.key_widths), sum(config.value_widths)])

    d_k, d_v = h * k, h * v
    return ClaimResult(
        same(columns(d_k, d_v), torch.tensor([d_k, d_v])),
        without=same(columns(d_k + 1, d_v + 1), torch.tensor([d_k + 1, d_v + 1])),
    )


@statement("S3.2", "1.2", HOLDS).says(
    r"$W_{Q_i}, W_{K_i} \in \mathbb R^{d_e \times d_k/h}$, $Q_i = XW_{Q_i}$, $K_i = XW_{K_i}$",
    compares="entry of $XW_{Q_i}$ (or $XW_{K_i}$), and of the layer's queries (or keys)",
)
@between(n=(1, 11), e=(1, 7), h=(1, 5), k=(1, 7))
def queries_and_keys(draw: Draws, n: int = 5, e: int = 7, h: int = 3, k: int = 2) -> ClaimResult:
    X, layer = draw.normal(n, e), drawn_layer(draw, e, h, k, 2)
    found = torch.stack([layer.queries(X[None])[0], layer.keys_values(X[None])[0][0]])
    return ClaimResult(same(torch.stack([torch.stack([X @ w for w in W]) for W in (layer.W_Q, layer.W_K)]), found))


@statement("S3.3", "1.2", HOLDS).says(
    r"$S_i = Q_i K_i^\top / \sqrt{d_k/h}$",
    correction="The width is that of one head.",
    compares="attention weight by the formula, and of the layer",
)
@between(n=(2, 11), e=(2, 7), h=(2, 5), k=(1, 7))
def scores_of_a_head(draw: Draws, n: int = 5, e: int = 7, h: int = 3, k: int = 2) -> ClaimResult:
    X, layer = draw.normal(n, e), drawn_layer(draw, e, h, k, 2)
    S = X @ layer.W_Q @ (X @ layer.W_K).mT / math.sqrt(k)
    P, _ = maps_and_outputs(layer, X)
    by_all = (S / math.sqrt(h)).softmax(-1)
    figures = {"change of weights by the width of all heads together": float((by_all - P).abs().max())}
    return ClaimResult(same(S.softmax(-1), P), figures=figures)


@statement("S3.4", "1.2", TYPO).says(
    r"$A_i = \operatorname{softmax}_{\mathrm{row}}(S)$",
    correction=r"$A_i = \operatorname{softmax}_{\mathrm{row}}(S_i)$",
    compares="attention weight by one $S$ for all heads, and of the layer; corrected: by $S_i$, and of the layer",
)
@between(n=(2, 11), e=(2, 7), h=(2, 5), k=(1, 7))
def weights_of_a_head(draw: Draws, n: int = 5, e: int = 7, h: int = 3, k: int = 2) -> ClaimResult:
    """Without an index S is read as one table for all heads, that of all their columns together."""
    X, layer = draw.normal(n, e), drawn_layer(draw, e, h, k, 2)
    (P, _), Q, K = maps_and_outputs(layer, X), X @ layer.W_Q, X @ layer.W_K
    S = (Q @ K.mT).sum(0) / math.sqrt(h * k)
    return ClaimResult(same(S.softmax(-1), P), corrected=same((Q @ K.mT / math.sqrt(k)).softmax(-1), P))


@statement("S3.5", "1.2", HOLDS).says(
    r"$V_i = XW_{V_i}$, $H_i = A_i V_i$ and $H = [H_1, \dots, H_h] \in \mathbb R^{d_s \times d_v}$",
    compares="entry of $H$ by the formula, and of the layer's heads side by side",
)
@between(n=(1, 11), e=(1, 7), h=(1, 5), k=(1, 7), v=(1, 7))
def outputs_of_heads(draw: Draws, n: int = 5, e: int = 7, h: int = 3, k: int = 2, v: int = 3) -> ClaimResult:
    X, layer = draw.normal(n, e), drawn_layer(draw, e, h, k, v)
    _, Y = maps_and_outputs(layer, X)
    return ClaimResult(same(_by_hand(X, layer.W_Q, layer.W_K, layer.W_V), torch.cat(Y.unbind(), -1)))


@statement("S3.6", "1.2", HOLDS).says(
    r"$Y = HW_O + X \in \mathbb R^{d_s \times d_e}$",
    correction="A residual, without layer norm.",
    compares="entry of $HW_O + X$, and of the model's output",
)
@between(n=(1, 11), e=(1, 7), h=(1, 5), k=(1, 7), v=(1, 7))
def output_with_residual(draw: Draws, n: int = 5, e: int = 7, h: int = 3, k: int = 2, v: int = 3) -> ClaimResult:
    attention = AttentionConfig(heads=h, d_k=k, d_v=v, bias=False)
    config = PureConfig(d_e=e, layers=1, attention=attention, skip=True)
    model = filled(draw, lambda: PureAttention(config), e**-0.5)
    X = draw.normal(n, e)
    W_Q, W_K, W_V, W_O = model.parameters()
    return ClaimResult(same(_by_hand(X, W_Q, W_K, W_V) @ W_O.flatten(0, 1) + X, model(X[None])[0]))


@statement("S3.7", "remark 1.2.1", CONDITION).says(
    r"The number of parameters, $(2 d_e \frac{d_k}{h} + d_e \frac{d_v}{h}) h + d_v d_e$, is the same for any $h$.",
    correction="It is $2d_e d_k + 2d_e d_v$ if $h$ divides $d_k$ and $d_v$; biases add $2d_k + d_v + d_e$. The same "
    "count does not mean the same functions.",
    compares="parameters of a layer (but for its biases), and $2d_ed_k + 2d_ed_v$; without: for a $d_k$ that $h$ does "
    "not divide",
)
@between(e=(1, 7), h=(2, 5), k=(1, 7), v=(1, 7))
def parameters_of_any_number_of_heads(draw: Draws, e: int = 7, h: int = 3, k: int = 4, v: int = 2) -> ClaimResult:
    """All numbers of heads that divide both widths; without the condition, one column more than heads can share."""

    def count(heads: int, d_k: int, d_v: int, *, bias: bool = False) -> int:
        with torch.device("meta"):
            layer = MultiHead(e, AttentionConfig(heads=heads, d_k=d_k // heads, d_v=d_v // heads, bias=bias))
        return sum(parameter.numel() for parameter in layer.parameters())

    d_k, d_v = h * k, h * v
    counts = [count(heads, d_k, d_v) for heads in range(1, d_k + 1) if d_k % heads == d_v % heads == 0]
    with_biases = count(h, d_k, d_v, bias=True)
    figures = {"parameters of biases": with_biases - counts[0]}
    return ClaimResult(
        same(torch.tensor([*counts, with_biases - (2 * d_k + d_v + e)]), 2 * e * (d_k + d_v)),
        without=same(count(h, d_k + 1, d_v), 2 * e * (d_k + 1 + d_v)),
        figures=figures,
    )


@statement("S3.8", "remark 1.2.2", HOLDS).says(
    r"Biases are absorbed by $X' = [X \mid \mathbf 1]$, $W' = [W; b^\top]$ and $H' = [H \mid \mathbf 1]$.",
    correction=r"$X'W' = XW + \mathbf 1 b^\top$. Moreover, the bias of keys never changes the softmax, and $b_V$ adds "
    r"only the constant row $b_V^\top W_O$.",
    compares="entry of the output by longer matrices (or without $b_K$, or with a row in place of $b_V$), and of the "
    "layer with biases",
)
@between(n=(1, 11), e=(1, 7), h=(1, 5), k=(1, 7), v=(1, 7))
def biases_as_a_row(draw: Draws, n: int = 5, e: int = 7, h: int = 3, k: int = 2, v: int = 3) -> ClaimResult:
    X, layer = draw.normal(n, e), drawn_layer(draw, e, h, k, v, bias=True)
    assert layer.b_Q is not None and layer.b_K is not None and layer.b_V is not None and layer.b_O is not None
    pairs = (layer.W_Q, layer.b_Q), (layer.W_K, layer.b_K), (layer.W_V, layer.b_V)
    H = _by_hand(augment(X), *(augment_weight(W, b) for W, b in pairs))
    by_rows = augment(H) @ augment_weight(layer.W_O.flatten(0, 1), layer.b_O)
    with_biases, row = layer(X[None])[0], torch.einsum("hv,hve->e", layer.b_V, layer.W_O)
    layer.b_K.zero_()
    without_key_bias = layer(X[None])[0]
    layer.b_V.zero_()
    with_row_instead = layer(X[None])[0] + row
    return ClaimResult(same(torch.stack([by_rows, without_key_bias, with_row_instead]), with_biases))


def _remainder(loss: Callable[[Tensor], Tensor], at: Tensor, change: Tensor) -> Tensor:
    """|L(f + df) - L(f) - <grad L(f), df>|."""
    at = at.clone().requires_grad_()
    before = loss(at)
    slope = torch.autograd.grad(before, at)[0]
    return (loss(at + change) - before - (slope * change).sum()).abs().detach()


@statement("S3.9", "2", CONDITION).says(
    r"$\mathcal L(f + \partial f(d\theta, d\mathcal A)) = \mathcal L(f) + \langle \nabla_f \mathcal L(f), \partial "
    r"f(\partial\theta, \partial\mathcal A) \rangle + o(\lVert \partial f \rVert)$",
    correction=r"Where $\mathcal L$ is Fréchet differentiable; $d\theta, d\mathcal A$ and $\partial\theta, "
    r"\partial\mathcal A$ are mixed. For $\mathcal L(f) = \frac{1}{2}\lVert f - g \rVert^2$ the rest is "
    r"$\frac{1}{2}\lVert \partial f \rVert^2$.",
    compares=r"rest beyond the first order, and $\frac{1}{2}\lVert\partial f\rVert^2$; without: at the kink of a sum "
    "of absolute values",
)
@between(n=(1, 11), e=(1, 7), step=(0.001, 1.0))
def first_order_of_a_loss(draw: Draws, n: int = 5, e: int = 3, step: float = 0.1) -> ClaimResult:
    """Squared distance; without the condition the sum of absolute distances, at its kink."""
    goal, f, change = draw.normal(n, e), draw.normal(n, e), draw.normal(n, e)
    change *= step / change.norm()
    rest = step**2 / 2
    return ClaimResult(
        same(_remainder(lambda f: (f - goal).square().sum() / 2, f, change), rest),
        without=same(_remainder(lambda f: (f - goal).abs().sum(), goal, change), rest),
    )


@statement("S3.10", "2", HOLDS, heavy=True).says(
    r"$\mathcal L(S + \partial S) = \mathcal L(S) + \langle \nabla_S \mathcal L(S), \partial S \rangle + o(\lVert "
    r"\partial S \rVert)$",
    correction=r"Moreover $\nabla_S \mathcal L \cdot \mathbf 1 = 0$. For half the squared distance of "
    r"$\operatorname{softmax}(S)U + X$ from a goal the rest is at most $(D^2/8 + rD/4) \lVert \partial S \rVert_F^2$ "
    "for a step of any length, $D$ being the largest distance of rows of $U$, and $r$ that of rows of $U$ from rows of "
    "the goal less $X$.",
    compares="rest beyond the first order, and its bound",
    note="The bound is ours.",
)
@between(n=(2, 11), e=(1, 7), k=(1, 7), v=(1, 7), step=(0.001, 10.0))
def first_order_of_the_scores(
    draw: Draws, n: int = 5, e: int = 3, k: int = 2, v: int = 2, step: float = 0.1
) -> ClaimResult:
    head = one_head(draw, draw.normal(n, e), k, v)
    change, G, S, c = draw.normal(n, n), head.gradient(), head.S, head.curvature()
    change *= step / change.norm()

    def ratio(dS: Tensor) -> Tensor:
        return (head.loss(S + dS) - head.loss(S) - (G * dS).sum()).abs() / (c * dS.square().sum())

    figures = {
        "largest sum of a row of the gradient": float(G.sum(-1).abs().max()),
        "tightest ratio found": maximise(ratio, [change], steps=40),
    }
    return ClaimResult(at_most(_remainder(head.loss, S, change), c * step**2), figures=figures)


@statement("S3.11", "2", TYPO).says(
    r"$\partial S = X(W_Q + \partial W_Q)(W_K + \partial W_K)^\top X^\top - X W_Q W_K^\top X^\top$",
    correction=r"Divided by $\sqrt{d_k}$, as $S$ is; or with $M = \sqrt{d_k} S$ and $\nabla_M \mathcal L = \nabla_S "
    r"\mathcal L / \sqrt{d_k}$.",
    compares="entry of the printed difference, and of the change of $S$; corrected: that difference over "
    r"$\sqrt{d_k}$, and the change",
)
@between(n=(1, 11), e=(1, 7), k=(2, 7))
def change_of_scores(draw: Draws, n: int = 5, e: int = 7, k: int = 3) -> ClaimResult:
    head = one_head(draw, draw.normal(n, e), k, 2)
    changed = head._replace(W_Q=head.W_Q + draw.normal(e, k), W_K=head.W_K + draw.normal(e, k))
    printed = changed.M - head.M
    return ClaimResult(same(printed, changed.S - head.S), corrected=same(printed / math.sqrt(k), changed.S - head.S))


@statement("S3.12", "2", HOLDS, heavy=True).says(
    r"$\arg\min_{\partial S} \langle \nabla_S \mathcal L(S), \partial S \rangle$ such that $\lVert \partial S \rVert "
    r"\le \gamma$",
    correction=r"In the Frobenius norm it is $\partial S = -\gamma \nabla / \lVert \nabla \rVert_F$.",
    compares=r"$\langle\nabla_S\mathcal L, \partial S\rangle$ of another change of that length, and of the steepest "
    "one",
)
@between(n=(2, 11), e=(1, 7), k=(1, 7), radius=(0.01, 10.0))
def steepest_change(draw: Draws, n: int = 5, e: int = 3, k: int = 2, radius: float = 1.0) -> ClaimResult:
    """Against twenty other changes of that length, and one that gradient ascent finds."""
    G = one_head(draw, draw.normal(n, e), k, 2).gradient()
    steepest = -radius * G / G.norm()
    others = draw.normal(20, n, n)
    others *= radius / others.norm(dim=(1, 2), keepdim=True)
    found = maximise(lambda dS: (G * dS).sum() / (steepest * G).sum() * radius / dS.norm(), [others[0]], steps=40)
    figures = {"tightest ratio found": found}
    return ClaimResult(at_least((G * others).sum((1, 2)), (G * steepest).sum()), figures=figures)


@statement("S3.13", "2", FALSE).says(
    r"$B := \nabla_S \mathcal L(S) + X W_Q W_K^\top X^\top$ is what the new scores are fitted to, so that $\mathcal L$ "
    "falls.",
    correction=r"The sign ascends, the step is missing, and the two terms are scaled differently: $B := X W_Q W_K^\top "
    r"X^\top - \eta \nabla_M \mathcal L$ with $M = \sqrt{d_k} S$ and $\eta = \gamma / \lVert \nabla_M \mathcal L "
    r"\rVert_F$.",
    compares="loss after the fit to $B$ as printed, and before; corrected: after the fit to the right $B$, and before",
)
@between(n=(2, 7), extra=(0, 4), k=(1, 4), step=(0.1, 1.0))
def target_of_the_fit(draw: Draws, n: int = 5, extra: int = 2, k: int = 2, step: float = 1.0) -> ClaimResult:
    """With no more positions than d_e the fit is exact, and the loss is so weighted that steps up to one are short.

    For then its rest is ||dS||^2 / 2 or less, and a step of t <= 1 along -grad lowers it by t ||grad||^2 / 2 or more.
    """
    e = n + extra
    head = one_head(draw, states(draw, n, e, 2.0), k, 3)
    head = head._replace(weight=1 / (2 * head.curvature()))
    G = head.gradient()
    before = head.loss(head.S)
    printed, descending = (
        head.loss(head.X @ lowrank_fit(B, head.X, e).Z @ head.X.mT * head.scale)
        for B in (G + head.M, head.M - step * head.scale * G)
    )
    figures = {
        "change of the loss as printed, relative": float(printed / before) - 1,
        "change of the loss as corrected, relative": float(descending / before) - 1,
    }
    return ClaimResult(at_most(printed, before), corrected=less(descending, before), figures=figures)
