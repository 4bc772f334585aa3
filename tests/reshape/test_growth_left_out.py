"""Growing where it was not asked where: places that are not confirmed are left out, and the rest grows."""

from __future__ import annotations

import pytest
from rich.console import Console
from tests.reshape.growing_helpers import examinee_of, growing_model, growing_texts

from attnworks.cli.receipt_display import receipt_shown
from attnworks.measures.growth_survey import Survey
from attnworks.reshape import growth_methods
from attnworks.reshape.carrying_out import Care, carry_out
from attnworks.reshape.growing import Grow
from attnworks.reshape.growth_places import NoBottleneckError, Spot

REASON = "other sentences confirm 46% of the slope: more data, or no bottleneck"


@pytest.fixture
def left_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first place that is asked about is not confirmed; its name is written here."""
    believed, first = growth_methods._believed, []

    def doubt(survey: Survey, spot: Spot, width: int, solve: object) -> object:
        first[:] = first or [str(spot)]
        return REASON if str(spot) == first[0] else believed(survey, spot, width, solve)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(growth_methods, "_believed", doubt)
    return first


def test_what_is_not_confirmed_is_left_out_and_the_rest_grows(left_out: list[str]) -> None:
    model = growing_model()
    new, receipt = carry_out(Grow(add=5, kinds=("values",)), examinee_of(model), growing_texts(), Care())
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
        carry_out(asked, examinee_of(growing_model()), growing_texts(), Care())
    assert left_out == ["enc.0.1:values"]


def test_nothing_is_left_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth_methods, "_believed", lambda *_: REASON)
    with pytest.raises(NoBottleneckError, match="confirm 46%"):
        carry_out(Grow(add=2, kinds=("values",)), examinee_of(growing_model()), growing_texts(), Care())
