"""S4: Conti 2024 on the gradient of softmax, the scale of scores and attention pooling (S4.46-S4.50, S4.121-S4.128)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from tokenizers import trainers
from torch import Tensor

from attnworks.attention.dense import Dense
from attnworks.attention.pooling import Pooling
from attnworks.attention.softmax import jacobian_norm, scaled_dot, softmax_jacobian
from attnworks.theory.cases import Draws, maximise
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, NOT_CHECKABLE, TYPO, ClaimResult, between, statement
from attnworks.theory.networks import mechanism_outputs
from attnworks.theory.sides import Sides, at_most, both, less, more, same, stacked


@statement("S4.46", "§1.2.3", HOLDS).says(
    r"$\frac{\partial s_i}{\partial z_i} = s_i (1 - s_i)$ and $\frac{\partial s_i}{\partial z_k} = -s_i s_k$, for $k "
    r"\neq i$",
    correction=r"The condition $k \neq i$ belongs to the second alone.",
    compares="entry of the formula, and of the derivative by autograd",
)
@between(n=(1, 23), spread=(0.01, 100.0))
def derivatives_of_softmax(draw: Draws, n: int = 5, spread: float = 1.0) -> ClaimResult:
    z = draw.normal(n, scale=spread)
    return ClaimResult(same(softmax_jacobian(z.softmax(-1)), _by_autograd(z)))


@statement("S4.47", "§1.2.3", TYPO, heavy=True).says(
    r"The Jacobian has the diagonal $s_1 (1 - s_1), -s_2 (1 - s_2), \ldots, -s_n (1 - s_n)$ and $-s_i s_k$ beside it.",
    correction=r"All of the diagonal is $+s_i (1 - s_i)$: $J = \operatorname{diag}(s) - s s^\top$. It is symmetric and "
    r"positive semidefinite, $J \mathbf 1 = 0$, its rank is $n - 1$, and $\lVert J \rVert_2 \le \frac 12$.",
    compares=r"entry of the printed Jacobian, and of that by autograd; corrected: of $\operatorname{diag}(s) - s "
    r"s^\top$, and by autograd",
)
@between(n=(2, 23), spread=(0.01, 3.0))
def signs_of_the_diagonal(draw: Draws, n: int = 5, spread: float = 1.0) -> ClaimResult:
    z = draw.normal(n, scale=spread)
    J = softmax_jacobian(z.softmax(-1))
    signs = -torch.ones(n, dtype=torch.float64)
    signs[0] = 1.0
    printed = J - J.diag().diag() + (signs * J.diag()).diag()
    spectrum = torch.linalg.eigvalsh(J)
    norm_over_half = maximise(
        lambda z: 2 * torch.linalg.eigvalsh(softmax_jacobian(z.softmax(-1)))[-1], [z], steps=60, rate=0.3
    )
    figures = {
        "rank": float(torch.linalg.matrix_rank(J)),
        "least eigenvalue": float(spectrum[0]),
        "spectral norm": float(spectrum[-1]),
        "largest spectral norm found, over one half": norm_over_half,
        "largest row sum": float(J.sum(-1).abs().max()),
    }
    true = _by_autograd(z)
    return ClaimResult(same(printed, true), corrected=same(J, true), figures=figures)


@statement("S4.48", "§1.2.3, (9)", CONDITION).says(
    "The Jacobian becomes zero if $s$ is one of the unit vectors.",
    correction="If and only if; and softmax of finite $z$ reaches them only in the limit.",
    compares="entry of the Jacobian at unit vectors, and 0; without: its norm at a softmax of finite numbers, and 0",
)
@between(n=(2, 23), spread=(0.01, 3.0))
def jacobian_at_unit_vectors(draw: Draws, n: int = 5, spread: float = 1.0) -> ClaimResult:
    units, z = torch.eye(n, dtype=torch.float64), draw.normal(n, scale=spread)
    return ClaimResult(same(softmax_jacobian(units), 0.0), without=same(jacobian_norm(z.softmax(-1)), 0.0))


@statement("S4.49", "§1.2.3", CONDITION).says(
    "Softmax is not scale invariant: the higher the inputs are scaled, the more the largest dominates the output.",
    correction="If the largest is the only one of its size: several of them share the weight at every scale.",
    compares="largest weight after scaling up, and before; without: the same where two inputs are the largest",
)
@between(n=(2, 23), lead=(0.1, 2.0), factor=(1.5, 4.0))
def scaling_up(draw: Draws, n: int = 5, lead: float = 0.5, factor: float = 2.0) -> ClaimResult:
    """Two equal largest inputs have half of the weight each, however far the others are below."""
    z = draw.uniform(n, low=-1.0)
    z[0] = 1.0 + lead
    tied = 1000 * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    top, top_tied = ([(c * x).softmax(-1).max() for c in (factor, 1.0)] for x in (z, tied))
    figures = {"largest weight of two equal ones": float(top_tied[0])}
    return ClaimResult(more(*top), without=more(*top_tied), figures=figures)


@statement("S4.50", "§1.2.3", CONDITION, heavy=True).says(
    "The larger the dimension $d$ of keys and queries, the larger the dot products tend to be, and the gradient of "
    "softmax vanishes; therefore they are rescaled.",
    correction=r"$\operatorname{Var}(q \cdot k) = k$ for independent entries of mean 0 and variance 1, and not, for "
    "example, for vectors of length 1; what counts is the width $k$ of a head, not $d$. How much gradient is left "
    r"depends on the number of keys too: at $k = 64$ the median $\lVert J \rVert_F$ of unscaled rows is below that of "
    "scaled ones for few keys (about 0.06 against 0.37 for 8 keys), and above it from about 50 keys on (0.25 against "
    "0.10 for 256). At $k = 512$ it is still below with 128 keys (0.02 against 0.13).",
    compares=r"mean square of $q \cdot k$, and $k$ (or the median of $\lVert J \rVert_F$ said to be smaller, and the "
    "other one); without: the same for vectors of length 1",
)
@between(k=(2, 512), n=(64, 128))
def dot_products_of_wide_vectors(draw: Draws, k: int = 64, n: int = 128) -> ClaimResult:
    """q.k is normal of variance |q|^2 given q, so that E (q.k)^4 = 3 E |q|^4 = 3 (k^2 + 2 k), and the squares have the
    variance 2 k^2 + 6 k: 6 standard errors are allowed. The medians are compared on both sides of 50 keys.
    """
    samples = 2000
    q, key = draw.normal(samples, k), draw.normal(samples, k)
    products = (q * key).sum(-1)
    of_length_one = products / (q.norm(dim=-1) * key.norm(dim=-1))
    slack = 6 * math.sqrt((2 * k**2 + 6 * k) / samples)
    S = q[:200] @ key[:n].T
    unscaled, scaled = (jacobian_norm((scale * S).softmax(-1)) for scale in (1.0, k**-0.5))
    figures = {
        "median norm of the Jacobian, unscaled": float(unscaled.median()),
        "median norm of the Jacobian, scaled": float(scaled.median()),
        "share of unscaled rows with a norm below 0.01": float((unscaled < 0.01).double().mean()),
        "share of scaled rows with a norm below 0.01": float((scaled < 0.01).double().mean()),
    }
    medians = {keys: median_gradients(draw, keys) for keys in (_FEW_KEYS, _MANY_KEYS)}
    for keys, (bare, with_scale) in medians.items():
        figures[f"median at k = 64, {keys} keys, unscaled"] = bare
        figures[f"median at k = 64, {keys} keys, scaled"] = with_scale
    (few, few_scaled), (many, many_scaled) = medians.values()
    wide, wide_scaled = median_gradients(draw, _MANY_KEYS, 512)
    return ClaimResult(
        both(
            same(products.square().mean(), k, slack=slack),
            less(stacked(few, many_scaled, wide), stacked(few_scaled, many, wide_scaled)),
        ),
        without=same(of_length_one.square().mean(), k, slack=slack),
        figures=figures,
    )


_FEW_KEYS, _MANY_KEYS = 24, 128


def median_gradients(draw: Draws, keys: int, k: int = 64) -> tuple[float, float]:
    """The median ||J||_F of rows of softmax over keys of width k, without a scale and with 1 / sqrt(k)."""
    S = draw.normal(16, 128, k) @ draw.normal(16, keys, k).mT
    bare, scaled = (float(jacobian_norm((scale * S).softmax(-1)).median()) for scale in (1.0, k**-0.5))
    return bare, scaled


def _by_autograd(z: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), z)
    assert isinstance(jacobian, Tensor)
    return jacobian


statement("S4.121", "§3", NOT_CHECKABLE).not_computed(
    "$W_q$ and $W_k$ deform the space so that similar words cluster, and $W_v$ makes use of it: a word $c$ between $a$ "
    "and $b$ moves to one of them by its context.",
    why_not="a picture without a formula; `attnworks experiment context` draws it",
    correction="A picture without a formula.",
)


@statement("S4.122", "§3, (18)", TYPO).says(
    r"$o_j = \frac 1C \sum_i f(q_j, k_i) g(v_i) \in \mathbb R^p$ with $g(v) = W_v v \in \mathbb R^q$.",
    correction=r"$C = C_j = \sum_i f(q_j, k_i)$ depends on the query, and $o_j \in \mathbb R^q$.",
    compares="output with one $C$ for all queries, and of our pooling; corrected: with $C_j$, and of our pooling",
)
@between(n=(2, 13), m=(2, 13), d=(1, 7), p=(1, 7), q=(8, 13))
def constant_of_each_query(draw: Draws, n: int = 5, m: int = 7, d: int = 3, p: int = 2, q: int = 11) -> ClaimResult:
    Q, K, V, W_v = draw.normal(n, d), draw.normal(m, d), draw.normal(m, p), draw.normal(q, p)
    pooled = mechanism_outputs(Pooling(similarity=_exponential, values=lambda V: V @ W_v.mT), Q, K, V)
    f = _exponential(Q, K)
    C = f.sum(-1, keepdim=True)
    one_constant, own_constants = f @ (V @ W_v.mT) / C[:1], f @ (V @ W_v.mT) / C
    return ClaimResult(
        same(one_constant, pooled),
        corrected=same(own_constants, pooled),
        figures={"width of a value": p, "width of an output": pooled.shape[-1]},
    )


def _exponential(Q: Tensor, K: Tensor) -> Tensor:
    return scaled_dot(Q, K, 1.0).exp()


@statement("S4.123", "§3", CONDITION).says(
    r"In transformers $f(q_j, k_i) = \exp(\theta(q_j) \phi(k_i)^\top)$ with linear $\theta$ and $\phi$, such as "
    r"$\theta(q) = W_q q$.",
    correction=r"With $\frac{1}{\sqrt k}$ in the exponent, and all vectors rows (or all columns).",
    compares=r"output of pooling with $\frac{1}{\sqrt k}$, and of attention; without: of pooling without it, and of "
    "attention",
)
@between(n=(2, 13), d=(1, 7), k=(2, 7))
def similarity_of_transformers(draw: Draws, n: int = 5, d: int = 3, k: int = 2) -> ClaimResult:
    Q, K, V = draw.normal(3, n, d)
    W_q, W_k = draw.normal(2, d, k, scale=d**-0.5)
    attended = mechanism_outputs(Dense(), Q @ W_q, K @ W_k, V)
    scaled, unscaled = (
        mechanism_outputs(Pooling(similarity=lambda Q, K, s=s: scaled_dot(Q @ W_q, K @ W_k, s).exp()), Q, K, V)
        for s in (k**-0.5, 1.0)
    )
    return ClaimResult(same(scaled, attended), without=same(unscaled, attended))


def _opposed(draw: Draws, nearness: float) -> tuple[Tensor, Tensor]:
    """Inner products 1 and -c of a query with two keys, and a value for each key."""
    f = torch.tensor([[1.0, -nearness]], dtype=torch.float64)
    return f, draw.normal(2, 3)


@statement("S4.124", "§3", CONDITION).says(
    "The weights $f(q_j, k_i)$ form a convex combination.",
    correction=r"If $f \ge 0$ and $C_j > 0$. Then outputs lie between the least and the largest value. Inner products "
    "of 1 and $-0.99$ give the weights 100 and $-99$.",
    compares="how far an output is outside of the values' range, and 0; without: the same with inner products 1 and "
    "$-c$",
)
@between(n=(2, 13), d=(1, 7), nearness=(0.1, 0.99))
def convex_weights(draw: Draws, n: int = 7, d: int = 3, nearness: float = 0.99) -> ClaimResult:
    Q, K, V = draw.normal(3, n, d)
    inside = [mechanism_outputs(Pooling(similarity=kind), Q, K, V) for kind in ("exp", "gaussian", "polynomial", "elu")]
    f, values = _opposed(draw, nearness)
    outside = f @ values / f.sum(-1, keepdim=True)
    return ClaimResult(
        _between(torch.cat(inside), V),
        without=_between(outside, values),
        figures={"largest weight": float(f[0, 0] / f.sum()), "least weight": float(f[0, 1] / f.sum())},
    )


def _between(o: Tensor, V: Tensor) -> Sides:
    """Whether outputs lie between the least and the largest of each coordinate of the values."""
    return at_most(torch.cat([o - V.amax(0), V.amin(0) - o]), 0)


@statement("S4.125", "§3", CONDITION).says(
    r"With $f = \langle x, y \rangle$, if $q_j$ attends mostly $k_1$ then $o_j \approx \frac 1C \langle q_j, k_1 "
    r"\rangle g(v_1) \approx g(v_1)$.",
    correction=r"Only if $\sum_i f(q_j, k_i) \approx f(q_j, k_1)$; inner products may be negative. With $f \ge 0$ and "
    r"a share $\alpha$ of $k_1$ in $\sum_i \lvert f \rvert$, $\lVert o_j - g(v_1) \rVert \le (1 - \alpha) \max_i "
    r"\lVert g(v_i) - g(v_1) \rVert$. With inner products 1 and $-c$ it is not so.",
    compares="distance of the output from $g(v_1)$, and its bound; without: the same with inner products 1 and $-c$",
)
@between(n=(2, 13), d=(1, 7), nearness=(0.1, 0.99))
def attending_mostly_one(draw: Draws, n: int = 5, d: int = 3, nearness: float = 0.99) -> ClaimResult:
    positive, values = draw.uniform(1, n), draw.normal(n, d)
    signed, two = _opposed(draw, nearness)

    def ratio(log_f: Tensor, V: Tensor) -> Tensor:
        distance, bound = _from_the_first(log_f.exp(), V)
        return distance / bound

    return ClaimResult(
        at_most(*_from_the_first(positive, values)),
        without=at_most(*_from_the_first(signed, two)),
        figures={"tightest ratio found": maximise(ratio, [positive.log(), values], steps=30)},
    )


def _from_the_first(f: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """The distance of the output from the first value, and what the share of the first key allows."""
    o = (f @ V / f.sum(-1, keepdim=True))[0]
    others = 1 - f[0, 0].abs() / f.abs().sum()
    return (o - V[0]).norm(), others * (V - V[0]).norm(dim=-1).max()


statement("S4.126", "§3", HOLDS).not_computed(
    "Few heads matter for translation, and most can be pruned without a significant loss.",
    why_not="a report of others' experiments; `attnworks prune` prunes your own model",
    correction="Voita et al. 2019 prune 38 of 48 encoder heads at a loss of 0.15 BLEU (English to Russian, WMT).",
)

statement("S4.127", "§3", CONDITION).not_computed(
    "Heads can be pruned, but after the training process.",
    why_not="a report of others' experiments",
    correction="They continue training a converged model, with gates under an $L_0$ penalty.",
)


@statement("S4.128", "§3.1", FALSE).says(
    'The experiment uses opus_books, "texts, articles and web pages", and the tokenizer WordLeverTrainer.',
    correction="OPUS Books is aligned books alone. The class of the tokenizers library is WordLevelTrainer.",
    compares="classes of the printed name in the tokenizers library, and 1; corrected: of the right name, and 1",
    note="Only the name of the class is computed.",
)
def name_of_the_trainer(draw: Draws) -> ClaimResult:
    printed, known = (hasattr(trainers, name) for name in ("WordLeverTrainer", "WordLevelTrainer"))
    return ClaimResult(same(printed, 1), corrected=same(known, 1))
