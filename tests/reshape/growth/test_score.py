"""What more keys or values are worth: the logic of trust and refusal, and predictions against held-out sentences.

The task is recall: with d_k = 1 a head cannot tell 32 keys apart, so that one more column of keys must help.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnworks.core.display import silent
from attnworks.core.places import Slot
from attnworks.models import AttentionConfig, Transformer, TransformerConfig, build
from attnworks.models.layers import OutputLayer
from attnworks.reshape.growth import score as score_module
from attnworks.reshape.growth.apply import GrowthPlace, GrowthStep, Keys, Values, grown
from attnworks.reshape.growth.directions import whitened_direction
from attnworks.reshape.growth.metric import ScoreSample
from attnworks.reshape.growth.score import (
    MAX_SOLVER_RESIDUAL,
    MIN_TRUST,
    GrowthTrial,
    Score,
    best_direction,
    checking_sentences,
    key_scores,
    value_scores,
)
from attnworks.reshape.growth.solvers import LineMinimum
from attnworks.reshape.growth.statistics import CHECKING_SLICE, FITTING_SLICE, SEARCHING_SLICE
from attnworks.reshape.growth.survey import GrowthSurvey
from attnworks.studies.recall import (
    D_E,
    D_FF,
    D_V,
    PAIRS,
    RECALL_KEYS,
    RECALL_VALUES,
    PairEmbedding,
    draw_recall,
    new_optimizer,
    new_recall_model,
    recall_loss,
    recall_text_loss,
    train_recall,
)
from attnworks.text.tokens import Batch
from attnworks.traces.loss import TextLoss
from attnworks.training.objectives.contract import Outputs
from attnworks.training.objectives.sentences import FunctionObjective
from tests.reshape.growth.growth_helpers import growing_bench, survey_of

pytestmark = pytest.mark.slow

STEPS = 250
SCORE = Score(
    place=GrowthPlace(Slot("encoder", 0), 0), kind="values",
    addition=Values(torch.ones(14, 1).double(), torch.ones(1, 14).double()),
    fitted_slope=2.0, checked_slope=1.5, residual=0.0, parameters=29, shares=(0.1,),
)  # fmt: skip


def trained(model: Transformer, steps: int = STEPS) -> Transformer:
    rates = [3e-3 * (1 - step / steps) + 1e-4 for step in range(steps)]
    train_recall(model, new_optimizer(model), torch.Generator().manual_seed(1), rates)
    return model.eval()


def sequences(size: int, seed: int) -> Tensor:
    return draw_recall(size, torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def narrow() -> Transformer:
    return trained(new_recall_model(1, 0))


@pytest.fixture(scope="module")
def survey(narrow: Transformer) -> GrowthSurvey:
    return GrowthSurvey(recall_text_loss(narrow, sequences(1024, 7)), silent, ("keys", "values"))


# Trust and refusal ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "trust", "told"),
    [
        ({"gain": 0.1}, 0.75, None),
        ({"gain": 0.1, "checked_slope": 2.5}, 1.25, None),
        ({"gain": 0.1, "checked_slope": 2 * MIN_TRUST}, 0.5, None),
        (
            {"gain": 0.1, "checked_slope": 0.9},
            0.45,
            "other sentences confirm 45% of the slope: more data, or no bottleneck",
        ),
        ({"gain": 0.1, "checked_slope": -1.0}, -0.5, "other sentences confirm -50% of the slope"),
        ({"gain": 0.1, "fitted_slope": 0.0}, 0.0, "other sentences confirm 0% of the slope"),
        ({"gain": 0.0}, 0.75, "no step lowers the loss"),
    ],
    ids=str,
)
def test_refusals_in_words(changes: dict[str, Any], trust: float, told: str | None) -> None:
    score = replace(SCORE, **changes)
    assert score.trust == pytest.approx(trust)
    assert score.refusal is None if told is None else told in str(score.refusal)


def test_heads_in_which_the_solver_does_not_converge_get_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(*shape: int, seed: int) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    X = drawn(3, 7, 5, seed=1)
    T, sample = drawn(3, 5, 5, seed=2), ScoreSample(X, X, (3 * drawn(3, 3, 7, 7, seed=3)).softmax(-1))
    closed = whitened_direction(T, sample, 2, cutoff=1e-4)
    solved = best_direction(T, sample, 2, cutoff=1e-4)
    assert (solved.residual < MAX_SOLVER_RESIDUAL).all() and (closed.residual > MAX_SOLVER_RESIDUAL).all()
    assert (solved.gain > closed.gain).all()
    limit = solved.residual.sort().values[1].item()
    monkeypatch.setattr("attnworks.reshape.growth.score.MAX_SOLVER_RESIDUAL", limit)
    mixed = best_direction(T, sample, 2, cutoff=1e-4)
    stuck = int(solved.residual.argmax())
    for head in range(3):
        expected = closed if head == stuck else solved
        for got, want in zip(mixed, expected, strict=True):
            assert torch.equal(got[head], want[head])


class Watched(GrowthTrial):
    """Counts how often a step is tried."""

    tried = 0

    def with_steps(self, steps: Any) -> float:
        self.tried += 1
        return super().with_steps(steps)


def test_what_is_not_believed_is_not_tried() -> None:
    trial = Watched(growing_bench().calibration, CHECKING_SLICE)
    for changes in ({"checked_slope": 0.1}, {"fitted_slope": 0.0}):
        score = replace(SCORE, **changes)
        assert score.tried(trial, 1.0) is score
    assert trial.tried == 0
    score = SCORE.tried(trial, 1.0)
    assert trial.tried > 0 and (score.gain > 0) == (score.step > 0)
    assert (score.fitted_slope, score.checked_slope, score.addition) == (
        SCORE.fitted_slope,
        SCORE.checked_slope,
        SCORE.addition,
    )


def test_a_trial_is_the_loss_of_the_grown_model() -> None:
    own = growing_bench().calibration
    trial = GrowthTrial(own, CHECKING_SLICE)
    assert trial.loss == own.mean(some=CHECKING_SLICE)
    step = GrowthStep(SCORE.place, SCORE.addition, 0.3)
    original: Any = own.original
    assert trial.with_steps([step]) == own.mean(original.with_model(grown(original.model, [step])), some=CHECKING_SLICE)
    assert trial.with_steps([]) == trial.loss
    assert trial.search(-1.0, lambda t: [step]) == LineMinimum(0.0, trial.loss)
    assert trial.search(0.0, lambda t: [step], whole=5.0) == LineMinimum(0.0, 5.0)
    found = trial.search(1.0, lambda t: [step._replace(length=t)])
    assert found.value == pytest.approx(trial.with_steps([step._replace(length=found.step)]), rel=1e-12)


def test_about_so_many_sentences_check(monkeypatch: pytest.MonkeyPatch) -> None:
    own = growing_bench().calibration
    assert checking_sentences(own) == CHECKING_SLICE
    checks = sum(len(range(len(batch))[CHECKING_SLICE]) for batch in own.text.batches)
    monkeypatch.setattr(score_module, "TRIAL_SENTENCES", checks // 3)
    some = checking_sentences(own)
    assert some.start == CHECKING_SLICE.start and some.step == 3 * CHECKING_SLICE.step
    chosen, all_of_them = (
        {int(row) for _, rows in own.batches(part) for row in rows} for part in (some, CHECKING_SLICE)
    )
    assert chosen < all_of_them


# Slopes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [Slot.parse("enc.0"), Slot.parse("cross.0")])
def test_slopes_are_those_of_the_loss(slot: Slot) -> None:
    """The slopes are how fast the loss falls along the addition, on either half of the sentences."""
    context = growing_bench()
    own, original = context.calibration, context.calibration.original
    survey = survey_of(context, "keys", "values")
    again: Any = original
    for score in (*survey.scores(slot, "keys", 2), *survey.scores(slot, "values", 2)):
        for some, told in ((FITTING_SLICE, score.fitted_slope), (CHECKING_SLICE, score.checked_slope)):
            up, down = (
                own.mean(
                    again.with_model(grown(original.model, [GrowthStep(score.place, score.addition, t, 3**-0.5)])),
                    some=some,
                )
                for t in (1e-6, -1e-6)
            )
            assert (down - up) / 2e-6 == pytest.approx(told, rel=1e-3, abs=1e-7)
        assert score.fitted_slope > 0 and len(score.shares) == 2
        assert isinstance(score.addition, Keys if score.kind == "keys" else Values)
        steps = [GrowthStep(score.place, score.addition, 0.1, 3**-0.5)]
        new, old = (
            sum(parameter.numel() for parameter in model.parameters())
            for model in (grown(original.model, steps), original.model)
        )
        assert score.parameters == new - old


def test_some_heads_are_scored_as_among_all() -> None:
    survey = survey_of(growing_bench(), "keys", "values")
    for kind in ("keys", "values"):
        every, (one,) = survey.scores(Slot.parse("enc.0"), kind, 2), survey.scores(Slot.parse("enc.0"), kind, 2, (1,))
        assert one.place == every[1].place == GrowthPlace(Slot.parse("enc.0"), 1)
        assert one.fitted_slope == pytest.approx(every[1].fitted_slope, rel=0.05)


# A bottleneck that is known ------------------------------------------------------------------------------------------


def actual_fall(model: Transformer, score: Score, scale: float, seed: int = 99) -> float:
    """On sentences that nobody has seen."""
    held_out = sequences(1024, seed)
    new = grown(model, [GrowthStep(score.place, score.addition, score.step, scale)])
    assert isinstance(new, Transformer)
    return recall_loss(model, held_out) - recall_loss(new, held_out)


@pytest.mark.parametrize("p", [1, 2])
def test_more_keys_are_believed_and_do_what_is_predicted(narrow: Transformer, survey: GrowthSurvey, p: int) -> None:
    (score,) = survey.scores(Slot.parse("enc.0"), "keys", p)
    score = survey.tried(score)
    assert score.refusal is None and score.trust > 0.7
    fall = actual_fall(narrow, score, survey.scale(Slot.parse("enc.0")))
    assert fall > 0.05 and score.gain / 1.5 < fall < 1.5 * score.gain


def test_keys_pay_more_than_values(survey: GrowthSurvey) -> None:
    (keys,), (values,) = (survey.scores(Slot.parse("enc.0"), kind) for kind in ("keys", "values"))
    keys, values = survey.tried(keys), survey.tried(values)
    assert keys.gain / keys.parameters > 3 * values.gain / values.parameters


def test_the_same_score_is_tried_once(survey: GrowthSurvey) -> None:
    (score,) = survey.scores(Slot.parse("enc.0"), "keys")
    assert survey.tried(score) is survey.tried(score)


def test_sums_can_be_scored_alone(survey: GrowthSurvey) -> None:
    sums, sample = survey.sums[Slot.parse("enc.0")], survey.sample(Slot.parse("enc.0"))
    (keys,), (values,) = (
        key_scores(Slot.parse("enc.0"), sums.means()[0], sample, survey.heads[Slot.parse("enc.0")][0], 1),
        value_scores(Slot.parse("enc.0"), sums, True, 1),
    )
    (again,), (once_more,) = survey.scores(Slot.parse("enc.0"), "keys"), survey.scores(Slot.parse("enc.0"), "values")
    assert (keys.fitted_slope, keys.checked_slope) == (again.fitted_slope, again.checked_slope)
    assert (values.fitted_slope, values.checked_slope) == (once_more.fitted_slope, once_more.checked_slope)


# No bottleneck -------------------------------------------------------------------------------------------------------


def by_chance(outputs: Outputs, batch: Batch) -> Tensor:
    """Cross-entropy with answers that have nothing to do with the sequence: a hash of all its tokens."""
    assert outputs.logits is not None
    ids = batch.source.ids
    labels = (
        (ids * torch.arange(1, 2 * ids.shape[1], 2)).sum(1, keepdim=True) * 7919 + ids[:, PAIRS:] * 31
    ) % RECALL_VALUES
    flat = F.cross_entropy(outputs.logits[:, PAIRS:].flatten(0, 1), labels.flatten(), reduction="none")
    return flat.view(len(ids), -1).mean(1)


def test_noise_is_refused(narrow: Transformer) -> None:
    """Once the answers are evenly guessed, nothing that half of the sentences teach holds for the others."""
    even = grown(narrow, ())
    assert isinstance(even, Transformer)
    with torch.no_grad():
        for parameter in even.output.parameters():
            parameter *= 1e-3
    own = recall_text_loss(even, sequences(256, 11))
    survey = GrowthSurvey(TextLoss(own.original, FunctionObjective(by_chance), own.text), silent, ("keys", "values"))
    for kind in ("keys", "values"):
        for score in survey.scores(Slot.parse("enc.0"), kind, 2):
            tried = survey.tried(score)
            assert tried.refusal is not None and "more data, or no bottleneck" in tried.refusal and tried.gain == 0


def test_every_sentence_is_used_once(survey: GrowthSurvey) -> None:
    own = survey.text_loss
    parts = [
        {int(row) for _, rows in own.batches(some) for row in rows}
        for some in (FITTING_SLICE, CHECKING_SLICE, SEARCHING_SLICE)
    ]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 1024


# Ranks ---------------------------------------------------------------------------------------------------------------


def two_layers(seed: int) -> Transformer:
    config = TransformerConfig(
        vocabulary=RECALL_KEYS * RECALL_VALUES + RECALL_KEYS, d_e=D_E, d_ff=D_FF,
        attention=AttentionConfig(heads=2, d_k=1, d_v=D_V // 4),
        encoder_layers=2, decoder_layers=0, norm="pre", positions="none", dropout=0.0,
    )  # fmt: skip
    model = build(config, seed=seed)
    assert isinstance(model, Transformer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.source_embedding, model.output = PairEmbedding(), OutputLayer(RECALL_VALUES, D_E)
    return model


@pytest.mark.slow
def test_places_are_ranked_by_what_they_give() -> None:
    model = trained(two_layers(3), 400)
    survey = GrowthSurvey(recall_text_loss(model, sequences(2048, 5)), silent, ("keys", "values"))
    tried = [
        survey.tried(score)
        for slot in survey.layers
        for kind in ("keys", "values")
        for score in survey.scores(slot, kind)
    ]
    assert len(tried) == 8
    falls = torch.tensor([actual_fall(model, score, survey.scale(score.place.slot)) for score in tried])
    ranks = torch.stack([falls, torch.tensor([score.gain for score in tried])]).argsort(1).argsort(1).double()
    assert torch.corrcoef(ranks)[0, 1] >= 0.8
