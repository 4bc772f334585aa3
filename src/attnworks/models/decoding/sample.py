"""Greedy decoding and sampling: one hypothesis for each sentence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.models.decoding.candidates import (
    Frontier,
    Hypothesis,
    check_eos,
    check_longest,
    check_sampling,
    largest,
    logprobs,
)
from attnworks.models.modes import evaluating
from attnworks.models.stepping import Writer

Choose = Callable[[Float[Tensor, "s w"]], Int[Tensor, "s 1"]]
"""The next token of each sentence, given the scores of all tokens."""


def write(
    model: Writer,
    source: Int[Tensor, "s i"],
    padding: Bool[Tensor, "s i"] | None,
    *,
    bos: int,
    eos: int,
    longest: int,
    choose: Choose,
) -> list[Hypothesis]:
    """Write by `choose` until eos or `longest` tokens; sentences that are done leave the batch."""
    check_longest(longest)
    if not len(source):
        return []
    written: dict[int, Hypothesis] = {}
    frontier = Frontier.start(source, longest)
    token = source.new_full((len(source), 1), bos)
    with evaluating(model):
        state = model.start(source, padding)
        for length in range(1, longest + 1):
            scores, state = model.step(token, state)
            check_eos(eos, scores.shape[-1])
            scores = scores.squeeze(1)
            token = choose(scores)
            gained = logprobs(scores.gather(1, token), scores, scores.amax(-1, keepdim=True))
            frontier = frontier.grown(torch.zeros_like(token), token, frontier.logprob + gained, length)
            over = (token[:, 0] == eos) | (length == longest)
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
