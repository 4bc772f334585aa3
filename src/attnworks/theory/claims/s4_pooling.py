"""S4: Conti 2024, section 3 on attention pooling, heads and the experiment (S4.121-S4.128)."""

from __future__ import annotations

from typing import Annotated

import torch
from tokenizers import trainers
from torch import Tensor

from attnworks.attention.dense import Dense
from attnworks.attention.pooling import Pooling
from attnworks.attention.softmax import scaled_dot
from attnworks.theory.adversary import highest
from attnworks.theory.cases import Draw
from attnworks.theory.contract import Between, Finding, Verdict, not_computed, statement
from attnworks.theory.one_head import outputs
from attnworks.theory.sides import Sides, at_most, same

Rows = Annotated[int, Between(2, 13)]
Width = Annotated[int, Between(1, 7)]
Wide = Annotated[int, Between(2, 7)]
Nearness = Annotated[float, Between(0.1, 0.99)]

not_computed(
    "S4.121",
    where="§3",
    says=(
        "$W_q$ and $W_k$ deform the space so that similar words cluster, and $W_v$ makes use of it: a word $c$ between "
        "$a$ and $b$ moves to one of them by its context."
    ),
    correction="A picture without a formula.",
    why_not="a picture without a formula; `attnworks experiment context` draws it",
)


@statement(
    "S4.122",
    where="§3, (18)",
    says=r"$o_j = \frac 1C \sum_i f(q_j, k_i) g(v_i) \in \mathbb R^p$ with $g(v) = W_v v \in \mathbb R^q$.",
    verdict=Verdict.TYPO,
    correction=r"$C = C_j = \sum_i f(q_j, k_i)$ depends on the query, and $o_j \in \mathbb R^q$.",
    compares="output with one $C$ for all queries, and of our pooling; corrected: with $C_j$, and of our pooling",
)
def constant_of_each_query(
    draw: Draw, n: Rows = 5, m: Rows = 7, d: Width = 3, p: Width = 2, q: Annotated[int, Between(8, 13)] = 11
) -> Finding:
    Q, K, V, W_v = draw.normal(n, d), draw.normal(m, d), draw.normal(m, p), draw.normal(q, p)
    pooled = outputs(Pooling(similarity=_exponential, values=lambda V: V @ W_v.mT), Q, K, V)
    f = _exponential(Q, K)
    C = f.sum(-1, keepdim=True)
    one_constant, own_constants = f @ (V @ W_v.mT) / C[:1], f @ (V @ W_v.mT) / C
    return Finding(
        same(one_constant, pooled),
        corrected=same(own_constants, pooled),
        figures={"width of a value": p, "width of an output": pooled.shape[-1]},
    )


def _exponential(Q: Tensor, K: Tensor) -> Tensor:
    return scaled_dot(Q, K, 1.0).exp()


@statement(
    "S4.123",
    where="§3",
    says=(
        r"In transformers $f(q_j, k_i) = \exp(\theta(q_j) \phi(k_i)^\top)$ with linear $\theta$ and $\phi$, such as "
        r"$\theta(q) = W_q q$."
    ),
    verdict=Verdict.CONDITION,
    correction=r"With $\frac{1}{\sqrt k}$ in the exponent, and all vectors rows (or all columns).",
    compares=r"output of pooling with $\frac{1}{\sqrt k}$, and of attention; without: of pooling without it, and of "
    "attention",
)
def similarity_of_transformers(draw: Draw, n: Rows = 5, d: Width = 3, k: Wide = 2) -> Finding:
    Q, K, V = draw.normal(3, n, d)
    W_q, W_k = draw.normal(2, d, k, scale=d**-0.5)
    attended = outputs(Dense(), Q @ W_q, K @ W_k, V)
    scaled, unscaled = (
        outputs(Pooling(similarity=lambda Q, K, s=s: scaled_dot(Q @ W_q, K @ W_k, s).exp()), Q, K, V)
        for s in (k**-0.5, 1.0)
    )
    return Finding(same(scaled, attended), without=same(unscaled, attended))


def _opposed(draw: Draw, nearness: float) -> tuple[Tensor, Tensor]:
    """Inner products 1 and -c of a query with two keys, and a value for each key."""
    f = torch.tensor([[1.0, -nearness]], dtype=torch.float64)
    return f, draw.normal(2, 3)


