"""Healing after a change: the same for a seed, lower in loss, and an error where the loss is no number any more."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from attnworks.attention.structured import Structured
from attnworks.core.errors import AttnworksError, DivergedError, UsageError
from attnworks.core.places import Slot
from attnworks.models import Transformer
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.heal import heal
from attnworks.reshape.projection.project import Project
from attnworks.reshape.receipt import HealReport, Receipt
from attnworks.reshape.run import ReshapeSettings, run_reshape
from attnworks.reshape.surgery import attention_groups, mechanisms_of
from tests.reshape.reshape_helpers import context_of, heads_of, model_of, subject_of, texts

ENDS = "structured:members=first/mean,error=none"
MIX = Project(heads="enc.0.*", form="first/mean", eps=0.5, sparsity=0.2)


def healed(
    settings: ReshapeSettings, model: Transformer | None = None, project: Project = MIX
) -> tuple[Transformer, Receipt]:
    return run_reshape(project, subject_of(model_of(torch.float32) if model is None else model), texts(), settings)


@pytest.mark.slow
def test_a_seed_decides() -> None:
    """Dropout and the order of batches follow from it alone, whatever was drawn before."""
    prints: list[str] = []
    for before, seed in ((5, 7), (6, 7), (6, 8)):
        torch.manual_seed(before)
        prints.append(
            weights_fingerprint(healed(ReshapeSettings(steps=2, learning_rate=1e-2, seed=seed, batch_tokens=200))[0])
        )
    assert prints[0] == prints[1] != prints[2]


def test_random_numbers_of_others_are_left_alone() -> None:
    subject = subject_of(model_of(torch.float32))
    state = torch.get_rng_state()
    heal(context_of(subject).calibration, subject, steps=1, rate=1e-3)
    assert torch.equal(torch.get_rng_state(), state)


def test_it_lowers_the_loss_and_trains_the_forms() -> None:
    model = model_of(torch.float32, slots={"enc.0": heads_of(ENDS, ENDS)})
    before = weights_fingerprint(model)
    new, receipt = healed(ReshapeSettings(steps=13, learning_rate=1e-2), model)
    plain, without = healed(ReshapeSettings(), model)
    loss = receipt.loss
    assert loss.healed is not None and loss.healed < loss.after - 0.1
    assert (loss.before, loss.predicted, loss.after) == (
        without.loss.before,
        without.loss.predicted,
        without.loss.after,
    )
    assert receipt.healing == HealReport(steps=13, learning_rate=1e-2, batch_tokens=2048, seed=0)
    assert weights_fingerprint(model) == before and mechanisms_of(new) == mechanisms_of(plain)
    mine, theirs = (attention_groups(one)[Slot.parse("enc.0")].mechanisms[0] for one in (new, plain))
    assert isinstance(mine, Structured) and isinstance(theirs, Structured)
    assert (mine.mix - theirs.mix).abs().max() > 1e-3
    assert bool(((mine.errors >= 0) & (mine.errors <= 0.5)).all())


def test_the_model_is_left_ready_to_use() -> None:
    new, _ = healed(ReshapeSettings(steps=2))
    assert not any(part.training for part in new.modules())
    assert all(parameter.grad is None for parameter in new.parameters())


def test_what_is_frozen_stays() -> None:
    subject = subject_of(model_of(torch.float32))
    context = context_of(subject)
    embedding = context.model.source_embedding
    assert isinstance(embedding, nn.Module)
    embedding.requires_grad_(False)
    before = {name: parameter.clone() for name, parameter in context.model.named_parameters()}
    heal(context.calibration, subject, steps=2, rate=1e-2)
    moved = {name for name, parameter in context.model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved and not any(name.startswith("source_embedding") for name in moved)


def test_the_rate_rises_for_a_tenth_and_falls_along_a_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    class Watched(torch.optim.Adam):
        def step(self, closure: object = None) -> None:
            rates.extend(group["lr"] for group in self.param_groups)

    monkeypatch.setattr(torch.optim, "Adam", Watched)
    seen: list[tuple[str, int, int]] = []
    subject = subject_of(model_of(torch.float32))
    heal(context_of(subject).calibration, subject, steps=20, rate=0.5, tell=lambda *what: seen.append(what))
    cosine = [0.25 * (1 + math.cos(math.pi * step / 18)) for step in range(18)]
    assert rates == pytest.approx([0.25, 0.5, *cosine])
    assert seen == [("healing", step, 20) for step in range(1, 21)]


def test_every_batch_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of(model_of(torch.float32))
    text_loss, taken = context_of(subject).calibration, list[int]()
    batch, count = type(text_loss.text).batch, len(text_loss.text.batches)
    monkeypatch.setattr(
        type(text_loss.text), "batch", lambda text, number: (taken.append(number), batch(text, number))[1]
    )
    heal(text_loss, subject, steps=2 * count, rate=1e-4)
    assert sorted(taken[:count]) == sorted(taken[count:]) == list(range(count))


@pytest.mark.parametrize("rate", [1e30, 1e12])
def test_a_rate_that_is_much_too_high(rate: float) -> None:
    with pytest.raises(DivergedError) as error:
        healed(ReshapeSettings(steps=5, learning_rate=rate))
    line = str(error.value)
    assert "\n" not in line and "healing, step" in line and "lower the rate of healing" in line
    assert isinstance(error.value, AttnworksError)


def test_the_last_step_counts_too() -> None:
    with pytest.raises(DivergedError):
        healed(ReshapeSettings(steps=1, learning_rate=1e30))


def test_how_far_embeddings_turn() -> None:
    """The loss is the distance from the model as it was: none before, some after, less when healed."""
    previous = Project(heads="enc.*", form="previous", eps=0.0)
    _, receipt = healed(ReshapeSettings("embedding", steps=11, learning_rate=1e-3), model_of(dropout=0.0), previous)
    loss = receipt.loss
    assert receipt.objective == "embedding" and loss.before == 0.0
    assert loss.healed is not None and 0 < loss.healed < loss.after
    assert loss.predicted > 0


def test_frozen_models_are_refused_and_stay_frozen() -> None:
    model = model_of(torch.float32).requires_grad_(False)
    with pytest.raises(UsageError, match="frozen"):
        healed(ReshapeSettings(steps=1), model, Project(heads="enc.*", form="previous", eps=0.0))
    new, _ = healed(ReshapeSettings(steps=1), model)
    assert {"mechanisms" in name for name, p in new.named_parameters() if p.requires_grad} == {True}


def test_half_precision_heals_in_float32() -> None:
    new, receipt = healed(ReshapeSettings(steps=3, learning_rate=1e-5), model_of(torch.bfloat16))
    assert next(new.parameters()).dtype == torch.bfloat16 and receipt.loss.healed is not None


def test_rates_that_are_none() -> None:
    for rate in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="healing with learning rate"):
            ReshapeSettings(steps=1, learning_rate=rate)
