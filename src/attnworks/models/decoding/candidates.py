"""What decoding returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """One target sentence that a model wrote.

    tokens     without bos and eos
    logprob    sum_t log p(y_t | y_<t, x), with the term of eos if `finished` (S4.5)
    score      what hypotheses were ranked by: logprob over the length penalty in beam search, else logprob itself
    finished   whether the model wrote eos; if not, it was stopped
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    finished: bool
