"""Refusing what cannot be decoded with."""

from __future__ import annotations

import math

from attnworks.core.errors import UsageError


def at_least_one(name: str, value: int, remedy: str) -> None:
    if value < 1:
        raise UsageError(asked=f"decoding with {name}={value}", expected="1 or more", got=str(value), remedy=remedy)


def check_longest(longest: int) -> None:
    at_least_one("longest", longest, "longest counts the tokens written, eos included")


def check_eos(eos: int, vocabulary: int) -> None:
    if not 0 <= eos < vocabulary:
        raise UsageError(
            asked=f"decoding with eos={eos}",
            expected=f"one of the {vocabulary} tokens that the model can write, 0 to {vocabulary - 1}",
            got=str(eos),
            remedy="pass the id of the end token in the target vocabulary",
        )


def check_beam(beams: int, n_best: int, alpha: float) -> None:
    at_least_one("beams", beams, "beams=1 is greedy decoding")
    if not 1 <= n_best <= beams:
        raise UsageError(
            asked=f"the {n_best} best of a beam search",
            expected=f"1 to {beams} of them, as many as there are beams",
            got=f"n_best={n_best} with beams={beams}",
            remedy="ask for fewer hypotheses, or search with more beams",
        )
    if not 0 <= alpha < math.inf:
        raise UsageError(
            asked=f"beam search with alpha={alpha}",
            expected="a finite number of 0 or more",
            got=str(alpha),
            remedy="alpha=0 ranks by probability alone, 0.6 to 1 is usual",
        )


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not 0 < temperature < math.inf:
        raise UsageError(
            asked=f"sampling with temperature={temperature}",
            expected="a finite number above 0",
            got=str(temperature),
            remedy="use greedy, which is the limit of sampling as the temperature goes to 0",
        )
    if top_k is not None:
        at_least_one("top_k", top_k, "top_k=1 is greedy decoding, top_k=None keeps every token")
    if top_p is not None and not 0 < top_p <= 1:
        raise UsageError(
            asked=f"sampling with top_p={top_p}",
            expected="a share of probability above 0 and at most 1",
            got=str(top_p),
            remedy="0.9 is usual, top_p=None keeps every token",
        )
