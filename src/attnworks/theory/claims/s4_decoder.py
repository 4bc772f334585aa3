"""S4: Conti 2024 on masked attention, cross-attention and output words (S4.54-S4.61); a toy language model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.attention import Mask
from attnworks.attention.dense import Dense
from attnworks.attention.softmax import masked_softmax
from attnworks.models import decoding
from attnworks.models.decoding import Hypothesis
from attnworks.models.layers import OutputLayer
from attnworks.theory.cases import Draws, filled
from attnworks.theory.claims.s3_heads import drawn_layer
from attnworks.theory.contract import CONDITION, HOLDS, TYPO, ClaimResult, between, statement
from attnworks.theory.networks import mechanism_weights
from attnworks.theory.sides import same, stacked


@dataclass(frozen=True, eq=False)
class ToyState:
    """The state of decoding: the index of the beginning that each hypothesis has written so far."""

    beginning: Int[Tensor, "s beams"]

    @property
    def sentences(self) -> int:
        return len(self.beginning)

    def reorder(self, origin: Int[Tensor, "s kept"]) -> ToyState:
        return ToyState(self.beginning.gather(1, origin))

    def keep(self, sentences: Int[Tensor, " kept"]) -> ToyState:
        return ToyState(self.beginning[sentences])


class ToyLanguageModel:
    """Scores of the next word after every beginning of a text; the last token is no word, but the end.

    Beginning 0 is the empty text, and b with word w behind it is b * words + w + 1: those of one length are side by
    side, in the order of a dictionary.
    """

    def __init__(self, scores: Float[Tensor, "beginnings w1"]) -> None:
        self.scores, self.words = scores, scores.shape[-1] - 1

    @classmethod
    def endless(cls, scores: Float[Tensor, "beginnings w"]) -> ToyLanguageModel:
        """A model in which the end has probability zero."""
        return cls(F.pad(scores, (0, 1), value=-torch.inf))

    @classmethod
    def of_joint(cls, p: Float[Tensor, " texts"], words: int, length: int) -> ToyLanguageModel:
        """p(y_t | y_<t) from the probabilities of all texts of one length: the sum over what comes later."""
        sums = [p.reshape(words**t, words, -1).sum(-1) for t in range(length)]
        return cls.endless(torch.cat(sums).log())

    def start(self, source: Int[Tensor, "s i"], real: Bool[Tensor, "s i"] | None = None) -> ToyState:
        del real
        return ToyState(torch.full((len(source), 1), -1))

    def step(self, tokens: Int[Tensor, "s beams"], state: ToyState) -> tuple[Float[Tensor, "s beams w1"], ToyState]:
        first = state.beginning < 0
        beginning = torch.where(first, 0, state.beginning * self.words + tokens + 1)
        return self.scores[beginning], ToyState(beginning)

    def greedy(self, longest: int) -> Hypothesis:
        source = torch.zeros(1, 1, dtype=torch.long)
        return decoding.greedy(self, source, bos=0, eos=self.words, max_new_tokens=longest)[0]

    def beam(self, beams: int, longest: int, n_best: int = 1) -> list[Hypothesis]:
        source = torch.zeros(1, 1, dtype=torch.long)
        return decoding.beam(
            self, source, bos=0, eos=self.words, beams=beams, max_new_tokens=longest, alpha=0.0, n_best=n_best
        )[0]

    def every_text(self, length: int) -> Float[Tensor, " texts"]:
        """log p(y) of all texts of this many words, in the order of a dictionary: sum_t log p(y_t | y_<t)."""
        conditional = self.scores.log_softmax(-1)[:, : self.words]
        logprob, first = torch.zeros(1, dtype=conditional.dtype), 0
        for t in range(length):
            here = conditional[first : first + self.words**t]
            # [words^t 1] + [words^t words] -> [words^(t+1)]
            logprob, first = (logprob[:, None] + here).flatten(), first + self.words**t
        return logprob


def beginnings(words: int, length: int) -> int:
    """How many texts are shorter than `length` words."""
    return sum(words**t for t in range(length))


def greedy_trap() -> ToyLanguageModel:
    """A model on which greedy decoding fails: after word 0 (0.6) all words are likely, after word 1 (0.4) one with 0.9.

    Greedy decoding writes 0.6 * 0.34; the most probable text has 0.4 * 0.9.
    """
    first, after_likely, after_other = (0.6, 0.4, 0.0), (0.34, 0.33, 0.33), (0.9, 0.05, 0.05)
    table = torch.tensor([first, after_likely, after_other, (1.0, 0.0, 0.0)], dtype=torch.float64)
    return ToyLanguageModel.endless(table.log())


_CAUSAL = Mask(causal=True)


@statement("S4.54", "§1.2.5", CONDITION).says(
    r"The mask $M$, 0 on and below the diagonal and $-\infty$ above, lets each position be influenced by preceding "
    "positions only.",
    correction="By preceding positions and by itself.",
    compares="output of earlier rows with other keys and values from $t$ on, and before the change; without: of row "
    "$t$ itself",
)
@between(n=(2, 13), k=(1, 11), v=(1, 11))
def influence_under_the_mask(draw: Draws, n: int = 7, k: int = 5, v: int = 3) -> ClaimResult:
    """Other keys and values from position t on: rows before it stay as they are, row t itself does not."""
    Q, K, V = (draw.normal(1, 1, n, width) for width in (k, k, v))
    t = int(draw.integers(1, below=n - 1)) + 1
    other_K, other_V = K.clone(), V.clone()
    other_K[..., t:, :], other_V[..., t:, :] = draw.normal(n - t, k), draw.normal(n - t, v)
    Y, other = Dense()(Q, K, V, _CAUSAL).Y, Dense()(Q, other_K, other_V, _CAUSAL).Y
    return ClaimResult(same(other[..., :t, :], Y[..., :t, :]), without=same(other[..., t, :], Y[..., t, :]))


@statement("S4.55", "§1.2.5", TYPO).says(
    r"With $A$ the matrix of scaled values $a_{i,j}$: adding $M$ to matrix $S$ gives $s_{ij}$ if $i \ge j$ and "
    r"$-\infty$ otherwise.",
    correction="The matrix was named $A$. The $s$ of (8) are values of softmax: with these, softmax would be taken "
    "twice.",
    compares="weight by softmax of $S + M$, and of our causal attention; corrected: of $A + M$, and of our causal "
    "attention",
)
@between(n=(2, 13), k=(1, 11), spread=(0.1, 10.0))
def name_of_the_scores(draw: Draws, n: int = 5, k: int = 3, spread: float = 1.0) -> ClaimResult:
    Q, K, V = (draw.normal(n, k, scale=spread) for _ in range(3))
    A = Q @ K.mT / math.sqrt(k)
    S, M = A.softmax(-1), _printed_mask(n)
    P = mechanism_weights(Dense(), Q, K, V, mask=_CAUSAL)
    return ClaimResult(same((S + M).softmax(-1), P), corrected=same((A + M).softmax(-1), P))


@statement("S4.56", "§1.2.5", HOLDS).says(
    r"Softmax of rows in which future scores are $-\infty$ gives a lower triangular matrix.",
    correction="A row needs one finite score; without any it is NaN by the formula, and zero in our masked softmax.",
    compares="weights that are not 0, and $n(n+1)/2$; every weight, and that of our masked softmax as well",
)
@between(n=(1, 13), spread=(0.1, 10.0))
def lower_triangular_weights(draw: Draws, n: int = 5, spread: float = 1.0) -> ClaimResult:
    A = draw.normal(n, n, scale=spread)
    P = (A + _printed_mask(n)).softmax(-1)
    ours = masked_softmax(A, torch.ones(n, n, dtype=torch.bool).tril())
    blind = torch.full((1, n), -torch.inf, dtype=torch.float64)
    figures = {
        "entries of a blind row that are NaN by the formula": float(blind.softmax(-1).isnan().sum()),
        "largest weight of a blind row in ours": float(masked_softmax(blind, blind == 0).max()),
    }
    left, right = stacked((P != 0).sum(), P.triu(1), P), stacked(n * (n + 1) // 2, torch.zeros(n, n), ours)
    return ClaimResult(same(left, right), figures=figures)


@statement("S4.57", "§1.2.5, (10)", HOLDS).says(
    r"$\operatorname{MaskedAttention}(Q, K, V) = \operatorname{softmax}(M + Q K^\top / \sqrt k) V$",
    compares="entry of the formula, and of our causal attention",
)
@between(n=(1, 13), k=(1, 11), v=(1, 11), spread=(0.1, 10.0))
def masked_attention(draw: Draws, n: int = 5, k: int = 7, v: int = 3, spread: float = 1.0) -> ClaimResult:
    Q, K, V = (draw.normal(1, 1, n, width, scale=spread) for width in (k, k, v))
    printed = (_printed_mask(n) + Q @ K.mT / math.sqrt(k)).softmax(-1) @ V
    return ClaimResult(same(printed, Dense()(Q, K, V, _CAUSAL).Y))


@statement("S4.58", "§1.2.5", TYPO).says(
    r"Row $j$, $(a'_{j,1}, \ldots, a'_{j,j}, 0, \ldots, 0) \cdot V$, is a linear combination of $a'_{j,1}, \ldots, "
    "a'_{j,j}$.",
    correction=r"A convex combination of $v_1, \ldots, v_j$ with these weights; a combination of the weights is one "
    "number.",
    compares="entries of a combination of weights, and of the row; corrected: entry of the combination of values, and "
    "of the row",
)
@between(n=(1, 13), k=(1, 11), v=(2, 11))
def rows_are_convex_combinations(draw: Draws, n: int = 5, k: int = 7, v: int = 3) -> ClaimResult:
    Q, K, V = (draw.normal(1, 1, n, width) for width in (k, k, v))
    Y, P = Dense()(Q, K, V, _CAUSAL, weights=True)
    assert P is not None
    j = int(draw.integers(1, below=n))
    weights, values = P[0, 0, j, : j + 1], V[0, 0, : j + 1]
    of_the_weights = (draw.normal(j + 1) @ weights).reshape(-1)
    row = Y[0, 0, j]
    figures = {"least weight": float(weights.min()), "sum of the weights": float(weights.sum())}
    return ClaimResult(
        same(len(of_the_weights), len(row)),
        corrected=same(stacked(weights @ values, weights.sum(), weights.clamp_max(0.0).sum()), stacked(row, 1.0, 0.0)),
        figures=figures,
    )


@statement("S4.59", "§1.2.5", TYPO).says(
    r"Cross-attention is $\operatorname{softmax}(X Z^\top / \sqrt k) Z$.",
    correction=r"$\operatorname{softmax}(X W_q (Z W_k)^\top / \sqrt k) Z W_v$. Without projections rows are $d$ wide, "
    r"and the scale would be $\sqrt d$.",
    compares="entry of the printed formula, and of our cross-attention; corrected: with projections, and of our "
    "cross-attention",
)
@between(n=(1, 13), m=(2, 13), d=(2, 11))
def cross_attention(draw: Draws, n: int = 5, m: int = 7, d: int = 3) -> ClaimResult:
    """One head as wide as the model, so that both results have the same shape."""
    X, Z = draw.normal(1, n, d), draw.normal(1, m, d)
    layer = drawn_layer(draw, d, 1, d, d, scale=1.0)
    W_q, W_k, W_v, _ = (W[0] for W in layer.head_first())
    Y = layer.attend(layer.queries(X), *layer.keys_values(Z), Mask()).Y[:, 0]
    printed = (X @ Z.mT / math.sqrt(d)).softmax(-1) @ Z
    projected = ((X @ W_q) @ (Z @ W_k).mT / math.sqrt(d)).softmax(-1) @ Z @ W_v
    return ClaimResult(same(printed, Y), corrected=same(projected, Y))


@statement("S4.60", "§1.2.5", HOLDS).says(
    r"The output $Y \in \mathbb R^{n' \times d}$ is projected into the vocabulary by $Y \cdot P$, $P \in \mathbb R^{d "
    r"\times l}$, and softmax gives scores between 0 and 1.",
    correction="Only the last row is needed at each step.",
    compares=r"score of a word by $\operatorname{softmax}(YP)$, and by our output; the last row alone, and with all "
    "others as well",
)
@between(n=(1, 13), d=(1, 11), words=(1, 23), spread=(0.1, 10.0))
def projection_to_words(draw: Draws, n: int = 5, d: int = 7, words: int = 11, spread: float = 1.0) -> ClaimResult:
    Y, output = draw.normal(n, d, scale=spread), filled(draw, lambda: OutputLayer(words, d))
    P = output.weight.T
    p = output(Y).softmax(-1)
    printed = (Y @ P).softmax(-1)
    last_alone = output(Y[-1]).softmax(-1)
    figures = {"least score": float(p.min()), "largest score": float(p.max()), "sum of a row": float(p[-1].sum())}
    return ClaimResult(same(stacked(printed, last_alone), stacked(p, p[-1])), figures=figures)


@statement("S4.61", "§1.2.5", CONDITION).says(
    "The decoder takes the word of the highest probability, adds it to its input, and continues until an end token: so "
    "it produces words that are the most probable according to the input.",
    correction="This is greedy decoding: the most probable word at each step, not the most probable sentence (S4.11).",
    compares="log-probability of the greedy text, and sum of the largest of each step; without: of the greedy text, "
    "and of the best",
)
@between(words=(1, 4), longest=(1, 5))
def word_by_word(draw: Draws, words: int = 3, longest: int = 4) -> ClaimResult:
    toy = ToyLanguageModel(draw.normal(beginnings(words, longest), words + 1))
    written = toy.greedy(longest)
    p, beginning, best = toy.scores.log_softmax(-1), 0, 0.0
    for token in written.tokens:
        best, beginning = best + float(p[beginning].max()), beginning * words + token + 1
    best += float(p[beginning].max()) if written.finished else 0.0
    trap = greedy_trap()
    return ClaimResult(same(written.logprob, best), without=same(trap.greedy(2).logprob, trap.every_text(2).max()))


def _printed_mask(n: int) -> Float[Tensor, "n n"]:
    """0 on and below the diagonal, -inf above."""
    return torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)
