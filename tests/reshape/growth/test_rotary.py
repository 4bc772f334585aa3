"""Growth beside the projections of layers: rotary positions, shared keys, caps, sinks, windows, gates and norms."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from attnworks.core.display import silent
from attnworks.core.errors import UsageError
from attnworks.models.anatomy import heads_of
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.growth import survey as survey_module
from attnworks.reshape.growth.apply import Addition, GrowthPlace, GrowthStep, Keys, Values, grown, stretched
from attnworks.reshape.growth.cost import measured_cost
from attnworks.reshape.growth.graded import output_of
from attnworks.reshape.growth.grow import Grow, plan_step
from attnworks.reshape.growth.methods import METHODS
from attnworks.reshape.growth.pairs import PairSums, gather_pair_sums, with_key_bias
from attnworks.reshape.growth.places import NoBottleneckError, Spot, spread
from attnworks.reshape.growth.score import Score, key_scores
from attnworks.reshape.growth.statistics import CHECKING_SLICE, FITTING_SLICE, GrowthSums, gather_sample, gather_sums
from attnworks.reshape.growth.survey import ANGLES, PAIRS_PASS, PASSES, GrowthSurvey
from attnworks.traces.loss import TextLoss
from tests.helpers import assert_close
from tests.model_helpers import randn
from tests.reshape.growth.rotary_model import (
    D_E,
    D_K,
    SLOT,
    Layout,
    RotaryModel,
    RotarySubject,
    copying,
    growing_rotary,
    part_of,
    text_loss_of,
    trained,
)

LAYOUTS = {
    "rotary": Layout(),
    "grouped": Layout(heads=6, groups=2),
    "biased": Layout(biased=True),
    "capped": Layout(softcap=1.5),
    "sinks": Layout(sinks=True),
    "window": Layout(window=3),
    "gated": Layout(gated=True, factor=0.3),
    "normed": Layout(normed=True),
    "all": Layout(4, 2, (1.1,), True, 5, 2.0, True, True, True, 1.7),
}
ANGLE, HEAD, P_ = 0.8, 1, 3
LENGTHS = [23, 5, 17, 11, 23, 7, 13, 3, 19, 23, 2, 5, 7]


@pytest.fixture(autouse=True)
def rotary_models_grow() -> Iterator[None]:
    with growing_rotary():
        yield


@cache
def model_of(name: str) -> RotaryModel:
    return RotaryModel(LAYOUTS[name], seed=3)


@cache
def text_loss(name: str) -> TextLoss:
    """Sentences of several lengths, padded in batches of five."""
    return text_loss_of(model_of(name), copying(len(LENGTHS), 3, 11), LENGTHS, batch=5)


class Sums(NamedTuple):
    growth: GrowthSums
    pairs: PairSums


@cache
def sums(name: str) -> Sums:
    outputs = {SLOT: output_of(part_of(model_of(name)))}
    angles = {SLOT: {HEAD: ANGLE, 0: 0.3}}
    told: list[tuple[int, int]] = []
    both = gather_sums(text_loss(name), outputs, lambda *_: None)[SLOT]
    pairs = gather_pair_sums(text_loss(name), outputs, angles, lambda *at: told.append(at))[SLOT]
    assert told == [(0, 3), (1, 3), (2, 3)]
    return Sums(both, pairs)


def slope(name: str, addition: Addition, some: slice, length: float = 1e-5) -> float:
    """d loss / d length at zero, of models with the columns."""
    own = text_loss(name)
    original: Any = own.original

    def loss(t: float) -> float:
        step = GrowthStep(GrowthPlace(SLOT, HEAD), addition, t, D_K**-0.5)
        return own.mean(RotarySubject(grown(original.model, [step])), some=some)  # pyright: ignore[reportArgumentType]

    return (loss(length) - loss(-length)) / (2 * length)


def drawn_keys(name: str, angle: float) -> tuple[Keys, Tensor, Tensor]:
    """Two columns, and both sides with their biases below, complex for a pair."""
    biased = LAYOUTS[name].biased
    a, b = randn(D_E + biased, 2, seed=5), randn(D_E + (biased and angle > 0), 2, seed=6)
    alpha, bias = (a[:-1], a[-1]) if biased else (a, None)
    beta, key_bias = (b[:-1], b[-1]) if biased and angle else (b, None)
    turns = torch.full((2,), angle, dtype=torch.float64) if angle else None
    left, right = (torch.view_as_complex(side).unsqueeze(-1) if angle else side for side in (a, b))
    return Keys(alpha, beta, bias, key_bias, turns), left, right


# What the loss wants -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_sums_are_slopes_of_the_loss_of_grown_models(name: str) -> None:
    growth, pairs = sums(name)
    keys, values, _ = growth.means()
    row = list(pairs.angles).index(HEAD)
    a, b = randn(D_E, 2, seed=7), randn(2, D_E, seed=8)
    for half, some in enumerate((FITTING_SLICE, CHECKING_SLICE)):
        for T, angle in ((keys[half, HEAD], 0.0), (pairs.means()[half, row], ANGLE)):
            addition, alpha, beta = drawn_keys(name, angle)
            expected = float((T.conj() * (alpha @ beta.mH)).real.sum())
            assert slope(name, addition, some) == pytest.approx(expected, rel=1e-4, abs=1e-9)
            assert abs(expected) > 1e-5
        expected = float((values[half, HEAD] * (a @ b)).sum())
        assert slope(name, Values(a, b), some) == pytest.approx(expected, rel=1e-4) and abs(expected) > 1e-5


def test_values_are_added_at_the_output_projection() -> None:
    """Where its output u is multiplied by a factor before it is added to the stream, dL / du has the factor too."""
    part, own = part_of(model_of("gated")), text_loss("gated")
    _, of_output, _ = sums("gated").growth.means()
    of_branch = gather_sums(own, {SLOT: part.branch}, lambda *_: None)[SLOT].means()[1]
    assert output_of(part) is not part.branch
    assert_close(LAYOUTS["gated"].factor * of_branch, of_output)


def test_sums_of_pairs_do_not_depend_on_batches_and_take_constant_memory() -> None:
    own, outputs = text_loss("all"), {SLOT: output_of(part_of(model_of("all")))}
    alone = text_loss_of(model_of("all"), copying(len(LENGTHS), 3, 11), LENGTHS, batch=1)
    found = gather_pair_sums(alone, outputs, {SLOT: sums("all").pairs.angles}, lambda *_: None)[SLOT]
    assert_close(found.means().real, sums("all").pairs.means().real)
    assert_close(found.means().imag, sums("all").pairs.means().imag)
    assert found.sums.shape == (2, 2, 2, D_E + 1, D_E + 1) and found.sentences.tolist() == [7, 3]
    assert gather_pair_sums(own, outputs, {SLOT: {}}, lambda *_: None) == {}


@pytest.mark.parametrize("name", ["rotary", "biased"])
@pytest.mark.parametrize("angle", [0.0, ANGLE])
def test_the_parameters_of_columns_are_counted(name: str, angle: float) -> None:
    """Two plain columns, or one pair: as many as the grown layer has more, with those of both biases."""
    sample, like = gather_sample(text_loss(name), SLOT).of_heads((HEAD,)), heads_of(part_of(model_of(name)))[HEAD]
    T = sums(name).growth.means()[0][:, HEAD : HEAD + 1]
    if angle:
        T = sums(name).pairs.means()[:, :1]
        sample = (with_key_bias(sample) if LAYOUTS[name].biased else sample)._replace(angle=angle)
    (score,) = key_scores(SLOT, T, sample, like, 1 if angle else 2)
    new: Any = grown(model_of(name), [GrowthStep(GrowthPlace(SLOT, HEAD), score.addition, 1.0)])
    added = new.attention.added[HEAD]
    assert score.parameters == sum(tensor.numel() for tensor in added.weights if tensor is not None)
    assert score.columns == 2 and score.is_pair == (angle > 0)


# What a step adds ----------------------------------------------------------------------------------------------------


def test_pairs_stand_behind_own_columns_with_their_angles() -> None:
    model = model_of("all")
    addition, _, _ = drawn_keys("all", ANGLE)
    steps = [
        GrowthStep(GrowthPlace(SLOT, HEAD), addition, 0.5, D_K**-0.5),
        GrowthStep(GrowthPlace(SLOT, HEAD), drawn_keys("all", 0.0)[0], 0.5, D_K**-0.5),
        GrowthStep(GrowthPlace(SLOT, 3), addition._replace(turns=None, key_bias=None), 0.5, D_K**-0.5),
    ]
    new: Any = grown(model, steps)
    heads = heads_of(part_of(new))
    widths = [head.W_Q.shape[1] for head in heads]
    assert widths == [D_K, D_K + 4, D_K, D_K + 2]
    assert [[] if head.turns is None else head.turns.tolist() for head in heads] == [
        [0.0] * D_K, [0.0] * D_K + [ANGLE] * 2 + [0.0] * 2, [0.0] * D_K, [0.0] * (D_K + 2)
    ]  # fmt: skip
    root, b_K = (0.5 * D_K**0.5) ** 0.5, heads[HEAD].b_K
    assert addition.key_bias is not None and b_K is not None
    assert_close(b_K[D_K : D_K + 2], root * addition.key_bias)
    nothing: Any = grown(model, [step._replace(length=0.0) for step in steps])
    ids = copying(5, 3, 1)
    with torch.no_grad():
        assert_close(nothing(ids)[0], model(ids)[0])
        assert not torch.allclose(new(ids)[0], model(ids)[0])


def test_the_state_of_an_optimizer_keeps_the_angles() -> None:
    model = model_of("biased")
    new: Any = grown(model, [GrowthStep(GrowthPlace(SLOT, HEAD), drawn_keys("biased", ANGLE)[0], 0.5, D_K**-0.5)])
    padded: Any = stretched(model, new)
    turns = heads_of(part_of(padded))[HEAD].turns
    assert turns is not None and turns.tolist() == [0.0] * D_K + [ANGLE] * 2
    assert not heads_of(part_of(padded))[HEAD].W_Q[:, D_K:].any()


# Growing -------------------------------------------------------------------------------------------------------------


DISTANCE = 3


@cache
def taught(grouped: bool = True) -> RotaryModel:
    """A model that must attend two words back, which its slow rotary positions cannot do sharply."""
    layout = Layout(heads=2, groups=1) if grouped else Layout(heads=1, groups=1)
    return trained(RotaryModel(layout), DISTANCE, steps=120)


@cache
def copied_text(grouped: bool = True) -> TextLoss:
    return text_loss_of(taught(grouped), copying(128, DISTANCE, 7))


@cache
def survey() -> GrowthSurvey:
    with growing_rotary():
        return GrowthSurvey(copied_text(), silent, ("keys", "heads"))


def fall(steps: Any) -> float:
    """By how much the loss of other sentences falls."""
    new = text_loss_of(taught(), copying(256, DISTANCE, 8))
    return new.mean() - new.mean(RotarySubject(grown(taught(), steps)))  # pyright: ignore[reportArgumentType]


def test_pairs_win_where_distance_matters_and_the_loss_falls_as_predicted() -> None:
    for head, plain in enumerate(survey().scores(SLOT, "keys", 2)):
        pair = survey().pair_scores(SLOT)[head]
        assert pair.predicted > 5 * plain.predicted and survey().smallest(SLOT, "keys")[head] is pair
        tried, other = survey().tried(pair), survey().tried(plain)
        assert tried.gain > 5 * other.gain and tried.gain > 0.1 and tried.trust > 0.5
        actual = fall([GrowthStep(tried.place, tried.addition, tried.step, survey().scale(SLOT))])
        assert actual == pytest.approx(tried.gain, rel=0.25)


def test_widths_go_to_whole_pairs() -> None:
    widths = spread(survey(), ("keys",), 5)
    assert sum(widths.values()) == 4 and all(width % 2 == 0 for width in widths.values())
    goals = {Spot(GrowthPlace(SLOT, head), "keys"): 3 for head in range(2)}
    assert all(width == 2 for width in spread(survey(), ("keys",), 20, goals).values())
    planned = plan_step(survey(), METHODS["fisher"], widths, 0)
    assert all(score.is_pair for score in planned.scores)
    assert fall(planned.steps) == pytest.approx(planned.fall, rel=0.2) and planned.fall > 0.3
    assert {len(survey().shares(score)) for score in planned.scores} == {survey_module.COLUMNS_AHEAD}


def test_the_same_number_of_columns_is_compared() -> None:
    def chosen(width: int) -> Score:
        widths = {Spot(GrowthPlace(SLOT, HEAD), "keys"): width}
        return METHODS["fisher"](survey(), widths, 0).scores[0]

    for width, pairs in ((2, True), (4, True)):
        score = chosen(width)
        assert score.is_pair == pairs and score.columns == width
        assert isinstance(score.addition, Keys) and score.addition.turns is not None
        assert len({*score.addition.turns.tolist()}) == 1
        assert score.parameters == width * 2 * D_E
    for width in (1, 3):  # plain columns alone, which other sentences may not confirm
        try:
            assert not chosen(width).is_pair
        except NoBottleneckError as error:
            assert "confirm" in error.got or "columns where" in error.got


@pytest.mark.parametrize("method", ["whitened", "random", "zero", "gradmax"])
def test_other_methods(method: str) -> None:
    widths = {Spot(GrowthPlace(SLOT, HEAD), "keys"): 2}
    planned = plan_step(survey(), METHODS[method], widths, 0, refuse=False)
    (step,) = planned.steps
    assert isinstance(step.addition, Keys)
    assert (step.addition.turns is not None) == (method == "whitened")


def test_what_is_not_for_layers_with_rotary_positions() -> None:
    with pytest.raises(UsageError, match="score by one factor of"):
        METHODS["document"](survey(), {Spot(GrowthPlace(SLOT, 0), "keys"): 2}, 0)
    with pytest.raises(NoBottleneckError, match="no plain maps of the layer's input"):
        METHODS["fisher"](survey(), {Spot(GrowthPlace(SLOT, None), "heads"): 1}, 0)


def test_growing_from_the_first_pass_to_the_receipt() -> None:
    context = ReshapeContext(RotarySubject(taught(False)), copied_text(False), 23)
    told: list[str] = []
    made = Grow(add=2, kinds=("keys",)).make(
        ReshapeContext(context.subject, context.calibration, 23, lambda stage, *_: told.append(stage))
    )
    new: Any = made.model
    assert made.done == {"dec.0.0": f"{D_K} -> {D_K + 2} keys"}
    angle = made.facts["angle_dec.0.0:keys"]
    turns = heads_of(part_of(new))[0].turns
    assert turns is not None and turns.tolist() == [0.0, 0.0, angle, angle] and 1.7 < angle < 2.5
    assert made.facts["difference_at_zero"] < 1e-12
    assert {PASSES[0], ANGLES, PAIRS_PASS} <= {*told} and PASSES[1] not in told
    again = GrowthSurvey(text_loss_of(new, copying(64, DISTANCE, 7)), silent, ("keys",))
    assert again.trial.loss < context.calibration.mean() - 0.3
    assert again.scores(SLOT, "keys")[0].fitted_slope > 0, "the grown model can grow again"


@pytest.mark.parametrize("name", LAYOUTS)
def test_queries_that_are_no_plain_maps_are_noticed(name: str) -> None:
    assert sums(name).growth.may_turn and sums(name).growth.of_heads((1,)).may_turn


@pytest.mark.parametrize(("normed", "may_turn"), [(False, False), (True, True)])
def test_norms_hide_whether_queries_turn(normed: bool, may_turn: bool) -> None:
    model = RotaryModel(Layout(angles=(), normed=normed, biased=True))
    outputs = {SLOT: output_of(part_of(model))}
    (found,) = gather_sums(text_loss_of(model, copying(7, 3, 1)), outputs, lambda *_: None).values()
    assert found.may_turn == may_turn and found.linear != may_turn
    found.scale = None
    assert not found.may_turn, "scores that are no products have no columns"


def test_layers_that_do_not_turn_are_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "scan_angles", lambda *_, **__: pytest.fail("scanned"))
    told: list[str] = []
    model = RotaryModel(Layout(angles=()))
    own = text_loss_of(model, copying(16, DISTANCE, 7))
    assert GrowthSurvey(own, lambda stage, *_: told.append(stage), ("keys",)).pairs == {}
    assert {*told} == {PASSES[0]}
    cost = measured_cost(own, ("keys",), add=2)
    assert (cost.turned, cost.scan, cost.passes) == (0, 0.0, 1)
    assert GrowthSurvey(copied_text(), silent, ("values",)).pairs == {}, "nor are those whose values grow"


def test_the_cost_of_the_comparison_is_counted() -> None:
    cost = measured_cost(copied_text(), ("keys",), add=4)
    assert (cost.turned, cost.passes) == (1, 2) and cost.scan > 0
    stages = list(cost.stages)
    assert stages[:3] == [PASSES[0], ANGLES, PAIRS_PASS]
    assert cost.stages[ANGLES] == cost.scan and cost.stages[PAIRS_PASS] == cost.stages[PASSES[0]]
    assert measured_cost(copied_text(), ("values",), add=4).turned == 0
    every = measured_cost(copied_text(), ("keys", "values", "heads"), add=4)
    assert (every.copies, every.places, every.passes) == (0, 4, 2), "no new heads in layers that may turn"
