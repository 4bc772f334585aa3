"""Held-out loss and translation scores."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn

from attnworks.models.modes import evaluating
from attnworks.text.batches import Example, collate
from attnworks.training.objectives.contract import Objective


class Scores(NamedTuple):
    """BLEU and chrF of translations against references, with the signatures that say how they were computed."""

    bleu: float
    chrf: float
    signature: str


def mean_loss(
    model: nn.Module, objective: Objective, examples: Sequence[Example], *, batch_tokens: int, device: str = "cpu"
) -> float:
    """Mean loss per term over all examples; NaN if there are none."""
    total, terms = 0.0, 0
    with evaluating(model):
        for batch in _by_length(examples, batch_tokens):
            loss = objective(model, collate(batch).to(device))
            total, terms = total + float(loss.total), terms + loss.terms
    return total / terms if terms else math.nan


def translation_scores(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Scores | None:
    """sacrebleu on our own tokens (tokenize=none), or None where there is no sacrebleu or nothing to score."""
    if not hypotheses or importlib.util.find_spec("sacrebleu") is None:
        return None
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    written = [" ".join(words) for words in hypotheses]
    gold = [[" ".join(words) for words in references]]
    bleu, chrf = BLEU(tokenize="none", force=True), CHRF()
    score = bleu.corpus_score(written, gold)
    return Scores(score.score, chrf.corpus_score(written, gold).score, str(bleu.get_signature()))


def _by_length(examples: Sequence[Example], batch_tokens: int) -> Iterator[list[Example]]:
    ordered = sorted(examples, key=lambda example: (len(example.target), len(example.source)))
    batch: list[Example] = []
    longest = 0
    for example in ordered:
        length = max(len(example.source), len(example.target) + 1)
        longest = max(longest, length)
        if batch and longest * (len(batch) + 1) > batch_tokens:
            yield batch
            batch, longest = [], length
        batch.append(example)
    if batch:
        yield batch
