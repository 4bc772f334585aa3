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

from attnworks.core.errors import UsageError
from attnworks.core.registry import unknown_name
from attnworks.hf.subject import ForeignSubject
from attnworks.models.folder import fingerprint
from attnworks.reshape.contract import Bench, Reshape
from attnworks.reshape.evaluate import attention_flops, scores_of, time_ratio, weight_bytes
from attnworks.reshape.heal import LESSONS, OBJECTIVE, check_rate, heal, not_healed
from attnworks.reshape.long_texts import TrialText, longest
from attnworks.reshape.progress import Watch, silently
from attnworks.reshape.receipt import Change, Figures, Healing, Losses, LossesAtLength, Receipt
from attnworks.reshape.texts import Texts
from attnworks.text.passages import Passage
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import Examinee, Spectator
from attnworks.traces.text import ExamText, Judge, read_text
from attnworks.training.objectives.choice import choose
from attnworks.training.objectives.contract import TextObjective
from attnworks.training.objectives.sentences import OwnFunction

OWN_RATE, FOREIGN_RATE = 3e-4, 5e-5


@dataclass(frozen=True)
class Care:
    """How a change is judged, and how the model heals from it.

    objective     as of `attnworks.examine`; None for that of the model
    steps, rate   of healing; no steps, no healing. Without a rate 3e-4 for own models, 5e-5 for those of Hugging Face
    by            what healing lowers: "objective", or "distil", the distance to the model before after every block
    tokens        padded tokens of a batch
    """

    objective: str | OwnFunction | None = None
    steps: int = 0
    rate: float | None = None
    tokens: int = 2048
    seed: int = 0
    by: str = OBJECTIVE

    def __post_init__(self) -> None:
        if self.rate is not None:
            check_rate(self.rate)
        if self.by not in LESSONS:
            raise unknown_name("way of healing", self.by, LESSONS)


def carry_out(
    reshape: Reshape,
    examinee: Examinee,
    texts: Texts,
    care: Care | None = None,
    watch: Watch = silently,
) -> tuple[Any, Receipt]:
    """A new model and its receipt, the same for a seed; the old model and torch's random numbers stay as they are."""
    care = Care() if care is None else care
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(care.seed)
        return _carry_out(reshape, examinee, texts, care, watch)


def _carry_out(reshape: Reshape, examinee: Examinee, texts: Texts, care: Care, watch: Watch) -> tuple[Any, Receipt]:
    began, subject, first = time.perf_counter(), examinee.subject, next(examinee.subject.model.parameters())
    if not isinstance(subject, OwnSubject | ForeignSubject):
        raise UsageError(
            asked=f"to {reshape.name} heads of {subject.name}",
            expected="a Transformer of attnworks or a model of Hugging Face",
            got=type(subject.model).__name__,
            remedy="reshape a model whose parts are known",
        )
    reshape.check(subject.model)
    rate = (OWN_RATE if isinstance(subject, OwnSubject) else FOREIGN_RATE) if care.rate is None else care.rate
    watch("reading text", 0, 1)
    bench = bench_for(reshape, examinee, texts, care, watch)
    looked_at, objective = bench.looked_at, bench.looked_at.objective
    held_out = judge_on(examinee, objective, texts.held_out, care)
    watch("measuring before", 0, 1)
    long = _joined(held_out, reshape.counted_at)
    before, scores_before = held_out.mean(subject), scores_of(examinee, held_out, subject)
    long_before = None if long is None else long.mean(subject)
    made = reshape.make(bench)
    length = reshape.counted_at or bench.length
    made.model.eval()
    new = subject.again(made.model)
    watch("measuring after", 0, 1)
    after, scores_after = held_out.mean(new), scores_of(examinee, held_out, new)
    long_after = None if long is None else long.mean(new)
    facts = dict(made.facts)
    for number, (name, other) in enumerate(made.others.items()):
        watch("measuring others", number, len(made.others))
        spectator = other if isinstance(other, Spectator) else None
        facts[name] = held_out.mean(subject.again(other) if isinstance(other, nn.Module) else subject, spectator)
    healed, long_healed, scores_healed = None, None, {}
    if care.steps:
        watch("reading text to heal with", 0, 1)
        healing = judge_on(examinee, objective, texts.learn, care)
        heal(healing, new, steps=care.steps, rate=rate, seed=care.seed, by=care.by, watch=watch)
        watch("measuring what healed", 0, 1)
        healed = held_out.mean(new)
        if not math.isfinite(healed):
            raise not_healed("after the last step", f"loss {healed:g}")
        scores_healed = scores_of(examinee, held_out, new)
        long_healed = None if long is None else long.mean(new)
    at_length = None
    if long is not None and long_before is not None and long_after is not None:
        at_length = LossesAtLength(
            tokens=longest(long.text),
            before=long_before,
            predicted=long_before + (made.rise if made.rise_at_length is None else made.rise_at_length),
            after=long_after,
            healed=long_healed,
        )
    time_share, time_interval = time_ratio(held_out, new)
    return made.model, Receipt(
        reshape=reshape.name,
        asked=_as_stored(asdict(reshape)),  # pyright: ignore[reportArgumentType]
        text={
            **texts.about,
            "looked_at": len(looked_at.text.kept),
            "judged_by": len(held_out.text.kept),
            "written": held_out.text.written,
        },
        objective=objective.name,
        healing=Healing(steps=care.steps, rate=rate, tokens=care.tokens, seed=care.seed, by=care.by),
        done=made.done,
        heads=dict(made.heads),
        left_out=dict(made.left_out),
        parameters=Change(before=_parameters(subject.model), after=_parameters(made.model)),
        flops=Change(before=attention_flops(subject.model, length), after=attention_flops(made.model, length)),
        length=length,
        facts=facts,
        loss=Losses(before=before, predicted=before + made.rise, after=after, healed=healed),
        loss_at_length=at_length,
        bytes=Change(before=weight_bytes(subject.model), after=weight_bytes(made.model)),
        time=time_share,
        time_interval=time_interval,
        scores={
            name: Figures(before=value, after=scores_after[name], healed=scores_healed.get(name))
            for name, value in scores_before.items()
        },
        seconds=time.perf_counter() - began,
        numbers=(str(first.dtype).removeprefix("torch."), str(first.device)),
        fingerprint=(fingerprint(subject.model), fingerprint(made.model)),
        version=version("attnworks"),
    )


def bench_for(reshape: Reshape, examinee: Examinee, texts: Texts, care: Care, watch: Watch = silently) -> Bench:
    """A model and the text that a reshape looks at, by the objective of the model or that asked for."""
    objective = choose(care.objective, examinee.subject.abilities, seed=care.seed)
    looked_at = judge_on(examinee, objective, texts.learn[: reshape.looks_at], care)
    return Bench(examinee, looked_at, mean_length(looked_at.text), watch, care.seed)


def _joined(judge: Judge, tokens: int | None) -> Judge | None:
    """The same passages joined into texts of `tokens` tokens; None without a number, or if passages are as long."""
    return None if tokens is None else TrialText.of(judge, mean_length(judge.text), tokens).long


def mean_length(text: ExamText) -> int:
    """Tokens of a sentence of the source, or only, side."""
    return round(sum(map(len, text.sides[0])) / len(text.sides[0]))


def judge_on(examinee: Examinee, objective: TextObjective, passages: Sequence[Passage], care: Care) -> Judge:
    return Judge(examinee.subject, objective, read_text(examinee, passages, care.tokens))


def _as_stored(asked: dict[str, Any]) -> dict[str, Any]:
    """As JSON will have it, so that a receipt is what is read back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items()}


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
