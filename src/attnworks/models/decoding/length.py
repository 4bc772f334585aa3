"""The length penalty, without which beam search prefers short sentences: every token lowers the probability."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def length_penalty(length: int, alpha: float) -> float:
    """lp(n) = ((5 + n) / 6)^alpha; a hypothesis of n tokens, eos included, scores logprob / lp(n).

    Source: Wu et al. 2016 (GNMT), eq. 14.
    """
    return ((5 + length) / 6) ** alpha


def best_reachable(logprob: Float[Tensor, "*a"], longest: int, alpha: float) -> Float[Tensor, "*a"]:
    """No ending of an unfinished hypothesis with log-probability s scores above s / lp(longest).

    Each further token adds log p <= 0, so that the ending has s' <= s <= 0 and scores s' / lp(n) <= s / lp(n);
    and s / lp(n) <= s / lp(longest) for n <= longest, since s <= 0 and lp grows with n.
    Holds when: alpha >= 0. Rounding keeps it true, because sums and quotients round monotonically.
    """
    return logprob / length_penalty(longest, alpha)
