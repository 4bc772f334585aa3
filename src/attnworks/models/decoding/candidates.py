"""Code that all decoders share: hypotheses, the k most probable tokens, log-probabilities, and checks of arguments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from attnworks.core.checks import integer
from attnworks.core.errors import UsageError

_FOLDS = 8
FOLD_ABOVE_RATIO = 64
ENTRIES_AT_ONCE = 2**17
"""Rows are exponentiated in blocks of about this size, which stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """The hypotheses of sentences that are not finished, the most probable first.

    sentence   the number of each row in the caller's batch
    tokens     the tokens written so far, then zeros up to `max_new_tokens` (axis t)
    """

    sentence: Int[Tensor, " s"]
    tokens: Int[Tensor, "s beams t"]
    logprob: Float[Tensor, "s beams"]

    @classmethod
    def start(cls, source: Int[Tensor, "s i"], max_new_tokens: int) -> Frontier:
        """One empty hypothesis for each sentence."""
        sentences, device = len(source), source.device
        return cls(
            torch.arange(sentences, device=device),
            torch.zeros(sentences, 1, max_new_tokens, dtype=torch.long, device=device),
            torch.zeros(sentences, 1, device=device),
        )

    def grown(
        self,
        parent: Int[Tensor, "s children"],
        token: Int[Tensor, "s children"],
        logprob: Float[Tensor, "s children"],
        length: int,
    ) -> Frontier:
        """Hypotheses of `length` tokens: those at `parent`, each with one more `token`."""
        tokens = self.tokens_of(parent)
        tokens[:, :, length - 1] = token
        return Frontier(self.sentence, tokens, logprob)

    def tokens_of(self, parent: Int[Tensor, "s children"]) -> Int[Tensor, "s children t"]:
        return self.tokens.gather(1, parent.unsqueeze(-1).expand(-1, -1, self.tokens.shape[-1]))

    def keep(self, rows: Int[Tensor, " kept"]) -> Frontier:
        return Frontier(self.sentence[rows], self.tokens[rows], self.logprob[rows])


@dataclass(frozen=True)
class Hypothesis:
    """One target sentence that a model has written.

    tokens     without bos and eos
    logprob    sum_t log p(y_t | y_<t, x), with the term of eos if `finished` (S4.5)
    score      by which hypotheses are ranked: logprob over the length penalty in beam search, else logprob itself
    finished   whether the model wrote eos; if not, it was cut at max_new_tokens
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    finished: bool


def k_largest(x: Num[Tensor, "*a n"], k: int) -> tuple[Num[Tensor, "*a k"], Int[Tensor, "*a k"]]:
    """The k largest values in falling order and their places; of equal values the lower place comes first.

    torch.topk promises no order among equal values. So it computes k + 1 values here, and rows in which two of them are
    equal are sorted instead.
    """
    count = min(k + 1, x.shape[-1])
    values, places = _folded_topk(x, count) if x.shape[-1] > FOLD_ABOVE_RATIO * k else x.topk(count)
    tied = (values[..., 1:] == values[..., :-1]).any(-1)
    if tied.any():
        in_order = torch.sort(x[tied], stable=True, dim=-1, descending=True)
        values[tied], places[tied] = in_order.values[..., :count], in_order.indices[..., :count]
    return values[..., :k], places[..., :k]


def _folded_topk(x: Num[Tensor, "*a n"], k: int) -> tuple[Num[Tensor, "*a k"], Int[Tensor, "*a k"]]:
    """topk, three times faster on a long row.

    The row is folded into _FOLDS lines. Its k largest values are in the k columns with the largest maxima: for a value
    in any other column these k maxima are at least as large.
    """
    width = x.shape[-1] // _FOLDS
    folded = x[..., : _FOLDS * width].unflatten(-1, (_FOLDS, width))  # [... folds width]
    columns = folded.amax(-2).topk(k).indices  # [... k]
    lines = torch.arange(0, _FOLDS * width, width, device=x.device)
    left_over = torch.arange(_FOLDS * width, x.shape[-1], device=x.device).expand(*x.shape[:-1], -1)
    # places in the row of all values in these columns, and of the last values that fill no line: [... folds*k + rest]
    places = torch.cat([(columns.unsqueeze(-2) + lines[:, None]).flatten(-2), left_over], -1)
    values, chosen = x.gather(-1, places).topk(k)
    return values, places.gather(-1, chosen)


def logprobs(
    chosen: Float[Tensor, "*a k"], logits: Float[Tensor, "*a w"], highest: Float[Tensor, "*a 1"]
) -> Float[Tensor, "*a k"]:
    """log p_t = S_t - m - log sum_u exp(S_u - m) for the `chosen` logits S_t, with m the highest logit of the row.

    The sum contains exp(0) = 1, so that log p_t <= 0 even after rounding.
    Holds when: each row has a finite highest logit. Half-precision logits are summed in float32.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    log_sum = _sum_of_exponentials(logits, highest, wide).log_()
    if not log_sum.isfinite().all():
        expected, got = "finite logits (-inf for some tokens of a row)", "NaN, infinity or a row of -inf"
        raise UsageError("decoding", expected, got, "look for NaN in the weights and for sentences without real tokens")
    return (chosen - highest).to(wide) - log_sum


def _sum_of_exponentials(
    logits: Float[Tensor, "*a w"], highest: Float[Tensor, "*a 1"], dtype: torch.dtype
) -> Float[Tensor, "*a 1"]:
    rows = max(1, ENTRIES_AT_ONCE // logits.shape[-1])
    blocks = zip(logits.flatten(0, -2).split(rows), highest.flatten(0, -2).split(rows), strict=True)
    sums = [(S - m).to(dtype).exp_().sum(-1, keepdim=True) for S, m in blocks]
    return torch.cat(sums).view_as(highest)


def check_max_new_tokens(count: int) -> None:
    integer("decoding with max_new_tokens", count, 1, remedy="max_new_tokens counts the tokens written, eos included")


def check_eos(eos: int, vocabulary: int) -> None:
    integer("decoding with eos", eos, 0, vocabulary - 1, "pass the id of the end token in the target vocabulary")
