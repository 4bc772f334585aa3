"""S4: Conti 2024 on the sizes of models and the cost of attention (S4.38, S4.62-S4.72)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attnworks.attention import Geometry
from attnworks.attention.dense import Dense
from attnworks.core.errors import UsageError
from attnworks.models import preset
from attnworks.models.counting import PUBLISHED, count_parameters, layer_flops, quadratic_share
from attnworks.models.layers import Positions
from attnworks.theory.cases import Draws
from attnworks.theory.contract import CONDITION, HOLDS, ClaimResult, between, statement
from attnworks.theory.sides import both, more, same, stacked


@statement("S4.69", "§2.1", CONDITION).says(
    "Most of the complexity of a transformer lies in the self-attention.",
    correction="For long sequences. Of a layer's forward FLOPs, $4n^2d$ are quadratic in the length and $24nd^2$ are "
    r"not (feed-forward width $4d$): the share is $\frac{n}{n+6d}$, more than one half for $n > 6d$. With its "
    r"projections, self-attention takes $\frac{n+2d}{n+6d}$, more than one half for $n > 2d$.",
    compares="share of self-attention with its projections for $n > 2d$ (or of its quadratic part for $n > 6d$), and "
    r"one half (or any share, and by the formula); without: the same for $n \le 2d$ (or $n \le 6d$)",
    note=r"Up to BERT's 512 tokens self-attention takes at most one half for every $d \ge 256$.",
)
@between(n=(1, 512), d=(256, 12_288))
def share_of_attention(draw: Draws, n: int = 512, d: int = 1024) -> ClaimResult:
    """Beyond either limit by n tokens, and within it by n tokens, up to the limit itself."""
    shares = stacked(attention_share(2 * d + n, d), quadratic_share(6 * d + n, d))
    lengths = torch.tensor([1, n, 2 * d - n, 2 * d]), torch.tensor([1, n, 6 * d - n, 6 * d])
    short = stacked(
        *(attention_share(length, d) for length in lengths[0].clamp_min(1).tolist()),
        *(quadratic_share(length, d) for length in lengths[1].tolist()),
    )
    figures = {
        "share of self-attention, n tokens": attention_share(n, d),
        "share that is quadratic in the length, n tokens": quadratic_share(n, d),
    }
    formulas = stacked((n + 2 * d) / (n + 6 * d), n / (n + 6 * d))
    by_formula = same(stacked(attention_share(n, d), quadratic_share(n, d)), formulas)
    return ClaimResult(both(more(shares, 0.5), by_formula), without=more(short.max(), 0.5), figures=figures)


def attention_share(n: int, d: int) -> float:
    """What self-attention and its projections take of a layer's forward FLOPs."""
    flops = layer_flops(n, d)
    return (flops["attention"] + flops["projections"]) / sum(flops.values())


@statement("S4.70", "§2.1", CONDITION).says(
    "Relating every token to every other token has complexity $O(n^2)$.",
    correction="In the length alone: $O(n^2 d)$ time, and $O(n^2)$ memory per head if $P$ is stored.",
    compares="FLOPs of a head at $2n$ tokens, and four times those at $n$; without: FLOPs at width $2d$, and those at "
    "$d$",
)
@between(n=(1, 10_000), d=(1, 1024))
def pairs_of_tokens(draw: Draws, n: int = 512, d: int = 64) -> ClaimResult:
    once, longer, wider = (
        Dense().cost(length, length, Geometry(1, width, width)).flops
        for length, width in ((n, d), (2 * n, d), (n, 2 * d))
    )
    figures = {"FLOPs of one head": float(once), "pairs": n * n}
    return ClaimResult(same(longer, 4 * once), without=same(wider, once), figures=figures)


@statement("S4.71", "§2.1", HOLDS).says(
    "Most transformers are fixed in length; BERT is limited to 512 tokens.",
    correction="Its positions are a learned table, which has no row for token 513.",
    compares="longest input that the position table of BERT takes, and 512",
)
@between(d=(1, 13))
def learned_positions_end(draw: Draws, d: int = 5) -> ClaimResult:
    rows = PUBLISHED["bert-large"].blueprint.positions
    table = Positions("learned", d, 10_000.0, rows).double()
    taken = [n for n in range(rows - 3, rows + 4) if _takes(table, draw.normal(1, n, d))]
    return ClaimResult(same(max(taken), 512))


def _takes(positions: Positions, X: Tensor) -> bool:
    try:
        positions(X)
    except UsageError:
        return False
    return True


statement("S4.72", "§2.1.1", CONDITION).not_computed(
    "As its authors proved, BigBird handles sequences 8 times as long as before on similar hardware.",
    why_not="a report of others' experiments",
    correction="The abstract reports it as an experiment on similar hardware; it is no theorem.",
)


_PAPER_PARAMETERS = 65_000_000
"""Parameters of the base model by the 2017 paper."""


