"""Frequency pairs: the angle by which the pairs of each head should turn, and T for it.

A pair of columns adds Re(e^{i theta (i - j)} (x_i . alpha) conj(z_j . beta)) to the scores (`directions`), and so can
tell positions apart by their distance. Angles are compared on the sample from which the metric is computed. T for the
best one then comes from a second pass over all sentences, only for heads that a pair serves better than a column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
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
    weighted_rows,
    whitening,
)
from attnworks.reshape.growth.statistics import (
    CHECKING_SLICE,
    FITTING_SLICE,
    gather_graded_sample,
    graded_pass,
    summed_products,
)
from attnworks.traces.loss import TextLoss

FINE_STEP = 2**0.25
"""The ratio of angles that are compared around the best one of `angles_for`, whose ratio is its square."""
LARGEST_ANGLE = math.pi / FINE_STEP**1.5
"""So that all angles compared are below half a turn per position, where the two columns of a pair do not mix."""
SCAN_CUTOFF = 0.01
"""As in `score.VARIANCE_CUTOFFS`, for the comparison of angles."""
POWER_STEPS = 6
"""Steps of the power method, by which the largest singular pair of T is found."""
MAX_SCAN_SENTENCES = 96
"""The largest number of sentences on which angles are compared."""


def angles_for(length: int) -> tuple[float, ...]:
    """Angles to compare for sentences of this length: each the one before over sqrt(2), down to a radian over them all.

    No angle between the largest and the smallest is further than a factor 2^(1/4) from one of them, which holds for the
    angles of rotary embeddings too. Smaller angles are nearly plain columns.
    """
    count = 1 + max(0, math.floor(2 * math.log2(LARGEST_ANGLE * max(1, length))))
    return tuple(LARGEST_ANGLE / FINE_STEP ** (2 * number) for number in range(count))


def gains_by_angle(
    sample: ScoreSample, G: Float[Tensor, "n h i j"], angles: Sequence[float]
) -> Float[Tensor, "angles h"]:
    """How much one pair with each angle, or one column for the angle 0, should lower the loss in every head.

    The direction, the largest singular pair of T, comes from half of the sentences; slope and curvature from the other
    half, where noise has no slope. Then the halves change places, and the mean is taken. The sample is whitened.
    """
    halves = (slice(0, None, 2), slice(1, None, 2))
    gains: list[Tensor] = []
    for angle in angles:
        turned = sample._replace(X=rotated(sample.X, angle), Y=rotated(sample.Y, angle))
        ways = [_checked_gain(turned, G, fitted, checked) for fitted, checked in (halves, halves[::-1])]
        gains.append(torch.stack(ways).mean(0))
    return torch.stack(gains)


def whitened_states(sample: ScoreSample) -> ScoreSample:
    """The sample in coordinates in which the second moments of X and Y are the identity."""
    W_x, W_y = whitening(sample, SCAN_CUTOFF)
    return sample._replace(X=sample.X @ W_x, Y=sample.Y @ W_y)


def _checked_gain(sample: ScoreSample, G: Tensor, fitted: slice, checked: slice) -> Float[Tensor, " h"]:
    """The gain on the checked sentences of a direction from the fitted ones, with X and Y already rotated."""
    u, v = _largest_pair(sample.X[fitted], G[fitted], sample.Y[fitted])
    q, k = projected(sample.X[checked], -u), projected(sample.Y[checked], v)
    slope = -real_product(q, weighted_rows(G[checked], k)).mean(0)
    slopes = None if sample.slopes is None else sample.slopes[checked]
    return best_gain(slope, Metric.of(sample._replace(P=sample.P[checked], slopes=slopes)).curvature(q, k))


def _largest_pair(X: Tensor, G: Tensor, Y: Tensor) -> tuple[Inexact[Tensor, "h e 1"], Inexact[Tensor, "h f 1"]]:
    """The first singular vectors of T = mean X^H G Y by the power method, without T itself."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(G.shape[1], Y.shape[-1], 1, generator=generator, dtype=torch.float64).to(Y)
    u = v
    for _ in range(POWER_STEPS):
        u = F.normalize(pulled(X, weighted_rows(G, projected(Y, v))), dim=1)
        v = F.normalize(pulled(Y, weighted_rows(G.mT, projected(X, u))), dim=1)
    return u, v


def scan_angles(text_loss: TextLoss, slot: Slot, output: nn.Module, *, biased_keys: bool) -> dict[int, float]:
    """`best_angles` of a layer, whose output this module gives."""
    sample, G = gather_graded_sample(text_loss, slot, output, MAX_SCAN_SENTENCES)
    return best_angles(sample, G, biased_keys=biased_keys)


def best_angles(sample: ScoreSample, G: Float[Tensor, "n h i j"], *, biased_keys: bool) -> dict[int, float]:
    """The best angle for each head in which a pair should lower the loss by more than twice what one column does."""
    if len(sample.X) < 2 or not bool(sample.P.any()):
        return {}
    plain = gains_by_angle(whitened_states(sample), G, (0.0,))[0].tolist()
    sample = whitened_states(with_key_bias(sample) if biased_keys else sample)
    angles = angles_for(sample.P.shape[-1])
    coarse = gains_by_angle(sample, G, angles).argmax(0).tolist()
    found: dict[int, float] = {}
    for head, number in enumerate(coarse):
        near = [angles[number] * factor for factor in (1.0, FINE_STEP, 1 / FINE_STEP)]
        gains = gains_by_angle(sample.of_heads((head,)), G[:, head : head + 1], near).flatten()
        if float(gains.max()) > 2 * plain[head]:
            found[head] = near[int(gains.argmax())]
    return found


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
