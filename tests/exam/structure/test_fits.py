"""Fits: bits and errors written down by hand, planted families found, and the winner not by error alone."""

from __future__ import annotations

from math import factorial, log2

import numpy as np
import pytest
import torch
from torch import Tensor

from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.exam.structure.fits import fit, offset_duels, winner
from attnworks.exam.structure.members import FORM_FAMILIES
from attnworks.exam.structure.search import assignment, best_blocks, shift_map
from attnworks.theory.structured_sets import blocks_of, column_blocks, identity_map, project_to_band, sample_band
from tests.exam.structure.structure_heads import KINDS, heads
from tests.helpers import assert_close, unchecked

RECTANGULAR = ("zero", "even", "column", "map")


def planted(n: int = 31) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(61)
    order, tau = torch.randperm(n, generator=source), torch.randint(n, (n,), generator=source)
    band = sample_band(n, 2, 2, 0.0, source)
    return {
        "zero": torch.zeros(n, n),
        "even": torch.full((n, n), 1 / n, dtype=torch.float64),
        "identity": identity_map(n),
        "offset": assignment(shift_map(n, torch.tensor(-3)), n),
        "column": assignment(torch.full((n,), 4), n),
        "band": band,
        "columns": column_blocks(n, [(2, 11, 5), (17, 7, 20)]),
        "permutation": identity_map(n)[order],
        "map": assignment(tau, n),
        "permuted-band": band[order],
    }


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.2])
@pytest.mark.parametrize("family", FORM_FAMILIES)
def test_a_planted_family_wins(family: str, noise: float) -> None:
    P = planted()[family].double()
    if family == "zero":
        H = P + 0.02 * torch.rand(P.shape, dtype=torch.float64)  # nothing but errors
    else:
        H = (1 - noise) * P + noise * torch.randn(P.shape, dtype=torch.float64).softmax(-1)
    found = fit(H)
    assert found.names == family
    if family not in {"band", "permuted-band"}:
        assert torch.equal(found.form(family), P)


def test_the_least_error_does_not_win() -> None:
    """A map fits an identity with noise better than the identity does, at the price of an index for each row."""
    H = 0.3 * torch.eye(17, dtype=torch.float64) + 0.7 * (2 * torch.randn(17, 17, dtype=torch.float64)).softmax(-1)
    found = fit(H, families=("identity", "map"))
    (plain_identity, plain_map), (costly_identity, costly_map) = found.error, found.at_equal_cost
    assert plain_map < plain_identity and costly_identity < costly_map
    assert found.names == "identity"


def test_the_winner_wins_its_duels_whoever_else_is_there() -> None:
    H = heads(17)[:6]
    every = fit(H)
    for head, name in zip(H, every.names, strict=True):
        for other in FORM_FAMILIES:
            at_equal_cost = fit(head, families=(name, other)).at_equal_cost
            assert at_equal_cost[0] <= at_equal_cost[-1] + 1e-12, (name, other)


def test_a_circle_of_winners_goes_to_the_shortest() -> None:
    duels = torch.tensor([[0.9, 0.5, 0.1], [0.4, 0.4, 0.3], [0.2, 0.2, 0.2]])
    assert winner(duels, torch.tensor([0.0, 5.0, 9.0])).item() == 0
    assert winner(duels, torch.tensor([7.0, 5.0, 9.0])).item() == 1
    tied = torch.full((3, 3), 0.5)
    assert winner(tied, torch.tensor([3.0, 2.0, 2.0])).item() == 1
    tied[2] += 1e-7  # rounding
    assert winner(tied, torch.tensor([3.0, 2.0, 1.0])).item() == 2


@pytest.mark.parametrize("eps", [0.0, 0.02, 0.3])
def test_bits_by_hand(eps: float) -> None:
    n, value = 7, 16.0 if eps == 0 else -log2(2 * eps)
    found = fit(heads(n), eps=eps)
    band = value * (3 + 4 + 5 + 5 + 5 + 4 + 3)
    taus = best_blocks(heads(n), eps, 3 * log2(n) / (2 * log2(n) + value))
    assert torch.equal(found.form("columns"), assignment(taus, n, dtype=torch.float64))
    for head, bits in enumerate(found.bits.tolist()):
        by_name = dict(zip(found.families, bits, strict=True))
        columns = by_name.pop("columns")
        assert by_name == pytest.approx(
            {
                "zero": 0.0,
                "even": 0.0,
                "identity": 0.0,
                "offset": log2(7),
                "column": log2(7),
                "band": band,
                "permutation": log2(factorial(7)),
                "map": 7 * log2(7),
                "permuted-band": band + log2(factorial(7)),
            }
        )
        blocks = blocks_of(found.form("columns")[head])
        assert blocks is not None and columns == pytest.approx(log2(8) + 3 * log2(7) * len(blocks))


@pytest.mark.parametrize("n", [1, 2, 7, 17])
@pytest.mark.parametrize("eps", [0.0, 0.02, 0.3])
def test_duels_of_every_offset_are_those_of_fits_with_this_offset(n: int, eps: float) -> None:
    H, offsets = heads(n), torch.arange(-9, 10)
    found = offset_duels(fit(H, eps=eps), offsets)
    for place, offset in enumerate(offsets):
        alone = fit(H, eps=eps, offset=offset)
        assert_close(found[:, place], alone.duels[:, alone.families.index("offset")])
        assert torch.equal(alone.form("offset"), assignment(shift_map(n, offset), n).double().expand_as(H))


