"""Whether two halves of the text would cut the same heads, and when the receipt asks for more text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from attnworks.core.places import HeadId, Slot
from attnworks.reshape.pruning import ranked_text
from attnworks.reshape.pruning.order import MIN_SENTENCES, Agreement, Order, RankedText
from attnworks.reshape.pruning.prune import Prune
from attnworks.reshape.pruning.ranking import rank
from attnworks.reshape.pruning.units import units_of
from attnworks.reshape.run import run_reshape
from attnworks.reshape.surgery import PruneUnit
from tests.reshape.growth.growth_helpers import growing_bench
from tests.reshape.reshape_helpers import model_of, subject_of, texts

UNITS = [(HeadId(Slot("encoder", layer), head),) for layer in range(2) for head in range(5)]
LARGE = RankedText(101, all_read=True)


def order_of(one: Sequence[PruneUnit], other: Sequence[PruneUnit], text: RankedText = LARGE) -> Order:
    return Order(one, lambda half: one if half.start == 0 else other, text)


def agreement(order: Order, keep: float, **options: Any) -> Agreement | None:
    reshape = Prune(keep=keep, **options)
    return reshape.agreement(order, UNITS, reshape.first(order, keep, UNITS))


def test_agreement_is_the_share_that_both_halves_would_cut() -> None:
    other = [*UNITS[2:5], *UNITS[:2], *UNITS[5:]]
    assert agreement(order_of(UNITS, other), 0.5) == Agreement(1.0, 0.5)
    found = agreement(order_of(UNITS, other), 0.7)
    assert found is not None and tuple(found) == pytest.approx((1 / 3, 0.3))
    assert found.above_chance == pytest.approx((1 / 3 - 0.3) / 0.7) and not found.certain


def test_agreement_of_equal_shares_is_that_within_layers() -> None:
    """Rankings that order the layers differently, and the heads of each layer alike, cut the same heads evenly."""
    other = [*UNITS[5:], *UNITS[:5]]
    assert tuple(agreement(order_of(UNITS, other), 0.6, evenly=True) or ()) == pytest.approx((1.0, 0.4))
    found = agreement(order_of(UNITS, other), 0.6)
    assert found is not None and found.same == 0


@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_nothing_is_chosen_where_all_or_none_go(keep: float) -> None:
    assert agreement(order_of(UNITS, UNITS[::-1]), keep) is None


def test_more_text_is_asked_for_where_it_helps() -> None:
    order = order_of(UNITS, UNITS[::-1])
    (warning,) = order.warnings(agreement(order, 0.7))
    assert "share 0 % of the heads to cut, random rankings 30 %" in warning and warning.endswith("Give more text.")
    order = order_of(UNITS, UNITS[::-1], RankedText(101, all_read=False))
    (warning,) = order.warnings(agreement(order, 0.7))
    assert warning.startswith("Which heads to cut is uncertain") and "Give more" not in warning
    order = order_of(UNITS, UNITS)
    assert order.warnings(agreement(order, 0.7)) == () == Order(UNITS).warnings(agreement(Order(UNITS), 0.7))


def test_few_texts_have_no_halves() -> None:
    order = order_of(UNITS, UNITS, RankedText(MIN_SENTENCES - 1, all_read=True))
    assert agreement(order, 0.7) is None
    (warning,) = order.warnings(None)
    assert warning.endswith(f"from {MIN_SENTENCES} texts on, and {MIN_SENTENCES - 1} were read.")


@pytest.mark.parametrize("by", ["curvature", "ablation", "gradient"])
def test_rankings_say_how_much_they_read(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context = growing_bench()
    units, sentences = units_of(context.model), sum(map(len, context.calibration.text.batches))
    assert rank(context, units, 5, by)._text == RankedText(sentences, all_read=True)
    monkeypatch.setattr(ranked_text, "MAX_RANKED_TEXTS", 2)
    monkeypatch.setattr(ranked_text, "MIN_RANKED_TEXTS", 1)
    monkeypatch.setattr("attnworks.reshape.pruning.ablation.ABLATION_SENTENCES", 2)
    read = rank(context, units, 5, by)._text
    assert read is not None and read.all_read is (by == "gradient")
    assert by == "gradient" or read.sentences <= 3


def test_the_warning_is_in_the_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnworks.reshape.pruning.order.CERTAIN_SHARE", 1.1)
    _, receipt = run_reshape(Prune(keep=0.5), subject_of(model_of()), texts())
    (warning,) = (warning for warning in receipt.warnings if "too small to rank heads" in warning)
    assert warning in receipt.concerns
    share = f"{100 * receipt.facts['ranking_agreement']:.0f} %"
    assert f"share {share} of the heads" in warning


def test_the_receipt_names_the_budget() -> None:
    _, receipt = run_reshape(Prune(budget=0.93, by="norm"), subject_of(model_of()), texts())
    assert receipt.title.endswith("(ranked by norm, budget 0.93)")
    _, receipt = run_reshape(Prune(budget=1.0, by="norm"), subject_of(model_of()), texts())
    assert "within the budget 1.0 as it is" in " ".join(receipt._repr_html_().split())
