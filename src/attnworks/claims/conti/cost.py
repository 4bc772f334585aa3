"""S4: Conti 2024, section 2.1 on what attention costs (S4.69-S4.72)."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from attnworks.claims.contract import Between, Finding, Verdict, not_computed, statement
from attnworks.claims.drawing import Draw
from attnworks.claims.sides import more, same
from attnworks.claims.together import together
from attnworks.errors import UsageError
from attnworks.mechanisms import Geometry
from attnworks.mechanisms.dense import Dense
from attnworks.models.counting import PUBLISHED, layer_flops, quadratic_share
from attnworks.models.positions import Positions


@statement(
    "S4.69",
    where="§2.1",
    says="Most of the complexity of a transformer lies in the self-attention.",
    verdict=Verdict.FALSE,
    correction=(
        "Of a layer's forward FLOPs, $4n^2d$ are quadratic in the length and $24nd^2$ are not (feed-forward width "
        r"$4d$): the share is $\frac{n}{n+6d}$, one half only at $n = 6d$. With its projections, self-attention takes "
        r"$\frac{n+2d}{n+6d}$, one half only at $n = 2d$."
    ),
    compares="share of self-attention with its projections, and one half; corrected: share of the FLOPs counted, and "
    "by the formula",
    note=(
        "Counted with its projections, attention reaches one half at $n = 2d$ already; up to BERT's 512 tokens it "
        r"stays below for every $d \ge 256$."
    ),
)
def share_of_attention(
    draw: Draw, n: Annotated[int, Between(1, 512)] = 512, d: Annotated[int, Between(256, 12_288)] = 1024
) -> Finding:
    flops = layer_flops(n, d)
    with_projections = (flops["attention"] + flops["projections"]) / sum(flops.values())
    shares = together(quadratic_share(n, d), quadratic_share(6 * d, d), with_projections)
    formulas = together(n / (n + 6 * d), 0.5, (n + 2 * d) / (n + 6 * d))
    figures = {"share that is quadratic in the length": quadratic_share(n, d)}
    return Finding(more(with_projections, 0.5), corrected=same(shares, formulas), figures=figures)


@statement(
    "S4.70",
    where="§2.1",
    says=r"Relating every token to every other token has complexity $O(n^2)$.",
    verdict=Verdict.CONDITION,
    correction=r"In the length alone: $O(n^2 d)$ time, and $O(n^2)$ memory per head if $P$ is stored.",
    compares="FLOPs of a head at $2n$ tokens, and four times those at $n$; without: FLOPs at width $2d$, and those "
    "at $d$",
)
def pairs_of_tokens(
    draw: Draw, n: Annotated[int, Between(1, 10_000)] = 512, d: Annotated[int, Between(1, 1024)] = 64
) -> Finding:
    once, longer, wider = (
        Dense().cost(length, length, Geometry(1, width, width)).flops
        for length, width in ((n, d), (2 * n, d), (n, 2 * d))
    )
    return Finding(
        same(longer, 4 * once), without=same(wider, once), figures={"FLOPs of one head": float(once), "pairs": n * n}
    )


@statement(
    "S4.71",
    where="§2.1",
    says="Most transformers are fixed in length; BERT is limited to 512 tokens.",
    verdict=Verdict.HOLDS,
    correction="Its positions are a learned table, which has no row for token 513.",
    compares="longest input that the position table of BERT takes, and 512",
)
def learned_positions_end(draw: Draw, d: Annotated[int, Between(1, 13)] = 5) -> Finding:
    rows = PUBLISHED["bert-large"].blueprint.positions
    table = Positions("learned", d, 10_000.0, rows).double()
    taken = [n for n in range(rows - 3, rows + 4) if _takes(table, draw.normal(1, n, d))]
    return Finding(same(max(taken), 512))


def _takes(positions: Positions, X: Tensor) -> bool:
    try:
        positions(X)
    except UsageError:
        return False
    return True


not_computed(
    "S4.72",
    where="§2.1.1",
    says="As its authors proved, BigBird handles sequences 8 times as long as before on similar hardware.",
    verdict=Verdict.CONDITION,
    correction="The abstract reports it as an experiment on similar hardware; it is no theorem.",
    why_not="a report of others' experiments",
)
