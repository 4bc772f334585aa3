"""How far a model with heads off is from the original: what rankings by curvature take gradients of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.text.tokens import Batch
from attnworks.training.objectives.contract import Objective, Outputs
from attnworks.training.objectives.sentences import SentenceEmbedding, embeddings

LIKELIEST = 64
"""The number of choices of the original model, at every position, whose probabilities are kept."""

Seed = Sequence[int]


class Distance:
    """For an objective without a known curvature: its own distance, and the gradients of its losses.

    keep    what is kept of the original's outputs
    away    D_s of every sentence s, the distance to the original, with its true gradient
    draw    z_s of every sentence. E[grad z_s grad z_s^T] stands for the second derivative of D_s
    flat    whether the gradient of D is zero at the original
    random  whether z depends on the seed

    The draws of this class do not depend on the seed: grad z_s is the gradient of the loss of s. That is the empirical
    Fisher matrix, which is near the second derivative only for a loss -log p of a model that is nearly right.
    """

    flat: ClassVar[bool] = False
    random: ClassVar[bool] = False

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def keep(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Any:
        return self.objective.target(outputs, batch, rows)

    def away(self, outputs: Outputs, kept: Any, batch: Batch, rows: Tensor) -> Float[Tensor, " b"]:
        return self.objective.distance(outputs, kept, batch, rows)

    def draw(self, outputs: Outputs, batch: Batch, rows: Tensor, seed: Seed) -> Float[Tensor, " b"]:
        del seed
        return self.objective.losses(outputs, batch, rows)


class EmbeddingDistance(Distance):
    """D = 1 - cos(e, e_0) = |e - e_0|^2 / 2 of unit vectors, and z = <u, e> with u ~ N(0, I).

    E[grad z grad z^T] = J^T E[u u^T] J = J^T J with J = de / dg, the Gauss-Newton matrix of D.
    """

    flat = random = True

    def draw(self, outputs: Outputs, batch: Batch, rows: Tensor, seed: Seed) -> Float[Tensor, " b"]:
        e = embeddings(outputs, batch)
        drawn = [np.random.default_rng([*seed, row]).standard_normal(e.shape[-1]) for row in rows.tolist()]
        return (e * torch.from_numpy(np.stack(drawn)).to(e)).sum(-1)


class Likeliest(NamedTuple):
    """The original's distribution at every counted position: its likeliest choices, and all others as one.

    rest    probability of all others together
    """

    choices: Int[Tensor, "n k"]
    chance: Float[Tensor, "n k"]
    rest: Float[Tensor, " n"]


class ChoiceDistance(Distance):
    """For cross-entropies: D = 1/n sum_t KL(p_0t || p_t) over the n positions of a sentence, and labels y_t ~ p_t.

    Of p_0 the LIKELIEST choices are kept, and all others count as one choice, so that no table of logits is stored.
    z = -1/sqrt(n) sum_t log p_t(y_t), where y_t is drawn from the model itself at each position t. The gradients by
    the logits, p_t - onehot(y_t), have mean zero and are independent, so that with J_t = d logits_t / dg

        E[grad z grad z^T] = 1/n sum_t J_t^T (diag p_t - p_t p_t^T) J_t

    This is the Gauss-Newton matrix of D, and of the cross-entropy with any labels: the Fisher matrix.
    Source: Martens 2020, sections 8 and 9.
    Holds when: all but a little of p_0 is on the choices that are kept; else D is smaller than the divergence.
    """

    flat = random = True

    def keep(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Likeliest:
        logits, _ = self._counted(outputs, batch, rows)
        log_chance, found = (logits - logits.logsumexp(-1, keepdim=True)).topk(min(LIKELIEST, logits.shape[-1]))
        chance = log_chance.exp()
        return Likeliest(found, chance, (1 - chance.sum(-1)).clamp_min(0.0))

    def away(self, outputs: Outputs, kept: Likeliest, batch: Batch, rows: Tensor) -> Float[Tensor, " b"]:
        logits, counts = self._counted(outputs, batch, rows)
        log_chance = logits.gather(-1, kept.choices) - logits.logsumexp(-1, keepdim=True)
        tiny = torch.finfo(logits.dtype).eps
        rest = (1 - log_chance.exp().sum(-1)).clamp_min(tiny)
        apart = (torch.special.xlogy(kept.chance, kept.chance) - kept.chance * log_chance).sum(-1)
        apart = apart + torch.special.xlogy(kept.rest, kept.rest) - kept.rest * rest.log()
        return _sums(apart, counts) / counts.clamp_min(1)

    def draw(self, outputs: Outputs, batch: Batch, rows: Tensor, seed: Seed) -> Float[Tensor, " b"]:
        logits, counts = self._counted(outputs, batch, rows)
        with torch.no_grad():
            parts = zip(logits.split(counts.tolist()), rows.tolist(), strict=True)
            drawn = torch.cat([sampled(own, [*seed, row]) for own, row in parts])
        surprise = logits.logsumexp(-1) - logits.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        return _sums(surprise, counts) / counts.clamp_min(1).sqrt()

    def _counted(self, outputs: Outputs, batch: Batch, rows: Tensor) -> tuple[Float[Tensor, "n w"], Int[Tensor, " b"]]:
        """The logits of all counted positions, sentence by sentence, and how many each sentence has."""
        choices = self.objective.choices(outputs, batch, rows)
        wide = torch.promote_types(choices.logits.dtype, torch.float32)
        return choices.logits[choices.counted].to(wide), choices.counted.sum(-1)


def sampled(logits: Float[Tensor, "n w"], seed: Seed) -> Int[Tensor, " n"]:
    """One choice at each position, with the probabilities softmax(logits)."""
    sums = logits.softmax(-1).cumsum(-1)
    drawn = torch.from_numpy(np.random.default_rng(seed).random((len(logits), 1))).to(sums)
    return torch.searchsorted(sums, drawn * sums[:, -1:], right=True).clamp_max(logits.shape[-1] - 1).squeeze(-1)


def distance_of(objective: Objective) -> Distance:
    """The distance that fits an objective."""
    if isinstance(objective, SentenceEmbedding):
        return EmbeddingDistance(objective)
    return (ChoiceDistance if objective.chooses else Distance)(objective)


def _sums(values: Float[Tensor, " n"], counts: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """The sum over the positions of each sentence."""
    sentence = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return values.new_zeros(len(counts)).index_add(0, sentence, values)
