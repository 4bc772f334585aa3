"""S0: Xie 2021, section 2.2: theorem 2.2 on how fast attention alone makes all rows the same."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention import Mask
from attnworks.exam.linalg.bounds import (
    LARGEST_ROW_RANGE,
    diameter,
    diameter_bound,
    published_bound,
    rounding_of_rows,
    skip_bounds,
)
from attnworks.exam.linalg.residual import composite, induced_one, relative_residual, residual
from attnworks.theory.cases import Draw, highest
from attnworks.theory.collapse_cases import hub, hub_least, hub_mean
from attnworks.theory.contract import Between, Finding, Verdict, not_computed, statement
from attnworks.theory.networks import (
    Network,
    collapsing,
    composite_share,
    converges_below_one,
    cubic_share,
    drawn_network,
    frozen_attention,
    given_network,
    of_row_range,
    rewired,
    rows_with_a_common_part,
    self_attended,
)
from attnworks.theory.sides import Sides, at_most, less, same

Rows = Annotated[int, Between(2, 13)]
Width = Annotated[int, Between(1, 7)]
Heads = Annotated[int, Between(1, 3)]
Share = Annotated[float, Between(0.05, 0.9)]
ManyRows = Annotated[int, Between(200_000, 1_000_000)]
Range = Annotated[float, Between(0.01, LARGEST_ROW_RANGE)]
Depth = Annotated[int, Between(2, 4)]


def left_of_residual(network: Network, X: Float[Tensor, "n e"], mask: Mask | None = None) -> Float[Tensor, ""]:
    """||res SAN(X)||_{1,inf} / ||res X||_{1,inf}."""
    return composite(residual(network.run(X, mask).exit)) / composite(residual(X))


@statement(
    "S0.15",
    where="§2.2",
    says=r"The aim: $\lVert \operatorname{res}\mathrm{SAN}(X)\rVert_{1,\infty} \to 0$ as $L \to \infty$.",
    verdict=Verdict.CONDITION,
    correction=r"Not for all weights. It is enough that $c\rho^2 < 1$, with $c$ and $\rho$ as in D5 or D6. A large "
    r"$W_{QK}$ gives hard attention and no collapse. And an absolute residual that tends to zero does not imply rank "
    r"one, as outputs may vanish as a whole: the relative residual must be given too.",
    compares="share of the input's residual that is left after all layers, and zero; without: the same if every row "
    "sees itself alone",
)
def residual_falls_with_depth(
    draw: Draw,
    n: Rows = 5,
    e: Width = 3,
    heads: Heads = 2,
    share: Share = 0.5,
    layers: Annotated[int, Between(7, 9)] = 7,
) -> Finding:
    """Without: every row attends to itself alone, and nothing changes."""
    X, identity = rows_with_a_common_part(draw, n, e), torch.eye(n, dtype=torch.float64)
    network = collapsing(draw, X, share=share, layers=layers, heads=heads)
    shrinking = given_network(*(size * identity.expand(3, 1, n, n) for size in (1e9, 0.1)))
    return Finding(
        stated=same(left_of_residual(network, X), 0.0),
        without=same(left_of_residual(frozen_attention(n, layers=layers), identity), 0.0),
        figures={
            "relative residual of the input": float(relative_residual(X)),
            "relative residual of the output": float(relative_residual(network.run(X).exit)),
            "share of the residual left if outputs vanish": float(left_of_residual(shrinking, identity)),
            "share of the relative residual left there": float(
                relative_residual(shrinking.run(identity).exit) / relative_residual(identity)
            ),
        },
    )


@statement(
    "S0.16",
    where="theorem 2.2",
    says="Theorem 2.2 is a bound for a single head in a single layer.",
    verdict=Verdict.TYPO,
    correction=r"The formula is for $L$ layers of one head each, the bound of one layer put into itself $L$ times; "
    r"one layer is $L = 1$.",
    compares="logarithm of the printed bound, and of that for one layer; corrected: and of that for one layer, put "
    "into itself",
)
def bound_of_one_layer(
    draw: Draw,
    layers: Depth = 3,
    c: Annotated[float, Between(0.1, 0.9)] = 0.5,
    rho: Annotated[float, Between(0.1, 1.0)] = 0.7,
) -> Finding:
    start = torch.tensor(rho, dtype=torch.float64)
    printed, once = published_bound(start, c, layers).log(), published_bound(start, c)
    repeated = start
    for _ in range(layers):
        repeated = published_bound(repeated, c)
    return Finding(stated=same(printed, once.log()), corrected=same(printed, repeated.log()))


@statement(
    "S0.17",
    where="theorem 2.2",
    says=r"If $\lVert W_{QK}^l\rVert_1 \lVert W_V^l\rVert_{1,\infty} \le \beta$, then $\lVert "
    r"\operatorname{res}\mathrm{SAN}(X)\rVert_{1,\infty} \le (\frac{4\beta}{\sqrt{d_{qk}}})^{(3^L-1)/2} \lVert "
    r"\operatorname{res}X\rVert_{1,\infty}^{3^L}$.",
    verdict=Verdict.FALSE,
    correction=r"As printed, without a condition, it fails for many rows. The theorem of the paper, as others "
    r"reproduce it, has $4\gamma\beta$ with a $\gamma$ that depends on the attention weights. True are: (A) if every "
    r"row of $E$ has a range of at most 4.229, the constant 4 holds for the residual that minimises the composite "
    r"norm, and $8(1 - 1/n)$ for that from the mean (D5); (B) $\operatorname{diam}_2(\mathrm{SAN}(X)) \le "
    r"(\frac{\beta_2}{4\sqrt{d_{qk}}})^{(3^L-1)/2} \operatorname{diam}_2(X)^{3^L}$ with $\beta_2 \ge \lVert "
    r"W_{QK}^l\rVert_2\lVert W_V^l\rVert_2$, without condition, and sharp (D6).",
    compares="residual of the output, and its printed bound; corrected: largest share of a bound that is used, and 1",
    heavy=True,
)
def theorem_2_2(
    draw: Draw,
    many: ManyRows = 200_000,
    n: Rows = 5,
    e: Width = 3,
    row_range: Range = 1.0,
    layers: Annotated[int, Between(1, 3)] = 2,
) -> Finding:
    """A hub that idle rows look at and active rows do not: half of the output differs from the other half."""
    least, mean = hub_least(hub(many)), hub_mean(hub(many))
    nearest = min(least, mean, key=lambda broken: broken.ratio)
    X = rows_with_a_common_part(draw, n, e)
    one_layer = of_row_range(drawn_network(draw, e=e), X, row_range)
    start = draw.normal(4, 3), draw.normal(3, 3)
    return Finding(
        stated=at_most(nearest.residual, nearest.allowed),
        corrected=at_most(
            torch.stack([composite_share(one_layer, X), cubic_share(drawn_network(draw, e=e, layers=layers), X)]), 1.0
        ),
        figures={
            "residual from the mean row": mean.residual,
            "printed bound for it": mean.allowed,
            "least residual is at least": least.residual,
            "printed bound for the least": least.allowed,
            "least residual over its printed bound, 9000 rows": hub_least(hub(9000)).ratio,
            "tightest ratio found for four rows": highest(_published_ratio, start, steps=40),
        },
    )


def _published_ratio(X: Tensor, W: Tensor) -> Tensor:
    Y = self_attended(X, W)
    return composite(residual(Y)) / published_bound(composite(residual(X)), 4 * induced_one(W))


@statement(
    "S0.18",
    where="§2.2",
    says="The path decomposition theorem can be used to prove that the right side of theorem 2.2 tends to zero.",
    verdict=Verdict.FALSE,
    correction=r"Path decomposition plays no part. With $c = 4\beta/\sqrt{d_{qk}}$ and $\rho = \lVert "
    r"\operatorname{res}X\rVert_{1,\infty}$ the right side is $c^{-1/2}(c^{1/2}\rho)^{3^L}$, which tends to zero if "
    r"and only if $c\rho^2 < 1$.",
    compares=r"printed bound for four layers, and for one; corrected: drawn $(c, \rho)$ that bear the correction out, "
    r"and all of them",
)
def right_side_vanishes(
    draw: Draw, c: Annotated[float, Between(0.1, 10.0)] = 0.5, size: Annotated[float, Between(1.1, 4.0)] = 2.0
) -> Finding:
    """c rho^2 = size > 1: the bound grows with every layer, whatever the paths."""
    rho = torch.tensor((size / c) ** 0.5, dtype=torch.float64)
    shallow, deep = (published_bound(rho, c, layers) for layers in (1, 4))
    return Finding(stated=less(deep, shallow), corrected=converges_below_one(draw))


@statement(
    "S0.19",
    where="§2.2",
    says='The structure of transformers leads to "rank losing" of the input.',
    verdict=Verdict.FALSE,
    correction=r"Only attention alone does (no skip, no MLP, every query sees all keys, small $c\rho^2$). With skip "
    r"$(1-s)\operatorname{diam}_2(X) \le \operatorname{diam}_2(X + \mathrm{SA}(X)) \le "
    r"(1+s)\operatorname{diam}_2(X)$, $s = \sum_h \lVert W_h\rVert_2 \tanh(\frac{\lVert W_{QK,h}\rVert_2 "
    r"\operatorname{diam}_2(X)^2}{4\sqrt{d_{qk}}})$: as the diameter falls so does $s$, and the distances stay.",
    compares="share of the diameter that is left after twelve layers with skip, and zero; corrected: largest share "
    "of a bound that is used, and 1",
    heavy=True,
)
def transformers_lose_rank(
    draw: Draw, n: Rows = 5, e: Width = 3, heads: Heads = 2, spread: Annotated[float, Between(0.01, 0.3)] = 0.1
) -> Finding:
    """Twelve layers with skip keep rows apart that one in which attention stands alone brings together."""
    X, layers = rows_with_a_common_part(draw, n, e, spread), 12
    alone = collapsing(draw, X, share=0.5, layers=layers, heads=heads)
    with_skip = rewired(alone, skip=True, size=0.25)
    states = with_skip.run(X).states
    shares = []
    for before, after, sizes in zip(states, states[1:], with_skip.sizes, strict=False):
        low, high = skip_bounds(diameter(before), sizes, with_skip.scale)
        shares += [
            low / (diameter(after) + rounding_of_rows(after)),
            diameter(after) / (high + rounding_of_rows(after)),
        ]
    return Finding(
        stated=same(diameter(states[-1]) / diameter(X), 0.0),
        corrected=at_most(torch.stack(shares), 1.0),
        figures={
            "diameter of the input": float(diameter(X)),
            "after twelve layers with skip": float(diameter(states[-1])),
            "after twelve layers without": float(diameter(alone.run(X).exit)),
            "relative residual with skip, input": float(relative_residual(X)),
            "relative residual with skip, output": float(relative_residual(states[-1])),
        },
    )


@statement(
    "S0.20",
    where="§2.2",
    says=r"The input is embedded into the same word vector as $L \to \infty$.",
    verdict=Verdict.CONDITION,
    correction=r"Under the condition of S0.15. What is common is a row, not a word vector of the vocabulary. The "
    r"bounds do not hold under a causal mask, where the first row sees itself alone.",
    compares="share of the diameter that is left after all layers, and zero; without: the same if every row sees "
    "itself alone",
    note="Under a causal mask rows of small range still come together with depth, at the first row, but by a factor "
    "for every layer and not doubly exponentially.",
    heavy=True,
)
def same_vector(
    draw: Draw,
    n: Rows = 5,
    e: Width = 3,
    heads: Heads = 2,
    share: Share = 0.5,
    layers: Annotated[int, Between(7, 9)] = 7,
) -> Finding:
    """Without: every row attends to itself alone."""
    X, identity = rows_with_a_common_part(draw, n, e), torch.eye(n, dtype=torch.float64)
    network = collapsing(draw, X, share=share, layers=layers, heads=heads)
    causal = network.run(X, Mask(causal=True)).states
    return Finding(
        stated=same(diameter(network.run(X).exit) / diameter(X), 0.0),
        without=same(diameter(frozen_attention(n, layers=layers).run(identity).exit) / diameter(identity), 0.0),
        figures={
            "diameter after one layer, causal": float(diameter(causal[1])),
            "bound for one layer, not causal": float(diameter_bound(diameter(X), network.sizes[0], network.scale)),
            "diameter after all layers, causal": float(diameter(causal[-1])),
        },
    )


@statement(
    "S0.36",
    where="§2.4, problem 3",
    says=r"The input residual is smaller than 1, as the bound needs it.",
    verdict=Verdict.CONDITION,
    correction=r"It need not be. What is needed is $c\rho^2 < 1$ with $c = 4\beta/\sqrt{d_{qk}}$, and a range of "
    r"every row of $E$ of at most 4.229 for the constant 4. A residual below one is enough for $c \le 1$ alone.",
    compares=r"bound for three layers, and for one, where $c\rho^2 < 1$; without: where $c\rho^2 > 1$",
)
def residual_below_one(
    draw: Draw, rho: Annotated[float, Between(0.1, 0.95)] = 0.2, size: Annotated[float, Between(0.1, 0.9)] = 0.4
) -> Finding:
    """Within: c rho^2 = size below one, the bound falls with depth. Without: the same residual, c rho^2 above one."""
    start = torch.tensor(rho, dtype=torch.float64)

    def falls(rho: Tensor, size: float) -> Sides:
        c = size / float(rho) ** 2
        return less(published_bound(rho, c, 3), published_bound(rho, c, 1))

    above_one = falls(1 / start, size)
    figures = {
        "bound for three layers, residual above one": above_one.left,
        "bound for one layer, residual above one": above_one.right,
    }
    return Finding(stated=falls(start, size), without=falls(start, 1 / size), figures=figures)


not_computed(
    "S0.37",
    where="§2.4, problems 1 and 4",
    says="The proof in A.1, shown in a figure; the problems in the conclusion.",
    why_not="the figure is missing (its matter is S0.32), and problem 4 is not stated",
)