@statement("S4.38", "§1.2.2", HOLDS, heavy=True).says(
    "In the paper $d = 512$, $k = 64$, $m = 2048$, $H = 8$ and $L = 6$.",
    correction="With one vocabulary of 37000 for everything and no biases in attention that makes 63.0 million "
    "parameters; the paper says 65.",
    compares="parameters by these numbers, and of our base model",
)
def base_model(draw: Draws) -> ClaimResult:
    d, k, m, H, L, vocabulary = 512, 64, 2048, 8, 6, 37_000
    feed_forward, norm, attention = 2 * d * m + m + d, 2 * d, 4 * d * H * k
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    count = sum(count_parameters(preset("base")).values())
    figures = {"heads times their width": float(H * k), "over the number of the paper": count / _PAPER_PARAMETERS}
    return ClaimResult(same(L * (encoder + decoder) + vocabulary * d, count), figures=figures)


@statement("S4.62", "§2", CONDITION).says(
    "Context windows: GPT-4 up to 32000, GPT-3.5 from 4000 to 16000, GPT-3 2000.",
    correction="If a thousand is 1024: 32768; 4096 and 16385 (one more than that); 2048. Of these the 2048 positions "
    "of GPT-3 are compared here. There were models with 128k by November 2023.",
    compares="twice 1024, and positions of GPT-3; without: twice 1000, and positions of GPT-3",
)
def context_of_gpt_3(draw: Draws) -> ClaimResult:
    positions = PUBLISHED["gpt-3"].blueprint.positions
    return ClaimResult(same(2 * 1024, positions), without=same(2 * 1000, positions))


@statement("S4.63", "§2, table 1", HOLDS).says(
    "GPT-1, June 2018, 117 million parameters.",
    correction="12 layers, $d = 768$, 40478 tokens, 512 positions, one matrix for input and output, no final norm. The "
    "date is not computed.",
    compares="parameters counted, and stated (to the last digit that is not 0)",
)
def gpt_1(draw: Draws) -> ClaimResult:
    return _counted("gpt-1")


@statement("S4.64", "§2, table 1", HOLDS).says(
    "BERT, October 2018, 340 million parameters.",
    correction="BERT-large: 24 layers, $d = 1024$, feed-forward 4096, 30522 tokens, 512 positions; rounded to tens of "
    "millions. The date is not computed.",
    compares="parameters counted, and stated (to the last digit that is not 0)",
)
def bert(draw: Draws) -> ClaimResult:
    return _counted("bert-large")


@statement("S4.65", "§2, table 1", CONDITION).says(
    "GPT-2, February 2019, 1.5 billion parameters.",
    correction="GPT-2 XL, 48 layers, $d = 1600$, 50257 tokens, 1024 positions, has 1.5 billion without the embedding "
    "of tokens and positions; all together round to 1.6. The number comes from the 1542 million that its paper counts. "
    "The date is not computed.",
    compares="parameters without embeddings, and stated; without: all parameters, and stated",
    note="The count is 3.8 percent above 1.5 billion, and so not what the number says to its last digit.",
)
def gpt_2(draw: Draws) -> ClaimResult:
    return _counted("gpt-2-xl", without_words=True)


@statement("S4.66", "§2, table 1", HOLDS).says(
    "GPT-3, May 2020, 175 billion parameters.",
    correction="96 layers, $d = 12288$, 50257 tokens, 2048 positions; $12 L d^2$ alone is 173.9 billion. The date is "
    "not computed.",
    compares="parameters counted, and stated (to the last digit that is not 0)",
)
def gpt_3(draw: Draws) -> ClaimResult:
    shape = PUBLISHED["gpt-3"].blueprint
    return _counted("gpt-3", figures={"twelve times layers times width squared": 12.0 * shape.layers * shape.d_e**2})


@statement("S4.67", "§2, table 1", CONDITION).says(
    "LaMDA, January 2022, 137 billion parameters.",
    correction="Without the embedding: 64 layers, $d = 8192$, gated feed-forward 65536, 128 heads of width 128. With "
    "32000 tokens it rounds to 138. The date is not computed, and the hyper-parameters are taken as known.",
    compares="parameters without the embedding, and stated; without: all parameters, and stated",
    note="The count with the embedding is 0.5 percent above 137 billion, and so not what the number says to its last "
    "digit.",
)
def lamda(draw: Draws) -> ClaimResult:
    return _counted("lamda", without_words=True)


@statement("S4.68", "§2, table 1", HOLDS).says(
    "Minerva, June 2022, 540 billion parameters.",
    correction="That of PaLM: 118 layers, $d = 18432$, 48 heads of width 256 with one key and value for all, gated "
    "feed-forward $4d$, 256000 tokens. The date is not computed, and the hyper-parameters are taken as known.",
    compares="parameters counted, and stated (to the last digit that is not 0)",
)
def minerva(draw: Draws) -> ClaimResult:
    return _counted("minerva")


def _counted(name: str, *, without_words: bool = False, figures: Mapping[str, float] | None = None) -> ClaimResult:
    """The count against the stated number, which may be off by half of its last digit that is not 0.

    without_words    the condition: embeddings and positions are not counted
    """
    model, digits = PUBLISHED[name], str(PUBLISHED[name].stated)
    parts = model.blueprint.count_parameters()
    count, words = sum(parts.values()), sum(parts.get(part, 0) for part in ("embedding", "positions"))
    slack = 10 ** (len(digits) - len(digits.rstrip("0"))) / 2
    counted = {"parameters counted": float(count), "over the stated number": count / model.stated}
    return ClaimResult(
        same(count - words if without_words else count, model.stated, slack=slack),
        without=same(count, model.stated, slack=slack) if without_words else None,
        figures=counted | dict(figures or {}),
    )
