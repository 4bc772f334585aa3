"""The experiments in theory, against their closed forms and against computations by hand."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnworks.attention.softmax import softmax_jacobian
from attnworks.cli.experiment import experiment
from attnworks.core.errors import UsageError
from attnworks.theory.experiments.collapse import ALONE, SKIP, WIRINGS, CollapseExperiment
from attnworks.theory.experiments.path_lengths import PathLengthExperiment
from attnworks.theory.experiments.projection_error import ProjectionExperiment
from attnworks.theory.experiments.results import THEORY_EXPERIMENTS
from attnworks.theory.experiments.softmax_gradient import GradientExperiment
from attnworks.theory.experiments.two_keys import TwoKeysExperiment
from attnworks.theory.experiments.word_in_context import ContextExperiment
from tests.test_readme import fenced

GUIDE = "docs/theory.md"
SMALL: dict[str, Any] = {"num_layers": 3, "num_heads": 2, "width": 14, "tokens": 5}


@pytest.mark.parametrize(
    ("options", "wrong", "words"),
    [
        (CollapseExperiment, {"num_layers": 0}, "num_layers=0"),
        (CollapseExperiment, {"width": 13, "num_heads": 2}, "a width that 2 divides"),
        (CollapseExperiment, {"tokens": 1}, "tokens=1"),
        (CollapseExperiment, {"weights": math.nan}, "weights=nan"),
        (PathLengthExperiment, {"seeds": 0}, "seeds=0"),
        (ProjectionExperiment, {"epsilon": 1.0}, "epsilon=1.0"),
        (ProjectionExperiment, {"draws": 1}, "draws=1"),
        (GradientExperiment, {"widths": ()}, "at least one"),
        (GradientExperiment, {"widths": (7, 0)}, "width=0"),
        (TwoKeysExperiment, {"betas": ()}, "at least one"),
        (TwoKeysExperiment, {"betas": (-1.0,)}, "beta=-1.0"),
        (TwoKeysExperiment, {"keys": 2}, "keys=2"),
        (TwoKeysExperiment, {"keys": 512}, "at most 134,217,728 numbers"),
        (GradientExperiment, {"widths": (65_536,), "tokens": 4096}, "at most 33,554,432 numbers"),
        (ContextExperiment, {"sharpness": -1.0}, "sharpness=-1.0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Callable[..., Any], wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        options(**wrong)


def test_the_commands_of_the_guide_are_real() -> None:
    lines = [line.partition("#")[0] for block in fenced("console", GUIDE) for line in block.splitlines()]
    calls = [shlex.split(line.removeprefix("$ attnworks experiment")) for line in lines]
    assert {name for name, *_ in calls} == {*THEORY_EXPERIMENTS}
    for name, *options in calls:
        experiment.commands[name].make_context(name, options)


# --- collapse ---


def test_all_wirings_have_the_same_attention_layers_in_their_size() -> None:
    one = CollapseExperiment(**SMALL, weights=1.0)
    third = CollapseExperiment(**SMALL, weights=0.25)
    for parts in WIRINGS.values():
        wired = third.draw_network(3, **dict.fromkeys(parts, True))
        for layer, plain in zip(wired.attentions, one.draw_network(3).attentions, strict=True):
            for name in ("W_Q", "W_K", "W_V", "W_O"):
                torch.testing.assert_close(getattr(layer, name), 0.25 * getattr(plain, name), rtol=1e-12, atol=0)


def test_the_first_layer_by_hand() -> None:
    """SA(X) = sum_h softmax(X W_Q (X W_K)^T / sqrt(7)) X W_V W_O; its residual, diameter and singular values."""
    options = CollapseExperiment(**SMALL, weights=1.0, seeds=1, seed=11)
    layer, X = options.draw_network(11).attentions[0], options.draw_input(11)[0]
    Y = torch.zeros_like(X)
    for h in range(2):
        P = ((X @ layer.W_Q[h]) @ (X @ layer.W_K[h]).mT / 7**0.5).softmax(-1)
        Y += P @ X @ layer.W_V[h] @ layer.W_O[h]
    row = next(row for row in options.run() if row.wiring == ALONE and row.layer == 1)
    R = Y - Y.mean(0)
    s = torch.linalg.svdvals(Y)
    assert row.relative_residual == pytest.approx((R.norm() / Y.norm()).item(), rel=1e-12)
    assert row.diameter == pytest.approx(torch.pdist(Y).max().item(), rel=1e-12)
    assert row.second_ratio == pytest.approx((s[1] / s[0]).item(), rel=1e-12)
    assert row.residual == pytest.approx((R.abs().sum(0).max() * R.abs().sum(1).max()).sqrt().item(), rel=1e-12)


@settings(max_examples=5, deadline=None)
@given(weights=st.sampled_from([0.05, 0.3, 1.0, 4.0]), seed=st.integers(0, 10**6), seeds=st.integers(1, 3))
def test_bounds_hold_up_to_rounding_and_none_is_told_below_it(weights: float, seed: int, seeds: int) -> None:
    """D6 and S0.19 hold in every seed, hence for medians too: if b_i >= m_i for all i, the k-th smallest b is at least
    the k-th smallest m. The bound of the input grows with what it starts from, so it is never below that of a layer.
    """
    rows = CollapseExperiment(**SMALL, weights=weights, seed=seed, seeds=seeds).run()
    for row in rows:
        for name in ("diameter_bound", "diameter_bound_from_input"):
            bound = getattr(row, name)
            if row.wiring == ALONE and row.layer:
                assert row.diameter <= (bound or 0.0) + row.rounding
                assert bound is None or bound >= row.rounding
            else:
                assert bound is None
        if row.wiring == SKIP and row.layer:
            assert row.skip_low is not None and row.skip_high is not None
            assert row.skip_low - row.rounding <= row.diameter <= row.skip_high + row.rounding
        if row.diameter_bound is not None and row.diameter_bound_from_input is not None:
            assert row.diameter_bound <= row.diameter_bound_from_input * (1 + 1e-12)


def test_the_printed_bound_is_the_cube_and_then_the_ninth_power() -> None:
    """c^{(3^L - 1) / 2} rho^{3^L} (S0.17): c rho^3 after one layer, and for equal c, c^4 rho^9 after two."""
    rows = [row for row in CollapseExperiment(**SMALL, weights=1.0, seeds=1).run() if row.wiring == ALONE]
    first = rows[1]
    assert first.printed_bound is not None and first.printed_size is not None
    assert first.printed_bound == pytest.approx(first.printed_size * rows[0].residual, rel=1e-12)
    ones = [row for row in CollapseExperiment(**{**SMALL, "num_layers": 1}, seeds=1).run() if row.wiring == ALONE]
    assert ones[1].printed_bound_from_input == pytest.approx(ones[1].printed_bound, rel=1e-12)
    assert rows[2].printed_bound_from_input is not None and rows[1].printed_bound_from_input is not None
    c = rows[1].printed_bound_from_input / rows[0].residual ** 3
    assert rows[2].printed_bound_from_input == pytest.approx(c**4 * rows[0].residual ** 9, rel=1e-9)


def test_attention_alone_collapses_and_skip_keeps_tokens_apart() -> None:
    """S0.15, S0.19, S1.16."""
    last = {row.wiring: row for row in CollapseExperiment(seeds=1).run() if row.layer == 8}
    assert all(last[wiring].relative_residual < 1e-12 for wiring in (ALONE, "MLP", "norm"))
    assert all(last[wiring].relative_residual > 0.3 for wiring in (SKIP, "skip, MLP", "skip, MLP, norm"))


def test_numbers_that_overflow_are_refused() -> None:
    options: dict[str, Any] = {**SMALL, "num_layers": 64, "weights": 900.0, "seeds": 1}
    for kind in (CollapseExperiment, PathLengthExperiment):
        with pytest.raises(UsageError, match="smaller weights"):
            kind(**options).run()


# --- paths ---


def test_every_path_of_two_layers_enumerated() -> None:
    """With P frozen, (I + S_2)(I + S_1) X = X + (S_1 + S_2) X + S_2 S_1 X and S_l(Z) = sum_h P_h Z W_V,h W_O,h (D1)."""
    options = PathLengthExperiment(num_layers=2, num_heads=3, width=15, tokens=7, seeds=1, seed=5)
    network, X = options.draw_network(5, skip=True), options.draw_input(5)
    maps: list[torch.Tensor] = []
    output = network(X, observe=lambda seen: maps.append(seen.P))
    layers = network.attentions

    def through(layer: int, h: int, Z: torch.Tensor) -> torch.Tensor:
        return maps[layer][0, h] @ Z @ layers[layer].W_V[h] @ layers[layer].W_O[h]

    lengths = [torch.zeros_like(X[0]) for _ in range(3)]
    counts = [0, 0, 0]
    for one, two in itertools.product((None, 0, 1, 2), repeat=2):
        Z = X[0] if one is None else through(0, one, X[0])
        Z = Z if two is None else through(1, two, Z)
        hops = (one is not None) + (two is not None)
        lengths[hops] += Z
        counts[hops] += 1
    rows = options.run()
    assert [row.count for row in rows] == counts == [1, 6, 9]
    for row, term in zip(rows, lengths, strict=True):
        assert row.size == pytest.approx((term.norm() / output.norm()).item(), rel=1e-12)
        residual = (term - term.mean(0)).norm() / term.norm()
        assert row.relative_residual == pytest.approx(residual.item(), rel=1e-12)
    assert rows[0].missing == pytest.approx(((X - output).norm() / output.norm()).item(), rel=1e-12)
    assert rows[1].missing == pytest.approx(rows[2].size, rel=1e-12)


def test_all_lengths_are_the_output_and_long_paths_are_the_collapsed_ones() -> None:
    """C(L, j) H^j paths of length j (S0.12); their relative residual falls with j (S1.17)."""
    rows = PathLengthExperiment(num_layers=7, num_heads=3, width=33, tokens=11, seeds=2).run()
    assert [row.count for row in rows] == [math.comb(7, j) * 3**j for j in range(8)]
    assert rows[-1].missing < 1e-13
    residuals = [row.relative_residual for row in rows]
    assert residuals == sorted(residuals, reverse=True) and residuals[0] > 20 * residuals[-1]
    assert rows[5].size_per_path == rows[5].size / rows[5].count


# --- projection ---


def test_the_printed_dimension() -> None:
    """5 ln 128 / (1/4 - 1/8) = 40 * 7 ln 2 = 194.08."""
    options = ProjectionExperiment(tokens=128, epsilon=0.5)
    assert options.published_k == 195 and 195 in options.dimensions and max(options.dimensions) == 1024


def test_measured_errors_are_the_expected_ones() -> None:
    """E err^2 = (1 + ||P||_F^2 ||V||_F^2 / ||P V||_F^2) / k (D8), which is (1 + n) / k for P = I as ||I||_F^2 = n.

    Over 100 draws the root of the mean square strays by some percent, for uniform P, of rank one, by more.
    """
    rows = ProjectionExperiment(tokens=17, values=13, draws=100).run()
    for row in rows:
        if row.attention == "identity":
            assert row.expected == pytest.approx(math.sqrt(18 / row.k), rel=1e-12)
        assert row.error == pytest.approx(row.expected, rel=0.35 if row.attention == "uniform" else 0.2)
        assert row.low < row.high and 0 <= row.reached <= 1


def test_the_printed_dimension_is_enough_for_diffuse_attention_on_like_values_alone() -> None:
    """S0.21, S0.28."""
    options = ProjectionExperiment(tokens=61, draws=7)
    at = {(row.attention, row.values): row for row in options.run() if row.k == options.published_k}
    assert all(at[name, "around zero"].reached == 0 for name in ("identity", "sharp softmax", "diffuse softmax"))
    assert at["diffuse softmax", "around one"].reached == at["uniform", "around one"].reached == 1
    assert at["identity", "around one"].reached == 0


# --- gradient ---


def test_norms_are_those_of_the_jacobian() -> None:
    options = GradientExperiment(widths=(5,), tokens=7, seeds=3, seed=2)
    Q, K = torch.randn(2, 3, 7, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for row, scale in zip(options.run(), (1.0, 5**-0.5, 0.2), strict=True):
        P = (scale * Q @ K.mT).softmax(-1)
        norms = torch.linalg.matrix_norm(softmax_jacobian(P))
        assert row.median == pytest.approx(norms.median().item(), rel=1e-9)
        assert row.share_lost == pytest.approx((norms < 0.01).double().mean().item())
        assert row.entropy == pytest.approx((-(P * P.log()).sum(-1).mean() / math.log(7)).item(), rel=1e-9)


def test_scales_differ_only_where_keys_are_wide() -> None:
    """At k = 1 the three scales are one. With 1/k scores vanish: J = I/n - 11^T/n^2 has the norm sqrt(n - 1) / n."""
    rows = GradientExperiment(widths=(16_384, 1), tokens=31, seeds=2).run()
    assert len({row.median for row in rows[:3]}) == 1 and [row.width for row in rows] == [1] * 3 + [16_384] * 3
    assert rows[5].median == pytest.approx(math.sqrt(30) / 31, rel=1e-3) and rows[5].entropy > 0.999


def test_gradients_vanish_without_a_scale() -> None:
    """S4.50: medians .256, .034 and share lost .145, .415 at k = 64, 256 without a scale, and .13 with 1/sqrt(k)."""
    rows = GradientExperiment(widths=(64, 256)).run()
    bare, root = rows[0::3], rows[1::3]
    assert [row.median for row in bare] == pytest.approx([0.256, 0.034], abs=0.02)
    assert [row.share_lost for row in bare] == pytest.approx([0.145, 0.415], abs=0.06)
    assert [row.median for row in root] == pytest.approx([0.133, 0.136], abs=0.01)


# --- two keys ---


def test_simulated_weights_and_variances_are_the_closed_forms() -> None:
    """S2.17-S2.20 and D9. The mean of 20,000 weights in [0, 1] has a standard error of at most .5 / sqrt(T) = .0035."""
    rows = TwoKeysExperiment(betas=(1.0, 5.0, 50.0), keys=11, values=7, draws=20_000, seed=3).run()
    for row in rows:
        for weight in (row.one_a, row.one_b, row.two_a, row.two_b):
            assert weight.mean == pytest.approx(weight.expected, abs=0.015)
            assert weight.low <= weight.high
        assert row.two_variance == pytest.approx(row.two_variance_expected, rel=0.06)
        assert row.failure == pytest.approx(row.failure_expected, abs=0.015)
    assert rows[-1].one_variance == pytest.approx(rows[-1].one_variance_expected, rel=0.03)
    assert rows[-1].one_variance < 0.25 and rows[-1].two_variance < 0.1 * rows[-1].one_variance


def test_the_mean_weights_without_variation_of_any_key() -> None:
    """alpha_a = e^b / (n - 2 + 2 e^b) (S2.8), and e^b / (n - 1 + e^b) in a head of its own (S2.18)."""
    (row,) = TwoKeysExperiment(betas=(2.0,), keys=13, draws=5).run()
    assert row.one_a.steady == row.one_b.steady == pytest.approx(math.exp(2) / (11 + 2 * math.exp(2)), rel=1e-12)
    assert row.two_a.steady == row.two_b.steady == pytest.approx(math.exp(2) / (12 + math.exp(2)), rel=1e-12)


# --- context ---


def test_a_word_in_its_context_by_hand() -> None:
    """Without maps: scores <bank, word> / sqrt 2, with bank = (.1, .9), river = (-1, .2): .08 and .82."""
    row = ContextExperiment().run()[0]
    weight = 1 / (1 + math.exp((0.82 - 0.08) / math.sqrt(2)))
    assert row.sentence == "river bank" and row.weights["river"] == pytest.approx(weight, rel=1e-12)
    assert row.lands == pytest.approx((-weight + 0.1 * (1 - weight), 0.2 * weight + 0.9 * (1 - weight)), rel=1e-12)
    assert row.moved == pytest.approx(weight * math.hypot(1.1, 0.7), rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(sharpness=st.floats(0, 1000))
def test_a_word_never_leaves_the_hull_and_values_move_the_hull_alone(sharpness: float) -> None:
    rows = ContextExperiment(sharpness=sharpness).run()
    for row in rows:
        assert sum(row.weights.values()) == pytest.approx(1) and min(row.weights.values()) >= 0
        for axis in range(2):
            mixed = sum(weight * row.values[word][axis] for word, weight in row.weights.items())
            assert row.lands[axis] == pytest.approx(mixed, abs=1e-12)
    for looked, taken in zip(rows[3:6], rows[6:9], strict=True):
        assert looked.weights == taken.weights and looked.values != taken.values


def test_two_sentences_take_a_word_to_two_places_further_apart_with_maps() -> None:
    rows = ContextExperiment().run()
    apart = [math.dist(rows[first].lands, rows[first + 1].lands) for first in (0, 3, 6)]
    assert apart[0] > 0.5 and apart[1] > 2 * apart[0]
    even = ContextExperiment(sharpness=0.0).run()[5]
    assert list(even.weights.values()) == pytest.approx([1 / 3] * 3)
