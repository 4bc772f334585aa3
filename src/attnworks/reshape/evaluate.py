"""What a receipt says about a model besides its loss: BLEU, drift of embeddings, time, size, FLOPs of attention."""

from __future__ import annotations

import torch
from torch import nn

from attnworks.attention import Geometry
from attnworks.attention.dense import Dense
from attnworks.core.timing import Interval, interleave_within
from attnworks.hf.anatomy import HFPart
from attnworks.hf.cut.keep import computed_heads
from attnworks.models.modes import inference_mode
from attnworks.reshape.surgery import attention_parts, groups_in
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import TARGETS_WRITTEN_AT_ONCE, Subject
from attnworks.traces.text import TokenizedText
from attnworks.training.evaluate import translation_scores
from attnworks.training.objectives.sentences import SentenceEmbedding

BLEU, DRIFT = "BLEU", "embedding drift"
BLEU_SENTENCES = 256
"""The largest number of held-out sentences that are translated."""


def scores_of(held_out: TextLoss, subject: Subject) -> dict[str, float]:
    """BLEU, where there are references and a model that writes; and 1 - cos to the original's embeddings."""
    drift = TextLoss(held_out.original, SentenceEmbedding(), held_out.text).mean(subject)
    bleu = _bleu(subject, held_out.text)
    return {**({} if bleu is None else {BLEU: bleu}), DRIFT: drift}


def _bleu(subject: Subject, text: TokenizedText) -> float | None:
    """BLEU of greedy translations, on tokens of the model's own vocabulary; None without reference translations."""
    if text.written or len(text.sides) < 2:
        return None
    sources, references = (rows[:BLEU_SENTENCES] for rows in text.sides)
    written: list[list[str]] = []
    with inference_mode(subject.model):
        for start in range(0, len(sources), TARGETS_WRITTEN_AT_ONCE):
            rows = subject.write_targets(sources[start : start + TARGETS_WRITTEN_AT_ONCE])
            written += [[subject.token(token, "target") for token in row.text_ids] for row in rows]
    gold = [[subject.token(token, "target") for token in row.text_ids] for row in references]
    scores = translation_scores(written, gold)
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
