"""A language model so small that the probability of every text is known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.models import decoding
from attnworks.models.decoding import Hypothesis


@dataclass(frozen=True, eq=False)
class Begun:
    """Which beginning each hypothesis is."""

    beginning: Int[Tensor, "s beams"]

    @property
    def sentences(self) -> int:
        return len(self.beginning)

    def reorder(self, origin: Int[Tensor, "s kept"]) -> Begun:
        return Begun(self.beginning.gather(1, origin))

    def keep(self, sentences: Int[Tensor, " kept"]) -> Begun:
        return Begun(self.beginning[sentences])


class Toy:
    """Scores of the next word after every beginning of a text; the last token is no word, but the end.

    Beginning 0 is the empty text, and b with word w behind it is b * words + w + 1: those of one length are side by
    side, in the order of a dictionary.
    """

    def __init__(self, scores: Float[Tensor, "beginnings w1"]) -> None:
        self.scores, self.words = scores, scores.shape[-1] - 1

    @classmethod
    def endless(cls, scores: Float[Tensor, "beginnings w"]) -> Toy:
        """Texts never end by themselves."""
        return cls(F.pad(scores, (0, 1), value=-torch.inf))

    @classmethod
    def of_joint(cls, p: Float[Tensor, " texts"], words: int, length: int) -> Toy:
        """p(y_t | y_<t) from the probabilities of all texts of one length: the sum over what comes later."""
        sums = [p.reshape(words**t, words, -1).sum(-1) for t in range(length)]
        return cls.endless(torch.cat(sums).log())

    def start(self, source: Int[Tensor, "s i"], padding: Bool[Tensor, "s i"] | None = None) -> Begun:
        del padding
        return Begun(torch.full((len(source), 1), -1))

    def step(self, tokens: Int[Tensor, "s beams"], state: Begun) -> tuple[Float[Tensor, "s beams w1"], Begun]:
        first = state.beginning < 0
        beginning = torch.where(first, 0, state.beginning * self.words + tokens + 1)
        return self.scores[beginning], Begun(beginning)

    def greedy(self, longest: int) -> Hypothesis:
        return decoding.greedy(self, torch.zeros(1, 1, dtype=torch.long), bos=0, eos=self.words, longest=longest)[0]

    def beam(self, beams: int, longest: int, n_best: int = 1) -> list[Hypothesis]:
        source = torch.zeros(1, 1, dtype=torch.long)
        return decoding.beam(
            self, source, bos=0, eos=self.words, beams=beams, longest=longest, alpha=0.0, n_best=n_best
        )[0]

    def every_text(self, length: int) -> Float[Tensor, " texts"]:
        """log p(y) of all texts of this many words, in the order of a dictionary: sum_t log p(y_t | y_<t)."""
        conditional = self.scores.log_softmax(-1)[:, : self.words]
        logprob, first = torch.zeros(1, dtype=conditional.dtype), 0
        for t in range(length):
            here = conditional[first : first + self.words**t]
            logprob, first = (logprob[:, None] + here).flatten(), first + self.words**t
        return logprob


def beginnings(words: int, length: int) -> int:
    """How many texts are shorter than `length` words."""
    return sum(words**t for t in range(length))


def trap() -> Toy:
    """The likely first word, 0.6, is followed by anything; the other, 0.4, by one word with 0.9.

    Greedy decoding writes 0.6 * 0.34; the most probable text has 0.4 * 0.9.
    """
    first, after_likely, after_other = (0.6, 0.4, 0.0), (0.34, 0.33, 0.33), (0.9, 0.05, 0.05)
    return Toy.endless(torch.tensor([first, after_likely, after_other, (1.0, 0.0, 0.0)], dtype=torch.float64).log())
