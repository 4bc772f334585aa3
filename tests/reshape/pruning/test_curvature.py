"""Slopes and curvature by gates against dense derivatives, and what follows from them: predictions and orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnworks.core.places import HeadId
from attnworks.models import AttentionConfig
from attnworks.models.modes import frozen_weights
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.pruning import curvature, ranked_text
from attnworks.reshape.pruning.curvature import GateGradients, Quadratic, by_curvature, shrunk
from attnworks.reshape.pruning.distances import EmbeddingDistance
from attnworks.reshape.pruning.units import units_of
from attnworks.reshape.surgery import PruneUnit, heads_off
from attnworks.reshape.texts import split_texts
from attnworks.text.tokens import Batch
from attnworks.traces.layer import LayerTrace
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import LayerHook, wrap
from attnworks.training.objectives.contract import Outputs
from attnworks.training.objectives.sentences import FunctionObjective, embeddings
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.reshape.reshape_helpers import D_E, D_K, D_V, context_of, model_of, subject_of
from tests.tiny_models import TINY

ENCODER: dict[str, Any] = {
    "attention": AttentionConfig(heads=3, d_k=D_K, d_v=D_V),
    "encoder_layers": 2,
    "decoder_layers": 0,
}
PAIRS: dict[str, Any] = {
    "attention": AttentionConfig(heads=3, d_k=D_K, d_v=D_V),
    "decoder_layers": 1,
    "encoder_layers": 1,
}


def encoder(**changes: Any) -> ReshapeContext:
    return context_of(subject_of(model_of(**(ENCODER | changes))), objective="embedding")


def translator() -> ReshapeContext:
    return context_of(subject_of(model_of(**PAIRS)))


class SetGates(LayerHook):
    """Multiplies heads by given numbers."""

    def __init__(self, units: Sequence[PruneUnit], gates: Tensor) -> None:
        self.gate = {head: gate for unit, gate in zip(units, gates, strict=True) for head in unit}

    def attention(self, trace: LayerTrace) -> Tensor:
        gates = [self.gate.get(HeadId(trace.slot, head), torch.ones(())) for head in range(trace.heads)]
        return trace.Y * torch.stack([gate.to(trace.Y) for gate in gates])[:, None, None]


def outputs_at(text_loss: TextLoss, batch: Batch, units: Sequence[PruneUnit], gates: Tensor) -> Outputs:
    subject, objective = text_loss.original, text_loss.objective
    logits = objective.reads_logits and subject.has_logits
    return subject.run(objective.prepare(batch), SetGates(units, gates), logits=logits)


def open_gates(units: Sequence[PruneUnit], gone: Sequence[int]) -> Tensor:
    gates = torch.ones(len(units), dtype=torch.float64)
    gates[list(gone)] = 0.0
    return gates


# Derivatives ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [[], [1, 5]], ids=str)
def test_draws_of_embeddings_are_products_with_the_jacobian(gone: list[int]) -> None:
    """dz/dg = J^T u, with J = de/dg by torch, sentence by sentence."""
    context = encoder()
    units = units_of(context.model)
    gates = GateGradients(context, units, rounds=2)
    found = gates.gradients(gone)
    place = 0
    for batch, rows in gates.read:
        J = torch.autograd.functional.jacobian(
            lambda g, batch=batch: embeddings(outputs_at(context.calibration, batch, units, g), batch),
            open_gates(units, gone),
        )
        for number, row in enumerate(rows.tolist()):
            for draw in range(gates.draws):
                u = np.random.default_rng([context.seed, 0, draw, row]).standard_normal(D_E)
                torch.testing.assert_close(
                    found.draws[place, draw], torch.from_numpy(u) @ J[number], rtol=1e-9, atol=1e-12
                )
            place += 1
    assert place == len(found.draws)


@pytest.mark.parametrize("make", [encoder, translator])
def test_slopes_are_those_of_the_distance(make: Any) -> None:
    """dD/dg by differences of the distance at gates of 1 +- 1e-5; those of units that are gone at +- 1e-5."""
    context, gone, step = make(), [0, 4], 1e-5
    units = units_of(context.model)
    gates = GateGradients(context, units, rounds=2)
    found = gates.gradients(gone).slopes.mean(0)
    for number in range(len(units)):
        sides: list[float] = []
        for sign in (1, -1):
            at = open_gates(units, gone)
            at[number] += sign * step
            with torch.no_grad():
                away = [
                    gates.distance.away(outputs_at(context.calibration, batch, units, at), kept, batch, rows)
                    for (batch, rows), kept in zip(gates.read, gates.kept, strict=True)
                ]
            sides.append(float(torch.cat(away).mean()))
        assert float(found[number]) == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("make", [encoder, translator])
def test_the_original_is_where_the_distance_is_flat(make: Any) -> None:
    """So that no slopes are computed there: both sides of every gate are farther away."""
    context = make()
    units = units_of(context.model)
    gates = GateGradients(context, units, rounds=1)
    assert gates.distance.flat and (gates.gradients([]).slopes == 0).all()
    for (batch, rows), kept in zip(gates.read, gates.kept, strict=True):
        at = open_gates(units, []).requires_grad_()
        away = gates.distance.away(outputs_at(context.calibration, batch, units, at), kept, batch, rows)
        assert float(away.detach().abs().max()) < 1e-12
        assert torch.autograd.grad(away.sum(), at)[0].abs().max() < 1e-7


class EveryDirection(EmbeddingDistance):
    """The basis vectors one after the other in place of random directions: H without an error."""

    def draw(self, outputs: Outputs, batch: Batch, rows: Tensor, seed: Sequence[int]) -> Tensor:
        return embeddings(outputs, batch)[:, seed[2]] * D_E**0.5


def exact_gates(context: ReshapeContext, units: Sequence[PruneUnit]) -> GateGradients:
    gates = GateGradients(context, units, rounds=2)
    gates.distance, gates.draws = EveryDirection(gates.objective), D_E
    return gates


@pytest.mark.parametrize("gone", [[], [2]], ids=str)
def test_the_change_of_a_small_set_is_predicted(gone: list[int]) -> None:
    """Heads whose W_O is small change the embedding by little, so that what is left out of the estimate is smaller."""
    context = encoder()
    units = units_of(context.model)
    with torch.no_grad():
        for layer in context.model.encoder:  # pyright: ignore[reportGeneralTypeIssues, reportAttributeAccessIssue]
            layer.attention.W_O *= 1e-3
    text_loss, found = context.calibration, exact_gates(context, units).gradients(gone)
    G = found.draws.flatten(0, 1)
    quadratic = Quadratic(found.slopes.mean(0), G.T @ G / len(G))
    before = text_loss.mean(hook=heads_off([units[number] for number in gone]))
    for chosen in ([0], [3, 4], [0, 1, 5]):
        after = text_loss.mean(hook=heads_off([units[number] for number in (*gone, *chosen)]))
        assert quadratic.change(chosen) == pytest.approx(after - before, rel=0.02)
    together = quadratic.change([3, 4])
    assert together != pytest.approx(quadratic.change([3]) + quadratic.change([4]), rel=0.02)


def test_gates_of_a_unit_are_one_gate() -> None:
    """The same heads of layers that share their weights, and several heads of one layer."""
    model = TINY["albert"].build()
    context = context_of(wrap(model, tiny_tokenizer("albert")), split_texts(LINES), "embedding")
    units = units_of(model)
    alone: list[PruneUnit] = [(head,) for unit in units for head in unit]
    found, apart = (GateGradients(context, each, rounds=1).gradients([]).draws for each in (units, alone))
    size = len(units[0])
    assert size > 1
    torch.testing.assert_close(found, apart.unflatten(-1, (len(units), size)).sum(-1))


def test_losses_of_another_kind_have_outer_products_of_their_gradients() -> None:
    """The true slope, also at the original; and one draw, the gradient of the loss itself."""
    context = translator()

    def length(outputs: Outputs, batch: Batch) -> Tensor:
        return outputs.hidden.square().mean((1, 2))

    text_loss = replace(context.calibration, objective=FunctionObjective(length))
    units = units_of(context.model)
    found = GateGradients(replace(context, calibration=text_loss), units, rounds=1).gradients([])
    assert found.draws.shape[1] == 1 and (found.slopes != 0).any()
    torch.testing.assert_close(found.draws[:, 0], found.slopes)


# Few draws -----------------------------------------------------------------------------------------------------------


def test_what_is_shrunk() -> None:
    """The diagonal stays; what is off it is multiplied by 1 - lambda, here computed entry by entry."""
    draws = torch.randn(7, 3, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64) + 0.5
    M = torch.stack([sum(torch.outer(g, g) for g in of_sentence) / 3 for of_sentence in draws])  # pyright: ignore[reportArgumentType, reportCallIssue]
    H = M.mean(0)
    error, signal = 0.0, 0.0
    for u, v in permutations(range(5), 2):
        size = float(H[u, u] * H[v, v])
        error += float(M[:, u, v].var(unbiased=True)) / 7 / size
        signal += float(H[u, v] ** 2) / size
    assert 0 < error < signal
    want = H * (1 - error / signal)
    want.diagonal().copy_(H.diagonal())
    torch.testing.assert_close(shrunk(draws), want)


def test_shrinking_lowers_the_error_of_few_draws_and_leaves_many_alone() -> None:
    """Draws from a covariance that is known."""
    drawn = torch.randn(13, 13, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    root = torch.eye(13, dtype=torch.float64) + 0.2 * drawn
    H = root @ root.T
    for sentences, better in ((11, True), (20_000, False)):
        G = torch.randn(sentences, 1, 13, generator=torch.Generator().manual_seed(6), dtype=torch.float64) @ root.T
        plain, found = (G[:, 0].T @ G[:, 0]) / sentences, shrunk(G)
        assert ((found - H).norm() < 0.9 * (plain - H).norm()) == better
        assert better or (found - plain).norm() < 0.01 * H.norm()


@pytest.mark.parametrize("effect", [0.0, 1e-170])
def test_a_unit_without_effect_changes_nothing_for_the_others(effect: float) -> None:
    """Heads whose rows of W_O are zero, or nearly."""
    draws = torch.randn(7, 1, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    more = torch.cat([draws, effect * draws[..., :1].flip(0)], -1)
    found, alone = shrunk(more)[:5, :5], shrunk(draws)
    assert not torch.equal(alone, torch.einsum("sdu,sdv->uv", draws, draws) / 7), "something is shrunk"
    if effect:
        assert bool(found.isfinite().all())
    else:
        torch.testing.assert_close(found, alone)


@pytest.mark.parametrize("draws", [torch.zeros(3, 2, 5), torch.ones(1, 1, 1), torch.ones(1, 2, 4)], ids=str)
def test_nothing_to_shrink(draws: Tensor) -> None:
    assert torch.equal(shrunk(draws.double()), (draws[0].T @ draws[0] / draws.shape[1]).double())


# Orders --------------------------------------------------------------------------------------------------------------


def test_the_least_units_are_chosen_one_beside_the_other() -> None:
    """-slope + H/2 of each alone is 1, 2, 4 and 3; units 0 and 1 back each other up by 5, and 2 and 0 by -3."""
    H = torch.diag(torch.tensor([2.0, 4.0, 8.0, 6.0], dtype=torch.float64))
    H[0, 1] = H[1, 0] = 5.0
    H[0, 2] = H[2, 0] = -3.0
    quadratic = Quadratic(torch.zeros(4, dtype=torch.float64), H)
    assert quadratic.least(range(4), 4) == [0, 2, 3, 1]
    assert quadratic.least([1, 3], 5) == [1, 3] and quadratic.least([2, 3], 1) == [3]
    sloped = Quadratic(torch.tensor([0.0, 0.0, 3.5, 0.0], dtype=torch.float64), H)
    assert sloped.least(range(4), 1) == [2]
    total = sum(quadratic.change([unit]) for unit in (0, 1, 2)) + 5 - 3
    assert quadratic.change([0, 1, 2]) == pytest.approx(total)


def test_pairs_count_twice_half() -> None:
    """The change of a set is the sum of the steps by which `least` puts it together."""
    drawn = torch.randn(23, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    quadratic = Quadratic(
        torch.randn(7, generator=torch.Generator().manual_seed(2), dtype=torch.float64), drawn.T @ drawn
    )
    order = quadratic.least(range(7), 7)
    for count in range(1, 8):
        best = min(quadratic.change([*order[: count - 1], unit]) for unit in order[count - 1 :])
        assert quadratic.change(order[:count]) == pytest.approx(best)


def orders(context: ReshapeContext, **changes: Any) -> list[PruneUnit]:
    return list(by_curvature(replace(context, **changes), units_of(context.model), 3))


@pytest.mark.parametrize("make", [encoder, translator])
def test_a_seed_decides_the_order_and_batches_do_not(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make()
    first = orders(context)
    units = units_of(context.model)
    draws = GateGradients(context, units, rounds=1).gradients([]).draws
    others = GateGradients(replace(context, seed=3), units, rounds=1).gradients([]).draws
    assert orders(context) == first and not torch.allclose(draws, others)
    monkeypatch.setattr(ranked_text, "GRADIENT_TOKENS", 31)
    again = GateGradients(context, units, rounds=1)
    assert len(again.read) > 3
    torch.testing.assert_close(again.gradients([]).draws, draws, rtol=1e-9, atol=1e-12)
    assert orders(context) == first


def test_only_the_rounds_that_are_read_are_computed_and_all_steps_are_told() -> None:
    told: list[tuple[int, int]] = []
    context = replace(translator(), tell=lambda _, done, total: told.append((done, total)))
    units = units_of(context.model)
    order = by_curvature(context, units, 2)
    started = len(told)
    assert list(islice(order, 1)) and len(told) == started
    assert list(islice(order, 2)) and len(told) > started
    assert [done for done, _ in told] == list(range(len(told))) and {total for _, total in told} == {len(told)}
    assert sorted(order) == sorted(units) and all(done < total for done, total in told)


def test_of_two_heads_that_do_the_same_one_stays() -> None:
    """Heads 0 and 1 are the same: both together do four times the harm of one. Head 2 alone does more than one."""
    context = encoder(encoder_layers=1)
    layer = context.model.encoder[0].attention  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    with torch.no_grad():
        for weights in (layer.W_Q, layer.W_K, layer.W_V, layer.W_O, layer.b_Q, layer.b_K, layer.b_V):
            weights[1] = weights[0]
        layer.W_O *= 0.01
    units, loss = units_of(context.model), context.calibration.mean
    alone = [loss(hook=heads_off([unit])) for unit in units]
    with torch.no_grad():
        layer.W_O[2] *= (1.5 * alone[0] / alone[2]) ** 0.5
    alone = [loss(hook=heads_off([unit])) for unit in units]
    assert max(alone[:2]) < alone[2]
    for seed in range(5):
        order = [units.index(unit) for unit in by_curvature(replace(context, seed=seed), units, 2)]
        assert order[1] == 2


# The model stays as it is --------------------------------------------------------------------------------------------


def test_weights_get_no_gradients_and_are_trainable_again(monkeypatch: pytest.MonkeyPatch) -> None:
    context = translator()
    weights = list(context.model.parameters())
    weights[1].requires_grad_(False)
    context.model.train()
    before = [(weight.clone(), weight.requires_grad) for weight in weights]
    seen: list[bool] = []
    run = type(context.subject).run

    def running(self: Any, *args: Any, **options: Any) -> Outputs:
        outputs = run(self, *args, **options)
        if outputs.hidden.requires_grad:
            seen.append(any(weight.requires_grad for weight in weights) or context.model.training)
        return outputs

    monkeypatch.setattr(type(context.subject), "run", running)
    orders(context)
    assert seen and not any(seen)
    assert all(weight.grad is None for weight in weights) and context.model.training
    assert all(
        torch.equal(now, old) and now.requires_grad == grad for now, (old, grad) in zip(weights, before, strict=True)
    )


def test_weights_are_trainable_again_after_an_error() -> None:
    model = model_of()
    with pytest.raises(RuntimeError), frozen_weights(model):
        assert not any(weight.requires_grad for weight in model.parameters())
        raise RuntimeError
    assert all(weight.requires_grad for weight in model.parameters())


def test_the_order_follows_what_few_units_a_round_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit a round with exact directions is greedy by the estimate, which is near the measured greedy order."""
    context = encoder()
    units = units_of(context.model)
    with torch.no_grad():
        for number, layer in enumerate(context.model.encoder):  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
            layer.attention.W_O *= torch.tensor([1e-3, 2e-3, 4e-3])[:, None, None] * 8**number  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(curvature, "distance_of", EveryDirection)
    monkeypatch.setattr(curvature, "MAX_DRAWS", D_E)
    monkeypatch.setattr(curvature, "WANTED_DRAWS", 10**6)
    measured: list[int] = []
    for _ in units:
        left = [number for number in range(len(units)) if number not in measured]
        measured.append(
            min(left, key=lambda n: context.calibration.mean(hook=heads_off([units[m] for m in (*measured, n)])))
        )
    assert [units.index(unit) for unit in by_curvature(context, units, 6)] == measured
