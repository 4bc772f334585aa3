"""The best hypotheses that ended."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.models.decoding.largest import largest


@dataclass(frozen=True, eq=False)
class Finished:
    """The `best` finished hypotheses of each sentence in falling score; places not yet taken score -inf.

    length   tokens, eos not included
    """

    tokens: Int[Tensor, "s best longest"]
    length: Int[Tensor, "s best"]
    logprob: Float[Tensor, "s best"]
    score: Float[Tensor, "s best"]

    @classmethod
    def none(cls, sentences: int, best: int, longest: int, device: torch.device) -> Finished:
        nothing = torch.full((sentences, best), -torch.inf, device=device)
        tokens = torch.zeros(sentences, best, longest, dtype=torch.long, device=device)
        return cls(tokens, torch.zeros_like(tokens[..., 0]), nothing, nothing)

    def add(
        self,
        tokens: Int[Tensor, "s new longest"],
        length: int,
        logprob: Float[Tensor, "s new"],
        score: Float[Tensor, "s new"],
    ) -> Finished:
        """The best of these and of new ones of one length; among equals, what finished first stays first."""
        score, place = largest(torch.cat([self.score, score], 1), self.score.shape[1])
        lengths = torch.cat([self.length, self.length.new_full(logprob.shape, length)], 1)
        return Finished(
            torch.cat([self.tokens, tokens], 1).gather(1, place.unsqueeze(-1).expand(-1, -1, tokens.shape[-1])),
            lengths.gather(1, place),
            torch.cat([self.logprob, logprob], 1).gather(1, place),
            score,
        )

    def keep(self, rows: Int[Tensor, " kept"]) -> Finished:
        return Finished(self.tokens[rows], self.length[rows], self.logprob[rows], self.score[rows])
