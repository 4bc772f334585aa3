"""The hypotheses that are still being written."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Frontier:
    """Hypotheses of the sentences that are still in the batch, the most probable first.

    sentence   which sentence of the caller's batch each row is
    tokens     what was written so far, then unused places up to `longest`
    """

    sentence: Int[Tensor, " s"]
    tokens: Int[Tensor, "s beams longest"]
    logprob: Float[Tensor, "s beams"]

    @classmethod
    def start(cls, source: Int[Tensor, "s i"], longest: int) -> Frontier:
        """One empty hypothesis for each sentence."""
        sentences, device = len(source), source.device
        return cls(
            torch.arange(sentences, device=device),
            torch.zeros(sentences, 1, longest, dtype=torch.long, device=device),
            torch.zeros(sentences, 1, device=device),
        )

    def grown(
        self,
        parent: Int[Tensor, "s children"],
        token: Int[Tensor, "s children"],
        logprob: Float[Tensor, "s children"],
        length: int,
    ) -> Frontier:
        """Children of these hypotheses, with their last token, `length` tokens long."""
        tokens = self.tokens_of(parent)
        tokens[:, :, length - 1] = token
        return Frontier(self.sentence, tokens, logprob)

    def tokens_of(self, parent: Int[Tensor, "s children"]) -> Int[Tensor, "s children longest"]:
        return self.tokens.gather(1, parent.unsqueeze(-1).expand(-1, -1, self.tokens.shape[-1]))

    def keep(self, rows: Int[Tensor, " kept"]) -> Frontier:
        return Frontier(self.sentence[rows], self.tokens[rows], self.logprob[rows])
