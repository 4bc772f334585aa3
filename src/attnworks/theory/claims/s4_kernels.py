"""S4: Conti 2024, section 2.1.2 on kernels and linear attention (S4.88-S4.104)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnworks.attention import Geometry, Mask
from attnworks.attention.dense import Dense
from attnworks.attention.feature_maps import Elu, FeatureMap, RandomFeatures, Relu, Taylor
from attnworks.attention.linear import Linear, LinearState
from attnworks.attention.pooling import Pooling
from attnworks.theory.cases import Draws, maximise
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, TYPO, ClaimResult, between, statement
from attnworks.theory.kernels import (
    circle,
    circle_integral,
    evaluation_norm,
    features_of,
    function_norm,
    gaussian_gram,
    gram,
    least_eigenvalue,
    trigonometric_features,
    trigonometric_kernel,
)
from attnworks.theory.networks import mechanism_outputs, mechanism_weights
from attnworks.theory.sides import at_least, at_most, same, stacked


def _inputs(draw: Draws, n: int, k: int, v: int) -> tuple[Tensor, Tensor, Tensor]:
    return draw.normal(n, k), draw.normal(n, k), draw.normal(n, v)


def _features(phi: FeatureMap, X: Tensor) -> Tensor:
    return phi.keys(X[None, None])[0, 0]


# --- from softmax to kernels ------------------------------------------------------------------------------------------


@statement("S4.88", "§2.1.2", TYPO).says(
    "Linear attention scales linearly with the dimension of the output.",
    correction="With the length of the sequence. Twice the width of a head costs up to four times as much.",
    compares="FLOPs at twice the width, and twice those before; corrected: at twice the length, and twice those before",
)
@between(n=(1, 10_000), d=(1, 128))
def scales_with_the_length(draw: Draws, n: int = 512, d: int = 64) -> ClaimResult:
    linear = Linear()
    once, longer, wider = (
        linear.cost(length, length, Geometry(1, width, width)).flops
        for length, width in ((n, d), (2 * n, d), (n, 2 * d))
    )
    return ClaimResult(same(wider, 2 * once), corrected=same(longer, 2 * once), figures={"FLOPs of one head": once})


@statement("S4.89", "§2.1.2, (12)", TYPO).says(
    r"$V'_i = \frac{\sum_j e^{Q_i^\top K_j} V_j}{\sum_j e^{Q_i^\top K_j}}$ for $V' = "
    r"\operatorname{softmax}(\frac{QK^\top}{\sqrt{d_k}})V$",
    correction=r"The exponent is $\frac{Q_i^\top K_j}{\sqrt{d_k}}$.",
    compares="output by the printed exponents, and of softmax attention; corrected: by scaled exponents, and of "
    "softmax attention",
)
@between(n=(3, 13), k=(2, 7), v=(1, 7))
def exponents_without_scale(draw: Draws, n: int = 7, k: int = 5, v: int = 3) -> ClaimResult:
    Q, K, V = _inputs(draw, n, k, v)
    attended = mechanism_outputs(Dense(), Q, K, V)
    printed, scaled = (_weighted((Q @ K.mT * scale).exp(), V) for scale in (1.0, k**-0.5))
    return ClaimResult(same(printed, attended), corrected=same(scaled, attended))


@statement("S4.90", "§2.1.2, (13)", CONDITION).says(
    r"$V'_i = \frac{\sum_j \operatorname{sim}(Q_i, K_j) V_j}{\sum_j \operatorname{sim}(Q_i, K_j)}$ with "
    r"$\operatorname{sim} \ge 0$.",
    correction=r'The sums of rows must be above zero ("sin" is a misread sim). With $\operatorname{sim} = \max(q^\top '
    "k, 0)$ a query may have no similar key at all.",
    compares="our output, and the formula; without: the same where no key is similar to the query",
)
@between(n=(1, 13), k=(1, 7), v=(1, 7))
def any_similarity(draw: Draws, n: int = 5, k: int = 3, v: int = 2) -> ClaimResult:
    """Keys that contain every query are similar to each; those that all point away from a query are not."""
    Q, V, away = draw.normal(n, k), draw.normal(n, v), draw.normal(1, k)
    similar = mechanism_outputs(Pooling(similarity=_similarity), Q, Q, V)
    nothing = mechanism_outputs(Pooling(similarity=_similarity), away, -away.expand(n, k), V)
    return ClaimResult(
        same(similar, _weighted(_similarity(Q, Q), V)),
        without=same(nothing, _weighted(_similarity(away, -away.expand(n, k)), V)),
        figures={"our output without a similar key": float(nothing.abs().max())},
    )


def _similarity(Q: Tensor, K: Tensor) -> Tensor:
    return (Q @ K.mT).relu()


def _weighted(f: Tensor, V: Tensor) -> Tensor:
    """Equation 13, as printed."""
    return f @ V / f.sum(-1, keepdim=True)


# --- reproducing kernels ----------------------------------------------------------------------------------------------


@statement("S4.91", "§2.1.2, definition 1", TYPO).says(
    r"Evaluations are continuous: $\lvert f(x) \rvert \le M \lVert f \rVert$ for all $f$ and a given $M$.",
    correction=r"$M = M_x$ may depend on $x$; the least is $\sqrt{K(x, x)}$. One $M$ for all $x$ is a bounded kernel.",
    compares=r"$\lvert f(x) \rvert$ at $x = 2M$, and $M \lVert f \rVert$; corrected: $\lvert f(x) \rvert$, and "
    r"$\sqrt{K(x, x)} \lVert f \rVert$",
)
@between(n=(1, 13), f=(1, 7), M=(0.1, 10.0))
def bound_of_evaluation(draw: Draws, n: int = 7, f: int = 3, M: float = 1.0) -> ClaimResult:
    """Of the kernel $K(x, y) = xy$ on the line, $f(x) = ax$ at $x = 2M$ is twice what $M$ allows."""
    G, c = gram(draw.normal(n, f)), draw.normal(n)
    line, slope = gram(torch.tensor([[2 * M]], dtype=torch.float64)), draw.uniform(1, low=0.5, high=2.0)
    tightest = maximise(lambda c: ((G @ c).abs() / (evaluation_norm(G) * function_norm(G, c))).max(), [c], steps=30)
    return ClaimResult(
        at_most((line @ slope).abs(), M * function_norm(line, slope)),
        corrected=at_most((G @ c).abs(), evaluation_norm(G) * function_norm(G, c)),
        figures={"tightest ratio found": tightest},
    )


@statement("S4.92", "§2.1.2, definition 2", HOLDS).says(
    r"A reproducing kernel has $K_x \in H$ and $(f, K_x) = f(x)$ for all $f \in H$ and all $x$.",
    compares=r"$(f, K_x) = \sum_i c_i K(x_i, x)$, and $f(x)$ as a trigonometric polynomial",
)
@between(n=(1, 13), degree=(0, 7))
def reproducing_kernel(draw: Draws, n: int = 5, degree: int = 2) -> ClaimResult:
    """f is a sum of kernels, evaluated as a trigonometric polynomial of known coefficients."""
    points, x, c = draw.uniform(n, high=6.0), draw.uniform(n, high=6.0), draw.normal(n)
    products = c @ trigonometric_kernel(points[:, None].expand(n, n), x, degree)
    coefficients = c @ trigonometric_features(points, degree)
    return ClaimResult(same(products, trigonometric_features(x, degree) @ coefficients))


@statement("S4.93", "§2.1.2", FALSE).says(
    r"$f(x) = \int_X f(x') K(x, x') \, d\mu(x')$ for a given measure $\mu$.",
    correction=r"Only if $H$ has the inner product of $L^2(\mu)$, as a finite-dimensional subspace of it with its "
    "projection kernel, for instance trigonometric polynomials.",
    compares="integral for $K = xy$ on $[-1, 1]$, and $f(x)$; corrected: integral for trigonometric polynomials, and "
    "$f(x)$",
)
@between(degree=(0, 7))
def kernel_as_an_integral(draw: Draws, degree: int = 1) -> ClaimResult:
    r"""$H = \{ax\}$ with $K(x, y) = xy$ on $[-1, 1]$, where the integral is $\frac 23 f(x)$ (two points of Gauss)."""
    slope, x = draw.uniform(1, low=0.5, high=2.0), draw.uniform(1, low=0.2)
    nodes = torch.tensor([-(3**-0.5), 3**-0.5], dtype=torch.float64)
    linear = (slope * nodes * x * nodes).sum()
    t, coefficients = circle(4 * degree + 3), draw.normal(2 * degree + 1)
    f_t, f_x = (trigonometric_features(points, degree) @ coefficients for points in (t, x))
    reproduced = circle_integral(f_t * trigonometric_kernel(x.expand_as(t), t, degree))
    return ClaimResult(same(linear, slope * x), corrected=same(reproduced, f_x))


@statement("S4.94", "§2.1.2, theorem 2.1", CONDITION).says(
    "Every reproducing kernel induces a unique RKHS, and every RKHS has a unique reproducing kernel.",
    correction="The first half is the theorem of Moore and Aronszajn, not that of Riesz, for a symmetric positive "
    r"definite $K$: else $\lVert f \rVert^2 = c^\top G c$ is negative for some $f$. The second half is that of Riesz.",
    compares="least eigenvalue of the Gaussian kernel on drawn points, and 0; without: that of the matrix of "
    "distances, and 0",
)
@between(n=(2, 13), d=(1, 7))
def kernels_are_positive_definite(draw: Draws, n: int = 7, d: int = 3) -> ClaimResult:
    r"""The distance $\lVert x - y \rVert$ is symmetric too, but zero on the diagonal: its eigenvalues sum to zero."""
    X = draw.normal(n, d)
    kernel, distance = gaussian_gram(X), torch.cdist(X, X)
    phi = features_of(kernel)
    turned = gram(phi @ draw.orthonormal(n, n))
    return ClaimResult(
        at_least(least_eigenvalue(kernel), 0),
        without=at_least(least_eigenvalue(distance), 0),
        figures={"change of the kernel with another basis of features": float((turned - gram(phi)).abs().max())},
    )


@statement("S4.95", "§2.1.2, (14)", HOLDS).says(
    r"By the theorem of Mercer, Hilbert and Schmidt $K(x, y) = \phi(x)^\top \phi(y)$.",
    correction=r"It needs no Mercer: $\phi(x) = K_x$ does. Mercer adds continuity on a compact set.",
    compares=r"$\phi(x_i)^\top \phi(x_j)$ of features from eigenvectors, and the Gaussian kernel",
)
@between(n=(1, 13), d=(1, 7))
def kernels_have_features(draw: Draws, n: int = 7, d: int = 3) -> ClaimResult:
    G = gaussian_gram(draw.normal(n, d))
    return ClaimResult(same(gram(features_of(G)), G))


@statement("S4.96", "§2.1.2", HOLDS).says(
    "Every feature map defines a reproducing kernel by (14).",
    compares="least eigenvalue of the kernel of four feature maps, as a share of the trace, and 0",
)
@between(n=(1, 13), d=(1, 7))
def features_have_kernels(draw: Draws, n: int = 7, d: int = 3) -> ClaimResult:
    """Rounding of an eigenvalue is measured by the trace, which random features can make large."""
    X, maps = draw.normal(n, d), (Elu(), Relu(), Taylor(), RandomFeatures(d, 11, seed=0).double())
    grams = torch.stack([gram(_features(phi, X)) for phi in maps])
    traces = grams.diagonal(dim1=-2, dim2=-1).sum(-1)
    return ClaimResult(at_least(least_eigenvalue(grams) / traces.clamp_min(1.0), 0))


@statement("S4.97", "§2.1.2", CONDITION).says(
    r"One can assume sim to be a reproducing kernel, $\operatorname{sim}(a, b) = \phi(a)^\top \phi(b)$.",
    correction=r"Positive definite does not mean nonnegative: (13) also needs $\phi(a)^\top \phi(b) \ge 0$, for "
    r"instance by $\phi \ge 0$ as of $\operatorname{elu} + 1$. The linear kernel has $\operatorname{sim}(a, -a) < 0$.",
    compares=r"least similarity by $\operatorname{elu} + 1$, and 0; without: least similarity by the linear kernel, "
    "and 0",
)
@between(n=(1, 13), d=(1, 7))
def kernels_need_not_be_positive(draw: Draws, n: int = 7, d: int = 3) -> ClaimResult:
    half = draw.normal(n, d)
    X = torch.cat([half, -half])
    elu, linear = gram(_features(Elu(), X)), gram(X)
    return ClaimResult(
        at_least(elu, 0),
        without=at_least(linear, 0),
        figures={"least eigenvalue of the linear kernel": float(least_eigenvalue(linear))},
    )


# --- linear attention -------------------------------------------------------------------------------------------------


@statement("S4.98", "§2.1.2, (15)", HOLDS).says(
    r"With $\operatorname{sim} = \phi^\top \phi$ the sums regroup: $V'_i = \frac{\phi(Q_i)^\top \sum_j \phi(K_j) "
    r"V_j^\top}{\phi(Q_i)^\top \sum_j \phi(K_j)}$.",
    correction=r"The left side is then the row $V_i'^\top$.",
    compares="output by regrouped sums, and by (13) with all pairs",
)
@between(n=(1, 13), k=(1, 7), v=(1, 7))
def regrouped_sums(draw: Draws, n: int = 7, k: int = 5, v: int = 3) -> ClaimResult:
    inputs, pooling = _inputs(draw, n, k, v), Pooling(similarity="elu")
    return ClaimResult(same(mechanism_outputs(Linear(), *inputs), mechanism_outputs(pooling, *inputs)))


@statement("S4.99", "§2.1.2", HOLDS).says(
    "The linear transformer has complexity $O(n)$.",
    correction=r"$O(n d_\phi d_v)$ time, and a memory of $d_\phi d_v$ numbers.",
    compares="FLOPs at twice the length, and twice those before",
)
@between(n=(1, 10_000), d=(1, 128))
def linear_time(draw: Draws, n: int = 512, d: int = 64) -> ClaimResult:
    geometry = Geometry(1, d, d)
    linear, dense = ([kind.cost(size, size, geometry).flops for size in (n, 2 * n)] for kind in (Linear(), Dense()))
    state = Linear().start(1, geometry)
    return ClaimResult(
        same(linear[1], 2 * linear[0]),
        figures={
            "FLOPs of dense attention at twice the length, over those at once": dense[1] / dense[0],
            "numbers in memory": float(state.S.numel() + state.z.numel()),
        },
    )


@statement("S4.100", "§2.1.2", HOLDS).says(
    r"Under a causal mask the sums run over $j \le i$ and can be carried along.",
    compares="output of one position after the other, and of all pairs under a causal mask",
)
@between(n=(1, 13), k=(1, 7), v=(1, 7))
def prefix_sums(draw: Draws, n: int = 7, k: int = 5, v: int = 3) -> ClaimResult:
    Q, K, V = _inputs(draw, n, k, v)
    linear, state, rows = Linear(), None, []
    for i in range(n):
        y, state = _step(linear, Q[i], K[i], V[i], state)
        rows.append(y)
    masked = mechanism_weights(Linear(), Q, K, V, mask=Mask(causal=True)) @ V
    return ClaimResult(same(torch.stack(rows), masked))


def _step(linear: Linear, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None) -> tuple[Tensor, LinearState]:
    # one batch, one head, one position
    y, state = linear.step(q[None, None, None], k[None, None, None], v[None, None, None], state)
    return y[0, 0, 0], state


# --- the example of Taylor --------------------------------------------------------------------------------------------


def _unit(X: Tensor) -> Tensor:
    return _features(Taylor(), X)[:, 1:]


@statement("S4.101", "§2.1.2", CONDITION).says(
    r"$e^{Q_i^\top K_j} \approx 1 + Q_i^\top K_j$, with $Q_i$ and $K_j$ normalised in $l_2$ to keep it nonnegative.",
    correction="Normalising changes the function: it approximates the exponential of cosines, with an error of up to "
    r"$e - 2$, reached at the cosine 1. Its exact features are $\phi(x) = (1, \frac{x}{\lVert x \rVert})$. The "
    "denominator is 0 if all keys point away from the query.",
    compares=r"error of $1 + \cos$ against $e^{\cos}$, and $e - 2$; without: against $e^{q \cdot k}$ of longer "
    "vectors, and $e - 2$",
)
@between(n=(1, 13), k=(1, 7), length=(1.5, 4.0))
def first_order_of_exp(draw: Draws, n: int = 7, k: int = 5, length: float = 2.0) -> ClaimResult:
    """Keys of this length; the last is the query itself, where $e^{q \\cdot k}$ is far above 2."""
    q = length * _unit(draw.normal(1, k))
    K = torch.cat([length * _unit(draw.normal(n, k)), q])
    similar = (_features(Taylor(), q) @ _features(Taylor(), K).mT)[0]
    cosines, products = similar - 1, (q @ K.mT)[0]
    opposite = _features(Taylor(), q) @ _features(Taylor(), -q).mT
    bounds = stacked(torch.full_like(similar, math.e - 2), torch.zeros_like(similar))
    return ClaimResult(
        at_most(stacked((cosines.exp() - similar).abs(), -similar), bounds),
        without=at_most((products.exp() - similar).abs(), math.e - 2),
        figures={"weight of a key that points away": float(opposite)},
    )


@statement("S4.102", "§2.1.2, first display with norms", TYPO).says(
    r"$V'_i = \frac{\sum_j (1 + \hat q_i^\top \sum_j \hat k_j) V_j}{\sum_j (1 + \hat q_i^\top \hat k_j)}$ with $\hat q "
    r"= \frac{q}{\lVert q \rVert}$ and $\hat k = \frac{k}{\lVert k \rVert}$",
    correction=r"$V'_i = \frac{\sum_j (1 + \hat q_i^\top \hat k_j) V_j}{\sum_j (1 + \hat q_i^\top \hat k_j)}$",
    compares="output by the display as printed, and of our linear attention; corrected: by the formula, and of ours",
)
@between(n=(3, 13), k=(2, 7), v=(1, 7))
def sum_inside_the_bracket(draw: Draws, n: int = 7, k: int = 5, v: int = 3) -> ClaimResult:
    Q, K, V = _inputs(draw, n, k, v)
    q, keys = _unit(Q), _unit(K)
    f = 1 + q @ keys.mT
    total = f.sum(-1, keepdim=True)
    printed = (1 + q @ keys.sum(0))[:, None] * V.sum(0) / total
    attended = mechanism_outputs(Linear(feature="taylor"), Q, K, V)
    return ClaimResult(same(printed, attended), corrected=same(f @ V / total, attended))


@statement("S4.103", "§2.1.2, second display with norms", TYPO).says(
    r"$V'_i = \frac{\sum_j V_j + \hat q_i^\top \hat k_j V_j}{n + \hat q_i^\top \sum_j \hat k_j}$",
    correction=r"$V_i'^\top = \frac{\sum_j V_j^\top + \hat q_i^\top \sum_j \hat k_j V_j^\top}{n + \hat q_i^\top \sum_j "
    r"\hat k_j}$: a sum and the transposes are missing, and $j$ is free.",
    compares="output by the display as printed, and of our linear attention; corrected: by the formula, and of ours",
)
@between(n=(3, 13), k=(2, 7), v=(1, 7))
def sum_left_out(draw: Draws, n: int = 7, k: int = 5, v: int = 3) -> ClaimResult:
    """As printed $j$ has no value; here it is the last."""
    Q, K, V = _inputs(draw, n, k, v)
    q, keys = _unit(Q), _unit(K)
    total = (n + q @ keys.sum(0))[:, None]
    printed = (V.sum(0) + (q @ keys[-1])[:, None] * V[-1]) / total
    corrected = (V.sum(0) + q @ (keys.mT @ V)) / total
    attended = mechanism_outputs(Linear(feature="taylor"), Q, K, V)
    return ClaimResult(same(printed, attended), corrected=same(corrected, attended))


@statement("S4.104", "§2.1.2", CONDITION).says(
    "Linear transformers reach the performance of transformers and are up to three orders of magnitude faster at "
    "inference.",
    correction="The abstract reports up to 4000 times on autoregressive prediction of very long sequences. In FLOPs "
    r"for each further position of a head, $4nd$ against $2d(2d+1)$, a thousand times takes $n \ge 500(2d + 1)$ "
    r"positions. The example of Taylor is from [11], not [10], which uses $\operatorname{elu} + 1$.",
    compares="FLOPs of a full step over those of a linear one at $500(2d + 1)$ positions, and 1000; without: at 512 "
    "positions, and 1000",
    note="The abstract's factor is a measured time; here FLOPs are counted.",
)
@between(d=(1, 128))
def faster_on_long_sequences(draw: Draws, d: int = 64) -> ClaimResult:
    geometry, long, short = Geometry(1, d, d), 500 * (2 * d + 1), 512
    step = Linear().cost(1, 1, geometry).flops
    at_long, at_short = (Dense().cost(1, n, geometry).flops / step for n in (long, short))
    return ClaimResult(at_least(at_long, 1000), without=at_least(at_short, 1000), figures={"positions": long})
