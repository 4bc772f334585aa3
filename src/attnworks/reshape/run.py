"""Carry out a reshape: measure, change, measure, heal, measure, and write the receipt."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from attnworks.core.checks import choice
from attnworks.core.display import Progress, silent
from attnworks.core.errors import DivergedError, UsageError
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.contract import Reshape, ReshapeContext
from attnworks.reshape.evaluate import attention_flops, parameter_count, scores_of, time_ratio, weight_bytes
from attnworks.reshape.heal import HEALING_TARGETS, LOWER_THE_RATE, OBJECTIVE, check_rate, heal
from attnworks.reshape.long_texts import TrialText, longest
from attnworks.reshape.receipt import BeforeAfter, Figures, HealReport, Losses, LossesAtLength, Receipt
from attnworks.reshape.texts import TextSplit
from attnworks.text.passages import Passage
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import LayerHook, Subject
from attnworks.traces.text import TokenizedText
from attnworks.training.objectives import choose_objective
from attnworks.training.objectives.contract import Objective
from attnworks.training.objectives.sentences import LossFunction


@dataclass(frozen=True)
class ReshapeSettings:
    """How a change is evaluated, and how the model is healed after it.

    objective     as of `attnworks.examine`; None for that of the model
    steps         training steps of healing; 0 for no healing
    learning_rate of healing; None for 3e-4 (models of attnworks) or 5e-5 (models of Hugging Face)
    by            what healing lowers: "objective", or "distil", the distance to the old model after every block
    batch_tokens  padded tokens of a batch
    """

    objective: str | LossFunction | None = None
    steps: int = 0
    learning_rate: float | None = None
    batch_tokens: int = 2048
    seed: int = 0
    by: str = OBJECTIVE

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            check_rate(self.learning_rate)
        choice("way of healing", self.by, HEALING_TARGETS)


@torch.random.fork_rng(devices=[])
def run_reshape(
    reshape: Reshape,
    subject: Subject,
    texts: TextSplit,
    settings: ReshapeSettings | None = None,
    tell: Progress = silent,
) -> tuple[Any, Receipt]:
    """Return a new model and its receipt, which depend on the seed only.

    The old model and the state of torch's random numbers stay as they are.
    """
    settings = ReshapeSettings() if settings is None else settings
    torch.manual_seed(settings.seed)
    began, first = time.perf_counter(), next(subject.model.parameters())
    if not subject.can_reshape:
        asked, got = f"to {reshape.name} heads of {subject.name}", type(subject.model).__name__
        known = "a Transformer of attnworks or a model of Hugging Face"
        raise UsageError(asked, known, got, "reshape a model whose parts are known")
    reshape.check(subject.model)
    rate = subject.heal_rate if settings.learning_rate is None else settings.learning_rate
    tell("reading text", 0, 1)
    context = reshape_context(reshape, subject, texts, settings, tell)
    calibration, objective = context.calibration, context.calibration.objective
    held_out = text_loss_on(subject, objective, texts.held_out, settings)
    tell("measuring before", 0, 1)
    tokens = reshape.flops_length
    long = None if tokens is None else TrialText.of(held_out, mean_length(held_out.text), tokens).long
    before, scores_before = held_out.mean(subject), scores_of(held_out, subject)
    long_before = None if long is None else long.mean(subject)
    made = reshape.make(context)
    length = tokens or context.length
    made.model.eval()
    new = subject.with_model(made.model)
    tell("measuring after", 0, 1)
    after, scores_after = held_out.mean(new), scores_of(held_out, new)
    long_after = None if long is None else long.mean(new)
    facts = dict(made.facts)
    fields: dict[str, Any] = asdict(reshape)  # pyright: ignore[reportArgumentType]
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}  # as in JSON
    for number, (name, other) in enumerate(made.others.items()):
        tell("measuring others", number, len(made.others))
        hook = other if isinstance(other, LayerHook) else None
        facts[name] = held_out.mean(subject.with_model(other) if isinstance(other, nn.Module) else subject, hook)
    healed, long_healed, scores_healed = None, None, {}
    if settings.steps:
        tell("reading text to heal with", 0, 1)
        healing = text_loss_on(subject, objective, texts.learn, settings)
        heal(healing, new, steps=settings.steps, rate=rate, seed=settings.seed, by=settings.by, tell=tell)
        tell("measuring what healed", 0, 1)
        healed = held_out.mean(new)
        if not math.isfinite(healed):
            got = f"loss {healed:g}"
            raise DivergedError("healing, after the last step", "a finite loss and gradient", got, LOWER_THE_RATE)
        scores_healed = scores_of(held_out, new)
        long_healed = None if long is None else long.mean(new)
    at_length = None
    if long is not None and long_before is not None and long_after is not None:
        rise = made.rise if made.rise_at_length is None else made.rise_at_length
        at_length = LossesAtLength(long_before, long_before + rise, long_after, long_healed, tokens=longest(long.text))
    time_share, time_interval = time_ratio(held_out, new)
    models = (subject.model, made.model)
    return made.model, Receipt(
        reshape=reshape.name,
        asked=options,
        text={
            **texts.about,
            "calibration": len(calibration.text.kept),
            "evaluation": len(held_out.text.kept),
            "written": held_out.text.written,
        },
        objective=objective.name,
        healing=HealReport(settings.steps, rate, settings.batch_tokens, settings.seed, settings.by),
        done=made.done,
        heads=dict(made.heads),
        left_out=dict(made.left_out),
        parameters=BeforeAfter(*map(parameter_count, models)),
        flops=BeforeAfter(*(attention_flops(model, length) for model in models)),
        length=length,
        facts=facts,
        loss=Losses(before, before + made.rise, after, healed),
        loss_at_length=at_length,
        bytes=BeforeAfter(*map(weight_bytes, models)),
        time=time_share,
        time_interval=time_interval,
        scores={
            name: Figures(value, scores_after[name], scores_healed.get(name)) for name, value in scores_before.items()
        },
        seconds=time.perf_counter() - began,
        numbers=(str(first.dtype).removeprefix("torch."), str(first.device)),
        fingerprint=(weights_fingerprint(subject.model), weights_fingerprint(made.model)),
        version=version("attnworks"),
    )


def reshape_context(
    reshape: Reshape, subject: Subject, texts: TextSplit, settings: ReshapeSettings, tell: Progress = silent
) -> ReshapeContext:
    """The model and its loss on the calibration text, by the objective of the settings or that of the model."""
    objective = choose_objective(settings.objective, subject.abilities, seed=settings.seed)
    calibration = text_loss_on(subject, objective, texts.learn[: reshape.calibration_sentences], settings)
    return ReshapeContext(subject, calibration, mean_length(calibration.text), tell, settings.seed)


def mean_length(text: TokenizedText) -> int:
    """Tokens of a sentence of the source, or only, side."""
    return round(sum(map(len, text.sides[0])) / len(text.sides[0]))


def text_loss_on(
    subject: Subject, objective: Objective, passages: Sequence[Passage], settings: ReshapeSettings
) -> TextLoss:
    return TextLoss(subject, objective, subject.read(passages, batch_tokens=settings.batch_tokens))
