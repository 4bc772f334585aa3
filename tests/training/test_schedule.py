"""Learning rates against their closed forms."""

from __future__ import annotations

import math

import pytest

from attnworks.training.fit import ScheduleKind, cosine_to_zero, schedule

KINDS: tuple[ScheduleKind, ...] = ("warmup", "cosine", "constant")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup", [1, 7, 400])
def test_rises_linearly_to_the_peak(kind: ScheduleKind, warmup: int) -> None:
    rate = schedule(kind, 0.3, warmup, steps=1000)
    for step in range(warmup):
        assert rate(step) == pytest.approx(0.3 * (step + 1) / warmup)
    assert rate(warmup - 1) == pytest.approx(0.3)


def test_warmup_is_the_schedule_of_the_2017_paper() -> None:
    """d^-1/2 min(s^-1/2, s w^-3/2) has its peak d^-1/2 w^-1/2 at s = w."""
    d, w = 512, 4000
    rate = schedule("warmup", (d * w) ** -0.5, w)
    for s in (1, 10, 3999, 4000, 4001, 100_000):
        assert rate(s - 1) == pytest.approx(d**-0.5 * min(s**-0.5, s * w**-1.5), rel=1e-12)


def test_cosine_falls_to_a_tenth() -> None:
    rate = schedule("cosine", 2.0, 10, steps=110)
    assert rate(59) == pytest.approx(2.0 * 0.55)  # halfway
    assert rate(34) == pytest.approx(2.0 * (0.1 + 0.45 * (1 + math.cos(math.pi / 4))))
    assert rate(109) == pytest.approx(0.2)
    assert rate(500) == pytest.approx(0.2)
    rates = [rate(step) for step in range(9, 110)]
    assert rates == sorted(rates, reverse=True)


def test_cosine_to_zero() -> None:
    rate = cosine_to_zero(2.0, 2, steps=12)
    assert [rate(step) for step in range(3)] == [1.0, 2.0, 2.0]
    assert rate(7) == pytest.approx(1.0)  # halfway
    assert rate(11) == pytest.approx(1 + math.cos(0.9 * math.pi))
    assert cosine_to_zero(2.0, 1, steps=1)(0) == 2.0


def test_constant_stays() -> None:
    rate = schedule("constant", 0.7, 3)
    assert {rate(step) for step in (2, 3, 100, 10**6)} == {0.7}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup", [-3, 0, 1])
def test_no_warm_up_starts_at_the_peak(kind: ScheduleKind, warmup: int) -> None:
    assert schedule(kind, 0.7, warmup, steps=50)(0) == 0.7


@pytest.mark.parametrize("steps", [1, 5, 10])
def test_cosine_shorter_than_its_warm_up(steps: int) -> None:
    rate = schedule("cosine", 1.0, 10, steps)
    assert all(0 < rate(step) <= 1.0 for step in range(20))


@pytest.mark.parametrize("kind", KINDS)
def test_any_step_without_those_before(kind: ScheduleKind) -> None:
    first, second = schedule(kind, 1.0, 5, 30), schedule(kind, 1.0, 5, 30)
    assert [first(step) for step in range(40)] == [second(step) for step in reversed(range(40))][::-1]
