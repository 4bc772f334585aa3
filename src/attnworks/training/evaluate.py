"""Held-out loss and translation scores."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import nn

from attnworks.models.modes import inference_mode
from attnworks.text.passages import Passage
from attnworks.text.tokenizers import target_words
from attnworks.text.tokens import RowPair, collate_pairs, validation_batches
from attnworks.text.vocabulary import Vocabulary
from attnworks.text.words import written
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
    hypotheses: Sequence[str], references: Sequence[str], *, own_tokens: bool = False
) -> TranslationScores | None:
    """sacrebleu with its standard tokenizer 13a, or None where there is no sacrebleu or nothing to score.

    own_tokens    the texts are tokens of attnworks between blanks, which sacrebleu takes as they are (tok:none)
    """
    if not hypotheses or importlib.util.find_spec("sacrebleu") is None:
        return None
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf, gold = BLEU(tokenize="none" if own_tokens else "13a", force=own_tokens), CHRF(), [[*references]]
    score = bleu.corpus_score([*hypotheses], gold)
    return TranslationScores(score.score, chrf.corpus_score([*hypotheses], gold).score, str(bleu.get_signature()))


def references(pairs: Iterable[Passage], target: Vocabulary) -> list[str]:
    """The translations to score against: as people write them if the vocabulary does so, else tokens between blanks."""
    return [written(target_words(pair, target)) for pair in pairs]
