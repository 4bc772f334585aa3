"""Beam search: candidates with one token more, finished hypotheses, the length penalty, the tree for observers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.models.decoding.candidates import (
    Frontier,
    Hypothesis,
    check_beam,
    check_eos,
    check_longest,
    largest,
    logprobs,
)
from attnworks.models.modes import evaluating
from attnworks.models.stepping import Writer


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


@dataclass(frozen=True, eq=False)
class Finished:
    """The `best` finished hypotheses of each sentence in falling score; places not yet taken score -inf.

    length   tokens, eos not included
    """

    tokens: Int[Tensor, "s best longest"]
    length: Int[Tensor, "s best"]
    logprob: Float[Tensor, "s best"]
    score: Float[Tensor, "s best"]

    @classmethod
    def none(cls, sentences: int, best: int, longest: int, device: torch.device) -> Finished:
        nothing = torch.full((sentences, best), -torch.inf, device=device)
        tokens = torch.zeros(sentences, best, longest, dtype=torch.long, device=device)
        return cls(tokens, torch.zeros_like(tokens[..., 0]), nothing, nothing)

    def add(
        self,
        tokens: Int[Tensor, "s new longest"],
        length: int,
        logprob: Float[Tensor, "s new"],
        score: Float[Tensor, "s new"],
    ) -> Finished:
        """The best of these and of new ones of one length; among equals, what finished first stays first."""
        score, place = largest(torch.cat([self.score, score], 1), self.score.shape[1])
        lengths = torch.cat([self.length, self.length.new_full(logprob.shape, length)], 1)
        return Finished(
            torch.cat([self.tokens, tokens], 1).gather(1, place.unsqueeze(-1).expand(-1, -1, tokens.shape[-1])),
            lengths.gather(1, place),
            torch.cat([self.logprob, logprob], 1).gather(1, place),
            score,
        )

    def keep(self, rows: Int[Tensor, " kept"]) -> Finished:
        return Finished(self.tokens[rows], self.length[rows], self.logprob[rows], self.score[rows])


@dataclass(frozen=True)
class Candidate:
    """One token more on a hypothesis.

    parent    place of that hypothesis in `kept` of the step before; 0, the empty hypothesis, in the first step
    logprob   of the whole hypothesis with this token
    """

    parent: int
    token: int
    logprob: float


@dataclass(frozen=True)
class BeamStep:
    """One step of the search for one sentence.

    step    how many tokens the candidates have, from 1
    kept    hypotheses that continue, the most probable first
    ended   hypotheses that wrote eos in this step, the most probable first
    """

    sentence: int
    step: int
    kept: tuple[Candidate, ...]
    ended: tuple[Candidate, ...]


BeamObserver = Callable[[BeamStep], object]


def length_penalty(length: int, alpha: float) -> float:
    """lp(n) = ((5 + n) / 6)^alpha; a hypothesis of n tokens, eos included, scores logprob / lp(n).

    Source: Wu et al. 2016 (GNMT), eq. 14.
    """
    return ((5 + length) / 6) ** alpha


def best_reachable(logprob: Float[Tensor, "*a"], longest: int, alpha: float) -> Float[Tensor, "*a"]:
    """No ending of an unfinished hypothesis with log-probability s scores above s / lp(longest).

    Each further token adds log p <= 0, so that the ending has s' <= s <= 0 and scores s' / lp(n) <= s / lp(n);
    and s / lp(n) <= s / lp(longest) for n <= longest, since s <= 0 and lp grows with n.
    Holds when: alpha >= 0. Rounding keeps it true, because sums and quotients round monotonically.
    """
    return logprob / length_penalty(longest, alpha)


def beam(
    model: Writer,
    source: Int[Tensor, "s i"],
    padding: Bool[Tensor, "s i"] | None = None,
    *,
    bos: int,
    eos: int,
    beams: int = 5,
    longest: int,
    alpha: float = 0.6,
    n_best: int = 1,
    observe: BeamObserver | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` sentences by sum_t log p(y_t | y_<t, x) / lp(length) among those that a beam search meets.

    Each step ranks all one-token extensions of the hypotheses by log-probability. Those among the first `beams` that
    write eos have finished; the first `beams` that do not write eos are extended further. The search of a sentence
    stops when no hypothesis on the beam can still reach the n best (`best_reachable`), or after `longest` tokens, eos
    included. With more than one beam, stopping early never changes the result. With one beam the search is greedy and
    ends at the first eos. Only if fewer than n_best finished are unfinished ones returned after them; there are fewer
    than n_best only where the model allows no more. Equal candidates: lower beam first, then lower token; equal
    scores: what finished first.
    Source: Conti 2024, section 1.1 (S4.12); length penalty GNMT (`length_penalty`).
    Holds when: with beams=1 this is greedy decoding; with beams >= vocabulary^(longest - 1), exact search (S4.12).
    """
    check_longest(longest)
    check_beam(beams, n_best, alpha)
    if not len(source):
        return []
    written: dict[int, list[Hypothesis]] = {}
    frontier = Frontier.start(source, longest)
    finished = Finished.none(len(source), n_best, longest, source.device)
    token = source.new_full((len(source), 1), bos)
    with evaluating(model):
        state = model.start(source, padding)
        for length in range(1, longest + 1):
            scores, state = model.step(token, state)
            check_eos(eos, scores.shape[-1])
            extensions = best_extensions(scores, frontier.logprob, beams)
            first = extensions.first(beams)
            kept = going_on(extensions, eos, min(beams, scores.shape[1] * (scores.shape[-1] - 1)))
            ended = endings(first, eos)
            if observe is not None:
                _tell(observe, frontier.sentence, length, kept, first, ended)
            if ended.any():
                finished = _with_endings(finished, frontier, first, ended, length, alpha)
            frontier, parent, token = frontier.grown(kept.parent, kept.token, kept.logprob, length), *kept[:2]
            over = (best_reachable(frontier.logprob, longest, alpha) <= finished.score[:, -1:]).all(1)
            if beams == 1:
                over |= ended.all(1)
            over |= length == longest
            if over.any():
                leave, stay = over.nonzero().squeeze(1), (~over).nonzero().squeeze(1)
                written |= _read(finished.keep(leave), frontier.keep(leave), length, length_penalty(length, alpha))
                if not len(stay):
                    break
                frontier, finished, state = frontier.keep(stay), finished.keep(stay), state.keep(stay)
                parent, token = parent[stay], token[stay]
            if not _is_identity(parent, scores.shape[1]):
                state = state.reorder(parent)
    return [written[sentence] for sentence in range(len(source))]


