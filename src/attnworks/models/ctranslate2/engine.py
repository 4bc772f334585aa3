"""Greedy decoding and beam search by CTranslate2, with the results of `decoding.greedy` and `decoding.beam`.

CTranslate2 divides log-probabilities by length^alpha, and ends a search once enough hypotheses have finished. Here it
ranks by log-probability alone, ends a search at a given length, and returns many hypotheses. Their scores are computed
from their log-probabilities. Where a longer search could still change the result, the sentence is searched again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnworks.models.ctranslate2.spec import import_ctranslate2, make_spec, stored_positions
from attnworks.models.decoding.beam import length_penalty
from attnworks.models.decoding.candidates import Hypothesis
from attnworks.models.transformer import Transformer
from attnworks.text.vocabulary import BOS, EOS, SPECIALS, Vocabulary

NO_PENALTY = 1e-30
"""length^NO_PENALTY is 1. At a penalty of 0, CTranslate2 ends a search at the first hypothesis that leads."""
FURTHER_STEPS = 3
"""The first search ends after the expected number of tokens and this number."""
LENGTHS_IN_GROUP = 2
"""Sentences are searched together if they have one of this number of neighbouring lengths."""
RETURNED_PER_BEAM = 8
"""How many hypotheses all searches but the longest return."""


@dataclass(frozen=True)
class _Found:
    """A hypothesis of CTranslate2.

    tokens   without <eos>
    length   with <eos>
    """

    tokens: list[str]
    length: int
    logprob: float
    score: float
    finished: bool


class CTranslate2Engine:
    """A Transformer in CTranslate2, on the CPU.

    precision   of products of matrices: "float32", or "int8", which changes the results a little
    """

    def __init__(
        self, model: Transformer, vocabularies: tuple[Vocabulary, Vocabulary], precision: str = "float32"
    ) -> None:
        package, spec = import_ctranslate2("translate by CTranslate2"), make_spec(model, vocabularies)
        with tempfile.TemporaryDirectory(prefix="attnworks-") as folder:
            spec.save(folder)
            threads = torch.get_num_threads()
            self._translator: Any = package.Translator(folder, "cpu", compute_type=precision, intra_threads=threads)
        self._read = self._written = 1  # tokens so far; their ratio predicts the length of a translation
        self._positions = stored_positions(model)
        source, target = vocabularies
        self._source_tokens = [source.token(identity) for identity in range(model.config.vocabulary)]
        self._target_ids = {target.token(identity): identity for identity in range(model.config.target_size)}

    def takes(self, source: Int[Tensor, "s i"], max_new_tokens: int, beams: int) -> bool:
        """Whether CTranslate2 can search for these sentences as `decoding.beam` does.

        It has no positions for very long ones, takes <bos> and <eos> in a text for its ends, and gets 2 beams
        extensions of the first token.
        """
        ends = ((source == BOS) | (source == EOS)).sum(1)
        fits = max(source.shape[1], max_new_tokens) <= self._positions and 2 * beams <= len(self._target_ids)
        return fits and bool((ends == 1).all())

    def beam(
        self,
        source: Int[Tensor, "s i"],
        real: Bool[Tensor, "s i"] | None,
        *,
        max_new_tokens: int,
        beams: int,
        alpha: float,
        n_best: int = 1,
    ) -> list[list[Hypothesis]]:
        """What `decoding.beam` returns, for sentences that end in <eos>.

        A search to length L returns hypotheses with log-probabilities s. Those that it leaves out, and all that
        continue after L, have at most the lowest s, or the highest s at length L. The result is final where this
        bound can reach no better score than the n_best found so far (`best_reachable`).
        """
        counts = [source.shape[1]] * len(source) if real is None else real.sum(1).tolist()
        sentences = [
            [self._source_tokens[token] for token in row[: count - 1]]
            for row, count in zip(source.tolist(), counts, strict=True)
        ]
        written: dict[int, list[Hypothesis]] = {}

        def search(waiting: list[int], longest: int) -> None:
            """Search to this length, and for sentences whose result is not final to twice that length."""
            at_limit = longest == max_new_tokens
            returned = beams * (longest if at_limit else min(longest, RETURNED_PER_BEAM))
            found = self._search([sentences[index] for index in waiting], beams, longest, returned, alpha)
            for index, hypotheses in zip(waiting, found, strict=True):
                best = sorted(hypotheses, key=lambda one: (not one.finished, -one.score))[:n_best]
                if at_limit or (best[-1].finished and best[-1].score >= reachable(hypotheses, longest, returned)):
                    written[index] = [self._hypothesis(one) for one in best]
                    self._read, self._written = self._read + counts[index], self._written + best[0].length
            if again := [index for index in waiting if index not in written]:
                search(again, min(2 * longest, max_new_tokens))

        def reachable(found: list[_Found], longest: int, returned: int) -> float:
            left_out = [found[-1].logprob] if len(found) == returned else []
            bound = max([one.logprob for one in found if one.length == longest] + left_out)
            return bound / length_penalty(max_new_tokens, alpha)

        if beams == 1:
            search([*range(len(sentences))], max_new_tokens)
            return [written[index] for index in range(len(sentences))]
        groups: dict[int, list[int]] = {}
        for index, count in enumerate(counts):
            groups.setdefault(-(-count // LENGTHS_IN_GROUP) * LENGTHS_IN_GROUP, []).append(index)
        for count, group in groups.items():
            expected = round(count * self._written / self._read)
            search(group, min(expected + FURTHER_STEPS, max_new_tokens))
        return [written[index] for index in range(len(sentences))]

    def _search(
        self, sentences: Sequence[list[str]], beams: int, longest: int, returned: int, alpha: float
    ) -> list[list[_Found]]:
        """The hypotheses of each sentence by falling log-probability: finished ones, and those of the last step."""
        results = self._translator.translate_batch(
            sentences,
            beam_size=beams,
            patience=longest + 1,
            num_hypotheses=1 if beams == 1 else returned,
            length_penalty=NO_PENALTY,
            max_input_length=0,
            max_decoding_length=longest,
            min_decoding_length=0,
            return_scores=True,
            return_end_token=True,
        )
        return [
            [_found(tokens, logprob, alpha) for tokens, logprob in zip(result.hypotheses, result.scores, strict=True)]
            for result in results
        ]

    def _hypothesis(self, found: _Found) -> Hypothesis:
        ids = tuple(self._target_ids[token] for token in found.tokens)
        return Hypothesis(ids, found.logprob, found.score, found.finished)


def _found(tokens: list[str], logprob: float, alpha: float) -> _Found:
    finished, length = tokens[-1:] == [SPECIALS[EOS]], len(tokens)
    score = logprob / length_penalty(length, alpha)
    return _Found(tokens[:-1] if finished else tokens, length, logprob, score, finished)
