"""One step of training against the same step written by hand, with torch's plain Adam."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnworks.core.errors import DivergedError
from attnworks.models import Recurrent, RecurrentConfig, Transformer, TransformerConfig, build
from attnworks.text.tokens import Batch, BatchOrder, RowPair, collate_pairs
from attnworks.text.vocabulary import EOS
from attnworks.training.fit import CorpusFit
from attnworks.training.objectives.contract import Loss
from attnworks.training.objectives.language import NextTargetToken
from tests.model_helpers import filled, recurrent_config, transformer_config
from tests.training.training_helpers import examples, tensor_sha256, weights_of

EXAMPLES = examples(*((n % 4 + 1, n % 5) for n in range(20)))
CONFIGS = {
    "transformer": transformer_config(),
    "tied": transformer_config(tie="all", target_vocabulary=None),
    "lstm-additive": recurrent_config(mechanism="bahdanau-additive"),
}
RATE = 0.01


def small(name: str = "transformer", dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> Any:
    config = copy.deepcopy(CONFIGS[name])
    object.__setattr__(config, "dropout", dropout)
    assert isinstance(config, TransformerConfig | RecurrentConfig)
    return build(config, seed=4).to(dtype)


def adam(model: nn.Module, fused: bool = True) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=fused)


def corpus_fit(model: nn.Module, *, tokens: int = 25, some: list[RowPair] = EXAMPLES, **options: Any) -> CorpusFit:
    settings: dict[str, Any] = {
        "learning_rate": lambda step: RATE,
        "optimizer": adam(model),
        "objective": NextTargetToken(EOS, 0.1),
    }
    return CorpusFit(model=model, pairs=some, order=BatchOrder(some, tokens, seed=9), **(settings | options))


def close(one: dict[str, Tensor], other: dict[str, Tensor], rtol: float = 1e-9, atol: float = 1e-10) -> None:
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=rtol, atol=atol, msg=lambda text, n=name: f"{n}: {text}")


def by_hand(
    model: Transformer | Recurrent, batches: list[list[int]], optimizer: torch.optim.Optimizer, clip: float
) -> float:
    """Mean loss over all target tokens, gradient, clip, Adam, in the plainest torch."""
    optimizer.zero_grad()
    rows = [row for batch in batches for row in batch]
    batch = collate_pairs([EXAMPLES[row] for row in rows])
    assert batch.target is not None
    scores = model(batch.source.ids, batch.target.ids, batch.source.mask, batch.target.mask)
    gold, real = batch.labels(EOS)
    gold[~real] = -100
    loss = F.cross_entropy(scores.flatten(0, 1), gold.flatten(), label_smoothing=0.1)
    loss.backward()
    norm = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None) ** 0.5
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad *= min(1.0, clip / (norm + 1e-6))
    optimizer.step()
    return float(loss)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_equal_those_by_hand(name: str, accumulate: int) -> None:
    """Three steps; several batches to a step count as one large one, term by term."""
    ours, hands = small(name), small(name)
    training, optimizer = corpus_fit(ours, accumulate=accumulate, clip=0.5), adam(hands, fused=False)
    for group in optimizer.param_groups:
        group["lr"] = RATE
    for step in range(3):
        batches = [training.order.rows(step * accumulate + micro) for micro in range(accumulate)]
        loss = by_hand(hands, batches, optimizer, clip=0.5)
        done = training.train_step(step)
        assert done.loss == pytest.approx(loss, rel=1e-10)
        assert done.step == step + 1 and done.learning_rate == RATE and done.seconds > 0
        rows = [row for batch in batches for row in batch]
        assert done.tokens == sum(len(side) for row in rows for side in EXAMPLES[row])
        assert done.epoch == pytest.approx((step + 1) * accumulate / training.order.per_epoch)
    close(weights_of(ours), weights_of(hands))


def test_clipping() -> None:
    """The norm that is told is that before clipping; a clipped step is smaller, a large limit does nothing."""
    norms, gradients = [], []
    for clip in (1e-3, 1e9):
        model = small()
        norms.append(corpus_fit(model, clip=clip).train_step(0).gradient_norm)
        gradients.append(math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters())))
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)
    assert gradients[0] == pytest.approx(1e-3, rel=1e-3)
    assert gradients[1] == pytest.approx(norms[1], rel=1e-12)


def test_the_rate_of_each_step_is_used() -> None:
    model = small()
    training = corpus_fit(model, learning_rate=lambda step: 0.1 if step == 1 else 0.0)
    before = tensor_sha256(weights_of(model))
    assert training.train_step(0).learning_rate == 0.0
    assert tensor_sha256(weights_of(model)) == before
    assert training.train_step(1).learning_rate == 0.1
    assert tensor_sha256(weights_of(model)) != before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fused_adam_on_our_strides_equals_plain_adam_on_contiguous_copies(dtype: torch.dtype) -> None:
    """Heads first in name, heads last in memory: a fused kernel that walked memory wrongly would show here."""
    ours = filled(small(dtype=dtype))
    assert any(not parameter.is_contiguous() for parameter in ours.parameters())
    copies = {
        name: nn.Parameter(parameter.detach().clone().contiguous()) for name, parameter in ours.named_parameters()
    }
    fused = adam(ours)
    plain = torch.optim.Adam(copies.values(), betas=(0.9, 0.98), eps=1e-9, lr=RATE, foreach=False)
    training = corpus_fit(ours, optimizer=fused)
    for step in range(4):
        training.train_step(step)
        for name, parameter in ours.named_parameters():
            assert parameter.grad is not None and parameter.grad.stride() == parameter.stride()
            copies[name].grad = parameter.grad.contiguous()
        plain.step()
    exact = dtype == torch.float64
    close(
        weights_of(ours),
        {name: copy.detach() for name, copy in copies.items()},
        *((1e-10, 1e-12) if exact else (1e-4, 1e-6)),
    )


class Broken(NextTargetToken):
    """A loss that is no number from some step on."""

    def __init__(self, value: float, calls: int) -> None:
        super().__init__(EOS)
        self.value, self.calls = value, calls

    def total(self, model: nn.Module, batch: Batch) -> Loss:
        loss = super().total(model, batch)
        self.calls -= 1
        return loss if self.calls >= 0 else Loss(loss.total * self.value, loss.terms)


def snapshot(optimizer: torch.optim.Optimizer) -> tuple[object, str]:
    """Settings and a hash of every tensor of the state."""
    state = optimizer.state_dict()
    tensors = {f"{place} {name}": tensor for place, row in state["state"].items() for name, tensor in row.items()}
    assert tensors
    return copy.deepcopy(state["param_groups"]), tensor_sha256(tensors)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_stops_with_step_and_pairs(value: float) -> None:
    model = small()
    training = corpus_fit(model, objective=Broken(value, calls=2))
    training.train_step(0)
    training.train_step(1)
    before, state = tensor_sha256(weights_of(model)), snapshot(training.optimizer)
    with pytest.raises(DivergedError) as caught:
        training.train_step(2)
    text = str(caught.value)
    assert text.startswith("training step 3:") and "\n" not in text
    rows = training.order.rows(2)
    assert f"training pairs {', '.join(map(str, rows[:5]))}" in text
    assert tensor_sha256(weights_of(model)) == before, "the weights went with it"
    assert snapshot(training.optimizer) == state


def test_an_infinite_gradient_of_a_finite_loss_stops_too() -> None:
    model = small()
    model.get_parameter("output.weight").register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(DivergedError, match=r"training step 1:.*gradient norm"):
        corpus_fit(model).train_step(0)


def test_dropout_follows_from_seed_and_step() -> None:
    def after(steps: int, seed: int = 3) -> str:
        model = small(dropout=0.3)
        training = corpus_fit(model, seed=seed)
        for step in range(steps):
            torch.rand(steps)  # whatever else uses random numbers
            training.train_step(step)
        return tensor_sha256(weights_of(model))

    assert after(3) == after(3)
    assert after(3) != after(3, seed=4)


def test_each_step_draws_its_own_dropout() -> None:
    one = EXAMPLES[3:4]
    training = corpus_fit(small(dropout=0.5), some=one, learning_rate=lambda step: 0.0)
    assert len({training.train_step(step).loss for step in range(5)}) == 5
    assert training.train_step(2).loss == training.train_step(2).loss


def test_training_mode_comes_back_after_validation() -> None:
    model = small(dropout=0.5).eval()
    corpus_fit(model).train_step(0)
    assert model.training


def test_bfloat16_trains_near_float32() -> None:
    losses = {}
    for dtype in ("float32", "bfloat16"):
        model = small(dtype=torch.float32)
        training = corpus_fit(model, dtype=dtype)
        losses[dtype] = [training.train_step(step).loss for step in range(6)]
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.03)
    assert losses["bfloat16"] != losses["float32"]


def test_it_learns() -> None:
    model = small(dtype=torch.float32)
    training = corpus_fit(model, objective=NextTargetToken(EOS))
    losses = [training.train_step(step).loss for step in range(60)]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
