"""Sentences enough to teach, check and search with, and a small model that more width helps."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import torch

from attnworks.models import Transformer
from attnworks.reshape.contract import Bench
from attnworks.reshape.growth.score import Kind
from attnworks.reshape.growth.survey import Survey
from attnworks.reshape.progress import silently
from attnworks.reshape.texts import Texts
from attnworks.text.passages import Passage, Side
from attnworks.traces.text import Judge, read_text
from attnworks.training.objectives.choice import choose
from tests.exam_helpers import NOUNS
from tests.reshape.reshape_helpers import examinee_of, model_of, texts

_SAID = [
    f"the {'very ' * much}{'tired ' * tired}{who} {does} {'the red ' * red}{what} ."
    for much, tired, who, does, red, what in product(
        range(3), range(2), NOUNS[:3], ("sees", "wants", "loves"), range(2), NOUNS[5:7]
    )
]
PASSAGES = [Passage(Side(text), Side(" ".join(reversed(text.split())))) for text in Random(3).sample(_SAID, 96)]


def growing_model(dtype: torch.dtype = torch.float64, **changes: Any) -> Transformer:
    """One layer on each side, with random weights: nearly any direction that is downhill is so for all sentences."""
    return model_of(dtype, **({"seed": 2, "encoder_layers": 1, "decoder_layers": 1} | changes))


def growing_texts(passages: list[Passage] = PASSAGES) -> Texts:
    return texts(passages)


def growing_bench(model: Transformer | None = None, given: Texts | None = None) -> Bench:
    examinee = examinee_of(growing_model() if model is None else model)
    text = read_text(examinee, (growing_texts() if given is None else given).learn, 2048)
    return Bench(examinee, Judge(examinee.subject, choose(None, examinee.subject.abilities), text), 9)


def survey_of(bench: Bench, *kinds: Kind) -> Survey:
    return Survey(bench.looked_at, silently, kinds)
