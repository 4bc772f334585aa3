"""Masks: what they allow, what they refuse, and that they build nothing large by themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnworks.attention import Geometry, Mask
from attnworks.attention.mask import as_four_axes
from attnworks.core.errors import UsageError
from tests.helpers import assert_close, build, qkv, unchecked

INF = torch.inf


def table(*rows: str) -> Tensor:
    """`x` where the query may see the key."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


def test_the_empty_mask_allows_everything() -> None:
    assert Mask().allowed(5, 7) is None
    assert Mask().additive() is None
    assert Mask().rows_with_keys(5, 7) is None


def test_from_lengths_pads_on_the_right() -> None:
    mask = Mask.from_lengths([2, 0, 3])
    assert mask.real is not None
    assert mask.real.tolist() == [[True, True, False], [False, False, False], [True, True, True]]
    assert not mask.causal and Mask.from_lengths([2], causal=True).causal
    from_tensor = Mask.from_lengths(torch.tensor([2, 0, 3])).real
    assert from_tensor is not None and torch.equal(from_tensor, mask.real)


def test_to_casts_an_additive_part_and_leaves_the_rest() -> None:
    mask = Mask(torch.ones(2, 3, dtype=torch.bool), causal=True, dense=torch.zeros(3, 3)).to("cpu", torch.float16)
    assert mask.causal and mask.real is not None and mask.real.dtype == torch.bool
    assert mask.dense is not None and mask.dense.dtype == torch.float16
    boolean = Mask(dense=torch.ones(3, 3, dtype=torch.bool)).to(dtype=torch.float16)
    assert boolean.dense is not None and boolean.dense.dtype == torch.bool


def test_no_lengths_make_no_mask() -> None:
    with pytest.raises(UsageError, match="one or more, got none"):
        Mask.from_lengths([])


@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, torch.finfo(torch.float64).min, -1e9])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("causal", [True, False])
def test_masks_of_very_low_finite_numbers(lowest: float, dtype: torch.dtype, causal: bool) -> None:
    """Rows whose keys are all as low as can be still spread over the keys they may see, or see none: never NaN."""
    Q, K, V = (tensor.to(dtype) for tensor in qkv(i=7))
    dense = torch.zeros(7, 7, dtype=torch.float64)
    dense[2:5] = lowest
    mask = Mask(causal=causal, dense=dense)
    mechanism = build("dense", Geometry(2, 11, 13)).to(dtype)
    explicit, fused = mechanism(Q, K, V, mask, weights=True), mechanism(Q, K, V, mask)
    assert explicit.P is not None
    sums = explicit.P.double().sum(-1)
    assert torch.isfinite(explicit.P).all() and ((sums - 1).abs().lt(5e-3) | sums.eq(0)).all()
    assert_close(fused.Y, explicit.Y)


def test_a_nan_in_a_mask_is_not_repaired() -> None:
    Q, K, V = qkv()
    dense = torch.zeros(5, 7, dtype=torch.float64)
    dense[1, 2] = torch.nan
    Y = build("dense", Geometry(2, 11, 13))(Q, K, V, Mask(dense=dense), weights=True).Y
    assert Y[:, :, 1].isnan().all() and not Y[:, :, 0].isnan().any()


def test_whole_numbers_are_no_dense_mask() -> None:
    with unchecked(), pytest.raises(UsageError, match="expected booleans, or floats to add, got int64"):
        Mask(dense=torch.ones(5, 7, dtype=torch.int64)).check(3, 2, 5, 7)


def test_causal_allows_a_query_its_own_position_and_earlier_ones() -> None:
    allowed = Mask(causal=True).allowed(3, 3)
    assert allowed is not None and torch.equal(allowed[0, 0], table("x..", "xx.", "xxx"))


def test_causal_queries_are_the_last_positions() -> None:
    allowed = Mask(causal=True).allowed(2, 5)
    assert allowed is not None and torch.equal(allowed[0, 0], table("xxxx.", "xxxxx"))
    assert Mask(causal=True).allowed(1, 5) is None  # the last position sees all


def test_padding_alone_stays_a_row() -> None:
    allowed = Mask.from_lengths([2, 3]).allowed(257, 3)
    assert allowed is not None and allowed.shape == (2, 1, 1, 3)


