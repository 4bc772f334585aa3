"""Mixes of options: none that is returned is beaten, and none that is not beaten is missing."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from attnworks.reshape.swapping.mixes import Mix, Option, best_mixes

Layers = dict[str, list[Option]]


@st.composite
def layers(draw: st.DrawFn) -> Layers:
    """Up to four layers of up to four options; small whole numbers make ties, others do not."""
    numbers = st.one_of(st.integers(0, 4).map(float), st.floats(0, 1e3, allow_subnormal=False))
    return {
        f"enc.{layer}": [
            Option(f"option {number}", draw(numbers), draw(numbers)) for number in range(draw(st.integers(1, 4)))
        ]
        for layer in range(draw(st.integers(0, 4)))
    }


def every_mix(options: Layers) -> list[Mix]:
    """All of them, summed from the first layer to the last."""
    mixes: list[Mix] = []
    for chosen in product(*options.values()):
        cost = error = 0.0
        for option in chosen:
            cost, error = cost + option.cost, error + option.error
        mixes.append(Mix(cost, error, {slot: option.name for slot, option in zip(options, chosen, strict=True)}))
    return mixes


def beats(one: Mix, other: Mix) -> bool:
    return one.cost <= other.cost and one.error <= other.error and one[:2] != other[:2]


@given(layers())
def test_the_same_as_trying_all(options: Layers) -> None:
    """Rounding may let two sums meet that were apart before the last layer, so that costs are compared, not names."""
    every = every_mix(options)
    best = {mix[:2] for mix in every if not any(beats(other, mix) for other in every)}
    found = best_mixes(options)
    assert [mix[:2] for mix in found] == sorted(best)
    assert all(mix in every for mix in found)


@given(layers())
def test_thinned_out_within_the_tolerance(options: Layers) -> None:
    """For every mix one is left that costs no more and whose error is at most 1 + tolerance times as large."""
    found = best_mixes(options, most=1, tolerance=0.5)
    every = every_mix(options)
    assert all(mix in every for mix in found)
    for mix in every:
        assert any(kept.cost <= mix.cost and kept.error <= 1.5 * mix.error * (1 + 1e-12) for kept in found)


def test_fewer_are_left_where_there_are_too_many() -> None:
    options = {
        f"enc.{layer}": [Option(str(step), 1.37**layer * step, 1.71**layer / (1 + step)) for step in range(5)]
        for layer in range(4)
    }
    exact, thin = best_mixes(options), best_mixes(options, most=20, tolerance=0.1)
    assert len(thin) < len(exact) and thin[0] == exact[0]


def test_no_layer_and_one_option() -> None:
    assert best_mixes({}) == [Mix(0.0, 0.0, {})]
    assert best_mixes({"enc.0": [Option("dense", 3.0, 0.0)]}) == [Mix(3.0, 0.0, {"enc.0": "dense"})]


def test_the_first_of_equals() -> None:
    options = {"enc.0": [Option("a", 1.0, 2.0), Option("b", 1.0, 2.0)], "enc.1": [Option("c", 0.0, 0.0)] * 2}
    assert best_mixes(options) == [Mix(1.0, 2.0, {"enc.0": "a", "enc.1": "c"})]
