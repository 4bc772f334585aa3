"""From scores to log-probabilities of a few tokens, without normalising the whole vocabulary."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.errors import UsageError

ENTRIES_AT_ONCE = 2**17
"""Rows are exponentiated in blocks of about this size, which stay in the processor's cache."""


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