def test_all_conditions_have_to_agree() -> None:
    mask = Mask(
        table("xx.x", ".xxx"), True, torch.stack([table("xxxx", "x.xx", "xxxx"), table("xx.x", "xxxx", ".xx.")])
    )
    allowed = mask.allowed(3, 4)
    assert allowed is not None and allowed.shape == (2, 2, 3, 4)
    assert torch.equal(allowed[0, 0], table("xx..", "x...", "xx.x"))
    assert torch.equal(allowed[0, 1], table("xx..", "xx..", ".x.."))
    assert torch.equal(allowed[1, 0], table(".x..", "..x.", ".xxx"))
    assert torch.equal(allowed[1, 1], table(".x..", ".xx.", ".xx."))


def test_an_additive_mask_hides_at_minus_infinity_only() -> None:
    added = torch.tensor([[0.5, -INF], [-1e30, torch.finfo(torch.float32).min]])
    mask = Mask(dense=added)
    allowed, finite = mask.allowed(2, 2), mask.additive()
    assert allowed is not None and finite is not None
    assert allowed[0, 0].tolist() == [[True, False], [True, True]]
    assert torch.equal(finite, torch.tensor([[0.5, 0.0], [-1e30, torch.finfo(torch.float32).min]]))
    assert added[0, 1] == -INF  # the user's tensor is left alone


def test_a_boolean_mask_adds_nothing() -> None:
    assert Mask(dense=table("x.", "xx")).additive() is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("i", [1, 3, 5])
def test_rows_with_keys_agrees_with_the_table(causal: bool, i: int) -> None:
    every_padding = torch.tensor([[bool(bits >> key & 1) for key in range(5)] for bits in range(32)])
    mask = Mask(every_padding, causal)
    seeing, allowed = mask.rows_with_keys(i, 5), mask.allowed(i, 5)
    assert seeing is not None and allowed is not None
    assert torch.equal(seeing, allowed.expand(32, 1, i, 5).any(-1)[:, 0])


def test_as_four_axes_puts_new_axes_in_front() -> None:
    for shape in ((5, 7), (3, 5, 7), (2, 3, 5, 7)):
        original = torch.randn(shape)
        four = as_four_axes(original)
        assert four.shape == (1,) * (4 - len(shape)) + shape
        assert torch.equal(four.reshape(shape), original)


# --- what does not fit ------------------------------------------------------------------------------------------------

MISFITS = {
    "padding of the queries' length": (
        Mask(torch.ones(3, 5, dtype=torch.bool)),
        "attention with a mask of real keys: expected one boolean per key, shape [3, 7], got shape [3, 5] of bool; "
        "pass real as [batch, keys] with True for real tokens",
    ),
    "padding of another batch": (
        Mask(torch.ones(2, 7, dtype=torch.bool)),
        "attention with a mask of real keys: expected one boolean per key, shape [3, 7], got shape [2, 7] of bool; "
        "pass real as [batch, keys] with True for real tokens",
    ),
    "dense with the axes swapped": (
        Mask(dense=torch.ones(7, 5, dtype=torch.bool)),
        "attention with a dense mask: expected a shape that broadcasts to [3, 2, 5, 7] and ends in [5, 7], got shape "
        "[7, 5]; pass dense as [queries, keys], [batch, 1, queries, keys] or [batch, heads, queries, keys]",
    ),
    "dense [b i j] without a head axis": (
        Mask(dense=torch.zeros(3, 5, 7)),
        "attention with a dense mask: expected a shape that broadcasts to [3, 2, 5, 7] and ends in [5, 7], got shape "
        "[3, 5, 7]; pass dense as [queries, keys], [batch, 1, queries, keys] or [batch, heads, queries, keys]",
    ),
    "dense that broadcasts over queries": (
        Mask(dense=torch.zeros(3, 1, 1, 7)),
        "attention with a dense mask: expected a shape that broadcasts to [3, 2, 5, 7] and ends in [5, 7], got shape "
        "[3, 1, 1, 7]; pass dense as [queries, keys], [batch, 1, queries, keys] or [batch, heads, queries, keys]",
    ),
    "dense of five axes": (
        Mask(dense=torch.zeros(1, 1, 1, 5, 7)),
        "attention with a dense mask: expected a shape that broadcasts to [3, 2, 5, 7] and ends in [5, 7], got shape "
        "[1, 1, 1, 5, 7]; pass dense as [queries, keys], [batch, 1, queries, keys] or [batch, heads, queries, keys]",
    ),
}


