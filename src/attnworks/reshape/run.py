"""Carry out a reshape: measure, change, measure, heal, measure, and write the receipt."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from attnworks.core.checks import choice
from attnworks.core.display import Progress, silent
from attnworks.core.errors import DivergedError, UsageError
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.contract import Reshape, ReshapeContext
from attnworks.reshape.evaluate import (
    attention_flops,
    compare_long_losses,
    compare_losses,
    compare_probes,
    compare_scores,
    outcome_of,
    parameter_count,
    time_ratio,
    weight_bytes,
)
from attnworks.reshape.heal import HEALING_TARGETS, LOWER_THE_RATE, OBJECTIVE, check_rate, heal
from attnworks.reshape.long_texts import TrialText, longest
from attnworks.reshape.losses import loss_warnings
from attnworks.reshape.probed import probe_warnings
from attnworks.reshape.receipt import BeforeAfter, HealReport, Receipt
from attnworks.reshape.texts import TextSplit, text_facts
from attnworks.text.passages import Passage
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import LayerHook, Subject
from attnworks.traces.text import TokenizedText
from attnworks.training.objectives import choose_objective
from attnworks.training.objectives.contract import Objective
from attnworks.training.objectives.sentences import LossFunction

LOGITS_AT_ONCE = 2**25
"""Entries of the table of logits of a batch to calibrate on or to evaluate on: 128 MB in float32."""


@dataclass(frozen=True)
class ReshapeSettings:
    """How a change is evaluated, and how the model is healed after it.

    objective     as of `attnworks.examine`; None for that of the model
    steps         training steps of healing; 0 for no healing
    learning_rate of healing; None for 3e-4 (models of attnworks) or 5e-5 (models of Hugging Face)
    by            what healing lowers: "objective", or "distil", the distance to the old model after every block
    batch_tokens  padded tokens of a batch; fewer where a model has a large vocabulary, except in healing
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
    measuring = _in_small_batches(subject, objective, settings)
    held_out = text_loss_on(subject, objective, texts.held_out, measuring, texts.held_out_numbers)
    tell("measuring before", 0, 1)
    tokens = reshape.flops_length
    long = None if tokens is None else TrialText.of(held_out, mean_length(held_out.text), tokens).long
    before = outcome_of(held_out, subject, long=long, seed=settings.seed, tell=tell)
    made = reshape.make(context)
    length = tokens or context.length
    made.model.eval()
    new = subject.with_model(made.model)
    tell("measuring after", 0, 1)
    after = outcome_of(held_out, new, before, long=long, seed=settings.seed, tell=tell)
    facts = dict(made.facts)
    fields: dict[str, Any] = asdict(reshape)  # pyright: ignore[reportArgumentType]
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}  # as in JSON
    for number, (name, other) in enumerate(made.others.items()):
        tell("measuring others", number, len(made.others))
        hook = other if isinstance(other, LayerHook) else None
        facts[name] = held_out.mean(subject.with_model(other) if isinstance(other, nn.Module) else subject, hook)
    healed = None
    if settings.steps:
        tell("reading text to heal with", 0, 1)
        healing = text_loss_on(subject, objective, texts.learn, settings, texts.learn_numbers)
        heal(healing, new, steps=settings.steps, rate=rate, seed=settings.seed, by=settings.by, tell=tell)
        tell("measuring what healed", 0, 1)
        healed = outcome_of(held_out, new, before, long=long, seed=settings.seed, tell=tell)
        if not math.isfinite(healed.loss):
            got = f"loss {healed.loss:g}"
            raise DivergedError("healing, after the last step", "a finite loss and gradient", got, LOWER_THE_RATE)
    loss = compare_losses(before, made.rise, after, healed)
    long_rise = made.rise if made.rise_at_length is None else made.rise_at_length
    longest_text = 0 if long is None else longest(long.text)
    time_share, time_interval = time_ratio(held_out, new)
    models = (subject.model, made.model)
    return made.model, Receipt(
        reshape=reshape.name,
        asked=options,
        text={**texts.about, **text_facts(calibration.text, held_out.text)},
        objective=objective.name,
        healing=HealReport(settings.steps, rate, settings.batch_tokens, settings.seed, settings.by),
        done=made.done,
        heads=dict(made.heads),
        left_out=dict(made.left_out),
        parameters=BeforeAfter(*map(parameter_count, models)),
        flops=BeforeAfter(*(attention_flops(model, length) for model in models)),
        length=length,
        facts=facts,
        loss=loss,
        loss_at_length=compare_long_losses(before, long_rise, after, healed, longest_text),
        bytes=BeforeAfter(*map(weight_bytes, models)),
        time=time_share,
        time_interval=time_interval,
        scores=compare_scores(before, after, healed),
        seconds=time.perf_counter() - began,
        numbers=(str(first.dtype).removeprefix("torch."), str(first.device)),
        fingerprint=(weights_fingerprint(subject.model), weights_fingerprint(made.model)),
        version=version("attnworks"),
        warnings=(
            *made.warnings,
            *loss_warnings(loss, len(held_out.text.kept)),
            *probe_warnings(before.probed, *(each.probed for each in (after, healed) if each is not None)),
        ),
        probes=compare_probes(before, after, healed),
    )


def reshape_context(
    reshape: Reshape, subject: Subject, texts: TextSplit, settings: ReshapeSettings, tell: Progress = silent
) -> ReshapeContext:
    """The model and its loss on the calibration text, by the objective of the settings or that of the model."""
    names = getattr(getattr(subject.model, "config", None), "id2label", None)
    objective = choose_objective(
        settings.objective,
        subject.abilities,
        seed=settings.seed,
        sentences=texts.texts,
        class_names=names if subject.abilities.classes else None,
    )
    some = texts.calibration(reshape.calibration_sentences, reshape.calibration_tokens)
    measuring = _in_small_batches(subject, objective, settings)
    calibration = text_loss_on(subject, objective, some, measuring, texts.learn_numbers)
    return ReshapeContext(subject, calibration, mean_length(calibration.text), tell, settings.seed)


def mean_length(text: TokenizedText) -> int:
    """Tokens of a sentence of the source, or only, side."""
    return round(sum(map(len, text.sides[0])) / len(text.sides[0]))


def text_loss_on(
    subject: Subject,
    objective: Objective,
    passages: Sequence[Passage],
    settings: ReshapeSettings,
    numbers: Sequence[int] | None = None,
) -> TextLoss:
    """The loss on some passages; labels belong to passages by their `numbers` in the text that was given."""
    text = subject.read(passages, batch_tokens=settings.batch_tokens)
    if objective.of_whole_texts:
        asked = f"the objective {objective.name!r}"
        text.check_whole(asked)
        if numbers is None:
            expected, remedy = "the lines of a file or a list of texts, one for each label", "give these"
            raise UsageError(asked, expected, "texts without numbers of their own", remedy)
        text = replace(text, kept=[numbers[place] for place in text.kept])
    return TextLoss(subject, objective, text)


def _in_small_batches(subject: Subject, objective: Objective, settings: ReshapeSettings) -> ReshapeSettings:
    """Settings with fewer tokens to a batch, where the table of logits would be too large."""
    sizes = [size for size in subject.vocabulary_sizes if size is not None]
    if not sizes or not objective.reads_logits or not subject.abilities.vocabulary:
        return settings
    return replace(settings, batch_tokens=max(1, min(settings.batch_tokens, LOGITS_AT_ONCE // max(sizes))))
