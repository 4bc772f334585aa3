"""Sampling: tokens drawn from the model's distribution, whole or cut to its more probable part."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.models.decoding.arguments import check_sampling
from attnworks.models.decoding.candidates import Hypothesis
from attnworks.models.decoding.largest import largest
from attnworks.models.decoding.single import write
from attnworks.models.decoding.writer import Writer


def sample(
    model: Writer,
    source: Int[Tensor, "s i"],
    padding: Bool[Tensor, "s i"] | None = None,
    *,
    bos: int,
    eos: int,
    longest: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> list[Hypothesis]:
    """y_t drawn from q(y) ~ p(y | y_<t, x)^(1 / temperature) on the tokens that top_k and then top_p leave.

    top_k keeps the k most probable tokens. top_p keeps the fewest of these, most probable first, whose share of q is at
    least top_p: the best token always stays. As temperature, top_p go to 0 or at top_k=1 this is greedy decoding.
    The log-probability is that of p, not of q. The same generator state gives the same sentences.
    Source: Holtzman et al. 2020 for top_p (the nucleus); Fan et al. 2018 for top_k.
    """
    check_sampling(temperature, top_k, top_p)

    def draw(scores: Float[Tensor, "s w"]) -> Int[Tensor, "s 1"]:
        if top_k is None and top_p is None:
            return torch.multinomial(_tempered(scores, temperature), 1, generator=generator)
        values, tokens = largest(scores, min(top_k or scores.shape[-1], scores.shape[-1]))
        q = _tempered(values, temperature)
        if top_p is not None:
            q = q.masked_fill(q.cumsum(-1) - q >= top_p, 0.0)
        return tokens.gather(1, torch.multinomial(q, 1, generator=generator))

    return write(model, source, padding, bos=bos, eos=eos, longest=longest, choose=draw)


def _tempered(scores: Float[Tensor, "s k"], temperature: float) -> Float[Tensor, "s k"]:
    """softmax(S / temperature) in float64, for any temperature above zero: the highest score is brought to 0 first."""
    scores = scores.double()
    return ((scores - scores.amax(-1, keepdim=True)) / temperature).softmax(-1)