def _with_endings(
    finished: Finished,
    frontier: Frontier,
    first: Extensions,
    ended: Bool[Tensor, "s m"],
    length: int,
    alpha: float,
) -> Finished:
    logprob = first.logprob.masked_fill(~ended, -torch.inf)
    return finished.add(frontier.tokens_of(first.parent), length - 1, logprob, logprob / length_penalty(length, alpha))


def _is_identity(parent: Int[Tensor, "s kept"], beams: int) -> bool:
    in_place = torch.arange(parent.shape[1], device=parent.device)
    return parent.shape[1] == beams and bool((parent == in_place).all())


def _read(finished: Finished, frontier: Frontier, length: int, penalty: float) -> dict[int, list[Hypothesis]]:
    """The finished hypotheses of each sentence and, in places that are left, the best unfinished ones."""
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


def _tell(
    observe: BeamObserver,
    sentences: Int[Tensor, " s"],
    step: int,
    kept: Extensions,
    first: Extensions,
    ended: Bool[Tensor, "s m"],
) -> None:
    possible = kept.logprob > -torch.inf
    for row, sentence in enumerate(sentences.tolist()):
        observe(BeamStep(sentence, step, _listed(kept, row, possible[row]), _listed(first, row, ended[row])))


def _listed(extensions: Extensions, row: int, wanted: Bool[Tensor, " m"]) -> tuple[Candidate, ...]:
    return tuple(Candidate(*one) for one in zip(*(part[row][wanted].tolist() for part in extensions), strict=True))
