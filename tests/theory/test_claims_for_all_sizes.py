"""Every check confirms its verdict for all seeds and sizes that it takes, ends of the ranges included."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnworks.theory import Claim, all_claims
from attnworks.theory.contract import SizeRange
from tests.covering import covering, noted

COMPUTED = [claim for claim in all_claims() if claim.function is not None]
SEEDS = 2**32
CASES, HEAVY_CASES = 60, 12
"""Drawn by Hypothesis for each claim, and for those that take long, if all tests are asked for."""


def strategy(kind: type, allowed: SizeRange) -> st.SearchStrategy[float]:
    if kind is int:
        return st.integers(int(allowed.low), int(allowed.high))
    return st.floats(allowed.low, allowed.high)


def assert_confirmed(claim: Claim, seed: int, sizes: dict[str, float]) -> None:
    finding = claim.check(seed, **sizes)
    assert finding.confirms(claim.verdict), finding


@pytest.mark.parametrize("claim", COMPUTED, ids=lambda claim: claim.id)
def test_confirmed_at_the_ends_and_between(claim: Claim, seed: int) -> None:
    source = random.Random(seed)
    ends = covering(*((kind(allowed.low), kind(allowed.high)) for kind, allowed in claim.ranges.values()))
    cases: list[dict[str, float]] = [dict(zip(claim.ranges, row, strict=True)) for row in ends]
    for _ in range(1 if claim.heavy else 2):
        between = {name: source.uniform(allowed.low, allowed.high) for name, (_, allowed) in claim.ranges.items()}
        cases.append({name: claim.ranges[name][0](size) for name, size in between.items()})
    for sizes in cases:
        with noted(sizes):
            assert_confirmed(claim, source.randrange(SEEDS), sizes)


@pytest.mark.slow
@pytest.mark.parametrize("claim", COMPUTED, ids=lambda claim: claim.id)
def test_confirmed_wherever_hypothesis_looks(claim: Claim) -> None:
    @settings(
        max_examples=HEAVY_CASES if claim.heavy else CASES,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
    )
    @given(
        seed=st.integers(0, SEEDS),
        sizes=st.fixed_dictionaries({name: strategy(*allowed) for name, allowed in claim.ranges.items()}),
    )
    def confirmed(seed: int, sizes: dict[str, float]) -> None:
        assert_confirmed(claim, seed, sizes)

    confirmed()