def test_each_head_has_its_own_offset() -> None:
    H = torch.stack([planted()["offset"], planted()["identity"]]).double()
    fitted = fit(H, ("offset", "zero"), offset=torch.tensor([-3, 0]))
    assert torch.equal(fitted.form("offset"), H) and torch.equal(fitted.error[:, 0], torch.zeros(2).double())


@pytest.mark.parametrize("budget", [None, 0, 3, 11, 49])
@pytest.mark.parametrize("eps", [0.0, 0.02, 0.3])
def test_errors_by_hand(eps: float, budget: int | None) -> None:
    """sum_{k > m} D_k - sum_{m < k <= m + s} min(D_k, eps), with as many corrections as the bits left over buy."""
    n = 7
    H = heads(n)
    found = fit(H, eps=eps, budget=budget)
    value = 16.0 if eps == 0 else -log2(2 * eps)
    s = n * n if budget is None else budget
    for f, family in enumerate(found.families):
        remaining = (H - found.form(family)).abs().flatten(-2).sort(-1, descending=True).values
        E = found.remainder(family)
        assert (E.abs() <= eps).all() and ((E != 0).sum((-2, -1)) <= s).all()
        assert_close(found.error[:, f], (H - found.form(family) - E).abs().sum((-2, -1)) / n)
        for g, head in np.ndindex(len(found.families), len(KINDS)):
            spare = max(0.0, (found.bits[head, g] - found.bits[head, f]).item())
            m = int(spare / (2 * log2(n) + value) + 1e-9)
            D = remaining[head].tolist()
            want = sum(D[m:]) - sum(min(d, eps) for d in D[m : m + s])
            assert found.duels[head, f, g].item() == pytest.approx(want / n, abs=1e-12), (family, m)


def test_the_band_is_the_projection() -> None:
    H = heads(11)
    found, want = fit(H, families="band", budget=13, band=(1, 3)), project_to_band(H, 1, 3, 0.02, 13)
    assert_close(found.form("band"), want.B)
    assert_close(found.remainder("band"), want.E)
    assert_close(found.error[:, 0] * 11, want.l1)


def test_even_over_what_may_be_seen() -> None:
    H = torch.ones(3, 5).double()
    assert_close(fit(H, "even").form("even"), torch.full((3, 5), 1 / 5, dtype=torch.float64))
    causal = fit(H, "even", causal=True).form("even")  # the last three of five positions
    assert_close(causal, torch.tensor([[1 / 3] * 3 + [0] * 2, [1 / 4] * 4 + [0], [1 / 5] * 5]), torch.float32)
    early = fit(torch.ones(3, 2), "even", causal=True).form("even")
    assert early.tolist() == [[0, 0], [1, 0], [0.5, 0.5]]


def test_rectangles_have_four_families() -> None:
    H = (4 * torch.randn(2, 5, 3, 13, dtype=torch.float64)).softmax(-1)
    found = fit(H)
    assert found.families == RECTANGULAR and found.names.shape == (2, 5)
    assert found.bits[0, 0].tolist() == pytest.approx([0, 0, log2(13), 3 * log2(13)])
    m = int(3 * log2(13) / (log2(3) + log2(13) - log2(0.04)))
    D = (H.abs() - 0.02).clamp_min(0.0).flatten(-2).sort(-1, descending=True).values
    assert_close(found.at_equal_cost[..., 0], D[..., m:].sum(-1) / 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_leading_axes_precision_and_gradients(dtype: torch.dtype) -> None:
    H = heads(11)[:6].to(dtype)
    found, want = fit(H.view(2, 3, 11, 11).requires_grad_()), fit(H.double())
    assert not found.error.requires_grad and not found.form("band").requires_grad
    assert found.names.tolist() == want.names.reshape(2, 3).tolist()
    assert_close(found.error.flatten(0, 1), want.error, dtype)
    assert_close(found.at_equal_cost.flatten(0, 1), want.at_equal_cost, dtype)
    forms = (one.form("permuted-band").reshape(6, 11, 11).double() for one in (found, want))
    off, least = ((H.double() - form).square().sum((-2, -1)) for form in forms)
    assert_close(off, least, dtype)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_nothing_is_nan(n: int) -> None:
    for H in (torch.zeros(n, n), torch.ones(n, n) / n, torch.eye(n), heads(n)[KINDS.index("padded")]):
        for eps in (0.0, 0.49):
            found = fit(H, eps=eps)
            for numbers in (found.bits, found.duels):
                assert numbers.isfinite().all()
    assert fit(torch.zeros(n, n)).names == "zero"
    assert fit(torch.eye(n)).names == ("even" if n == 1 else "identity")


def test_what_cannot_be_fitted_is_refused_in_one_line() -> None:
    H = torch.rand(5, 7)
    with pytest.raises(UsageError, match=r"families of zero, even, column, map for unequal .* got band, identity"):
        fit(H, families=("map", "band", "identity"))
    with pytest.raises(UsageError, match="got none"):
        fit(H, families=())
    with pytest.raises(UnknownNameError, match="did you mean 'columns'"):
        fit(H, families=("colums",))
    with pytest.raises(UnknownNameError, match="one of map, zero"):
        fit(H, families=("zero", "map")).form("band")
    for eps in (0.5, -0.1):
        with pytest.raises(UsageError, match=f"a fit with eps={eps}: .* below 0.5, got {eps}"):
            fit(H, eps=eps)
    with pytest.raises(UsageError, match=r"a fit with budget=-1: .* got -1"):
        fit(H, eps=0.1, budget=-1)
    with unchecked():
        for wrong in (torch.rand(5), torch.zeros(0, 5, 5), torch.ones(5, 5).long(), torch.full((2, 2), torch.nan)):
            with pytest.raises(UsageError, match="expected finite weights"):
                fit(wrong)
