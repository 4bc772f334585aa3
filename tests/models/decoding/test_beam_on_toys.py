"""Beam search against every text there is, and against a beam search written with lists."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.models.decoding import BeamStep, beam, best_reachable, greedy, length_penalty
from tests.models.decoding.decoding_helpers import BOS, EOS, Toy, beam_by_lists, same

SEEDS = st.integers(0, 10_000)
ALPHAS = st.sampled_from([0.0, 0.6, 1.0, 2.5])


def table(vocabulary: int, nodes: dict[int, dict[int, float]]) -> Toy:
    """Probabilities by node and token; all other nodes end at once."""
    scores = torch.full((1, 101, vocabulary), -math.inf, dtype=torch.float64)
    scores[:, :, EOS] = 0.0
    for node, p in nodes.items():
        scores[0, node] = torch.tensor([p.get(token, 0.0) for token in range(vocabulary)], dtype=torch.float64).log()
    return Toy(scores)


@given(SEEDS, ALPHAS, st.sampled_from([(3, 4), (4, 3), (5, 3)]))
def test_wide_beam_is_exact(seed: int, alpha: float, sizes: tuple[int, int]) -> None:
    """S4.12: N >= |V|^(T - 1) beams find the true best; |V|^T find the true n best."""
    vocabulary, longest = sizes
    toy = Toy.random(2, vocabulary, longest, seed)
    asked: dict[str, Any] = {"bos": BOS, "eos": EOS, "max_new_tokens": longest, "alpha": alpha}
    narrow = beam(toy, toy.source, beams=vocabulary ** (longest - 1), **asked)
    wide = beam(toy, toy.source, beams=vocabulary**longest, n_best=7, **asked)
    for kind in range(2):
        every = toy.endings(kind, longest, alpha)
        same(narrow[kind], every[:1])
        same(wide[kind], every[:7])


@given(SEEDS, ALPHAS, st.integers(1, 7), st.data())
def test_equals_the_search_by_lists(seed: int, alpha: float, beams: int, data: st.DataObject) -> None:
    """Which also knows no early stop: stopping by the bound loses nothing."""
    vocabulary, longest = data.draw(st.sampled_from([(3, 6), (5, 4), (7, 3)]))
    n_best = data.draw(st.integers(1, beams))
    toy = Toy.random(3, vocabulary, longest, seed, spread=data.draw(st.sampled_from([0.3, 1.5, 5.0])))
    got = beam(toy, toy.source, bos=BOS, eos=EOS, beams=beams, max_new_tokens=longest, alpha=alpha, n_best=n_best)
    for kind in range(3):
        expected = beam_by_lists(toy, kind, beams=beams, longest=longest, alpha=alpha, n_best=n_best)
        same(got[kind], expected)


def test_early_stop_saves_steps_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy.random(97, 3, 7, seed=11)
    asked: dict[str, Any] = {"bos": BOS, "eos": EOS, "beams": 3, "max_new_tokens": 7, "n_best": 2}
    steps: list[BeamStep] = []
    early = beam(toy, toy.source, observe=steps.append, **asked)
    saved = 97 * 7 - len(steps)
    module = importlib.import_module("attnworks.models.decoding.beam")
    monkeypatch.setattr(module, "best_reachable", lambda logprob, longest, alpha: torch.zeros_like(logprob))
    assert beam(toy, toy.source, **asked) == early
    assert saved > 97


def test_a_step_in_which_every_beam_ends_is_not_the_last() -> None:
    """p = (eos 1e-9, a .5, b .5); then (eos .51, a .49, b 1e-7); then eos. Both beams end at step 2 with score -1.2458;
    (a, a) is on the beam and ends with -1.1835."""
    a, b, eos = 0, 1, EOS
    assert eos == 2
    later = {eos: 0.51, a: 0.49, b: 1e-7}
    toy = table(3, {0: {eos: 1e-9, a: 0.5, b: 0.5}, 1 + a: later, 1 + b: later})
    ((best,),) = beam(toy, toy.source, bos=BOS, eos=eos, beams=2, max_new_tokens=6, alpha=0.6)
    assert (best.tokens, best.score) == ((a, a), pytest.approx(-1.1835, abs=5e-5))
    ended = math.log(0.5 * 0.51) / length_penalty(2, 0.6)
    assert ended == pytest.approx(-1.2458, abs=5e-5) and best.score > ended


@given(SEEDS, st.integers(1, 5), ALPHAS)
def test_the_bound_holds(seed: int, length: int, alpha: float) -> None:
    """No text scores above the bound of any of its beginnings, to the last bit."""
    toy, longest = Toy.random(1, 3, 6, seed), 6
    for one in toy.endings(0, longest, alpha)[:13]:
        begun = torch.tensor(toy.logprob(0, one.tokens[:length]), dtype=torch.float64)
        if length <= len(one.tokens):
            assert one.score <= float(best_reachable(begun, longest, alpha))


@given(SEEDS, ALPHAS)
def test_one_beam_is_greedy(seed: int, alpha: float) -> None:
    toy = Toy.random(7, 5, 4, seed)
    narrow = beam(toy, toy.source, bos=BOS, eos=EOS, beams=1, max_new_tokens=4, alpha=alpha)
    chain = greedy(toy, toy.source, bos=BOS, eos=EOS, max_new_tokens=4)
    assert [(best.tokens, best.logprob, best.finished) for (best,) in narrow] == [
        (one.tokens, one.logprob, one.finished) for one in chain
    ]
    for (best,) in narrow:
        penalty = length_penalty(len(best.tokens) + best.finished, alpha)
        assert best.score == pytest.approx(best.logprob / penalty, rel=1e-15)


def test_greedy_misses_the_best_text() -> None:
    """S4.11: p(a) = .6, p(b) = .4; p(. | a) = (.34, .33, .33), p(. | b) = (.9, .05, .05)."""
    a, b, c = 0, 1, 3
    after_a, after_b = {a: 0.34, b: 0.33, c: 0.33}, {a: 0.9, b: 0.05, c: 0.05}
    toy = table(4, {0: {a: 0.6, b: 0.4}, 1 + a: after_a, 1 + b: after_b})
    asked: dict[str, Any] = {"bos": BOS, "eos": EOS, "max_new_tokens": 3}
    (chain,) = greedy(toy, toy.source, **asked)
    ((best, *rest),) = beam(toy, toy.source, beams=2, n_best=2, alpha=0.0, **asked)
    assert (chain.tokens, math.exp(chain.logprob)) == ((a, a), pytest.approx(0.204))
    assert (best.tokens, math.exp(best.logprob)) == ((b, a), pytest.approx(0.36))
    assert rest == [chain]


def test_length_penalty_prefers_the_longer() -> None:
    """p(eos) = .55 at once, or .45 a and then eos for sure: log .45 / lp(2) > log .55 / lp(1) from alpha = 1.87 on."""
    toy = table(3, {0: {EOS: 0.55, 0: 0.45}})
    turning = math.log(math.log(0.45) / math.log(0.55)) / math.log(7 / 6)
    for alpha, tokens in ((turning - 0.01, ()), (turning + 0.01, (0,))):
        ((best,),) = beam(toy, toy.source, bos=BOS, eos=EOS, beams=2, max_new_tokens=5, alpha=alpha)
        assert best.tokens == tokens


@given(SEEDS, st.integers(2, 11))
def test_n_best_fall_and_differ(seed: int, beams: int) -> None:
    toy = Toy.random(3, 5, 4, seed)
    for best in beam(toy, toy.source, bos=BOS, eos=EOS, beams=beams, n_best=beams, max_new_tokens=4):
        assert len(best) == beams == len({(one.tokens, one.finished) for one in best})
        ranks = [(not one.finished, -one.score) for one in best]
        assert ranks == sorted(ranks)


def test_fewer_texts_than_asked_for() -> None:
    """Two tokens, one of them eos, and two steps: eos, a eos, and a a, which is cut."""
    toy = Toy.random(1, 2, 2, seed=13)
    (best,) = beam(toy, toy.source, bos=0, eos=0, beams=5, n_best=5, max_new_tokens=2, alpha=0.0)
    assert sorted((one.tokens, one.finished) for one in best) == [((), True), ((1,), True), ((1, 1), False)]
    assert sum(math.exp(one.logprob) for one in best) == pytest.approx(1.0)
    assert best[-1].tokens == (1, 1)


def test_impossible_texts_are_never_returned() -> None:
    toy = table(5, {0: {EOS: 0.25, 0: 0.75}})
    steps: list[BeamStep] = []
    (best,) = beam(toy, toy.source, bos=BOS, eos=EOS, beams=3, n_best=3, max_new_tokens=7, observe=steps.append)
    assert [(one.tokens, one.finished) for one in best] == [((0,), True), ((), True)]
    assert [len(step.kept) for step in steps] == [1, 0]


def test_impossible_endings_are_no_endings() -> None:
    toy = table(3, {0: {0: 1.0}})
    steps: list[BeamStep] = []
    (best,) = beam(toy, toy.source, bos=BOS, eos=EOS, beams=3, n_best=3, max_new_tokens=5, observe=steps.append)
    assert [(one.tokens, one.logprob, one.finished) for one in best] == [((0,), 0.0, True)]
    assert [len(step.ended) for step in steps] == [0, 1]


@pytest.mark.parametrize("beams", [1, 2, 5, 13])
def test_equal_candidates_fall_to_the_lower_beam_and_token(beams: int) -> None:
    """Two tokens besides eos, all three equally likely everywhere."""
    toy = Toy(torch.zeros(2, 1 + 3 + 9 + 27, 3, dtype=torch.float64))
    texts = {
        1: [(0, 0, 0)],
        2: [(0, 0, 0), (0, 0, 1)],
        5: [(), (0,), (0, 0), (0, 0, 0), (0, 0, 1)],
        13: [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)],
    }
    (first, second) = beam(
        toy, toy.source, bos=BOS, eos=EOS, beams=beams, n_best=min(beams, 7), max_new_tokens=3, alpha=0.0
    )
    assert [one.tokens for one in first] == texts[beams]
    assert first == second


@pytest.mark.parametrize("longest", [1, 2, 5])
def test_a_text_that_never_ends_is_cut(longest: int) -> None:
    toy = Toy.random(3, 3, 5, seed=17)
    toy.scores[..., EOS] = -math.inf
    asked: dict[str, Any] = {"bos": BOS, "eos": EOS, "max_new_tokens": longest}
    for best in [*beam(toy, toy.source, beams=2, n_best=2, **asked), greedy(toy, toy.source, **asked)]:
        assert all(not one.finished and len(one.tokens) == longest for one in best)


def test_eos_first() -> None:
    toy = Toy.random(2, 3, 3, seed=19)
    toy.scores[:, 0] = torch.tensor([-math.inf, -math.inf, 4.0], dtype=torch.float64)
    asked: dict[str, Any] = {"bos": BOS, "eos": EOS, "max_new_tokens": 3}
    for (one,) in [*beam(toy, toy.source, beams=3, **asked), *([one] for one in greedy(toy, toy.source, **asked))]:
        assert (one.tokens, one.logprob, one.score, one.finished) == ((), 0.0, 0.0, True)


def test_a_vocabulary_of_one() -> None:
    toy = Toy(torch.full((3, 1, 1), -7.0, dtype=torch.float64))
    asked: dict[str, Any] = {"bos": 0, "eos": 0, "max_new_tokens": 5}
    chain = greedy(toy, toy.source, **asked)
    assert [(one.tokens, one.logprob, one.finished) for one in chain] == [((), 0.0, True)] * 3
    assert beam(toy, toy.source, beams=5, n_best=2, **asked) == [[one] for one in chain]


def test_longest_of_one() -> None:
    toy = Toy.random(13, 3, 1, seed=23)
    for kind, best in enumerate(beam(toy, toy.source, bos=BOS, eos=EOS, beams=3, n_best=3, max_new_tokens=1)):
        assert [(one.tokens, one.finished) for one in best[:1]] == [((), True)]
        p = toy.next_logprobs(kind, ())
        assert [one.tokens[0] for one in best[1:]] == sorted((0, 1), key=lambda token: -p[token])


@given(SEEDS, st.integers(1, 5))
def test_the_tree_that_was_searched(seed: int, beams: int) -> None:
    """Walking from parent to parent gives back each text with its log-probability; endings are all that was found."""
    toy = Toy.random(3, 5, 4, seed)
    steps: list[BeamStep] = []
    asked: dict[str, Any] = {"bos": BOS, "eos": EOS, "beams": beams, "max_new_tokens": 4, "alpha": 0.0, "n_best": beams}
    found = beam(toy, toy.source, observe=steps.append, **asked)
    assert found == beam(toy, toy.source, **asked)
    for sentence in range(3):
        own = [step for step in steps if step.sentence == sentence]
        assert [step.step for step in own] == list(range(1, len(own) + 1))
        texts: list[tuple[int, ...]] = [()]
        ended: set[tuple[int, ...]] = set()
        for step in own:
            for one in step.kept + step.ended:
                text = (*texts[one.parent], one.token)
                assert one.logprob == pytest.approx(toy.logprob(sentence, text), abs=1e-10)
            ended |= {texts[one.parent] for one in step.ended}
            assert all(one.token == EOS for one in step.ended) and all(one.token != EOS for one in step.kept)
            texts = [(*texts[one.parent], one.token) for one in step.kept]
        assert {one.tokens for one in found[sentence] if one.finished} <= ended
