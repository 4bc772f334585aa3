"""Beam search, with a length penalty and an observer of its steps.

Shapes: s sentences, m = 2 beams extensions, t = max_new_tokens, w tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

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


class _Extensions(NamedTuple):
    """One-token extensions of the hypotheses of each sentence, the most probable first."""

    parent: Int[Tensor, "s m"]
    token: Int[Tensor, "s m"]
    logprob: Float[Tensor, "s m"]

    def at(self, places: Int[Tensor, "s p"]) -> _Extensions:
        return _Extensions(*(part.gather(1, places) for part in self))

    def first(self, count: int) -> _Extensions:
        return _Extensions(*(part[:, :count] for part in self))


def _best_extensions(logits: Float[Tensor, "s beams w"], logprob: Float[Tensor, "s beams"], count: int) -> _Extensions:
    """The 2 * count best extensions of each sentence, or all if there are fewer.

    At most `count` of them write eos, one for each hypothesis, so that at least `count` do not. Of one hypothesis at
    most `count` that continue and one that ends can be needed: its count + 1 highest logits, before softmax as after.
    """
    highest, token = k_largest(logits, min(count + 1, logits.shape[-1]))
    # [s beams count+1] -> [s beams*(count+1)]
    totals = (logprob.unsqueeze(-1) + logprobs(highest, logits, highest[..., :1])).flatten(1)
    best, place = k_largest(totals, min(2 * count, totals.shape[1]))
    parent = place.div(highest.shape[-1], rounding_mode="floor")
    return _Extensions(parent, token.flatten(1).gather(1, place), best)


@dataclass(frozen=True, eq=False)
class _Finished:
    """The `best` finished hypotheses of each sentence by falling score; empty places have the score -inf.

    length   in tokens, without eos
    """

    tokens: Int[Tensor, "s best t"]
    length: Int[Tensor, "s best"]
    logprob: Float[Tensor, "s best"]
    score: Float[Tensor, "s best"]

    @classmethod
    def none(cls, sentences: int, best: int, max_new_tokens: int, device: torch.device) -> _Finished:
        nothing = torch.full((sentences, best), -torch.inf, device=device)
        tokens = torch.zeros(sentences, best, max_new_tokens, dtype=torch.long, device=device)
        return cls(tokens, torch.zeros_like(tokens[..., 0]), nothing, nothing)

    def add(
        self,
        tokens: Int[Tensor, "s new t"],
        length: int,
        logprob: Float[Tensor, "s new"],
        score: Float[Tensor, "s new"],
    ) -> _Finished:
        """The best of these and of new hypotheses of one length; of equals, the earlier one comes first."""
        score, place = k_largest(torch.cat([self.score, score], 1), self.score.shape[1])
        lengths = torch.cat([self.length, self.length.new_full(logprob.shape, length)], 1)
        return _Finished(
            torch.cat([self.tokens, tokens], 1).gather(1, place.unsqueeze(-1).expand(-1, -1, tokens.shape[-1])),
            lengths.gather(1, place),
            torch.cat([self.logprob, logprob], 1).gather(1, place),
            score,
        )

    def keep(self, rows: Int[Tensor, " kept"]) -> _Finished:
        return _Finished(self.tokens[rows], self.length[rows], self.logprob[rows], self.score[rows])


@dataclass(frozen=True)
class Candidate:
    """A hypothesis with one more token.

    parent    place of the hypothesis before in `kept` of the step before; 0 in the first step
    logprob   of the whole hypothesis with this token
    """

    parent: int
    token: int
    logprob: float


@dataclass(frozen=True)
class BeamStep:
    """One step of the search for one sentence.

    step    the number of tokens of the candidates, from 1
    kept    hypotheses that continue, the most probable first
    ended   hypotheses that wrote eos in this step, the most probable first
    """

    sentence: int
    step: int
    kept: tuple[Candidate, ...]
    ended: tuple[Candidate, ...]


LENGTH_PENALTY = 0.6
"""The exponent alpha of `length_penalty`, unless another is given; docs/training.md has the measurement."""
BeamObserver = Callable[[BeamStep], object]


def length_penalty(length: int, alpha: float) -> float:
    """lp(n) = ((5 + n) / 6)^alpha; a hypothesis of n tokens, eos included, scores logprob / lp(n).

    Source: Wu et al. 2016 (GNMT), eq. 14.
    """
    return ((5 + length) / 6) ** alpha


def best_reachable(logprob: Float[Tensor, "*a"], max_new_tokens: int, alpha: float) -> Float[Tensor, "*a"]:
    """The highest score that an unfinished hypothesis of log-probability s can still reach: s / lp(max_new_tokens).

    Each further token adds log p <= 0, so that the ending has s' <= s <= 0 and scores s' / lp(n) <= s / lp(n);
    and s / lp(n) <= s / lp(max_new_tokens) for n <= max_new_tokens, since s <= 0 and lp grows with n.
    Holds when: alpha >= 0. Rounding keeps it true, because sums and quotients round monotonically.
    """
    return logprob / length_penalty(max_new_tokens, alpha)


def beam(
    model: Writer,
    source: Int[Tensor, "s i"],
    real: Bool[Tensor, "s i"] | None = None,
    *,
    bos: int,
    eos: int,
    beams: int = 5,
    max_new_tokens: int,
    alpha: float = LENGTH_PENALTY,
    n_best: int = 1,
    observe: BeamObserver | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` sentences by sum_t log p(y_t | y_<t, x) / lp(length) among those that a beam search finds.

    Each step ranks all one-token extensions of the hypotheses by log-probability. Those among the first `beams` that
    write eos have finished; the first `beams` that do not write eos are extended further. The search of a sentence
    stops when no hypothesis on the beam can still reach the n best (`best_reachable`), or after `max_new_tokens`, eos
    included; with more than one beam, stopping early never changes the result. With one beam the search is greedy and
    ends at the first eos. If fewer than n_best have finished, the best unfinished ones follow. The result has fewer
    than n_best only where the model allows no more. Of equal candidates the lower beam, then the lower token comes
    first; of equal scores the hypothesis that finished first.
    Source: Conti 2024, section 1.1 (S4.12); length penalty GNMT (`length_penalty`).
    Holds when: beams=1 is greedy decoding; beams >= vocabulary^(max_new_tokens - 1) is exact search (S4.12).
    """
    check_max_new_tokens(max_new_tokens)
    integer("decoding with beams", beams, 1, remedy="beams=1 is greedy decoding")
    integer("beam search with n_best", n_best, 1, beams, f"ask for at most {beams}, or search with more beams")
    number("beam search with alpha", alpha, 0, remedy="alpha=0 ranks by probability alone, 0.6 to 1 is usual")
    if not len(source):
        return []
    written: dict[int, list[Hypothesis]] = {}
    frontier = Frontier.start(source, max_new_tokens)
    finished = _Finished.none(len(source), n_best, max_new_tokens, source.device)
    token = source.new_full((len(source), 1), bos)
    with inference_mode(model):
        state = model.start(source, real)
        for length in range(1, max_new_tokens + 1):
            logits, state = model.step(token, state)
            check_eos(eos, logits.shape[-1])
            extensions = _best_extensions(logits, frontier.logprob, beams)
            first = extensions.first(beams)
            ended = (first.token == eos) & (first.logprob > -torch.inf)
            without_eos_first = torch.sort(extensions.token == eos, stable=True, dim=1).indices  # [s m]
            kept = extensions.at(without_eos_first[:, : min(beams, logits.shape[1] * (logits.shape[-1] - 1))])
            if observe is not None:
                possible = kept.logprob > -torch.inf
                for row, sentence in enumerate(frontier.sentence.tolist()):
                    listed = _listed(kept, row, possible[row]), _listed(first, row, ended[row])
                    observe(BeamStep(sentence, length, *listed))
            if ended.any():
                logprob = first.logprob.masked_fill(~ended, -torch.inf)
                score = logprob / length_penalty(length, alpha)
                finished = finished.add(frontier.tokens_of(first.parent), length - 1, logprob, score)
            frontier, parent, token = frontier.grown(kept.parent, kept.token, kept.logprob, length), *kept[:2]
            over = (best_reachable(frontier.logprob, max_new_tokens, alpha) <= finished.score[:, -1:]).all(1)
            if beams == 1:
                over |= ended.all(1)
            over |= length == max_new_tokens
            if over.any():
                leave, stay = over.nonzero().squeeze(1), (~over).nonzero().squeeze(1)
                written |= _read(finished.keep(leave), frontier.keep(leave), length, length_penalty(length, alpha))
                if not len(stay):
                    break
                frontier, finished, state = frontier.keep(stay), finished.keep(stay), state.keep(stay)
                parent, token = parent[stay], token[stay]
            if not _is_identity(parent, logits.shape[1]):
                state = state.reorder(parent)
    return [written[sentence] for sentence in range(len(source))]


