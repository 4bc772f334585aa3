"""One hypothesis for each sentence: the loop that greedy decoding and sampling share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.models.decoding.arguments import check_eos, check_longest
from attnworks.models.decoding.candidates import Hypothesis
from attnworks.models.decoding.frontier import Frontier
from attnworks.models.decoding.normaliser import logprobs
from attnworks.models.decoding.writer import Writer
from attnworks.models.modes import evaluating

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