@statement(
    "S4.124",
    where="§3",
    says=r"The weights $f(q_j, k_i)$ form a convex combination.",
    verdict=Verdict.CONDITION,
    correction=(
        r"If $f \ge 0$ and $C_j > 0$. Then outputs lie between the least and the largest value. Inner products of 1 "
        "and $-0.99$ give the weights 100 and $-99$."
    ),
    compares="how far an output is outside of the values' range, and 0; without: the same with inner products 1 and "
    "$-c$",
)
def convex_weights(draw: Draw, n: Rows = 7, d: Width = 3, nearness: Nearness = 0.99) -> Finding:
    Q, K, V = draw.normal(3, n, d)
    inside = [outputs(Pooling(similarity=kind), Q, K, V) for kind in ("exp", "gaussian", "polynomial", "elu")]
    f, values = _opposed(draw, nearness)
    outside = f @ values / f.sum(-1, keepdim=True)
    return Finding(
        _between(torch.cat(inside), V),
        without=_between(outside, values),
        figures={"largest weight": float(f[0, 0] / f.sum()), "least weight": float(f[0, 1] / f.sum())},
    )


def _between(o: Tensor, V: Tensor) -> Sides:
    """Whether outputs lie between the least and the largest of each coordinate of the values."""
    return at_most(torch.cat([o - V.amax(0), V.amin(0) - o]), 0)


@statement(
    "S4.125",
    where="§3",
    says=(
        r"With $f = \langle x, y \rangle$, if $q_j$ attends mostly $k_1$ then $o_j \approx \frac 1C \langle q_j, k_1 "
        r"\rangle g(v_1) \approx g(v_1)$."
    ),
    verdict=Verdict.CONDITION,
    correction=(
        r"Only if $\sum_i f(q_j, k_i) \approx f(q_j, k_1)$; inner products may be negative. With $f \ge 0$ and a share "
        r"$\alpha$ of $k_1$ in $\sum_i \lvert f \rvert$, $\lVert o_j - g(v_1) \rVert \le (1 - \alpha) \max_i \lVert "
        r"g(v_i) - g(v_1) \rVert$. With inner products 1 and $-c$ it is not so."
    ),
    compares="distance of the output from $g(v_1)$, and its bound; without: the same with inner products 1 and $-c$",
)
def attending_mostly_one(draw: Draw, n: Rows = 5, d: Width = 3, nearness: Nearness = 0.99) -> Finding:
    positive, values = draw.uniform(1, n), draw.normal(n, d)
    signed, two = _opposed(draw, nearness)

    def ratio(log_f: Tensor, V: Tensor) -> Tensor:
        distance, bound = _from_the_first(log_f.exp(), V)
        return distance / bound

    return Finding(
        at_most(*_from_the_first(positive, values)),
        without=at_most(*_from_the_first(signed, two)),
        figures={"tightest ratio found": highest(ratio, [positive.log(), values], steps=30)},
    )


def _from_the_first(f: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """The distance of the output from the first value, and what the share of the first key allows."""
    o = (f @ V / f.sum(-1, keepdim=True))[0]
    others = 1 - f[0, 0].abs() / f.abs().sum()
    return (o - V[0]).norm(), others * (V - V[0]).norm(dim=-1).max()


not_computed(
    "S4.126",
    where="§3",
    says="Few heads matter for translation, and most can be pruned without a significant loss.",
    verdict=Verdict.HOLDS,
    correction="Voita et al. 2019 prune 38 of 48 encoder heads at a loss of 0.15 BLEU (English to Russian, WMT).",
    why_not="a report of others' experiments; `attnworks reshape` prunes your own model",
)
not_computed(
    "S4.127",
    where="§3",
    says="Heads can be pruned, but after the training process.",
    verdict=Verdict.CONDITION,
    correction="They go on training a converged model, with gates under an $L_0$ penalty.",
    why_not="a report of others' experiments",
)


@statement(
    "S4.128",
    where="§3.1",
    says='The experiment uses opus_books, "texts, articles and web pages", and the tokenizer WordLeverTrainer.',
    verdict=Verdict.FALSE,
    correction="OPUS Books is aligned books alone. The class of the tokenizers library is WordLevelTrainer.",
    compares="classes of the printed name in the tokenizers library, and 1; corrected: of the right name, and 1",
    note="Only the name of the class is computed.",
)
def name_of_the_trainer(draw: Draw) -> Finding:
    printed, known = (hasattr(trainers, name) for name in ("WordLeverTrainer", "WordLevelTrainer"))
    return Finding(same(printed, 1), corrected=same(known, 1))