def _is_identity(parent: Int[Tensor, "s kept"], beams: int) -> bool:
    in_place = torch.arange(parent.shape[1], device=parent.device)
    return parent.shape[1] == beams and bool((parent == in_place).all())


def _read(finished: _Finished, frontier: Frontier, length: int, penalty: float) -> dict[int, list[Hypothesis]]:
    """The finished hypotheses of each sentence, then the best unfinished ones, n_best in all."""
    n_best = finished.score.shape[1]
    hypotheses: dict[int, list[Hypothesis]] = {}
    for row, sentence in enumerate(frontier.sentence.tolist()):
        whole = (part[row].tolist() for part in (finished.tokens, finished.length, finished.logprob, finished.score))
        cut = (part[row].tolist() for part in (frontier.tokens[:, :n_best, :length], frontier.logprob[:, :n_best]))
        found = [
            Hypothesis(tuple(tokens[:count]), logprob, score, True)
            for tokens, count, logprob, score in zip(*whole, strict=True)
        ]
        found += [
            Hypothesis(tuple(tokens), logprob, logprob / penalty, False) for tokens, logprob in zip(*cut, strict=True)
        ]
        hypotheses[sentence] = [hypothesis for hypothesis in found if hypothesis.logprob > -torch.inf][:n_best]
    return hypotheses


def _listed(extensions: _Extensions, row: int, wanted: Bool[Tensor, " m"]) -> tuple[Candidate, ...]:
    return tuple(Candidate(*one) for one in zip(*(part[row][wanted].tolist() for part in extensions), strict=True))
