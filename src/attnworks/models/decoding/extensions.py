"""Hypotheses with one token more: which are the most probable, which of them end, which continue."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.models.decoding.largest import largest
from attnworks.models.decoding.normaliser import logprobs


class Extensions(NamedTuple):
    """One-token extensions of the hypotheses of each sentence, the most probable first."""

    parent: Int[Tensor, "s m"]
    token: Int[Tensor, "s m"]
    logprob: Float[Tensor, "s m"]

    def at(self, places: Int[Tensor, "s p"]) -> Extensions:
        return Extensions(*(part.gather(1, places) for part in self))

    def first(self, count: int) -> Extensions:
        return Extensions(*(part[:, :count] for part in self))


def best_extensions(scores: Float[Tensor, "s beams w"], logprob: Float[Tensor, "s beams"], count: int) -> Extensions:
    """The 2 * count best, or all if there are fewer.

    Of at most `count` hypotheses each has one extension by eos, so that `count` others are among them. A hypothesis
    contributes at most `count` that continue and one that ends: its count + 1 highest scores are enough, and softmax
    does not change which these are.
    """
    highest, token = largest(scores, min(count + 1, scores.shape[-1]))
    totals = (logprob.unsqueeze(-1) + logprobs(highest, scores, highest[..., :1])).flatten(1)
    best, place = largest(totals, min(2 * count, totals.shape[1]))
    parent = place.div(highest.shape[-1], rounding_mode="floor")
    return Extensions(parent, token.flatten(1).gather(1, place), best)


def endings(extensions: Extensions, eos: int) -> Bool[Tensor, "s m"]:
    """Those that write eos with a probability above zero."""
    return (extensions.token == eos) & (extensions.logprob > -torch.inf)


def going_on(extensions: Extensions, eos: int, count: int) -> Extensions:
    """The first `count` that do not write eos."""
    places = torch.sort(extensions.token == eos, stable=True, dim=1).indices
    return extensions.at(places[:, :count])
