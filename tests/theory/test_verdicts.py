"""Verdicts that follow from their own definition, and corrections that are true where they are said to be."""

from __future__ import annotations

import pytest

from attnworks.theory import Verdict, claim
from attnworks.theory.cases import Draws
from attnworks.theory.claims.s4_positions import least_distance
from attnworks.theory.claims.s4_softmax import median_gradients

SAME_SLIP = ("S0.2", "S0.9", "S0.23", "S4.40", "S4.44", "S4.111", "S4.120")
"""A wrong side, order, index or scale in a formula whose right form is true."""


@pytest.mark.parametrize("id", SAME_SLIP)
def test_the_same_slip_has_the_same_verdict(id: str) -> None:
    finding = claim(id).check()
    assert claim(id).verdict == Verdict.TYPO
    assert not finding.holds and finding.corrected is not None and finding.corrected.holds


@pytest.mark.parametrize(
    ("id", "verdict"),
    [
        ("S1.1", Verdict.CONDITION),
        ("S1.13", Verdict.FALSE),
        ("S4.41", Verdict.TYPO),
        ("S4.43", Verdict.FALSE),
        ("S4.69", Verdict.CONDITION),
    ],
)
def test_verdicts_by_their_definition(id: str, verdict: Verdict) -> None:
    assert claim(id).verdict == verdict
    assert claim(id).check().confirms(verdict)


def test_the_source_is_quoted() -> None:
    """Conti 2024, eq. 4 has an index a where the block definition has q."""
    assert "W_{h,a}" in claim("S4.41").statement


@pytest.mark.parametrize("id", ["S0.21", "S4.110"])
def test_existence_is_trivial_and_the_construction_fails(id: str) -> None:
    text = claim(id).correction
    assert "trivial" in text and "What fails is the construction" in text


@pytest.mark.parametrize("keys", [8, 32])
def test_few_unscaled_keys_have_less_gradient(keys: int) -> None:
    """S4.50, at k = 64."""
    unscaled, scaled = median_gradients(Draws(keys), keys)
    assert unscaled < 0.8 * scaled


@pytest.mark.parametrize("keys", [96, 256])
def test_many_unscaled_keys_have_more_gradient(keys: int) -> None:
    """S4.50, at k = 64."""
    unscaled, scaled = median_gradients(Draws(keys), keys)
    assert unscaled > 1.2 * scaled


def test_the_number_of_keys_is_stated_and_checked() -> None:
    """S4.50: few keys and many are on different sides, and the check computes both."""
    assert "from about 50 keys on" in claim("S4.50").correction
    figures = claim("S4.50").check(seed=1).figures
    few, many = (
        [figures[f"median at k = 64, {keys} keys, {kind}"] for kind in ("unscaled", "scaled")] for keys in (24, 128)
    )
    assert few[0] < few[1] and many[0] > many[1]


def test_a_small_base_is_not_always_better() -> None:
    """S4.22: 2 is below d/2 - 1 = 3, and its codes are nearer than those of 10000."""
    small, large = (least_distance(5000, 8, base) for base in (2.0, 1e4))
    assert (small, large) == (pytest.approx(0.410, abs=1e-3), pytest.approx(0.645, abs=1e-3))
    finding = claim("S4.22").check()
    assert finding.corrected is not None and finding.figures["least distance with d = 8, N = 2"] == small
    assert "an $N$ below $d/2 - 1$ keeps them" not in claim("S4.22").correction


def test_attention_takes_most_from_twice_the_width_on() -> None:
    """S4.69: the share is one half at n = 2d, and the claim fails there."""
    finding = claim("S4.69").check(n=1, d=256)
    assert finding.without is not None and finding.without.left == 0.5
    assert 0.5 < finding.left < 0.51


@pytest.mark.parametrize(
    ("seed", "n", "longer", "d"), [(3265297479, 24, 4, 4), (2345102693, 8, 4, 5), (2345102693, 8, 8, 5), (0, 24, 8, 7)]
)
def test_gradients_with_an_index_grow_for_every_draw(seed: int, n: int, longer: int, d: int) -> None:
    """S4.157, at the ends of its ranges: chance moves the growth by far less than its distance from the length."""
    finding = claim("S4.157").check(seed, n=n, longer=longer, d=d)
    assert finding.without is not None
    assert finding.without.left < longer / 2 and finding.left > 2 * longer


def test_the_printed_bound_fails_at_nine_thousand_rows() -> None:
    """S0.17 shows the number that `published_bound` speaks of."""
    assert claim("S0.17").check().figures["least residual over its printed bound, 9000 rows"] == pytest.approx(
        1.052, abs=1e-3
    )


@pytest.mark.parametrize("id", ["S0.38", "S1.21", "S1.22", "S3.31", "S4.156", "S4.157", "S4.158", "S4.159", "S4.160"])
def test_statements_that_had_no_claim_are_computed(id: str) -> None:
    finding = claim(id).check(seed=1)
    assert finding.confirms(claim(id).verdict), finding
