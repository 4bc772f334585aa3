"""Frequency pairs: the angle by which the pairs of each head should turn, and T for it.

A pair of columns adds Re(e^{i theta (i - j)} (x_i . alpha) conj(z_j . beta)) to the scores (`directions`), and so can
tell positions apart by their distance. Angles are compared on the sample from which the metric is computed. T for the
best one then comes from a second pass over all sentences, only for heads that a pair serves better than a column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Inexact
from torch import Tensor, nn

from attnworks.core.places import Slot
from attnworks.reshape.growth.graded import GradedLayer, key_states, query_states
from attnworks.reshape.growth.metric import (
    Metric,
    ScoreSample,
    best_gain,
    projected,
    pulled,
    real_product,
    rotated,
    weighted,
    whitening,
)
from attnworks.reshape.growth.statistics import CHECKING_SLICE, FITTING_SLICE, graded_pass, summed_products
from attnworks.traces.loss import TextLoss

LARGEST_ANGLE = math.pi / math.sqrt(2)
"""The middle, by ratio, between half a turn and a quarter per position."""
SCAN_CUTOFF = 0.01
"""As in `score.VARIANCE_CUTOFFS`, for the comparison of angles."""
POWER_STEPS = 8
"""Steps of the power method, by which the largest singular pair of T is found."""
POWER_COLUMNS = 2
"""Vectors that are iterated together."""


def angles_for(length: int) -> tuple[float, ...]:
    """Angles to compare for sentences of this length: each half of the one before, down to one radian over them all.

    So no angle between half a turn per position and the smallest is further than a factor sqrt(2) from one of them,
    which holds for the angles of rotary embeddings too. Smaller ones are nearly plain columns.
    """
    count = 1 + max(0, math.floor(math.log2(LARGEST_ANGLE * max(1, length))))
    return tuple(LARGEST_ANGLE / 2**number for number in range(count))


def gains_by_angle(
    sample: ScoreSample, G: Float[Tensor, "n h i j"], angles: tuple[float, ...]
) -> Float[Tensor, "angles h"]:
    """How much one pair with each angle, or one column for the angle 0, should lower the loss in every head.

    The direction, the largest singular pair of the whitened T, comes from half of the sentences; slope and curvature
    from the other half, where noise has no slope. Then the halves change places, and the mean is taken.
    """
    W_x, W_y = whitening(sample, SCAN_CUTOFF)
    X, Y = sample.X @ W_x, sample.Y @ W_y
    halves = (slice(0, None, 2), slice(1, None, 2))
    gains: list[Tensor] = []
    for angle in angles:
        turned = sample._replace(X=rotated(X, angle), Y=rotated(Y, angle))
        ways = [_checked_gain(turned, G, fitted, checked) for fitted, checked in (halves, halves[::-1])]
        gains.append(torch.stack(ways).mean(0))
    return torch.stack(gains)


def _checked_gain(sample: ScoreSample, G: Tensor, fitted: slice, checked: slice) -> Float[Tensor, " h"]:
    """The gain on the checked sentences of a direction from the fitted ones; X and Y are whitened and rotated."""
    u, v = _largest_pair(sample.X[fitted], G[fitted], sample.Y[fitted])
    q, k = projected(sample.X[checked], -u), projected(sample.Y[checked], v)
    slope = -real_product(q, weighted(G[checked], k)).mean(0)
    slopes = None if sample.slopes is None else sample.slopes[checked]
    return best_gain(slope, Metric.of(sample._replace(P=sample.P[checked], slopes=slopes)).curvature(q, k))


def _largest_pair(X: Tensor, G: Tensor, Y: Tensor) -> tuple[Inexact[Tensor, "h e 1"], Inexact[Tensor, "h f 1"]]:
    """The first singular vectors of T = mean X^H G Y by the power method, without T itself."""
    generator = torch.Generator().manual_seed(0)
    shape = (G.shape[1], Y.shape[-1], min(POWER_COLUMNS, X.shape[-1], Y.shape[-1]))
    v = torch.randn(shape, generator=generator, dtype=torch.float64).to(Y)
    for _ in range(POWER_STEPS):
        u = torch.linalg.qr(pulled(X, weighted(G, projected(Y, v)))).Q
        v = torch.linalg.qr(pulled(Y, weighted(G.mT, projected(X, u)))).Q
    U, _, Vh = torch.linalg.svd(pulled(X, weighted(G, projected(Y, v))), full_matrices=False)
    return U[..., :1], v @ Vh.mH[..., :1]


def best_angles(sample: ScoreSample, G: Float[Tensor, "n h i j"], *, biased_keys: bool) -> dict[int, float]:
    """The best angle for each head in which a pair should lower the loss by more than twice what one column does."""
    if len(sample.X) < 2 or not bool(sample.P.any()):
        return {}
    plain = gains_by_angle(sample, G, (0.0,))[0]
    angles = angles_for(sample.P.shape[-1])
    turned = gains_by_angle(with_key_bias(sample) if biased_keys else sample, G, angles)
    best = turned.max(0)
    pays = best.values > 2 * plain
    return {head: angles[int(best.indices[head])] for head in pays.nonzero().flatten().tolist()}


def with_key_bias(sample: ScoreSample) -> ScoreSample:
    """The sample with a column of ones for a bias of the keys."""
    return sample._replace(Y=torch.cat([sample.Y, torch.ones_like(sample.Y[..., :1])], -1))


class PairSums:
    """T_theta = mean X'_theta^H (dL/dS) Z'_theta of some heads of a layer, each with its own angle.

    In real numbers: X'^T (cos(theta (i - j)) dL/dS) Z' and, as imaginary part, X'^T (-sin(theta (i - j)) dL/dS) Z'.
    X' and Z' have a column of ones where queries and keys have biases: unlike that of plain columns, the bias of the
    keys matters, as it is rotated.

    angles    head -> angle
    sums      [2 parts h q f] over fitting and over checking sentences, as in `GrowthSums`
    """

    def __init__(self, angles: Mapping[int, float]) -> None:
        self.angles = dict(angles)
        self.sentences = torch.zeros(2, dtype=torch.float64)
        self.sums = torch.zeros(())

    def add(self, layer: GradedLayer, first: int = 0) -> None:
        """A batch whose first sentence has this number among all."""
        X, Z, G = query_states(layer.trace), key_states(layer.trace), layer.by_scores()[:, list(self.angles)]
        i, j = (torch.arange(length, dtype=G.dtype, device=G.device) for length in G.shape[-2:])
        phases = G.new_tensor(list(self.angles.values()))[:, None, None] * (i[:, None] - j)
        for half, some in enumerate((FITTING_SLICE, CHECKING_SLICE)):
            part = slice((some.start - first) % some.step, None, some.step)
            for number, turn in enumerate((phases.cos(), -phases.sin())):
                found = summed_products(X[part].unsqueeze(1), (G[part] * turn) @ Z[part].unsqueeze(1)).double()
                if not self.sums.dim():
                    self.sums = found.new_zeros(2, 2, *found.shape)
                self.sums[half, number] += found
            self.sentences[half] += len(X[part])

    def means(self) -> Inexact[Tensor, "2 h q f"]:
        per = self.sentences.clamp_min(1).to(self.sums.device)[:, None, None, None]
        return torch.complex(self.sums[:, 0], self.sums[:, 1]) / per


def gather_pair_sums(
    text_loss: TextLoss,
    outputs: Mapping[Slot, nn.Module],
    angles: Mapping[Slot, Mapping[int, float]],
    tell: Callable[[int, int], None],
) -> dict[Slot, PairSums]:
    """One backward pass over the text, for all layers that have angles."""
    sums = {slot: PairSums(of_heads) for slot, of_heads in angles.items() if of_heads}
    for layer, start in graded_pass(text_loss, {slot: outputs[slot] for slot in sums}, tell):
        sums[layer.trace.slot].add(layer, start)
    return sums
