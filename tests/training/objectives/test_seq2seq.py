"""Cross-entropy of the next token against torch's own; padding never counts; parts add up to the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attnworks.models import Recurrent, Transformer, build
from attnworks.text.tokens import Tokens, collate_pairs
from attnworks.text.vocabulary import EOS
from attnworks.training.objectives.contract import OBJECTIVES
from attnworks.training.objectives.language import NextTargetToken
from tests.model_helpers import TARGET_VOCABULARY, filled, recurrent_config, transformer_config
from tests.training.training_helpers import examples

MODELS = {
    "transformer": transformer_config(),
    "pre-norm": transformer_config(norm="pre"),
    "lstm-additive": recurrent_config(mechanism="bahdanau-additive"),
    "lstm-plain": recurrent_config(),
}
EXAMPLES = examples((5, 3), (2, 7), (1, 1), (6, 0), (3, 3))


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Transformer | Recurrent:
    return filled(build(MODELS[request.param])).double().eval()


def by_hand(model: Transformer | Recurrent, smoothing: float = 0.0) -> tuple[float, int]:
    """One sentence at a time, never padded, one term at a time."""
    total, terms = 0.0, 0
    for example in EXAMPLES:
        batch = collate_pairs([example])
        assert batch.target is not None
        logprobs = model(batch.source.ids, batch.target.ids)[0].detach().log_softmax(-1)
        for position, gold in enumerate(batch.labels(EOS)[0][0].tolist()):
            uniform = logprobs[position].mean()
            total -= float((1 - smoothing) * logprobs[position, gold] + smoothing * uniform)
            terms += 1
    return total, terms


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_sum_over_real_tokens(model: Transformer | Recurrent, smoothing: float) -> None:
    loss = NextTargetToken(EOS, smoothing).total(model, collate_pairs(EXAMPLES))
    total, terms = by_hand(model, smoothing)
    assert loss.terms == terms == sum(len(target) for _, target in EXAMPLES)
    assert loss.total.item() == pytest.approx(total, rel=1e-10)


def test_equals_cross_entropy_where_nothing_is_padded(model: Transformer | Recurrent) -> None:
    batch = collate_pairs(examples((4, 3), (4, 3)))
    assert batch.target is not None
    scores, gold = model(batch.source.ids, batch.target.ids), batch.labels(EOS)[0]
    expected = F.cross_entropy(scores.flatten(0, 1), gold.flatten(), reduction="sum")
    torch.testing.assert_close(NextTargetToken(EOS).total(model, batch).total, expected)


def test_padded_tokens_change_nothing(model: Transformer | Recurrent) -> None:
    batch = collate_pairs(EXAMPLES)
    assert batch.target is not None and batch.source.padded and batch.target.padded

    def scrambled(tokens: Tokens) -> Tokens:
        return replace(tokens, ids=torch.where(tokens.real, tokens.ids, torch.randint(4, 17, tokens.ids.shape)))

    other = replace(batch, source=scrambled(batch.source), target=scrambled(batch.target))
    assert not torch.equal(other.labels(EOS)[0], batch.labels(EOS)[0])
    first, second = (NextTargetToken(EOS, 0.1).total(model, each) for each in (batch, other))
    assert first.terms == second.terms
    torch.testing.assert_close(first.total, second.total, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(loss.total, list(model.parameters())) for loss in (first, second)]
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_split_batches_merge_exactly(model: Transformer | Recurrent, cut: int) -> None:
    whole, *parts = (
        NextTargetToken(EOS, 0.1).total(model, collate_pairs(some))
        for some in (EXAMPLES, EXAMPLES[:cut], EXAMPLES[cut:])
    )
    total, terms = sum(part.total.item() for part in parts), sum(part.terms for part in parts)
    assert terms == whole.terms
    assert total / terms == pytest.approx(whole.total.item() / whole.terms, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_autocast_is_finite_and_near(name: str) -> None:
    model = filled(build(MODELS[name])).train()
    batch = collate_pairs(EXAMPLES)
    exact = NextTargetToken(EOS, 0.1).total(model, batch).total.item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = NextTargetToken(EOS, 0.1).total(model, batch).total
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=0.05)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_large_scores_in_bfloat16_stay_finite() -> None:
    """Sums over a vocabulary are taken in float32, whatever the scores come in."""
    model = filled(build(MODELS["transformer"]), spread=20.0).bfloat16().eval()
    assert torch.isfinite(NextTargetToken(EOS, 0.1).total(model, collate_pairs(EXAMPLES)).total)


def test_a_model_that_knows_nothing_loses_log_of_the_vocabulary() -> None:
    model = build(MODELS["transformer"])
    with torch.no_grad():
        model.get_parameter("output.weight").zero_()
    for smoothing in (0.0, 0.3):
        loss = NextTargetToken(EOS, smoothing).total(model, collate_pairs(EXAMPLES))
        assert loss.total.item() / loss.terms == pytest.approx(torch.tensor(float(TARGET_VOCABULARY)).log().item())


def test_registered_by_name() -> None:
    assert OBJECTIVES["seq2seq"] is NextTargetToken
