"""Greedy decoding and sampling: one hypothesis for each sentence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.core.checks import integer, number
from attnworks.models.decoding.candidates import (
    Frontier,
    Hypothesis,
    check_eos,
    check_max_new_tokens,
    k_largest,
    logprobs,
)
from attnworks.models.modes import inference_mode
from attnworks.models.stepping import Writer

_Choose = Callable[[Float[Tensor, "s w"]], Int[Tensor, "s 1"]]
"""The next token of each sentence, given the logits of all tokens."""


def write_tokens(
    model: Writer,
    source: Int[Tensor, "s i"],
    real: Bool[Tensor, "s i"] | None,
    *,
    bos: int,
    eos: int,
    max_new_tokens: int,
    choose: _Choose,
) -> list[Hypothesis]:
    """Write the tokens that `choose` picks until eos or `max_new_tokens`; finished sentences leave the batch."""
    check_max_new_tokens(max_new_tokens)
    if not len(source):
        return []
    written: dict[int, Hypothesis] = {}
    frontier = Frontier.start(source, max_new_tokens)
    token = source.new_full((len(source), 1), bos)
    with inference_mode(model):
        state = model.start(source, real)
        for length in range(1, max_new_tokens + 1):
            logits, state = model.step(token, state)
            check_eos(eos, logits.shape[-1])
            logits = logits.squeeze(1)
            token = choose(logits)
            gained = logprobs(logits.gather(1, token), logits, logits.amax(-1, keepdim=True))
            frontier = frontier.grown(torch.zeros_like(token), token, frontier.logprob + gained, length)
            over = (token[:, 0] == eos) | (length == max_new_tokens)
            if over.any():
                stay = (~over).nonzero().squeeze(1)
                written |= _read(frontier.keep(over.nonzero().squeeze(1)), length, eos)
                if not len(stay):
                    break
                token, frontier, state = token[stay], frontier.keep(stay), state.keep(stay)
    return [written[sentence] for sentence in range(len(source))]


def _read(frontier: Frontier, length: int, eos: int) -> dict[int, Hypothesis]:
    """Hypotheses of this many tokens, with or without eos at the end."""
    hypotheses: dict[int, Hypothesis] = {}
    rows = zip(frontier.sentence.tolist(), frontier.tokens[:, 0].tolist(), frontier.logprob[:, 0].tolist(), strict=True)
    for sentence, tokens, logprob in rows:
        finished = tokens[length - 1] == eos
        hypotheses[sentence] = Hypothesis(tuple(tokens[: length - finished]), logprob, logprob, finished)
    return hypotheses


def sample(
    model: Writer,
    source: Int[Tensor, "s i"],
    real: Bool[Tensor, "s i"] | None = None,
    *,
    bos: int,
    eos: int,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> list[Hypothesis]:
    """y_t drawn from q(y) ~ p(y | y_<t, x)^(1 / temperature) on the tokens that top_k and then top_p leave.

    top_k keeps the k most probable tokens. top_p keeps the fewest of these, most probable first, whose share of q is at
    least top_p: the best token always stays. As temperature, top_p go to 0 or at top_k=1 this is greedy decoding.
    `Hypothesis.logprob` is that of p, not of q. The same generator state gives the same sentences.
    Source: Holtzman et al. 2020 for top_p (the nucleus); Fan et al. 2018 for top_k.
    """
    remedy = "use greedy, the limit of sampling as the temperature goes to 0"
    number("sampling with temperature", temperature, 0, above=True, remedy=remedy)
    if top_k is not None:
        integer("sampling with top_k", top_k, 1, remedy="top_k=1 is greedy decoding, top_k=None keeps every token")
    if top_p is not None:
        number("sampling with top_p", top_p, 0, 1, above=True, remedy="0.9 is usual, top_p=None keeps every token")

    def draw(logits: Float[Tensor, "s w"]) -> Int[Tensor, "s 1"]:
        if top_k is None and top_p is None:
            return torch.multinomial(_tempered(logits, temperature), 1, generator=generator)
        values, tokens = k_largest(logits, min(top_k or logits.shape[-1], logits.shape[-1]))
        q = _tempered(values, temperature)
        if top_p is not None:
            q = q.masked_fill(q.cumsum(-1) - q >= top_p, 0.0)
        return tokens.gather(1, torch.multinomial(q, 1, generator=generator))

    return write_tokens(model, source, real, bos=bos, eos=eos, max_new_tokens=max_new_tokens, choose=draw)


def _tempered(logits: Float[Tensor, "s k"], temperature: float) -> Float[Tensor, "s k"]:
    """softmax(S / temperature) in float64, for any temperature above zero: the highest logit is moved to 0 first."""
    logits = logits.double()
    return ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)


def greedy(
    model: Writer,
    source: Int[Tensor, "s i"],
    real: Bool[Tensor, "s i"] | None = None,
    *,
    bos: int,
    eos: int,
    max_new_tokens: int,
) -> list[Hypothesis]:
    """y_t = argmax_y p(y | y_<t, x) until eos or `max_new_tokens` (eos counts); of equals, the lower token.

    Source: Conti 2024, section 1.2.5 (S4.61).
    Departs: this is the most probable token at each step, not the most probable sentence (S4.11).
    """

    def best(logits: Float[Tensor, "s w"]) -> Int[Tensor, "s 1"]:
        return logits.argmax(-1, keepdim=True)

    return write_tokens(model, source, real, bos=bos, eos=eos, max_new_tokens=max_new_tokens, choose=best)
