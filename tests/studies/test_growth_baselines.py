"""Ways to fill new columns that only the study of growth compares."""

from __future__ import annotations

import pytest

from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.growth.apply import Rewritten, grown
from attnworks.reshape.growth.grow import Grow, output_difference, plan_step
from attnworks.reshape.growth.methods import METHODS, refit_steps
from attnworks.reshape.growth.places import read_places
from attnworks.reshape.growth.survey import GrowthSurvey
from attnworks.studies.growth import WAYS
from attnworks.studies.growth_baselines import BASELINES, growth_method
from tests.helpers import assert_close
from tests.reshape.growth.growth_helpers import growing_bench, survey_of
from tests.reshape.reshape_helpers import D_E

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def survey() -> GrowthSurvey:
    return survey_of(growing_bench(), "keys", "values")


def test_the_study_knows_more_ways_than_the_reshape() -> None:
    assert {*WAYS} == {*METHODS, *BASELINES} and not {*METHODS} & {*BASELINES}
    assert {*BASELINES} == {"split", "document-descending"}
    for way in WAYS:
        assert growth_method(way) is (BASELINES[way] if way in BASELINES else METHODS[way])
    for way in BASELINES:
        with pytest.raises(UnknownNameError, match="method of growing"):
            Grow(add=1, by=way)


@pytest.mark.parametrize(("way", "where"), [("split", "cross.0:heads=1"), ("document-descending", "dec.0.*:values=3")])
def test_kinds_that_a_way_cannot_grow(survey: GrowthSurvey, way: str, where: str) -> None:
    with pytest.raises(UsageError, match="another kind"):
        growth_method(way)(survey, read_places(where, survey.every), 0)


@pytest.mark.parametrize(
    ("where", "added"),
    [
        ("enc.0.0:keys=3", 3 * (2 * D_E + 2)),
        ("cross.0.1:values=2", 2 * (2 * D_E + 1)),
        ("dec.0.0:keys=23", 23 * (2 * D_E + 2)),
    ],
)
def test_split_columns_change_nothing_yet(survey: GrowthSurvey, where: str, added: int) -> None:
    model = survey.text_loss.original.model
    settled = plan_step(survey, growth_method("split"), read_places(where, survey.every), 0)
    assert output_difference(survey.text_loss, settled.steps) <= 1e-10
    assert abs(settled.fall) <= 1e-10
    new = grown(model, settled.steps)
    assert weights_fingerprint(new) != weights_fingerprint(model)
    sizes = [sum(parameter.numel() for parameter in own.parameters()) for own in (new, model)]
    assert sizes[0] - sizes[1] == added


def test_split_columns_are_seeded(survey: GrowthSurvey) -> None:
    model, widths = survey.text_loss.original.model, read_places("enc.0.0:keys=2", survey.every)
    first, again, other = (
        weights_fingerprint(grown(model, growth_method("split")(survey, widths, seed).steps(0.5))) for seed in (3, 3, 4)
    )
    assert first == again != other


def test_the_document_that_descends_is_its_fit_with_the_other_sign(survey: GrowthSurvey) -> None:
    widths = read_places("enc.0.0:keys=3,cross.0.1:keys=2", survey.every)
    line = growth_method("document-descending")(survey, widths, 0)
    assert line.start is not None
    for step, fitted in zip(line.steps(0.4), refit_steps(survey, widths)(-0.4), strict=True):
        assert isinstance(step.addition, Rewritten) and isinstance(fitted.addition, Rewritten)
        assert step.place == fitted.place
        assert_close(step.addition.head.W_Q, fitted.addition.head.W_Q)
        assert_close(step.addition.head.W_K, fitted.addition.head.W_K)
