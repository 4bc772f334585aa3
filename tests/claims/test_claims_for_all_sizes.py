"""Every check confirms its verdict for all seeds and sizes that it takes, ends of the ranges included."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnworks.claims import Claim, in_order
from attnworks.claims.contract import Between

COMPUTED = [claim for claim in in_order() if claim.function is not None]
CASES, HEAVY_CASES, MORE = 10, 2, 6
"""Of each claim, of those that take long, and times so many of all behind the marker."""


def values(kind: type, allowed: Between) -> st.SearchStrategy[float]:
    if kind is int:
        return st.integers(int(allowed.low), int(allowed.high))
    return st.floats(allowed.low, allowed.high)


@pytest.mark.parametrize("times", [1, pytest.param(MORE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("claim", COMPUTED, ids=[claim.id for claim in COMPUTED])
def test_confirmed(claim: Claim, times: int) -> None:
    sizes = {name: values(kind, allowed) for name, (kind, allowed) in claim.ranges.items()}

    @settings(
        max_examples=times * (HEAVY_CASES if claim.heavy else CASES),
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
    )
    @given(seed=st.integers(0, 2**32), sizes=st.fixed_dictionaries(sizes))
    def confirmed(seed: int, sizes: dict[str, float]) -> None:
        finding = claim.check(seed, **sizes)
        assert finding.confirms(claim.verdict), finding

    confirmed()
