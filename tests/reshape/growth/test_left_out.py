"""Growing where it was not asked where: places that are not confirmed are left out, and the rest grows."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from attnworks.cli.train_display import _grown
from attnworks.models.build import PRESETS
from attnworks.reshape import grow_in_training
from attnworks.reshape.growth import grow, methods
from attnworks.reshape.growth import score as score_module
from attnworks.reshape.growth.directions import whitened_direction
from attnworks.reshape.growth.grow import Grow, plan_step
from attnworks.reshape.growth.methods import METHODS
from attnworks.reshape.growth.places import NoBottleneckError, Spot, read_places
from attnworks.reshape.growth.survey import GrowthSurvey
from attnworks.reshape.render import receipt_shown
from attnworks.reshape.run import ReshapeSettings, run_reshape
from attnworks.training.run import Run
from tests.reshape.growth.growth_helpers import growing_bench, growing_model, growing_texts, subject_of, survey_of
from tests.training.training_helpers import SMALL, recipe, write_pairs

REASON = "other sentences confirm 46% of the slope: more data, or no bottleneck"


@pytest.fixture
def left_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first place that is asked about is not confirmed; its name is written here."""
    believed, first = methods._confirmed, []

    def doubt(survey: GrowthSurvey, spot: Spot, width: int, solve: object) -> object:
        first[:] = first or [str(spot)]
        return REASON if str(spot) == first[0] else believed(survey, spot, width, solve)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(methods, "_confirmed", doubt)
    return first


def test_what_is_not_confirmed_is_left_out_and_the_rest_grows(left_out: list[str]) -> None:
    model = growing_model()
    new, receipt = run_reshape(Grow(add=5, kinds=("values",)), subject_of(model), growing_texts(), ReshapeSettings())
    assert receipt.left_out == {left_out[0]: REASON}
    assert receipt.done and left_out[0].partition(":")[0] not in receipt.done
    assert receipt.loss.after < receipt.loss.before
    assert sum(p.numel() for p in new.parameters()) == receipt.parameters.after > receipt.parameters.before
    with (screen := Console(width=200)).capture() as captured:
        screen.print(receipt_shown(receipt))
    assert f"Left out: {left_out[0]}: other sentences confirm 46% of the slope" in captured.get()


@pytest.mark.smoke
def test_a_place_that_was_asked_for_is_refused(left_out: list[str]) -> None:
    asked = Grow(where="enc.0.1:values=1,cross.0.1:values=1")
    with pytest.raises(NoBottleneckError, match=r"at enc\.0\.1:values, other sentences confirm 46%"):
        run_reshape(asked, subject_of(growing_model()), growing_texts(), ReshapeSettings())
    assert left_out == ["enc.0.1:values"]


def test_nothing_is_left_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_confirmed", lambda *_: REASON)
    with pytest.raises(NoBottleneckError, match="confirm 46%"):
        run_reshape(Grow(add=2, kinds=("values",)), subject_of(growing_model()), growing_texts(), ReshapeSettings())


TWO = "enc.0.1:values=1,cross.0.1:values=1"


def test_a_place_of_low_trust_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a threshold between the trust of two places, one grows and the other says how little is confirmed."""
    survey = survey_of(growing_bench(), "values")
    widths = read_places(TWO, survey.every)
    trust = {spot: survey.scores(spot.place.slot, "values")[1].trust for spot in widths}
    low, high = sorted(widths, key=trust.__getitem__)
    assert trust[low] < trust[high]
    monkeypatch.setattr(score_module, "MIN_TRUST", (trust[low] + trust[high]) / 2)
    settled = plan_step(survey, METHODS["fisher"], widths, 0)
    assert settled.left_out == {
        low: f"other sentences confirm {trust[low]:.0%} of the slope: more data, or no bottleneck"
    }
    assert [step.place for step in settled.steps] == [score.place for score in settled.scores] == [high.place]


def test_a_named_place_is_refused_before_any_search(left_out: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_module.GrowthTrial, "search_along", lambda *_: pytest.fail("a step was searched for"))
    with pytest.raises(NoBottleneckError, match="confirm 46%"):
        Grow(where=TWO).make(growing_bench())
    assert left_out == ["enc.0.1:values"]


def test_a_baseline_that_leaves_out_a_place_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    believed = methods._confirmed

    def doubt(survey: GrowthSurvey, spot: Spot, width: int, solve: object) -> object:
        doubted = solve is whitened_direction and str(spot) == "enc.0.1:values"
        return REASON if doubted else believed(survey, spot, width, solve)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(methods, "_confirmed", doubt)
    monkeypatch.setattr(grow, "METHODS", {name: METHODS[name] for name in ("fisher", "whitened", "zero")})
    assert Grow(where=TWO, compare=True).make(growing_bench()).others.keys() == {"loss_by_zero"}


def test_growth_in_training_says_what_it_left_out(
    left_out: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "small", SMALL["small"])
    made = recipe(write_pairs(tmp_path / "pairs.tsv"), grow_until="d_v=9", grow_by=4)
    grown = grow_in_training(Run.create(made, tmp_path / "run"))
    assert grown is not None and grown.reason is None and grown.done
    assert grown.left_out == {left_out[0]: REASON}
    assert left_out[0].partition(":")[0] not in grown.done
    assert _grown(grown).endswith(f"; left out {left_out[0]}: {REASON}")
