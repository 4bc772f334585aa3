"""Beam search."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnworks.models.decoding.arguments import check_beam, check_eos, check_longest
from attnworks.models.decoding.candidates import Hypothesis
from attnworks.models.decoding.extensions import Extensions, best_extensions, endings, going_on
from attnworks.models.decoding.finished import Finished
from attnworks.models.decoding.frontier import Frontier
from attnworks.models.decoding.length import best_reachable, length_penalty
from attnworks.models.decoding.tree import BeamObserver, BeamStep, Candidate
from attnworks.models.decoding.writer import Writer
from attnworks.models.modes import evaluating


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
