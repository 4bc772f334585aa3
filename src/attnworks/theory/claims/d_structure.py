"""D11 and D12: the nearest structured form of a head."""

from __future__ import annotations

from typing import Annotated

from attnworks.exam.structure.projection import project, row_report
from attnworks.exam.structure.search import best_blocks, best_map, best_order, best_permutation, gain
from attnworks.theory import exhaustive_search
from attnworks.theory.cases import Draw
from attnworks.theory.contract import Between, Finding, Verdict, statement
from attnworks.theory.sides import same
from attnworks.theory.together import together

Few = Annotated[int, Between(2, 4)]
Side = Annotated[int, Between(0, 2)]
Eps = Annotated[float, Between(0.0, 0.3)]
Sharpness = Annotated[float, Between(0.1, 5.0)]


@statement(
    "D11",
    where="derived",
    says=(
        r"The matrix nearest to $H$ among bands plus errors of at most $\epsilon$ is $H$ in the band, and $h$ clipped "
        r"to $[-\epsilon, \epsilon]$ outside, in $L_1$ and in Frobenius norm. With at most $s$ errors, those at the "
        r"$s$ largest $\lvert h \rvert$: they gain $\min(\lvert h \rvert, \epsilon)$ in $L_1$, and $h^2$ or $2\epsilon "
        r"\lvert h \rvert - \epsilon^2$ in the squared Frobenius norm, all of which grow with $\lvert h \rvert$."
    ),
    verdict=Verdict.HOLDS,
    compares="distance of the closed form from $H$ (or squared, Frobenius), and the least over all places of errors",
    proof=r"The distance is a sum over entries, and least where each term is: outside the band the number in "
    r"$[-\epsilon, \epsilon]$ nearest to $h$ is $h$ clipped.",
)
def nearest_in_both_norms(
    draw: Draw,
    n: Few = 4,
    eps: Eps = 0.1,
    budget: Annotated[int, Between(0, 4)] = 2,
    sharpness: Sharpness = 2.0,
    side: Side = 0,
) -> Finding:
    H = draw.stochastic(n, n, sharpness=sharpness)
    nearest = project(H, side, side, eps, budget)
    tried = [exhaustive_search.over_supports(H, side, eps, budget, power).min() for power in (1, 2)]
    sums, negatives = row_report(nearest.X)
    return Finding(
        same(together(nearest.l1, nearest.frobenius.square()), together(*tried)),
        figures={"least sum of a row": float(sums.min()), "negative entries": float(negatives)},
    )


@statement(
    "D12",
    where="derived",
    says=(
        r"The form $P$ nearest to a head $H$ in $L_1$, with errors of $\epsilon$ forgiven: (i) of all maps, the "
        r"largest weight of each row, at $2 \sum_i (1 - \max_j h_{ij})$ for $\epsilon = 0$, and it stays the best "
        r"under any number $s$ of errors; (ii) of permutations, by the Hungarian method, at $2(n - \max_\pi \sum_i "
        r"h_{i\pi(i)})$; (iii) of rows put in the order of a band, by a linear assignment with the cost $\sum_{j "
        r"\notin band(p)} \max(\lvert h_{ij} \rvert - \epsilon, 0)$ of row $i$ in place $p$; (iv) of $\Sigma_3$, by "
        "dynamic programming over the end of the last block, with a price for each block; (v) then $E = H - P$ clipped "
        r"to $[-\epsilon, \epsilon]$, at $\sum \max(\lvert h - p \rvert - \epsilon, 0)$. The baselines are $P = 0$ and "
        "a band of free values. To order rows and columns alike is a quadratic assignment, which is NP-hard."
    ),
    verdict=Verdict.HOLDS,
    compares="distance (or gain) of the form that is found, and the best of all forms",
    proof=r"A row that sums to one has $\lVert h_i - e_j\rVert_1 = 2(1 - h_{ij})$, from which (i) and (ii) follow. "
    r"In (iii) the cost is a sum over rows, each in its place, and in (iv) a sum over blocks, each with its "
    r"best column.",
    heavy=True,
)
def searches_are_exact(
    draw: Draw,
    n: Few = 4,
    eps: Eps = 0.05,
    budget: Annotated[int, Between(0, 9)] = 3,
    price: Annotated[float, Between(0.0, 1.0)] = 0.2,
    sharpness: Sharpness = 2.0,
    side: Side = 0,
) -> Finding:
    H = draw.stochastic(n, n, sharpness=sharpness)
    maps, orders, blocks = (
        exhaustive_search.all_maps(n),
        exhaustive_search.all_permutations(n),
        exhaustive_search.all_blocks(n),
    )
    tau, permutation, G = best_map(H), best_permutation(H, 0.0), gain(H, eps)
    found = together(
        exhaustive_search.distances(H, tau, eps),
        exhaustive_search.distances(H, tau, eps, budget),
        2 * (1 - H.amax(-1)).sum(),
        exhaustive_search.distances(H, permutation, 0.0),
        2 * (n - H.gather(-1, permutation.unsqueeze(-1)).sum()),
        exhaustive_search.outside_in_order(H, best_order(H, side, side, eps), side, eps),
        exhaustive_search.priced_gains(G, best_blocks(H, eps, price), price),
    )
    tried = together(
        exhaustive_search.distances(H, maps, eps).min(),
        exhaustive_search.distances(H, maps, eps, budget).min(),
        exhaustive_search.distances(H, maps, 0.0).min(),
        exhaustive_search.distances(H, orders, 0.0).min(),
        exhaustive_search.distances(H, orders, 0.0).min(),
        exhaustive_search.outside_in_order(H, orders, side, eps).min(),
        exhaustive_search.priced_gains(G, blocks, price).max(),
    )
    return Finding(same(found, tried), figures={"maps tried": len(maps), "members of the third family": len(blocks)})
