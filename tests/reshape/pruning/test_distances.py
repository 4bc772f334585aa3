"""Distances to the original and their random projections, against dense sums over all choices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnworks.reshape.pruning import distances
from attnworks.reshape.pruning.distances import ChoiceDistance, Distance, EmbeddingDistance, distance_of, sampled
from attnworks.text.tokens import Batch, TokenRow, collate
from attnworks.training.objectives.contract import Outputs
from attnworks.training.objectives.language import MaskedToken, NextTargetToken, NextToken
from attnworks.training.objectives.sentences import ClassLabels, FunctionObjective, SentenceEmbedding

WORDS, LENGTHS = 7, (5, 2, 3)
BATCH = Batch(collate([TokenRow(tuple(range(1, n + 1)), (False,) * n, tuple(range(n))) for n in LENGTHS], 0))
ROWS = torch.tensor([11, 2, 5])
LM = ChoiceDistance(NextToken())


def logits(seed: int, scale: float = 1.0) -> Tensor:
    drawn = torch.randn(3, 5, WORDS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn[~BATCH.source.real] = torch.nan  # padding may hold anything
    return scale * drawn


def outputs(values: Tensor) -> Outputs:
    return Outputs(torch.zeros(3, 5, 2, dtype=torch.float64), values)


def divergence(P: Tensor, Q: Tensor) -> Tensor:
    return (P * (P.log() - Q.log())).sum(-1)


def test_of_all_choices_it_is_the_mean_divergence() -> None:
    original, other = logits(0), logits(1)
    kept = LM.keep(outputs(original), BATCH, ROWS)
    found = LM.away(outputs(other), kept, BATCH, ROWS)
    for sentence, n in enumerate(LENGTHS):
        P, Q = (values[sentence, : n - 1].softmax(-1) for values in (original, other))
        torch.testing.assert_close(found[sentence], divergence(P, Q).mean())
    assert LM.away(outputs(original), kept, BATCH, ROWS).abs().max() < 1e-12


def test_choices_that_are_not_kept_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "LIKELIEST", 3)
    original, other = logits(0, 2.0), logits(1, 2.0)
    found = LM.away(outputs(other), LM.keep(outputs(original), BATCH, ROWS), BATCH, ROWS)
    for sentence, n in enumerate(LENGTHS):
        total = 0.0
        for place in range(n - 1):
            P, Q = (values[sentence, place].softmax(-1) for values in (original, other))
            top = P.argsort(descending=True)[:3]
            P, Q = (torch.cat([p[top], 1 - p[top].sum()[None]]) for p in (P, Q))
            total += float(divergence(P, Q)) / (n - 1)
        assert float(found[sentence]) == pytest.approx(total)


def test_a_certain_original_has_a_finite_distance() -> None:
    """Probabilities that round to zero or one."""
    certain = torch.zeros(3, 5, WORDS, dtype=torch.float32)
    certain[..., 2] = 200.0
    other = certain.roll(1, -1).requires_grad_()
    kept = LM.keep(outputs(certain), BATCH, ROWS)
    for values in (other, certain.clone().requires_grad_()):
        found = LM.away(outputs(values), kept, BATCH, ROWS)
        assert found.isfinite().all()
        assert torch.autograd.grad(found.sum(), values)[0].isfinite().all()
    assert LM.away(outputs(certain), kept, BATCH, ROWS).abs().max() < 1e-6


def test_draws_average_to_the_fisher_matrix() -> None:
    """E[grad z grad z^T] by the logits of a sentence is (diag p - p p^T) / n at each of n positions, 0 between them."""
    draws, values = 6000, logits(3).nan_to_num(0.0).requires_grad_()
    total = torch.zeros(3, 5 * WORDS, 5 * WORDS, dtype=torch.float64)
    for draw in range(draws):
        z = LM.draw(outputs(values), BATCH, ROWS, (8, draw))
        G = torch.autograd.grad(z.sum(), values)[0].flatten(1)
        total += G[:, :, None] * G[:, None, :]
    P = values.detach().softmax(-1)
    for sentence, n in enumerate(LENGTHS):
        want = torch.zeros(5, WORDS, 5, WORDS, dtype=torch.float64)
        for place in range(n - 1):
            p = P[sentence, place]
            want[place, :, place] = (p.diag() - p[:, None] * p) / (n - 1)
        error = (total[sentence] / draws - want.reshape(5 * WORDS, -1)).abs()
        assert error.max() < 5 * 0.5 / draws**0.5  # entries of a draw are at most one in size
        assert want.abs().max() > 10 * error.max()


def test_choices_are_drawn_with_their_probabilities() -> None:
    values = torch.tensor([[0.0, -torch.inf, 1.0, 2.0, -torch.inf]], dtype=torch.float64).expand(20_000, -1)
    found = torch.bincount(sampled(values, [3]), minlength=5) / len(values)
    assert (found[[1, 4]] == 0).all()
    assert (found - values[0].softmax(-1)).abs().max() < 5 * 0.5 / len(values) ** 0.5


def test_a_draw_depends_on_the_sentence_and_not_on_its_batch() -> None:
    values = logits(4)
    together = LM.draw(outputs(values), BATCH, ROWS, (1, 2))
    for number in range(3):
        n = LENGTHS[number]
        alone = Outputs(torch.zeros(1, n, 2, dtype=torch.float64), values[number : number + 1, :n])
        some = BATCH.some(slice(number, number + 1))
        torch.testing.assert_close(LM.draw(alone, some, ROWS[number : number + 1], (1, 2))[0], together[number])
    assert not torch.allclose(LM.draw(outputs(values), BATCH, ROWS, (1, 3)), together)


def test_classes_of_whole_sentences() -> None:
    """One position; the distance is that of the distributions and not of the labels."""
    labels = ChoiceDistance(ClassLabels([0] * 12))
    original, other = (values[:, 0] for values in (logits(5), logits(6)))
    found = labels.away(outputs(other), labels.keep(outputs(original), BATCH, ROWS), BATCH, ROWS)
    torch.testing.assert_close(found, divergence(original.softmax(-1), other.softmax(-1)))


def test_which_distance_an_objective_has() -> None:
    kinds = {
        EmbeddingDistance: [SentenceEmbedding()],
        ChoiceDistance: [NextToken(), MaskedToken(4), NextTargetToken(), ClassLabels([0])],
        Distance: [FunctionObjective(lambda outputs, batch: outputs.hidden.mean((1, 2)))],
    }
    assert all(type(distance_of(objective)) is kind for kind, objectives in kinds.items() for objective in objectives)
