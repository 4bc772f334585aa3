"""Whether two halves of the text would cut the same heads, and when the receipt asks for more text."""

from __future__ import annotations

import pytest

from attnworks.core.places import HeadId, Slot
from attnworks.reshape.pruning import ranked_text
from attnworks.reshape.pruning.order import Order
from attnworks.reshape.pruning.prune import Prune
from attnworks.reshape.pruning.ranking import rank
from attnworks.reshape.pruning.units import units_of
from attnworks.reshape.run import run_reshape
from tests.reshape.growth.growth_helpers import growing_bench
from tests.reshape.reshape_helpers import model_of, subject_of, texts

UNITS = [(HeadId(Slot("encoder", 0), head),) for head in range(11)]
BACKWARDS = UNITS[::-1]


def test_agreement_is_the_share_that_both_halves_would_cut() -> None:
    other = [*UNITS[2:5], *UNITS[:2], *UNITS[5:]]
    agreement = Order(UNITS, (UNITS, other)).agreement(5)
    assert agreement is not None and agreement.same == 1 and agreement.certain
    agreement = Order(UNITS, (UNITS, other)).agreement(3)
    assert agreement is not None
    assert agreement.same == pytest.approx(1 / 3) and agreement.chance == pytest.approx(3 / 11)
    assert agreement.above_chance == pytest.approx((1 / 3 - 3 / 11) / (8 / 11)) and not agreement.certain


@pytest.mark.parametrize("cut", [0, 11])
def test_nothing_is_chosen_where_all_or_none_go(cut: int) -> None:
    assert Order(UNITS, (UNITS, BACKWARDS)).agreement(cut) is None
    assert Order(UNITS, (UNITS, BACKWARDS)).warnings(cut) == ()


def test_more_text_is_asked_for_only_where_it_helps() -> None:
    (warning,) = Order(UNITS, (UNITS, BACKWARDS)).warnings(3)
    assert "agree on 0 % of the heads to cut, where 27 % is chance" in warning and warning.endswith("Give more text.")
    assert Order(UNITS, (UNITS, BACKWARDS), read_all=False).warnings(3) == ()
    assert Order(UNITS, (UNITS, UNITS)).warnings(3) == Order(UNITS).warnings(3) == ()


@pytest.mark.parametrize("by", ["curvature", "ablation", "gradient"])
def test_rankings_say_whether_they_read_all_of_the_text(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def warns() -> bool:
        order = rank(context, units, 5, by)
        order._halves = units, units[::-1]
        return bool(order.warnings(5))

    context = growing_bench()
    units = units_of(context.model)
    assert warns()
    monkeypatch.setattr(ranked_text, "MAX_RANKED_TEXTS", 2)
    monkeypatch.setattr(ranked_text, "MIN_RANKED_TEXTS", 1)
    monkeypatch.setattr("attnworks.reshape.pruning.ablation.ABLATION_SENTENCES", 2)
    assert warns() is (by == "gradient")


def test_the_warning_is_in_the_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnworks.reshape.pruning.order.CERTAIN_SHARE", 1.1)
    _, receipt = run_reshape(Prune(keep=0.5), subject_of(model_of()), texts())
    (warning,) = (warning for warning in receipt.warnings if "too small to rank heads" in warning)
    assert warning in receipt.concerns
    assert 0 <= receipt.facts["ranking_agreement"] <= 1
