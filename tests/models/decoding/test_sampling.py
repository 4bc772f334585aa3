"""Sampled texts have the probabilities they should have."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from attnworks.models.decoding import greedy, sample
from tests.models.decoding.decoding_helpers import BOS, EOS, Toy, sources, transformer

DRAWS = 20_011
ASKED: dict[str, Any] = {"bos": BOS, "eos": EOS}


def draws(toy: Toy, longest: int, seed: int = 29, **options: Any) -> Counter[tuple[int, ...]]:
    """How often each text was written, eos included."""
    source = torch.zeros(DRAWS, 1, dtype=torch.long)
    generator = torch.Generator().manual_seed(seed)
    found = sample(toy, source, max_new_tokens=longest, generator=generator, **ASKED, **options)
    return Counter((*one.tokens, EOS) if one.finished else one.tokens for one in found)


def fits(counts: Counter[tuple[int, ...]], p: dict[tuple[int, ...], float]) -> bool:
    assert set(counts) <= {text for text, share in p.items() if share > 0}
    assert sum(p.values()) == pytest.approx(1.0)
    texts = [text for text, share in p.items() if share > 0]
    return (
        len(texts) == 1
        or chisquare([counts[text] for text in texts], [DRAWS * p[text] for text in texts]).pvalue > 1e-3
    )


def one_step(*p: float) -> Toy:
    """Probabilities of the first token; the scores are off by a constant."""
    return Toy(torch.tensor([[p]], dtype=torch.float64).log() + 5.0)


def test_whole_texts() -> None:
    """Three steps of the model's own distribution: every ending and every cut text with its probability."""
    toy = Toy.random(1, 3, 3, seed=31)
    p = {(*one.tokens, EOS): math.exp(one.logprob) for one in toy.endings(0, 3, 0.0)}
    p |= {(a, b, c): math.exp(toy.logprob(0, (a, b, c))) for a in (0, 1) for b in (0, 1) for c in (0, 1)}
    assert fits(draws(toy, 3), p)
    assert not fits(draws(toy, 3, temperature=1.3), p)


@pytest.mark.parametrize(
    ("options", "p"),
    [
        ({}, (0.1, 0.4, 0.3, 0.2)),
        ({"temperature": 0.5}, (1 / 30, 16 / 30, 9 / 30, 4 / 30)),
        ({"top_k": 2}, (0.0, 4 / 7, 3 / 7, 0.0)),
        ({"top_k": 97}, (0.1, 0.4, 0.3, 0.2)),
        ({"top_p": 0.39}, (0.0, 1.0, 0.0, 0.0)),
        ({"top_p": 0.41}, (0.0, 4 / 7, 3 / 7, 0.0)),
        ({"top_p": 0.69}, (0.0, 4 / 7, 3 / 7, 0.0)),
        ({"top_p": 0.71}, (0.0, 4 / 9, 3 / 9, 2 / 9)),
        ({"top_p": 1.0}, (0.1, 0.4, 0.3, 0.2)),
        ({"top_k": 3, "top_p": 0.76}, (0.0, 4 / 7, 3 / 7, 0.0)),
        ({"top_k": 3, "top_p": 0.78}, (0.0, 4 / 9, 3 / 9, 2 / 9)),
        ({"temperature": 0.5, "top_p": 0.52}, (0.0, 1.0, 0.0, 0.0)),
    ],
)
def test_first_token(options: dict[str, Any], p: tuple[float, ...]) -> None:
    counts = draws(one_step(0.1, 0.4, 0.3, 0.2), 1, **options)
    assert fits(counts, {(token,): share for token, share in enumerate(p)})


def test_logprob_is_the_models_own() -> None:
    toy = one_step(0.1, 0.4, 0.3, 0.2)
    generator = torch.Generator().manual_seed(37)
    source = torch.zeros(41, 1, dtype=torch.long)
    for one in sample(toy, source, max_new_tokens=1, temperature=0.3, top_k=2, generator=generator, **ASKED):
        token = EOS if one.finished else one.tokens[0]
        assert math.exp(one.logprob) == pytest.approx((0.1, 0.4, 0.3, 0.2)[token])
        assert one.score == one.logprob


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-300}, {"temperature": 5e-324}])
@given(seed=st.integers(0, 1000))
def test_limits_are_greedy(options: dict[str, Any], seed: int) -> None:
    toy = Toy.random(7, 5, 4, seed)
    generator = torch.Generator().manual_seed(seed)
    drawn = sample(toy, toy.source, max_new_tokens=4, generator=generator, **ASKED, **options)
    assert drawn == greedy(toy, toy.source, max_new_tokens=4, **ASKED)


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.9}, {"temperature": 2.0}])
def test_same_generator_same_texts(options: dict[str, Any]) -> None:
    model, (source, real) = transformer().float(), sources()

    def drawn(seed: int) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        return sample(model, source, real, max_new_tokens=13, generator=generator, **ASKED, **options)

    assert drawn(43) == drawn(43)
    assert drawn(43) != drawn(47)


def test_without_a_generator_the_global_seed_counts() -> None:
    toy = Toy.random(5, 5, 4, seed=53)
    torch.manual_seed(59)
    first = sample(toy, toy.source, max_new_tokens=4, **ASKED)
    torch.manual_seed(59)
    assert sample(toy, toy.source, max_new_tokens=4, **ASKED) == first
