"""What all decoders share: hypotheses, the k most probable tokens, log-probabilities, and checks of arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from attnworks.core.errors import UsageError

FOLDS = 8
WORTH_FOLDING = 64
ENTRIES_AT_ONCE = 2**17
"""Rows are exponentiated in blocks of about this size, which stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """Hypotheses of the sentences that are still in the batch, the most probable first.

    sentence   which sentence of the caller's batch each row is
    tokens     what was written so far, then unused places up to `longest`
    """

    sentence: Int[Tensor, " s"]
    tokens: Int[Tensor, "s beams longest"]
    logprob: Float[Tensor, "s beams"]

    @classmethod
    def start(cls, source: Int[Tensor, "s i"], longest: int) -> Frontier:
        """One empty hypothesis for each sentence."""
        sentences, device = len(source), source.device
        return cls(
            torch.arange(sentences, device=device),
            torch.zeros(sentences, 1, longest, dtype=torch.long, device=device),
            torch.zeros(sentences, 1, device=device),
        )

    def grown(
        self,
        parent: Int[Tensor, "s children"],
        token: Int[Tensor, "s children"],
        logprob: Float[Tensor, "s children"],
        length: int,
    ) -> Frontier:
        """Children of these hypotheses, with their last token, `length` tokens long."""
        tokens = self.tokens_of(parent)
        tokens[:, :, length - 1] = token
        return Frontier(self.sentence, tokens, logprob)

    def tokens_of(self, parent: Int[Tensor, "s children"]) -> Int[Tensor, "s children longest"]:
        return self.tokens.gather(1, parent.unsqueeze(-1).expand(-1, -1, self.tokens.shape[-1]))

    def keep(self, rows: Int[Tensor, " kept"]) -> Frontier:
        return Frontier(self.sentence[rows], self.tokens[rows], self.logprob[rows])


@dataclass(frozen=True)
class Hypothesis:
    """One target sentence that a model wrote.

    tokens     without bos and eos
    logprob    sum_t log p(y_t | y_<t, x), with the term of eos if `finished` (S4.5)
    score      what hypotheses were ranked by: logprob over the length penalty in beam search, else logprob itself
    finished   whether the model wrote eos; if not, it was stopped
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    finished: bool


def largest(x: Num[Tensor, "*a n"], k: int) -> tuple[Num[Tensor, "*a k"], Int[Tensor, "*a k"]]:
    """Values in falling order and their places; of equal values the one at the lower place comes first.

    torch.topk promises no order among equals. Looking one value further than k shows every row where that matters, and
    these few are sorted.
    """
    looked_at = min(k + 1, x.shape[-1])
    values, places = _folded_topk(x, looked_at) if x.shape[-1] > WORTH_FOLDING * k else x.topk(looked_at)
    tied = (values[..., 1:] == values[..., :-1]).any(-1)
    if tied.any():
        in_order = torch.sort(x[tied], stable=True, dim=-1, descending=True)
        values[tied], places[tied] = in_order.values[..., :looked_at], in_order.indices[..., :looked_at]
    return values[..., :k], places[..., :k]


def _folded_topk(x: Num[Tensor, "*a n"], k: int) -> tuple[Num[Tensor, "*a k"], Int[Tensor, "*a k"]]:
    """topk, three times faster on a long row.

    Written as FOLDS lines below each other, the row's k largest stand in the k columns with the largest maxima: a value
    in any other column has k values, those maxima, that are at least as large.
    """
    width = x.shape[-1] // FOLDS
    folded = x[..., : FOLDS * width].unflatten(-1, (FOLDS, width))
    columns = folded.amax(-2).topk(k).indices
    lines = torch.arange(0, FOLDS * width, width, device=x.device)
    left_over = torch.arange(FOLDS * width, x.shape[-1], device=x.device).expand(*x.shape[:-1], -1)
    places = torch.cat([(columns.unsqueeze(-2) + lines[:, None]).flatten(-2), left_over], -1)
    values, chosen = x.gather(-1, places).topk(k)
    return values, places.gather(-1, chosen)


def logprobs(
    chosen: Float[Tensor, "*a k"], scores: Float[Tensor, "*a w"], highest: Float[Tensor, "*a 1"]
) -> Float[Tensor, "*a k"]:
    """log p_t = S_t - m - log sum_u exp(S_u - m) for the `chosen` S_t, with m the highest score of the row.

    The sum contains exp(0) = 1, so that log p_t <= 0 even after rounding.
    Holds when: each row has a finite highest score. Half-precision scores are summed in float32.
    """
    wide = torch.promote_types(scores.dtype, torch.float32)
    log_sum = _sum_of_exponentials(scores, highest, wide).log_()
    if not log_sum.isfinite().all():
        raise UsageError(
            asked="decoding",
            expected="finite scores (-inf forbids a token, but not all of them)",
            got="NaN, infinity or a row of -inf",
            remedy="look for NaN in the weights, and for sentences without a single real token",
        )
    return (chosen - highest).to(wide) - log_sum


def _sum_of_exponentials(
    scores: Float[Tensor, "*a w"], highest: Float[Tensor, "*a 1"], dtype: torch.dtype
) -> Float[Tensor, "*a 1"]:
    rows = max(1, ENTRIES_AT_ONCE // scores.shape[-1])
    blocks = zip(scores.flatten(0, -2).split(rows), highest.flatten(0, -2).split(rows), strict=True)
    sums = [(S - m).to(dtype).exp_().sum(-1, keepdim=True) for S, m in blocks]
    return torch.cat(sums).view_as(highest)


def at_least_one(name: str, value: int, remedy: str) -> None:
    if value < 1:
        raise UsageError(asked=f"decoding with {name}={value}", expected="1 or more", got=str(value), remedy=remedy)


def check_longest(longest: int) -> None:
    at_least_one("longest", longest, "longest counts the tokens written, eos included")


def check_eos(eos: int, vocabulary: int) -> None:
    if not 0 <= eos < vocabulary:
        raise UsageError(
            asked=f"decoding with eos={eos}",
            expected=f"one of the {vocabulary} tokens that the model can write, 0 to {vocabulary - 1}",
            got=str(eos),
            remedy="pass the id of the end token in the target vocabulary",
        )


def check_beam(beams: int, n_best: int, alpha: float) -> None:
    at_least_one("beams", beams, "beams=1 is greedy decoding")
    if not 1 <= n_best <= beams:
        raise UsageError(
            asked=f"the {n_best} best of a beam search",
            expected=f"1 to {beams} of them, as many as there are beams",
            got=f"n_best={n_best} with beams={beams}",
            remedy="ask for fewer hypotheses, or search with more beams",
        )
    if not 0 <= alpha < math.inf:
        raise UsageError(
            asked=f"beam search with alpha={alpha}",
            expected="a finite number of 0 or more",
            got=str(alpha),
            remedy="alpha=0 ranks by probability alone, 0.6 to 1 is usual",
        )


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not 0 < temperature < math.inf:
        raise UsageError(
            asked=f"sampling with temperature={temperature}",
            expected="a finite number above 0",
            got=str(temperature),
            remedy="use greedy, which is the limit of sampling as the temperature goes to 0",
        )
    if top_k is not None:
        at_least_one("top_k", top_k, "top_k=1 is greedy decoding, top_k=None keeps every token")
    if top_p is not None and not 0 < top_p <= 1:
        raise UsageError(
            asked=f"sampling with top_p={top_p}",
            expected="a share of probability above 0 and at most 1",
            got=str(top_p),
            remedy="0.9 is usual, top_p=None keeps every token",
        )
