"""Held-out loss without dropout, and scores."""

from __future__ import annotations

import importlib.util
import math

import pytest
from torch import nn

from attnworks.models import build
from attnworks.text.tokens import Batch, collate_pairs
from attnworks.text.vocabulary import EOS
from attnworks.training.evaluate import inference_mode, mean_loss, translation_scores
from attnworks.training.objectives.contract import Loss
from attnworks.training.objectives.language import NextTargetToken
from tests.model_helpers import filled, transformer_config
from tests.training.training_helpers import examples

EXAMPLES = examples(*((n * 5 % 7 + 1, n % 6) for n in range(23)))


@pytest.mark.parametrize("tokens", [1, 20, 10_000])
def test_the_mean_is_over_tokens_however_batched(tokens: int) -> None:
    model = filled(build(transformer_config(dropout=0.5))).double().train()
    with inference_mode(model):
        parts = [NextTargetToken(EOS).total(model, collate_pairs([example])) for example in EXAMPLES]
        expected = sum(float(part.total) for part in parts) / sum(part.terms for part in parts)
    assert mean_loss(model, NextTargetToken(EOS), EXAMPLES, batch_tokens=tokens) == pytest.approx(expected, rel=1e-12)
    assert model.training, "the mode comes back"


def test_batches_stay_within_their_tokens() -> None:
    model = filled(build(transformer_config()))
    sizes: list[int] = []

    class Noting(NextTargetToken):
        def total(self, model: nn.Module, batch: Batch) -> Loss:
            assert batch.target is not None
            sizes.append(max(batch.source.ids.numel(), batch.target.ids.numel()))
            return super().total(model, batch)

    uneven = examples((20, 1), (1, 1), (1, 1), (1, 1), (1, 2), (1, 2))
    mean_loss(model, Noting(EOS), uneven, batch_tokens=30)
    assert max(sizes) <= 30


def test_nothing_held_out() -> None:
    assert math.isnan(mean_loss(build(transformer_config()), NextTargetToken(EOS), [], batch_tokens=10))


def test_mode_comes_back_after_an_error() -> None:
    model = build(transformer_config()).train()
    with pytest.raises(KeyError), inference_mode(model):
        assert not model.training
        raise KeyError
    assert model.training


def test_scores() -> None:
    """The standard signature on text as people write it; tokens between blanks are taken as they are, and named."""
    pytest.importorskip("sacrebleu")
    gold = ["la mela è rossa.", "Luca mangia il pane."]
    perfect = translation_scores(gold, gold)
    assert perfect is not None
    assert perfect.bleu == pytest.approx(100) and perfect.chrf == pytest.approx(100)
    assert "tok:13a" in perfect.signature and "case:mixed" in perfect.signature
    tokens = translation_scores(["l' amica"], ["l'amica"], own_tokens=True)
    assert tokens is not None and tokens.bleu == 0 and "tok:none" in tokens.signature
    wrong = translation_scores(["x", ""], gold)
    assert wrong is not None and wrong.bleu == 0 and wrong.chrf < 5
    partial = translation_scores([gold[0], "Luca mangia la mela."], gold)
    assert partial is not None and 40 < partial.bleu < 90
    spaced = translation_scores(["la mela è rossa .", "Luca mangia il pane ."], gold)
    assert spaced is not None and spaced.bleu == pytest.approx(100), "13a separates the signs itself"


def test_nothing_to_score() -> None:
    assert translation_scores([], []) is None


def test_without_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert translation_scores(["a"], ["a"]) is None
