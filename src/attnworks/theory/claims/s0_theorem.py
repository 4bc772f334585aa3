"""S0: Xie 2021, section 2.2: theorem 2.2 on how fast attention alone makes all rows the same."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention import Mask
from attnworks.exam.linalg.bounds import LARGEST_ROW_RANGE, diameter_bound, published_bound, row_diameter
from attnworks.exam.linalg.residual import composite, induced_one, relative_residual, residual
from attnworks.theory.cases import Draws, maximise
from attnworks.theory.collapse_cases import hub, hub_least, hub_mean
from attnworks.theory.contract import CONDITION, FALSE, NOT_CHECKABLE, TYPO, ClaimResult, between, statement
from attnworks.theory.networks import (
    Network,
    collapsing_network,
    converges_below_one,
    drawn_network,
    given_network,
    self_attended,
    self_attending_network,
)
from attnworks.theory.sides import Sides, at_most, less, same


def left_of_residual(network: Network, X: Float[Tensor, "n e"], mask: Mask | None = None) -> Float[Tensor, ""]:
    """||res SAN(X)||_{1,inf} / ||res X||_{1,inf}."""
    return composite(residual(network.run(X, mask).exit)) / composite(residual(X))


@statement("S0.15", "§2.2", CONDITION).says(
    r"The aim: $\lVert \operatorname{res}\mathrm{SAN}(X)\rVert_{1,\infty} \to 0$ as $L \to \infty$.",
    correction=r"Not for all weights. It is enough that $c\rho^2 < 1$, with $c$ and $\rho$ as in D5 or D6. A large "
    "$W_{QK}$ gives hard attention and no collapse. And an absolute residual that tends to zero does not imply rank "
    "one, as outputs may vanish as a whole: the relative residual must be given too.",
    compares="share of the input's residual that is left after all layers, and zero; without: the same if every row "
    "sees itself alone",
)
@between(n=(2, 13), e=(1, 7), heads=(1, 3), share=(0.05, 0.9), layers=(7, 9))
def residual_falls_with_depth(
    draw: Draws, n: int = 5, e: int = 3, heads: int = 2, share: float = 0.5, layers: int = 7
) -> ClaimResult:
    """Without: every row attends to itself alone, and nothing changes."""
    X, identity = draw.shifted_rows(n, e), torch.eye(n, dtype=torch.float64)
    network = collapsing_network(draw, X, share=share, layers=layers, heads=heads)
    shrinking = given_network(*(size * identity.expand(3, 1, n, n) for size in (1e9, 0.1)))
    return ClaimResult(
        same(left_of_residual(network, X), 0.0),
        without=same(left_of_residual(self_attending_network(n, layers=layers), identity), 0.0),
        figures={
            "relative residual of the input": float(relative_residual(X)),
            "relative residual of the output": float(relative_residual(network.run(X).exit)),
            "share of the residual left if outputs vanish": float(left_of_residual(shrinking, identity)),
            "share of the relative residual left there": float(
                relative_residual(shrinking.run(identity).exit) / relative_residual(identity)
            ),
        },
    )


@statement("S0.16", "theorem 2.2", TYPO).says(
    "Theorem 2.2 is a bound for a single head in a single layer.",
    correction="The formula is for $L$ layers of one head each, the bound of one layer put into itself $L$ times; one "
    "layer is $L = 1$.",
    compares="logarithm of the printed bound, and of that for one layer; corrected: and of that for one layer, put "
    "into itself",
)
@between(layers=(2, 4), c=(0.1, 0.9), rho=(0.1, 1.0))
def bound_of_one_layer(draw: Draws, layers: int = 3, c: float = 0.5, rho: float = 0.7) -> ClaimResult:
    start = torch.tensor(rho, dtype=torch.float64)
    printed, once = published_bound(start, c, layers).log(), published_bound(start, c)
    repeated = start
    for _ in range(layers):
        repeated = published_bound(repeated, c)
    return ClaimResult(same(printed, once.log()), corrected=same(printed, repeated.log()))


@statement("S0.17", "theorem 2.2", FALSE, heavy=True).says(
    r"If $\lVert W_{QK}^l\rVert_1 \lVert W_V^l\rVert_{1,\infty} \le \beta$, then $\lVert "
    r"\operatorname{res}\mathrm{SAN}(X)\rVert_{1,\infty} \le (\frac{4\beta}{\sqrt{d_{qk}}})^{(3^L-1)/2} \lVert "
    r"\operatorname{res}X\rVert_{1,\infty}^{3^L}$.",
    correction="As printed, without a condition, it fails for many rows. The theorem of the paper, as others reproduce "
    r"it, has $4\gamma\beta$ with a $\gamma$ that depends on the attention weights. True are: (A) if every row of $E$ "
    "has a range of at most 4.229, the constant 4 holds for the residual that minimises the composite norm, and $8(1 - "
    r"1/n)$ for that from the mean (D5); (B) $\operatorname{diam}_2(\mathrm{SAN}(X)) \le "
    r"(\frac{\beta_2}{4\sqrt{d_{qk}}})^{(3^L-1)/2} \operatorname{diam}_2(X)^{3^L}$ with $\beta_2 \ge \lVert "
    r"W_{QK}^l\rVert_2\lVert W_V^l\rVert_2$, without condition, and sharp (D6).",
    compares="residual of the output, and its printed bound; corrected: largest share of a bound that is used, and 1",
)
@between(many=(200_000, 1_000_000), n=(2, 13), e=(1, 7), row_range=(0.01, LARGEST_ROW_RANGE), layers=(1, 3))
def theorem_2_2(
    draw: Draws, many: int = 200_000, n: int = 5, e: int = 3, row_range: float = 1.0, layers: int = 2
) -> ClaimResult:
    """Idle rows attend to a hub and active rows to themselves: half of the output differs from the other half."""
    least, mean = hub_least(hub(many)), hub_mean(hub(many))
    nearest = min(least, mean, key=lambda broken: broken.ratio)
    X = draw.shifted_rows(n, e)
    one_layer = drawn_network(draw, e=e).with_row_range(X, row_range)
    start, stack = (draw.normal(4, 3), draw.normal(3, 3)), drawn_network(draw, e=e, layers=layers)
    return ClaimResult(
        at_most(nearest.residual, nearest.allowed),
        corrected=at_most(torch.stack([one_layer.composite_share(X), stack.cubic_share(X)]), 1.0),
        figures={
            "residual from the mean row": mean.residual,
            "printed bound for it": mean.allowed,
            "least residual is at least": least.residual,
            "printed bound for the least": least.allowed,
            "least residual over its printed bound, 9000 rows": hub_least(hub(9000)).ratio,
            "tightest ratio found for four rows": maximise(_published_ratio, start, steps=40),
        },
    )


def _published_ratio(X: Tensor, W: Tensor) -> Tensor:
    Y = self_attended(X, W)
    return composite(residual(Y)) / published_bound(composite(residual(X)), 4 * induced_one(W))


@statement("S0.18", "§2.2", FALSE).says(
    "The path decomposition theorem can be used to prove that the right side of theorem 2.2 tends to zero.",
    correction=r"Path decomposition plays no part. With $c = 4\beta/\sqrt{d_{qk}}$ and $\rho = \lVert "
    r"\operatorname{res}X\rVert_{1,\infty}$ the right side is $c^{-1/2}(c^{1/2}\rho)^{3^L}$, which tends to zero if "
    r"and only if $c\rho^2 < 1$.",
    compares=r"printed bound for four layers, and for one; corrected: drawn $(c, \rho)$ that bear the correction out, "
    "and all of them",
)
@between(c=(0.1, 10.0), size=(1.1, 4.0))
def right_side_vanishes(draw: Draws, c: float = 0.5, size: float = 2.0) -> ClaimResult:
    """c rho^2 = size > 1: the bound grows with every layer."""
    rho = torch.tensor((size / c) ** 0.5, dtype=torch.float64)
    shallow, deep = (published_bound(rho, c, layers) for layers in (1, 4))
    return ClaimResult(less(deep, shallow), corrected=converges_below_one(draw))


@statement("S0.19", "§2.2", FALSE, heavy=True).says(
    'The structure of transformers leads to "rank losing" of the input.',
    correction=r"Only attention alone does (no skip, no MLP, every query sees all keys, small $c\rho^2$). With skip "
    r"$(1-s)\operatorname{diam}_2(X) \le \operatorname{diam}_2(X + \mathrm{SA}(X)) \le (1+s)\operatorname{diam}_2(X)$, "
    r"$s = \sum_h \lVert W_h\rVert_2 \tanh(\frac{\lVert W_{QK,h}\rVert_2 "
    r"\operatorname{diam}_2(X)^2}{4\sqrt{d_{qk}}})$: as the diameter falls so does $s$, and the distances stay.",
    compares="share of the diameter that is left after twelve layers with skip, and zero; corrected: largest share of "
    "a bound that is used, and 1",
)
@between(n=(2, 13), e=(1, 7), heads=(1, 3), spread=(0.01, 0.3))
def transformers_lose_rank(draw: Draws, n: int = 5, e: int = 3, heads: int = 2, spread: float = 0.1) -> ClaimResult:
    """Twelve layers with skip connections keep rows apart; without them the rows become equal."""
    X, layers = draw.shifted_rows(n, e, spread), 12
    alone = collapsing_network(draw, X, share=0.5, layers=layers, heads=heads)
    with_skip = alone.rewired(skip=True, size=0.25)
    exit = with_skip.run(X).exit
    return ClaimResult(
        same(row_diameter(exit) / row_diameter(X), 0.0),
        corrected=at_most(torch.stack(with_skip.skip_shares(X)), 1.0),
        figures={
            "diameter of the input": float(row_diameter(X)),
            "after twelve layers with skip": float(row_diameter(exit)),
            "after twelve layers without": float(row_diameter(alone.run(X).exit)),
            "relative residual with skip, input": float(relative_residual(X)),
            "relative residual with skip, output": float(relative_residual(exit)),
        },
    )


@statement("S0.20", "§2.2", CONDITION, heavy=True).says(
    r"The input is embedded into the same word vector as $L \to \infty$.",
    correction="Under the condition of S0.15. What is common is a row, not a word vector of the vocabulary. The bounds "
    "do not hold under a causal mask, where the first row sees itself alone.",
    compares="share of the diameter that is left after all layers, and zero; without: the same if every row sees "
    "itself alone",
    note="Under a causal mask rows of small range still come together with depth, at the first row, but by a factor "
    "for every layer and not doubly exponentially.",
)
@between(n=(2, 13), e=(1, 7), heads=(1, 3), share=(0.05, 0.9), layers=(7, 9))
def same_vector(
    draw: Draws, n: int = 5, e: int = 3, heads: int = 2, share: float = 0.5, layers: int = 7
) -> ClaimResult:
    """Without: every row attends to itself alone."""
    X, identity = draw.shifted_rows(n, e), torch.eye(n, dtype=torch.float64)
    network = collapsing_network(draw, X, share=share, layers=layers, heads=heads)
    causal = network.run(X, Mask(causal=True)).states
    kept = self_attending_network(n, layers=layers).run(identity).exit
    return ClaimResult(
        same(row_diameter(network.run(X).exit) / row_diameter(X), 0.0),
        without=same(row_diameter(kept) / row_diameter(identity), 0.0),
        figures={
            "diameter after one layer, causal": float(row_diameter(causal[1])),
            "bound for one layer, not causal": float(diameter_bound(row_diameter(X), network.sizes[0], network.scale)),
            "diameter after all layers, causal": float(row_diameter(causal[-1])),
        },
    )


@statement("S0.36", "§2.4, problem 3", CONDITION).says(
    "The input residual is smaller than 1, as the bound needs it.",
    correction=r"It need not be. What is needed is $c\rho^2 < 1$ with $c = 4\beta/\sqrt{d_{qk}}$, and a range of every "
    r"row of $E$ of at most 4.229 for the constant 4. A residual below one is enough for $c \le 1$ alone.",
    compares=r"bound for three layers, and for one, where $c\rho^2 < 1$; without: where $c\rho^2 > 1$",
)
@between(rho=(0.1, 0.95), size=(0.1, 0.9))
def residual_below_one(draw: Draws, rho: float = 0.2, size: float = 0.4) -> ClaimResult:
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
    return ClaimResult(falls(start, size), without=falls(start, 1 / size), figures=figures)


statement("S0.37", "§2.4, problems 1 and 4", NOT_CHECKABLE).not_computed(
    "The proof in A.1, shown in a figure; the problems in the conclusion.",
    why_not="the figure is missing (its matter is S0.32), and problem 4 is not stated",
)
