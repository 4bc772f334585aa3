"""Cross-entropy of the next target token."""

from __future__ import annotations

from typing import Protocol, cast

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnworks.models.layers import Output
from attnworks.text.batches import Batch
from attnworks.training.objectives.cross_entropy import linear_cross_entropy
from attnworks.training.objectives.training_contract import OBJECTIVES, Loss


class ReadsAndWrites(Protocol):
    """What this objective asks of a model."""

    output: Output

    def hidden(
        self,
        source: Int[Tensor, "b i"],
        target: Int[Tensor, "b t"],
        source_padding: Bool[Tensor, "b i"] | None = None,
        target_padding: Bool[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t e"]: ...


@OBJECTIVES.register("seq2seq")
class Seq2Seq:
    """-sum_t log p(y_t | y_<t, x), smoothed if asked for; padding is left out before the vocabulary is read.

    Source: Conti 2024, section 1.1 (S4.5-S4.9).
    Departs: the sign of the document's last line, log p instead of -log p, is corrected.
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        writer = cast(ReadsAndWrites, model)
        X = writer.hidden(batch.source, batch.read, batch.source_padding, batch.target_padding)
        gold = batch.write
        real = slice(None) if batch.target_padding is None else batch.target_padding
        X, gold = X[real].flatten(0, -2), gold[real].flatten()
        total = linear_cross_entropy(X, writer.output.weight, writer.output.bias, gold, self.smoothing)
        return Loss(total, terms=gold.numel())
