"""attention.check: good mechanisms pass, and each broken one fails by the name of what it breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnworks import attention
from attnworks.attention import Attended, AttentionCost, Context, Geometry, Mask
from attnworks.attention.check import REMEDIES, MechanismCheck, PropertyRow, check_mechanism
from attnworks.attention.check_properties import (
    BLIND,
    COST,
    GRADIENTS,
    HALF,
    HIDDEN,
    LATER,
    OUTPUTS,
    ROWS,
    SHAPES,
    WEIGHTS,
)
from attnworks.attention.dense import Dense
from attnworks.core.errors import UsageError


class IgnoresItsMask(Dense):
    name = "ignores-its-mask"

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        return super().attend(Q, K, V, Mask(None, mask.causal, mask.dense), context, weights)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        return super().reference(Q, K, V, Mask(None, mask.causal, mask.dense), context)


class LeaksTheFuture(Dense):
    """Both the fast path and the reference: only the check of later keys can find it."""

    name = "leaks"
    supported_masks = frozenset({"causal"})

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        del mask
        Y, P = super().attend(Q, K, V, Mask(), context, weights)
        return Attended(Y, P)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        del mask
        return super().reference(Q, K, V, Mask(), context)


class WrongGradient(Dense):
    name = "wrong-gradient"

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        return super().attend(Q, K.detach() + 0.5 * (K - K.detach()), V, mask, context, weights)


class NotANumber(Dense):
    """The softmax of a row of -inf."""

    name = "not-a-number"

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        S = self.scale(Q.shape[-1], context) * Q @ K.mT
        allowed, added = mask.allowed(S.shape[-2], S.shape[-1]), mask.additive()
        S = S if added is None else S + added
        P = (S if allowed is None else S.masked_fill(~allowed, -torch.inf)).softmax(-1)
        return Attended(P @ V, P if weights else None)


class NotNormalised(Dense):
    name = "not-normalised"

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        Y, P = super().attend(Q, K, V, mask, context, weights)
        return Attended(2 * Y, None if P is None else 2 * P)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        Y, P = super().reference(Q, K, V, mask, context)
        return Attended(2 * Y, None if P is None else 2 * P)


class AlwaysSingle(Dense):
    name = "always-single"

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        Y, P = super().attend(Q, K, V, mask, context, weights)
        return Attended(Y.float() if Y.dtype != torch.float64 else Y, P)


class SwappedAxes(Dense):
    name = "swapped-axes"

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        Y, P = super().attend(Q, K, V, mask, context, weights)
        return Attended(Y, None if P is None else P.mT)


class FreeLunch(Dense):
    name = "free-lunch"

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        return AttentionCost(0, 0, 0)


class WithoutReference(Dense):
    name = "without-reference"
    reference = attention.Mechanism.reference


@pytest.mark.parametrize("spec", ["dense", "window:window=2", "linear", "linformer:rank=3,length=30", "structured"])
def test_mechanisms_of_the_package_pass(spec: str) -> None:
    found = attention.check(spec)
    assert found.ok, found
    found.raise_if_failed()
    assert found.failed == () and found.mechanism == spec


@pytest.mark.parametrize(
    ("mechanism", "broken", "kept"),
    [
        (IgnoresItsMask, {HIDDEN, BLIND}, {OUTPUTS, GRADIENTS, LATER}),
        (LeaksTheFuture, {LATER}, {OUTPUTS, GRADIENTS, WEIGHTS}),
        (WrongGradient, {GRADIENTS}, {OUTPUTS, WEIGHTS, HIDDEN, LATER, HALF, COST}),
        (NotANumber, {BLIND, OUTPUTS}, {LATER, SHAPES, COST}),
        (NotNormalised, {ROWS}, {OUTPUTS, GRADIENTS, WEIGHTS}),
        (AlwaysSingle, {HALF}, {OUTPUTS, GRADIENTS, BLIND}),
        (SwappedAxes, {SHAPES, WEIGHTS}, {OUTPUTS, GRADIENTS}),
        (FreeLunch, {COST}, {OUTPUTS, GRADIENTS, BLIND}),
        (WithoutReference, {OUTPUTS}, {LATER, HALF, COST}),
    ],
)
def test_a_broken_mechanism_is_caught_by_name(mechanism: type[Dense], broken: set[str], kept: set[str]) -> None:
    found = attention.check(mechanism)
    assert broken <= {*found.failed} and kept.isdisjoint(found.failed), found
    assert kept <= {row.name for row in found.rows}
    with pytest.raises(UsageError) as caught:
        found.raise_if_failed()
    assert found.failed[0] in str(caught.value) and "\n" not in str(caught.value)


def test_the_result_reads_as_a_table() -> None:
    found = check_mechanism(WrongGradient)
    text = str(found)
    assert text.startswith("wrong-gradient: ") and f"FAIL  {GRADIENTS}: " in text and f"ok    {OUTPUTS}: " in text
    assert REMEDIES[GRADIENTS] in text and REMEDIES[OUTPUTS] not in text
    (row,) = (row for row in found.rows if row.name == GRADIENTS)
    assert not row.passed and "dL/dK" in row.measured and 0 < row.failures < row.comparisons
    (outputs,) = (row for row in found.rows if row.name == OUTPUTS)
    assert outputs.passed and outputs.failures == 0 and "worst of" in outputs.measured


def test_options_go_to_the_mechanism() -> None:
    assert attention.check("window", window=2).mechanism == "window:window=2"
    with pytest.raises(UsageError, match="window"):
        attention.check(attention.get("window"), window=-1)


def test_what_is_no_mechanism_is_refused() -> None:
    with pytest.raises(UsageError, match="a subclass of Mechanism"):
        attention.check(torch.nn.Linear)  # pyright: ignore[reportArgumentType]


def test_a_result_without_rows_holds() -> None:
    assert MechanismCheck("nothing", ()).ok


def test_notebooks_show_a_table() -> None:
    row = PropertyRow("a property", False, "0.5", "a remedy", 1, 2)
    page = MechanismCheck("mine", (row, replace(row, passed=True)))._repr_html_()
    words = ("<pre", "mine: 1 of 2 properties hold", "FAIL", "ok", row.name, row.measured, row.remedy)
    assert all(word in page for word in words)


def test_a_method_that_is_missing_is_named_once() -> None:
    class Empty(attention.Mechanism):
        name = "empty"

    assert {row.measured for row in attention.check(Empty).rows} == {"NotImplementedError"}
