"""Outlying tokens: a single activation of such a token is larger than the other tokens are as a whole."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.exam.linalg.spectrum import rank_for_energy

OUTLYING_ACTIVATION = 3.0
"""A token is outlying if one of its activations exceeds this many times the median norm of the tokens of its sentence.

In SmolLM2-135M the largest activation of a sentence is 2.7 to 220 times the median norm at the depths with massive
activations. In all-MiniLM-L6-v2, which has none, it is more than 3 times it in one of 485 lines of Markdown and legal
text, and never in sentences. The norm of a token would be no such limit: tokens of ordinary text in MiniLM have up to
5.5 times the median norm, spread over many channels.
"""


class TokenNorms(NamedTuple):
    """Norms of the tokens, zero at padding; the median over the tokens of a sentence; a token with this norm.

    Of an even number of tokens the median is the lower of the two in the middle: it is the norm of a token.
    """

    norms: Float[Tensor, "b i"]
    median: Float[Tensor, " b"]
    median_at: Int[Tensor, " b"]

    @property
    def largest_over_median(self) -> Float[Tensor, " b"]:
        """max_i |x_i| / median_i |x_i|, in float64; 0 where the median is 0."""
        median = self.median.double()
        return torch.where(median > 0, self.norms.amax(-1).double() / median, 0.0)


def token_norms(X: Float[Tensor, "b i e"], real: Bool[Tensor, "b i"]) -> TokenNorms:
    norms, padding = torch.linalg.vector_norm(X, dim=-1), ~real
    median = norms.masked_fill(padding, torch.nan).nanmedian(-1)
    return TokenNorms(norms.masked_fill_(padding, 0.0), median.values.nan_to_num(nan=0.0), median.indices)


def outlying_tokens(X: Float[Tensor, "b i e"], known: TokenNorms) -> Bool[Tensor, "b i"]:
    """max_e |x_ie| > OUTLYING_ACTIVATION * median_i' |x_i'|, over the tokens i' of the sentence.

    Source: Sun et al. 2024, "Massive activations in large language models": activations above 100, and about 1,000 or
    more times the median magnitude.
    Holds when: the median is above zero; otherwise no token is outlying. At most half of the tokens can be.
    Departs: the scale is the median norm of the tokens, so that the result does not depend on the unit of the stream
    and says whether this activation alone outweighs a token. No activation is above the norm of its token: sentences
    without a large norm are not searched.
    """
    outlying = torch.zeros_like(known.norms, dtype=torch.bool)
    searched = known.largest_over_median > OUTLYING_ACTIVATION
    if bool(searched.any()):
        peaks = X[searched].abs().amax(-1)
        limit = OUTLYING_ACTIVATION * known.median[searched].unsqueeze(-1)
        outlying[searched] = (peaks > limit) & (known.norms[searched] > 0)
    return outlying


def largest_activation(X: Float[Tensor, "b i e"], real: Bool[Tensor, "b i"]) -> Float[Tensor, " b"]:
    """max_ie |x_ie| / median_ie |x_ie| over the tokens of a sentence, in float64; 0 where the median is 0.

    Source: Sun et al. 2024.
    """
    found = []
    for sizes, counted in zip(X.detach().abs().cpu(), real.cpu(), strict=True):
        entries = sizes[counted].flatten().numpy()
        middle = (len(entries) - 1) // 2
        median = float(np.partition(entries, middle)[middle])  # many times faster than torch.median
        found.append(float(entries.max()) / median if median > 0 else 0.0)
    return torch.tensor(found, dtype=torch.float64, device=X.device)


def channels_of_largest(X: Float[Tensor, "b i e"], norms: Float[Tensor, "b i"]) -> Int[Tensor, " b"]:
    """The least number of channels that hold 90 % of the squared norm of the largest token."""
    largest = X[torch.arange(len(X), device=X.device), norms.argmax(-1)]
    return rank_for_energy(largest.abs().sort(-1, descending=True).values)
