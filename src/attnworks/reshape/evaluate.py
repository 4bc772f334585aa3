"""What a receipt says about a model: losses, BLEU, drift of embeddings, time, size, FLOPs of attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention import Geometry
from attnworks.attention.dense import Dense
from attnworks.core.display import Progress, silent
from attnworks.core.timing import Interval, interleave_within
from attnworks.exam.statistics import Moments
from attnworks.hf.anatomy import HFPart
from attnworks.hf.cut.keep import computed_heads
from attnworks.models.modes import inference_mode
from attnworks.reshape.losses import Losses, LossesAtLength, LossIntervals
from attnworks.reshape.probed import NOT_PROBED, ProbedChange, ProbeResult, probe
from attnworks.reshape.receipt import Figures
from attnworks.reshape.surgery import attention_parts, groups_in
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import Subject
from attnworks.traces.text import TARGETS_WRITTEN_AT_ONCE, TokenizedText
from attnworks.training.evaluate import translation_scores
from attnworks.training.objectives.sentences import SentenceEmbedding, embeddings, turned

BLEU, DRIFT = "BLEU", "embedding drift"
BLEU_SENTENCES = 256
"""The largest number of held-out sentences that are translated."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model gives for held-out text, sentence by sentence in the order of the batches.

    embeddings     normalised means of the last residual stream
    bleu           None without references, and of a model that does not write, or whose losses are not finite
    long_losses    of sentences that were joined into longer texts, if there are any
    probed         what a causal language model does on the probes
    """

    losses: Float[Tensor, " n"]
    embeddings: Float[Tensor, "n e"]
    bleu: float | None
    long_losses: Float[Tensor, " m"] | None = None
    probed: ProbeResult = NOT_PROBED

    @property
    def loss(self) -> float:
        return float(self.losses.mean())

    def scores(self, original: Evaluation) -> dict[str, float]:
        """BLEU, where it is known, and 1 - cos to the embeddings of the original model."""
        drift = float(turned(self.embeddings, original.embeddings).double().mean())
        return {**({} if self.bleu is None else {BLEU: self.bleu}), DRIFT: drift}


def outcome_of(
    held_out: TextLoss,
    subject: Subject,
    original: Evaluation | None = None,
    *,
    long: TextLoss | None = None,
    seed: int = 0,
    tell: Progress = silent,
) -> Evaluation:
    """Run a model over held-out text, once where the objective hides no words; then over long texts and probes.

    original    what the original model gives; None for the original model itself
    """
    objective, losses, embedded = held_out.objective, list[Tensor](), list[Tensor]()
    by_embedding = isinstance(objective, SentenceEmbedding)
    logits = objective.reads_logits and subject.has_logits
    with inference_mode(subject.model):
        for batch, rows in held_out.batches():
            batch = batch.to(subject.device)
            read = batch if objective.relative else objective.prepare(batch)
            outputs = subject.run(read, logits=logits and not objective.relative)
            if not objective.relative:
                losses.append(objective.losses(outputs, batch, rows))
            elif not by_embedding:
                losses.append(held_out.losses(subject, batch, rows))
            embedded.append(embeddings(outputs if read is batch else subject.run(batch), batch))
    found = torch.cat(embedded)
    if by_embedding:
        losses = [turned(found, found if original is None else original.embeddings)]
    loss = torch.cat(losses).double()
    bleu = _bleu(subject, held_out.text) if bool(loss.isfinite().all()) else None
    return Evaluation(loss, found, bleu, None if long is None else long.each(subject), probe(subject, seed, tell))


def compare_losses(
    before: Evaluation, predicted_rise: float, after: Evaluation, healed: Evaluation | None = None
) -> Losses:
    """The means of the losses; intervals of rises are those of differences of the same sentence."""
    return _compared(before.losses, predicted_rise, after.losses, None if healed is None else healed.losses)


def compare_long_losses(
    before: Evaluation, predicted_rise: float, after: Evaluation, healed: Evaluation | None, tokens: int
) -> LossesAtLength | None:
    """The same of longer texts, the longest of which has this number of tokens; None without them."""
    if before.long_losses is None or after.long_losses is None:
        return None
    last = None if healed is None else healed.long_losses
    found = _compared(before.long_losses, predicted_rise, after.long_losses, last)
    return LossesAtLength(**vars(found), tokens=tokens)


def _compared(
    before: Float[Tensor, " n"],
    predicted_rise: float,
    after: Float[Tensor, " n"],
    healed: Float[Tensor, " n"] | None,
) -> Losses:
    intervals = LossIntervals(
        before=interval_of_mean(before),
        after=interval_of_mean(after),
        rise=interval_of_mean(after - before),
        healed=None if healed is None else interval_of_mean(healed),
        healed_rise=None if healed is None else interval_of_mean(healed - before),
    )
    now, last = float(before.mean()), None if healed is None else float(healed.mean())
    return Losses(now, now + predicted_rise, float(after.mean()), last, intervals)


def compare_probes(before: Evaluation, after: Evaluation, healed: Evaluation | None) -> ProbedChange | None:
    """The probes of the model before, after and healed, if it could be probed."""
    first, second, last = before.probed.probes, after.probed.probes, None if healed is None else healed.probed.probes
    return None if first is None or second is None else ProbedChange(before=first, after=second, healed=last)


def compare_scores(before: Evaluation, after: Evaluation, healed: Evaluation | None) -> dict[str, Figures]:
    """The scores of the model before, after and healed."""
    now, last = after.scores(before), {} if healed is None else healed.scores(before)
    return {name: Figures(old, now[name], last.get(name)) for name, old in before.scores(before).items() if name in now}


def interval_of_mean(values: Float[Tensor, " n"]) -> Interval | None:
    """Student's 95 % interval; None for fewer than two values, or if one is not finite."""
    if len(values) < 2 or not bool(values.isfinite().all()):
        return None
    moments = Moments(())
    moments.add(values)
    low, high = moments.interval
    return float(low), float(high)


