"""Where capacity is missing, as an examination tells it: readings for every head and layer, and reasons in notes."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

import attnworks
from attnworks.core.display import silent
from attnworks.core.places import Slot
from attnworks.exam.measure import MEASURES, MeasureContext
from attnworks.models import AttentionConfig
from attnworks.reshape.growth.bottleneck import GAIN_PARAMETERS, Bottleneck
from attnworks.reshape.growth.survey import GROWTH_KINDS, GrowthSurvey
from attnworks.traces.loss import TextLoss
from attnworks.traces.text import EXAM_BATCH_TOKENS
from attnworks.training.objectives import choose_objective
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.reshape.growth.growth_helpers import PASSAGES, growing_model
from tests.reshape.reshape_helpers import D_K, D_V, WORDS, subject_of
from tests.tiny_models import TINY

pytestmark = pytest.mark.slow

NAMES = [f"bottleneck.{kind}{what}" for kind in GROWTH_KINDS for what in ("", "_trust")]
LINEAR = AttentionConfig(heads=2, d_k=D_K, d_v=D_V, mechanism="linear")


@cache
def examined(case: str) -> Any:
    if case == "own":
        return attnworks.examine(growing_model(), PASSAGES[:48], tokenizer=WORDS, measures=["bottleneck"])
    if case == "linear encoder":
        model = growing_model(slots={"enc.0": LINEAR})
        return attnworks.examine(model, PASSAGES[:24], tokenizer=WORDS, measures=["bottleneck"])
    tokenizer = tiny_tokenizer("bert" if case == "albert" else case)
    return attnworks.examine(TINY[case].build(), LINES * 4, tokenizer=tokenizer, measures=["bottleneck"])


def test_it_is_asked_for_by_name() -> None:
    assert MEASURES["bottleneck"] is Bottleneck and not Bottleneck.default
    assert [declared.name for declared in Bottleneck(MeasureContext(7)).declares()] == NAMES


@pytest.mark.parametrize(("case", "kinds"), [("own", ("encoder", "decoder", "cross")), ("bert", ("encoder",))])
def test_readings_of_every_head(case: str, kinds: tuple[str, ...]) -> None:
    exam = examined(case)
    layers, heads = (1, 2) if case == "own" else (2, 3)
    for kind in kinds:
        for name in NAMES:
            reading = exam[f"{name}@{kind}"]
            by_layer = name.startswith("bottleneck.heads")
            assert reading.axes == (("layer",) if by_layer else ("layer", "head")) and len(reading.value) == layers
            for row in reading.value:
                assert row.shape == (() if by_layer else (heads,))
                assert bool((row >= 0).all()) or "trust" in name or bool(row.isnan().any())
    assert any(float(row.max()) > 0 for row in exam[f"bottleneck.values@{kinds[-1]}"].value)


def test_what_is_refused_is_worth_nothing() -> None:
    exam = examined("own")
    for kind in ("encoder", "decoder", "cross"):
        for what in ("keys", "values"):
            for gain, trust in zip(
                exam[f"bottleneck.{what}@{kind}"].value, exam[f"bottleneck.{what}_trust@{kind}"].value, strict=True
            ):
                assert not gain[trust < 0.5].any()


def test_readings_are_those_of_a_survey() -> None:
    """Per 1000 parameters, on the same sentences."""
    exam = examined("own")
    subject = subject_of(growing_model())
    text = subject.read(PASSAGES[:48], batch_tokens=EXAM_BATCH_TOKENS)
    survey = GrowthSurvey(TextLoss(subject, choose_objective(None, subject.abilities), text), silent, ("values",))
    for slot, kind in (("enc.0", "encoder"), ("cross.0", "cross")):
        (trust,) = exam[f"bottleneck.values_trust@{kind}"].value
        (gain,) = exam[f"bottleneck.values@{kind}"].value
        scores = [survey.tried(score) for score in survey.scores(Slot.parse(slot), "values")]
        assert trust.tolist() == pytest.approx([score.trust for score in scores], rel=1e-5)
        worth = [GAIN_PARAMETERS * score.gain / score.parameters for score in scores]
        assert gain.tolist() == pytest.approx(worth, rel=1e-5)


def test_layers_that_cannot_grow() -> None:
    exam = examined("linear encoder")
    for name in NAMES:
        (row,) = exam[f"{name}@encoder"].value
        assert bool(row.isnan().all())
    assert not bool(exam["bottleneck.values@decoder"].value[0].isnan().any())
    assert "enc.0 cannot grow: mechanisms that depend on the width of a head" in exam.notes


def test_models_that_cannot_grow() -> None:
    exam = examined("albert")
    assert "enc.0 cannot grow: weights that are used more than once in a forward pass" in exam.notes
    assert all(math.isnan(float(value)) for row in exam["bottleneck.keys@encoder"].value for value in row)


def test_objectives_that_are_relative() -> None:
    model = TINY["bert"].build(dtype=torch.float32)
    exam = attnworks.examine(
        model, LINES, tokenizer=tiny_tokenizer("bert"), measures=["bottleneck"], objective="embedding"
    )
    assert not any(name.startswith("bottleneck") for name in exam.readings)
    assert any("so that no change can lower it" in note for note in exam.notes)
