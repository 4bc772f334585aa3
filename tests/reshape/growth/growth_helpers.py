"""Sentences enough to teach, check and search with, and a small model that more width helps."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import torch

from attnworks.core.display import silent
from attnworks.models import Transformer
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.growth.score import GrowthKind
from attnworks.reshape.growth.survey import GrowthSurvey
from attnworks.reshape.texts import TextSplit
from attnworks.text.passages import Passage, Text
from attnworks.traces.loss import TextLoss
from attnworks.training.objectives import choose_objective
from tests.exam_helpers import NOUNS
from tests.reshape.reshape_helpers import model_of, subject_of, texts

_SAID = [
    f"the {'very ' * much}{'tired ' * tired}{who} {does} {'the red ' * red}{what} ."
    for much, tired, who, does, red, what in product(
        range(3), range(2), NOUNS[:3], ("sees", "wants", "loves"), range(2), NOUNS[5:7]
    )
]
PASSAGES = [Passage(Text(text), Text(" ".join(reversed(text.split())))) for text in Random(3).sample(_SAID, 96)]


def growing_model(dtype: torch.dtype = torch.float64, **changes: Any) -> Transformer:
    """One layer on each side, with random weights: nearly any direction that is downhill is so for all sentences."""
    return model_of(dtype, **({"seed": 2, "encoder_layers": 1, "decoder_layers": 1} | changes))


def growing_texts(passages: list[Passage] = PASSAGES) -> TextSplit:
    return texts(passages)


def growing_bench(model: Transformer | None = None, given: TextSplit | None = None) -> ReshapeContext:
    subject = subject_of(growing_model() if model is None else model)
    text = subject.read((growing_texts() if given is None else given).learn, batch_tokens=2048)
    return ReshapeContext(subject, TextLoss(subject, choose_objective(None, subject.abilities), text), 9)


def survey_of(context: ReshapeContext, *kinds: GrowthKind) -> GrowthSurvey:
    return GrowthSurvey(context.calibration, silent, kinds)