@pytest.mark.parametrize(("mask", "message"), MISFITS.values(), ids=MISFITS)
def test_a_mask_that_does_not_fit_is_refused(mask: Mask, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        mask.check(3, 2, 5, 7)
    assert str(caught.value) == message


def test_more_causal_queries_than_keys_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        Mask(causal=True).check(3, 2, 7, 5)
    assert str(caught.value) == (
        "causal attention: expected 7 keys or more for 7 queries, got 5 keys; leave causal=True out"
    )
    Mask(causal=True).check(3, 2, 5, 5)
    Mask().check(3, 2, 7, 5)


@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7), (1, 5, 7), (3, 1, 5, 7), (1, 2, 5, 7), (3, 2, 5, 7)])
def test_dense_masks_that_broadcast_are_taken(shape: tuple[int, ...]) -> None:
    Mask(dense=torch.zeros(shape)).check(3, 2, 5, 7)


def test_padding_of_zeros_and_ones_is_refused() -> None:
    with unchecked():
        mask = Mask(real=torch.ones(3, 7, dtype=torch.int64))
        with pytest.raises(UsageError, match=r"one boolean per key, shape \[3, 7\], got shape \[3, 7\] of int64"):
            mask.check(3, 2, 5, 7)


@pytest.mark.parametrize("name", ["dense", "bahdanau-additive"])
def test_attention_checks_its_mask(name: str) -> None:
    mechanism = build(name, Geometry(2, 11, 13))
    for mask, message in MISFITS.values():
        with unchecked(), pytest.raises(UsageError) as caught:
            mechanism(*qkv(), mask)
        assert str(caught.value) == message


def test_a_bare_tensor_is_no_mask() -> None:
    with unchecked(), pytest.raises(UsageError, match=r"expected a Mask, got Tensor; write Mask\(dense"):
        build("dense", Geometry(2, 11, 13))(*qkv(), torch.ones(5, 7, dtype=torch.bool))


REAL = torch.tensor([[False, True, True, True, False], [True, True, True, True, True]])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [1, 3, 5])
@pytest.mark.parametrize("real", [REAL, REAL[1:], None], ids=["padded", "real", "none"])
def test_a_table_that_is_padding_and_causality(real: Tensor | None, queries: int, causal: bool) -> None:
    plain = Mask(real, causal)
    allowed = plain.allowed(queries, 5)
    if allowed is None:
        allowed = torch.ones(1, 1, queries, 5, dtype=torch.bool)
    found = Mask(dense=allowed.expand(-1, -1, queries, -1)).by_rows(queries, 5, last=causal)
    assert found.dense is None and found.causal == causal
    assert (found.real is None) == (real is None or bool(real.all()))
    assert torch.equal(found.real if found.real is not None else REAL[1:], REAL if real is REAL else REAL[1:])


def test_what_a_table_adds_stays() -> None:
    added = torch.randn(1, 2, 5, 5)
    allowed = Mask(REAL, True).allowed(5, 5)
    assert allowed is not None
    found = Mask(dense=added.masked_fill(~allowed, -INF)).by_rows(5, 5)
    assert found.causal and found.dense is not None and found.real is not None and torch.equal(found.real, REAL)
    assert torch.equal(found.dense, added.masked_fill(~allowed, 0.0))


def test_rows_that_see_nothing_are_not_compared() -> None:
    """Padded queries of some models; without a mask of queries they would see what real ones see."""
    allowed = (REAL[:, None, :] & REAL[:, :, None])[:, None]
    found = Mask(dense=allowed).by_rows(5, 5)
    assert found.dense is None and not found.causal and found.real is not None and torch.equal(found.real, REAL)


@pytest.mark.parametrize(
    "pattern", [table("xx...", "xxx..", ".xxx.", "..xxx", "...xx"), table("x....", "xx...", ".xx..", "..xx.", "...xx")]
)
def test_tables_that_hide_more_stay_tables(pattern: Tensor) -> None:
    mask = Mask(dense=pattern)
    assert mask.by_rows(5, 5) is mask
    both = Mask(REAL, dense=pattern)
    assert both.by_rows(5, 5) is both


def test_queries_at_the_end_are_causal_where_a_table_hides_all_later_keys() -> None:
    window, ahead = table("..xx.", "...xx"), table("..xxx", "...xx")
    found = Mask(dense=window).by_rows(2, 5)
    assert found.causal and found.dense is window and not Mask(dense=window).by_rows(2, 5, last=False).causal
    assert not Mask(dense=ahead).by_rows(2, 5).causal


def test_heads_that_see_different_keys() -> None:
    mask = Mask(dense=torch.stack([table("xx.", "xx.", "xx."), table("xxx", "xxx", "xxx")]))
    assert mask.by_rows(3, 3) is mask
    assert Mask().by_rows(1, 5, last=True).causal and not Mask().by_rows(1, 5, last=False).causal
