"""Greedy decoding: the most probable token, again and again."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.models.decoding.candidates import Hypothesis
from attnworks.models.decoding.single import write
from attnworks.models.decoding.writer import Writer


def greedy(
    model: Writer,
    source: Int[Tensor, "s i"],
    padding: Bool[Tensor, "s i"] | None = None,
    *,
    bos: int,
    eos: int,
    longest: int,
) -> list[Hypothesis]:
    """y_t = argmax_y p(y | y_<t, x) until eos or `longest` tokens (eos counts); of equals, the lower token.

    Source: Conti 2024, section 1.2.5 (S4.61).
    Departs: this is the most probable token at each step, not the most probable sentence (S4.11).
    """
    return write(model, source, padding, bos=bos, eos=eos, longest=longest, choose=_most_probable)


def _most_probable(scores: Float[Tensor, "s w"]) -> Int[Tensor, "s 1"]:
    return scores.argmax(-1, keepdim=True)