def _bleu(subject: Subject, text: TokenizedText) -> float | None:
    """BLEU of greedy translations; None without reference translations.

    It is that of text as people write it, or of tokens between blanks where the vocabulary knows no spacing.
    """
    if text.written or len(text.sides) < 2 or subject.target is None:
        return None
    reader = subject.target
    sources, references = (rows[:BLEU_SENTENCES] for rows in text.sides)
    written: list[str] = []
    with inference_mode(subject.model):
        for start in range(0, len(sources), TARGETS_WRITTEN_AT_ONCE):
            rows = subject.write_targets(sources[start : start + TARGETS_WRITTEN_AT_ONCE])
            written += [reader.text(row.text_ids) for row in rows]
    gold = [reader.text(row.text_ids) for row in references]
    scores = translation_scores(written, gold, own_tokens=not reader.writes_text)
    return None if scores is None else scores.bleu


def time_ratio(held_out: TextLoss, subject: Subject) -> tuple[float, Interval]:
    """Time of a forward pass over the batch with most tokens, as a share of the original's, and its 95 % interval."""
    text = held_out.text
    largest = max(range(len(text.batches)), key=lambda number: text.batch(number)[0].source.ids.numel())
    batch = text.batch(largest)[0].to(subject.device)

    def run(model: Subject) -> None:
        with inference_mode(model.model), torch.inference_mode():
            model.run(batch)

    race = interleave_within({"before": lambda: run(held_out.original), "after": lambda: run(subject)})
    return race.time_ratio("after", to="before"), race.time_interval("after", to="before")


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def weight_bytes(model: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def attention_flops(model: nn.Module, n: int) -> int:
    """FLOPs of all attention layers of a model over n positions: the four projections and the mechanisms.

    Cross-attention is counted for n queries and n keys. Columns that are not stored are not counted; heads for which
    attention is still computed, though they were removed, are (`hf/cut/stored.py`).
    Holds when: the heads of the model are known.
    """
    total = 0
    for slot, part in attention_parts(model, cross=True).items():
        (heads, k, v), groups = part.geometry(), groups_in(part)
        total += 2 * n * part.multiply_adds()
        computed = computed_heads(model, part.place()[1]) if isinstance(part, HFPart) else heads
        counts = (max(heads, computed),) if groups is None else map(len, groups.heads)
        for mechanism, count in zip((Dense(),) if groups is None else groups.mechanisms, counts, strict=True):
            total += mechanism.cost(n, n, Geometry(count, k, v), causal=slot.causal).flops
    return total
