"""S4: Conti 2024, section 2.1 on what attention costs (S4.69-S4.72)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from attnworks.attention import Geometry
from attnworks.attention.dense import Dense
from attnworks.core.errors import UsageError
from attnworks.models.counting import PUBLISHED, layer_flops, quadratic_share
from attnworks.models.layers import Positions
from attnworks.theory.cases import Draw
from attnworks.theory.contract import Between, Finding, Verdict, not_computed, statement
from attnworks.theory.sides import both, more, same
from attnworks.theory.together import together


@statement(
    "S4.69",
    where="§2.1",
    says="Most of the complexity of a transformer lies in the self-attention.",
    verdict=Verdict.CONDITION,
    correction=(
        "For long sequences. Of a layer's forward FLOPs, $4n^2d$ are quadratic in the length and $24nd^2$ are not "
        r"(feed-forward width $4d$): the share is $\frac{n}{n+6d}$, more than one half for $n > 6d$. With its "
        r"projections, self-attention takes $\frac{n+2d}{n+6d}$, more than one half for $n > 2d$."
    ),
    compares="share of self-attention with its projections for $n > 2d$ (or of its quadratic part for $n > 6d$), and "
    r"one half (or any share, and by the formula); without: the same for $n \le 2d$ (or $n \le 6d$)",
    note=r"Up to BERT's 512 tokens self-attention takes at most one half for every $d \ge 256$.",
)
def share_of_attention(
    draw: Draw, n: Annotated[int, Between(1, 512)] = 512, d: Annotated[int, Between(256, 12_288)] = 1024
) -> Finding:
    """Beyond either limit by n tokens, and within it by n tokens, up to the limit itself."""
    shares = together(attention_share(2 * d + n, d), quadratic_share(6 * d + n, d))
    lengths = torch.tensor([1, n, 2 * d - n, 2 * d]), torch.tensor([1, n, 6 * d - n, 6 * d])
    short = together(
        *(attention_share(length, d) for length in lengths[0].clamp_min(1).tolist()),
        *(quadratic_share(length, d) for length in lengths[1].tolist()),
    )
    figures = {
        "share of self-attention, n tokens": attention_share(n, d),
        "share that is quadratic in the length, n tokens": quadratic_share(n, d),
    }
    by_formula = same(
        together(attention_share(n, d), quadratic_share(n, d)), together((n + 2 * d) / (n + 6 * d), n / (n + 6 * d))
    )
    return Finding(both(more(shares, 0.5), by_formula), without=more(short.max(), 0.5), figures=figures)


def attention_share(n: int, d: int) -> float:
    """What self-attention and its projections take of a layer's forward FLOPs."""
    flops = layer_flops(n, d)
    return (flops["attention"] + flops["projections"]) / sum(flops.values())


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
