"""Frequency pairs on small problems: against scores that are rotated in real numbers, and searches over real columns.

Two columns a_1, a_2 of queries and b_1, b_2 of keys, rotated by theta times the position, add to the score of i and j
    cos(theta (i - j)) (x_i . a_1  z_j . b_1 + x_i . a_2  z_j . b_2)
    + sin(theta (i - j)) (x_i . a_1  z_j . b_2 - x_i . a_2  z_j . b_1),
which is Re(e^{i theta (i - j)} (x_i . a) conj(z_j . b)) for a = a_1 + i a_2 and b = b_1 + i b_2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from attnworks.core.places import Slot
from attnworks.reshape.growth import statistics, survey
from attnworks.reshape.growth.directions import marginal_gains, score_direction, whitened_direction
from attnworks.reshape.growth.metric import Metric, ScoreSample, as_real_columns, rotated
from attnworks.reshape.growth.pairs import (
    FINE_STEP,
    LARGEST_ANGLE,
    angles_for,
    best_angles,
    gains_by_angle,
    whitened_states,
    with_key_bias,
)
from tests.helpers import assert_close
from tests.reshape.growth.growth_helpers import growing_bench, survey_of
from tests.reshape.growth.rotary_model import turned
from tests.reshape.growth.test_directions import best_searched, drawn, jacobians

H, N, QUERIES, KEYS, E, F = 2, 19, 13, 11, 5, 3
ANGLE = 0.7
EXACT = {"sweeps": 2000, "iterations": 100, "tolerance": 1e-11}


def sample_of(seed: int = 0, *, capped: bool = False, angle: float = ANGLE) -> ScoreSample:
    """Key j is hidden from query i if j > i + 4."""
    X, Y = drawn(N, QUERIES, E, seed=seed), drawn(N, KEYS, F, seed=seed + 1)
    hidden = torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(5)
    P = drawn(N, H, QUERIES, KEYS, seed=seed + 2).masked_fill(hidden, -torch.inf).softmax(-1)
    slopes = drawn(N, H, QUERIES, KEYS, seed=seed + 4).sigmoid() if capped else None
    return ScoreSample(X, Y, P, slopes, angle)


def gradient(sample: ScoreSample, seed: int = 0) -> Tensor:
    """dL / dS [n h i j] as losses have it: rows sum to zero, and hidden keys have none."""
    G = 30 * (jacobians(sample.P) @ drawn(N, H, QUERIES, KEYS, seed=seed + 3).unsqueeze(-1)).squeeze(-1)
    return G if sample.slopes is None else G * sample.slopes


def T_of(sample: ScoreSample, G: Tensor) -> Tensor:
    """X^T (cos(theta (i - j)) G) Y - i X^T (sin(theta (i - j)) G) Y, mean over sentences, entry by entry."""
    phases = sample.angle * (torch.arange(QUERIES)[:, None] - torch.arange(KEYS)).double()
    real, imaginary = (
        torch.einsum("nie,nhij,njf->hef", sample.X, G * turn, sample.Y) / N for turn in (phases.cos(), -phases.sin())
    )
    return torch.complex(real, imaginary)


def change(sample: ScoreSample, alpha: Tensor, beta: Tensor) -> Tensor:
    """dS [n h i j] of real columns alpha [h e 2p] and beta [h f 2p], whose rotated neighbours are multiplied."""
    angles = [sample.angle] * alpha.shape[-1]
    Q, K = (turned(torch.einsum("nie,hep->nhip", X, W), angles) for X, W in ((sample.X, alpha), (sample.Y, beta)))
    return Q @ K.mT


def objective(sample: ScoreSample, G: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """<G, dS> + 1/2 <dS, F(dS)> in real columns, with the Jacobians of the softmax written out, per head."""
    J = jacobians(sample.P)
    if sample.slopes is not None:
        J = sample.slopes.unsqueeze(-1) * J * sample.slopes.unsqueeze(-2)

    def loss(alpha: Tensor, beta: Tensor) -> Tensor:
        dS = change(sample, alpha, beta)
        bent = (J @ dS.unsqueeze(-1)).squeeze(-1)
        return ((G + bent / 2) * dS).sum((0, 2, 3)) / N

    return loss


def columns(direction: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    return as_real_columns(direction[0]), as_real_columns(direction[1])


# The formula ---------------------------------------------------------------------------------------------------------


def test_two_rotated_columns_are_a_complex_one() -> None:
    sample, a, b = sample_of(), drawn(H, E, 2, seed=5), drawn(H, F, 2, seed=6)
    X, Y = rotated(sample.X, ANGLE), rotated(sample.Y, ANGLE)
    q = torch.einsum("nie,he->nhi", X, torch.view_as_complex(a))
    k = torch.einsum("njf,hf->nhj", Y, torch.view_as_complex(b))
    assert_close((q.unsqueeze(-1) * k.conj().unsqueeze(-2)).real, change(sample, a, b))
    phases = ANGLE * (torch.arange(QUERIES)[:, None] - torch.arange(KEYS)).double()
    (a_1, a_2), (b_1, b_2) = (
        [torch.einsum("nie,he->nhi", states, W[..., c]) for c in range(2)]
        for states, W in ((sample.X, a), (sample.Y, b))
    )
    same = a_1.unsqueeze(-1) * b_1.unsqueeze(-2) + a_2.unsqueeze(-1) * b_2.unsqueeze(-2)
    other = a_1.unsqueeze(-1) * b_2.unsqueeze(-2) - a_2.unsqueeze(-1) * b_1.unsqueeze(-2)
    assert_close(phases.cos() * same + phases.sin() * other, change(sample, a, b))


@pytest.mark.parametrize("capped", [False, True])
def test_slope_and_curvature_are_those_of_the_scores(capped: bool) -> None:
    sample = sample_of(1, capped=capped)
    G = gradient(sample)
    found = score_direction(T_of(sample, G), sample, 2, **EXACT)
    alpha, beta = columns(found)
    dS = change(sample, alpha, beta)
    assert_close(found.slope, -(G * dS).sum((0, 2, 3)) / N)
    assert_close(found.gain, -objective(sample, G)(alpha, beta))
    assert_close(found.slope, found.curvature)  # the length is the best one
    q = torch.einsum("nie,hep->nhip", rotated(sample.X, ANGLE), found.alpha)
    k = torch.einsum("nie,hep->nhip", rotated(sample.Y, ANGLE), found.beta)
    assert_close(Metric.of(sample).curvature(q, k), found.curvature)


def test_the_gradient_by_the_columns_is_what_autograd_says() -> None:
    """Of the loss of a head whose scores have the columns: by alpha it is T beta, T being that of dL / dS there."""
    sample = sample_of(3)
    S, V, W = drawn(N, H, QUERIES, KEYS, seed=8), drawn(N, H, KEYS, 2, seed=9), drawn(N, H, QUERIES, 2, seed=10)
    alpha, beta = drawn(H, E, 2, seed=11).requires_grad_(), drawn(H, F, 2, seed=12).requires_grad_()
    scores = S + change(sample, alpha, beta)
    loss = (W * (scores.softmax(-1) @ V)).sum() / N
    (G,) = torch.autograd.grad(loss, scores, retain_graph=True)
    loss.backward()
    assert alpha.grad is not None and beta.grad is not None
    T = T_of(sample, N * G)
    assert_close(alpha.grad, as_real_columns(T @ torch.view_as_complex(beta.detach()).unsqueeze(-1)))
    assert_close(beta.grad, as_real_columns(T.mH @ torch.view_as_complex(alpha.detach()).unsqueeze(-1)))


# The solver ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("p", [1, 2])
def test_no_search_finds_a_better_pair(p: int, capped: bool) -> None:
    sample = sample_of(7, capped=capped)
    G = gradient(sample)
    found = score_direction(T_of(sample, G), sample, p, **EXACT)
    assert (found.residual < 1e-9).all()
    searched = best_searched(objective(sample, G), (H, E, 2 * p), (H, F, 2 * p))
    torch.testing.assert_close(objective(sample, G)(*columns(found)), searched, rtol=1e-7, atol=0.0)
    plain = score_direction(T_of(sample._replace(angle=0.0), G).real, sample._replace(angle=0.0), 2 * p, **EXACT)
    assert ((found.gain - plain.gain).abs() > 0.01 * plain.gain).all(), "positions matter"


def test_the_angle_zero_is_a_plain_column() -> None:
    """In the limit: a pair of a small angle adds two plain columns, of which the complex product has one rank."""
    sample, near = sample_of(13, angle=0.0), sample_of(13, angle=1e-9)
    G = gradient(sample)
    pair = whitened_direction(T_of(near, G), near, 2)
    plain = whitened_direction(T_of(sample, G).real, sample, 2)
    torch.testing.assert_close(pair.gain, plain.gain, rtol=1e-6, atol=0.0)
    torch.testing.assert_close((pair.alpha @ pair.beta.mH).real, plain.alpha @ plain.beta.mT, rtol=1e-6, atol=1e-9)


def test_sweeps_are_never_uphill_and_marginal_gains_add_up() -> None:
    sample = sample_of(17)
    G = gradient(sample)
    T = T_of(sample, G)
    gains = [whitened_direction(T, sample, 2).gain]
    gains += [score_direction(T, sample, 2, sweeps=n, iterations=2).gain for n in (0, 1, 2, 5)]
    for before, after in pairwise(gains):
        assert (after >= before * (1 - 1e-9)).all()
    found = score_direction(T, sample, 2)
    assert_close(marginal_gains(found, T, sample).sum(-1), found.gain)
    first = score_direction(T, sample, 2)
    alone = objective(sample, G)(*(side[..., :2] for side in columns(first)))
    assert (marginal_gains(found, T, sample)[:, 0] >= -alone - 1e-12).all()


def test_columns_of_a_pair_may_be_turned_together() -> None:
    """a e^{i phi} and b e^{i phi} add the same; another direction of one of them does not."""
    sample, a, b = sample_of(), drawn(H, E, 2, seed=5), drawn(H, F, 2, seed=6)
    turn = torch.polar(torch.ones(1).double(), torch.tensor([0.9]).double())
    a_t, b_t = (torch.view_as_real(torch.view_as_complex(side) * turn) for side in (a, b))
    assert_close(change(sample, a_t, b_t), change(sample, a, b))
    assert not torch.allclose(change(sample, a_t, b), change(sample, a, b))


# The comparison of angles --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 13, 128, 4096])
def test_angles_cover_all_distances(length: int) -> None:
    angles = angles_for(length)
    assert angles[0] == LARGEST_ANGLE and math.pi > LARGEST_ANGLE * FINE_STEP
    assert 1 / length <= angles[-1] < 2**0.5 / length or length <= 2
    for larger, smaller in pairwise(angles):
        assert larger / smaller == pytest.approx(FINE_STEP**2)


def planted(angle: float, noise: float, seed: int = 0) -> tuple[ScoreSample, Tensor]:
    """The first head wants a pair with this angle, the second one nothing: dL / dS is that of dS, and noise."""
    sample = sample_of(seed, angle=angle)
    wanted = change(sample, drawn(H, E, 2, seed=21), drawn(H, F, 2, seed=22))
    wanted[:, 1] = 0
    F_of = (jacobians(sample.P) @ (noise * drawn(N, H, QUERIES, KEYS, seed=23) - wanted).unsqueeze(-1)).squeeze(-1)
    return sample._replace(angle=0.0), F_of


@pytest.mark.parametrize("number", [1, 4])
def test_the_angle_that_was_planted_is_found(number: int) -> None:
    angle = angles_for(KEYS)[number]
    sample, G = planted(angle, noise=0.3)
    found = best_angles(sample, G, biased_keys=False)
    assert found[0] == pytest.approx(angle, rel=FINE_STEP - 1 + 1e-9)
    gains = gains_by_angle(whitened_states(sample), G, (0.0, *angles_for(KEYS)))
    assert gains[:, 0].argmax() == 1 + number and (gains[1:, 0].max() > 20 * gains[:, 1].max())


def test_a_plain_column_is_left_to_plain_columns() -> None:
    sample = sample_of(5, angle=0.0)
    dS = torch.einsum("nie,he,njf,hf->nhij", sample.X, drawn(H, E), sample.Y, drawn(H, F, seed=1))
    G = -(jacobians(sample.P) @ dS.unsqueeze(-1)).squeeze(-1)
    assert best_angles(sample, G, biased_keys=False) == {}


def test_a_sample_too_small_to_check_has_no_angles() -> None:
    sample, G = planted(0.5, noise=0.0)
    assert best_angles(sample, G, biased_keys=False)
    one = sample._replace(X=sample.X[:1], Y=sample.Y[:1], P=sample.P[:1])
    assert best_angles(one, G[:1], biased_keys=False) == {}
    assert best_angles(sample._replace(P=0 * sample.P), G, biased_keys=False) == {}


def test_the_bias_of_the_keys_matters_for_pairs() -> None:
    """A head that wants a distance whatever the words are: only a constant key can serve it."""
    sample = sample_of(9, angle=0.0)
    distance = (torch.arange(QUERIES)[:, None] - torch.arange(KEYS)).double()
    wanted = (1.1 * (distance - 2)).cos() * torch.einsum("nie,e->ni", sample.X, drawn(E))[:, None, :, None]
    G = -(jacobians(sample.P) @ wanted.expand(N, H, -1, -1).unsqueeze(-1)).squeeze(-1)
    found = best_angles(sample, G, biased_keys=True)
    assert {*found} == {0, 1} and all(angle == pytest.approx(1.1, rel=0.2) for angle in found.values())
    without, with_bias = (
        gains_by_angle(whitened_states(one), G, [found[0]])[0] for one in (sample, with_key_bias(sample))
    )
    assert (with_bias > 10 * without).all()


def test_cross_attention_is_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries and keys of different sequences have no distance."""
    scanned: list[Slot] = []

    def scan(_: object, slot: Slot, *__: object, **___: object) -> dict[int, float]:
        scanned.append(slot)
        return {}

    monkeypatch.setattr(statistics, "has_linear_queries", lambda trace: False)
    monkeypatch.setattr(survey, "scan_angles", scan)
    found = survey_of(growing_bench(), "keys")
    assert {str(slot) for slot in found.layers} == {"enc.0", "dec.0", "cross.0"}
    assert not scanned, "angles are compared when they are first asked for"
    assert not found.pairs and {str(slot) for slot in scanned} == {"enc.0", "dec.0"}
