"""The Transformer and the recurrent models write the same with and without cache, together and one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnworks.models.decoding import Hypothesis, beam, greedy, length_penalty, sample
from tests.models.decoding.decoding_helpers import (
    BOS,
    EOS,
    MODELS,
    VOCABULARY,
    Uncached,
    recurrent,
    same,
    sources,
    transformer,
)

LONGEST = 11
ASKED: dict[str, Any] = {"bos": BOS, "eos": EOS, "max_new_tokens": LONGEST}


def source_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, real = sources()
    return (tokens % VOCABULARY if name == "tied" else tokens), real


@pytest.mark.parametrize("name", MODELS)
def test_cache_changes_nothing(name: str) -> None:
    model, (source, real) = MODELS[name](), source_of(name)
    same(greedy(model, source, real, **ASKED), greedy(Uncached(model), source, real, **ASKED))
    found = beam(model, source, real, beams=3, n_best=3, **ASKED)
    for got, expected in zip(found, beam(Uncached(model), source, real, beams=3, n_best=3, **ASKED), strict=True):
        same(got, expected)
    assert len({len(best[0].tokens) for best in found}) > 1


@pytest.mark.parametrize("name", MODELS)
def test_sentences_do_not_know_each_other(name: str) -> None:
    model, (source, real) = MODELS[name](), source_of(name)
    together = beam(model, source, real, beams=3, n_best=2, **ASKED)
    for row, length in [(1, 3), (3, 1), (4, 6)]:
        same(together[row], beam(model, source[row : row + 1, :length], beams=3, n_best=2, **ASKED)[0])


@pytest.mark.parametrize("name", MODELS)
def test_logprobs_are_those_of_one_forward_pass(name: str) -> None:
    """S4.5: log p(y | x) = sum_t log p(y_t | y_<t, x)."""
    model, (source, real) = MODELS[name](), source_of(name)
    generator = torch.Generator().manual_seed(7)
    found = beam(model, source, real, beams=3, n_best=3, alpha=0.7, **ASKED)
    chains = greedy(model, source, real, **ASKED)
    draws = sample(model, source, real, temperature=1.7, top_k=5, generator=generator, **ASKED)
    for row, best in enumerate(found):
        for hypothesis in [*best, chains[row], draws[row]]:
            written = list(hypothesis.tokens) + [EOS] * hypothesis.finished
            target = torch.tensor([[BOS, *written[:-1]]])
            p = model(source[row : row + 1], target, real[row : row + 1])[0].log_softmax(-1).detach()
            logprob = float(p[torch.arange(len(written)), written].sum())
            assert abs(hypothesis.logprob - logprob) < 1e-10
            penalty = length_penalty(len(written), 0.7) if hypothesis in best else 1.0
            assert abs(hypothesis.score - logprob / penalty) < 1e-10


@pytest.mark.parametrize("build", [transformer, recurrent])
def test_each_part_keeps_its_mode(build: Any) -> None:
    """A model that is being trained writes without dropout, is trained on afterwards, and may be frozen in parts."""
    model = build(dropout=0.5)
    source, real = sources()
    still = greedy(model, source, real, **ASKED)
    model.train()
    model.decoder.eval()
    modes = [part.training for part in model.modules()]
    assert greedy(model, source, real, **ASKED) == still
    assert beam(model, source, real, beams=1, alpha=0.0, **ASKED) == [[one] for one in still]
    assert [part.training for part in model.modules()] == modes
    with pytest.raises(ValueError, match="eos=99"):
        greedy(model, source, real, bos=BOS, eos=99, max_new_tokens=2)
    assert [part.training for part in model.modules()] == modes


@pytest.mark.parametrize("build", [transformer, recurrent])
def test_a_model_can_be_trained_after_writing(build: Any) -> None:
    """Nothing that decoding leaves behind is an inference tensor that autograd would refuse."""
    model, (source, real) = build(dropout=0.0, d_e=22), sources()
    greedy(model, source, real, **ASKED)
    model.train()(source, source[:, :5] % VOCABULARY, real).square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_half_precision_sums_in_float32() -> None:
    model, (source, real) = transformer().to(torch.bfloat16), sources()
    for best in beam(model, source, real, beams=3, n_best=3, **ASKED):
        assert all(isinstance(one, Hypothesis) and one.logprob <= 0 for one in best)


def test_no_sentences() -> None:
    model = transformer()
    nothing = torch.zeros(0, 3, dtype=torch.long)
    assert greedy(model, nothing, **ASKED) == []
    assert beam(model, nothing, **ASKED) == []
