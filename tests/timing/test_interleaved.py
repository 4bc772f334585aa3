"""Interleaved timing, on a clock of our own."""

from attnworks.timing import interleave


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
