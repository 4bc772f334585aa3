"""Gates and ablation: what a measure makes of derivatives and differences, and that both agree where L is linear."""

from __future__ import annotations

import torch

from attnworks.core.places import Slot
from attnworks.exam.measure import MEASURES, MeasureContext
from attnworks.exam.measures.importance import Ablation, Importance
from attnworks.exam.statistics import Moments
from tests.helpers import assert_close

SENTENCES, HEADS = 11, 5
SLOT = Slot("encoder", 1)
SETTING = MeasureContext(max_length=7)


def test_both_are_asked_for_by_name_and_neither_is_in_the_default_set() -> None:
    assert MEASURES["importance"] is Importance and MEASURES["ablation"] is Ablation
    assert not Importance.default and not Ablation.default
    assert Importance.cost == "one forward and backward" and Ablation.cost == "one forward per head"


def test_the_absolute_value_is_taken_per_sentence() -> None:
    gates = torch.randn(SENTENCES, HEADS, dtype=torch.float64)
    samples = Importance(SETTING).gradient(SLOT, gates)
    assert set(samples) == {declared.name for declared in Importance(SETTING).declares()}
    folded = {name: Moments((HEADS,)) for name in samples}
    for name, (values, valid) in samples.items():
        folded[name].add(values, valid)
    for head in range(HEADS):
        own = gates[:, head].tolist()
        absolute, signed = (folded[f"importance.{name}"].value[head] for name in ("gradient", "gradient_signed"))
        assert_close(absolute, torch.tensor(sum(abs(value) for value in own) / SENTENCES, dtype=torch.float64))
        assert_close(signed, torch.tensor(sum(own) / SENTENCES, dtype=torch.float64))


def test_ablation_keeps_its_sign() -> None:
    change = torch.randn(SENTENCES, HEADS, dtype=torch.float64)
    samples = Ablation(SETTING).ablated(SLOT, change)
    assert set(samples) == {declared.name for declared in Ablation(SETTING).declares()} == {"ablation.change"}
    assert torch.equal(samples["ablation.change"].values, change) and samples["ablation.change"].valid is None


def test_a_linear_loss_changes_by_what_its_gradient_says() -> None:
    """L_s = sum_h g_h a_sh: dL_s/dg_h = a_sh, and without head h it is smaller by as much."""
    A = torch.randn(SENTENCES, HEADS, dtype=torch.float64)
    g = torch.ones(SENTENCES, HEADS, dtype=torch.float64, requires_grad=True)
    (gates,) = torch.autograd.grad((g * A).sum(), g)
    change = torch.stack([A.sum(-1) - A[:, head] - A.sum(-1) for head in range(HEADS)], -1)
    importance = Importance(SETTING).gradient(SLOT, gates)
    ablation = Ablation(SETTING).ablated(SLOT, change)["ablation.change"].values
    assert_close(-importance["importance.gradient_signed"].values, ablation)
    assert_close(importance["importance.gradient"].values, ablation.abs())
