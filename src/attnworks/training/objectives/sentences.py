"""For models without a head: what a head does to the direction of a sentence's embedding."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.text.tokens import TextBatch
from attnworks.training.objectives.contract import TEXT_OBJECTIVES, Outputs, TextObjective


@TEXT_OBJECTIVES.register("embedding")
class SentenceEmbedding(TextObjective):
    """losses: <u, e>;   distance: 1 - cos(e, e_whole);   e = m / |m|, m = mean of `hidden` over real tokens.

    u is a unit vector drawn for each sentence from the seed and the number of the sentence in the corpus.
    The distance to the model's own embedding is smallest at the model itself, where its gradient vanishes. The gradient
    of <u, e> does not: over all u of d coordinates, |d<u, e>/dg| averages to |de/dg| Gamma(d/2) / (sqrt(pi)
    Gamma((d + 1)/2)), which is near sqrt(2 / (pi d)) |de/dg|. Its values and its sign have no meaning of their own.
    Source: mean pooling and cosine of Reimers and Gurevych 2019; u is ours.
    Departs: the distance to an embedding of zeros is 1, between two of them 0.
    """

    name = "embedding"
    words = "how far the sentence embedding turns"
    reads_scores = False
    relative = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def losses(self, outputs: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        e = embeddings(outputs, batch)
        return (e * self.directions(rows, e.shape[-1]).to(e)).sum(-1)

    def distance(self, outputs: Outputs, whole: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        """1 - cos as |e - e_whole|^2 / 2, which keeps its digits where a head changes little."""
        e, e_whole = embeddings(outputs, batch), embeddings(whole, batch)
        pointing = e.detach().any(-1).long() + e_whole.detach().any(-1)
        return (e - e_whole).square().sum(-1) / pointing.clamp_min(1)

    def directions(self, rows: Int[Tensor, " b"], width: int) -> Float[Tensor, "b e"]:
        """u of these sentences, in float64."""
        drawn = [np.random.default_rng([self.seed, row]).standard_normal(width) for row in rows.tolist()]
        return F.normalize(torch.from_numpy(np.stack(drawn)), dim=-1)


def embeddings(outputs: Outputs, batch: TextBatch) -> Float[Tensor, "b e"]:
    """The mean of `hidden` over the real tokens of the side that is read last, normalised, at least in float32."""
    real = batch.sides("decoder")[0].real.unsqueeze(-1)
    wide = torch.promote_types(outputs.hidden.dtype, torch.float32)
    total = outputs.hidden.to(wide).masked_fill(~real, 0.0).sum(-2)
    return F.normalize(total / real.sum(-2).clamp_min(1), dim=-1, eps=torch.finfo(wide).tiny)
