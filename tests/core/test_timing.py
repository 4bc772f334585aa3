"""Interleaved timing, on a clock of our own."""

from itertools import product

import pytest

from attnworks.core import timing
from attnworks.core.timing import Race, contains_one, interleave, interleave_within, median_interval


class Clock:
    """Time passes only when a candidate says so; the machine slows down by the round."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, ""

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, seconds: float) -> None:
        self.order += name
        self.now += seconds * (1 + len(self.order) // 2)


def test_ratios_survive_a_machine_that_slows_down() -> None:
    clock = Clock()
    race = interleave({"a": lambda: clock.work("a", 3.0), "b": lambda: clock.work("b", 1.0)}, rounds=101, clock=clock)
    assert 2.8 < race.speedup("b", over="a") < 3.2
    low, high = race.spread("b", over="a")
    assert low <= race.speedup("b", over="a") <= high


def test_candidates_take_turns_at_going_first_and_warm_up_is_left_out() -> None:
    clock = Clock()
    race = interleave(
        {"a": lambda: clock.work("a", 1), "b": lambda: clock.work("b", 1)}, rounds=3, warmup=1, clock=clock
    )
    assert clock.order == "abbaabba"
    assert len(race.seconds["a"]) == 3
    assert race.median("a") == sorted(race.seconds["a"])[1]


@pytest.mark.parametrize("n", range(6, 13))
def test_the_interval_covers_the_median_as_often_as_it_says(n: int) -> None:
    """Each value is below the true median or above it, with equal chance: all 2^n cases are counted."""
    low, high = median_interval([float(value) for value in range(n)][::-1])
    k = round(low) + 1
    assert high == n - k, "as many values are left out at the top as at the bottom"
    below = [sum(case) for case in product((0, 1), repeat=n)]
    covered, narrower = (sum(k <= count <= n - k for count in below) / 2**n for k in (k, k + 1))
    assert covered >= 0.95 > narrower, "no narrower one would do"


def test_fewer_than_six_rounds_give_no_interval() -> None:
    with pytest.raises(ValueError, match="5 values give no interval"):
        median_interval([1.0, 2.0, 3.0, 4.0, 5.0])


def test_time_ratios_and_their_intervals_are_of_rounds() -> None:
    """The machine is ten times slower in some rounds, for both; in one round it slows down in between."""
    before = (1.0, 10.0, 1.0, 10.0, 1.0, 1.0, 10.0, 1.0, 1.0)
    shares = (0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 9.0)
    race = Race({"old": before, "new": tuple(b * share for b, share in zip(before, shares, strict=True))})
    assert race.time_ratio("new", to="old") == pytest.approx(0.94)
    assert race.time_interval("new", to="old") == pytest.approx((0.91, 0.97))
    assert race.time_interval("old", to="new") == pytest.approx((1 / 0.97, 1 / 0.91))


def test_a_ratio_is_measurable_if_its_interval_lies_to_one_side_of_one() -> None:
    assert contains_one((0.98, 1.02)) and contains_one((1.0, 1.0))
    assert not contains_one((0.9, 0.99)) and not contains_one((1.01, 1.1))


@pytest.mark.parametrize(("each", "rounds"), [(0.0, 101), (0.01, 101), (0.5, 10), (60.0, 6)])
def test_as_many_rounds_as_fit_and_at_least_those_that_an_interval_needs(
    each: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "MAX_ROUNDS", 101)
    clock = Clock()

    def work() -> None:
        clock.now += each

    race = interleave_within({"a": work, "b": work}, clock=clock)
    assert {name: len(seconds) for name, seconds in race.seconds.items()} == {"a": rounds, "b": rounds}
