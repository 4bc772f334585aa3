"""Held-out loss and translation scores."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from attnworks.models.modes import inference_mode
from attnworks.text.tokens import RowPair, collate_pairs, validation_batches
from attnworks.training.objectives.contract import Objective


class TranslationScores(NamedTuple):
    """BLEU and chrF of translations against references, with the signatures that say how they were computed."""

    bleu: float
    chrf: float
    signature: str


def mean_loss(
    model: nn.Module, objective: Objective, pairs: Sequence[RowPair], *, batch_tokens: int, device: str = "cpu"
) -> float:
    """Mean loss per term over all pairs; NaN if there are none."""
    total, terms = 0.0, 0
    with inference_mode(model):
        for rows in validation_batches(pairs, batch_tokens):
            loss = objective.total(model, collate_pairs([pairs[row] for row in rows]).to(device))
            total, terms = total + float(loss.total), terms + loss.terms
    return total / terms if terms else math.nan


def translation_scores(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> TranslationScores | None:
    """sacrebleu on our own tokens (tokenize=none), or None where there is no sacrebleu or nothing to score."""
    if not hypotheses or importlib.util.find_spec("sacrebleu") is None:
        return None
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    written = [" ".join(words) for words in hypotheses]
    gold = [[" ".join(words) for words in references]]
    bleu, chrf = BLEU(tokenize="none", force=True), CHRF()
    score = bleu.corpus_score(written, gold)
    return TranslationScores(score.score, chrf.corpus_score(written, gold).score, str(bleu.get_signature()))
