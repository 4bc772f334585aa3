"""The loss of a model, before and after a change, on a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from attnworks.models.modes import inference_mode
from attnworks.text.tokens import Batch
from attnworks.traces.subject import LayerHook, Subject
from attnworks.traces.text import TokenizedText
from attnworks.training.objectives.contract import Objective, Outputs


@dataclass(frozen=True, eq=False)
class TextLoss:
    """Losses of models on a text.

    original    the model before any change, to which relative objectives measure the distance
    """

    original: Subject
    objective: Objective
    text: TokenizedText

    def losses(
        self, subject: Subject, batch: Batch, rows: Tensor, hook: LayerHook | None = None
    ) -> Float[Tensor, " b"]:
        """One loss for each sentence of a batch."""
        outputs = self._outputs(subject, batch, hook)
        if not self.objective.relative:
            return self.objective.losses(outputs, batch, rows)
        with inference_mode(self.original.model):
            whole = self._outputs(self.original, batch)
        return self.objective.distance(outputs, Outputs(whole.hidden.clone()), batch, rows)

    def mean(
        self, subject: Subject | None = None, hook: LayerHook | None = None, *, some: slice = slice(None)
    ) -> float:
        """The mean loss over all sentences, or some of them; by default that of the original model."""
        subject = self.original if subject is None else subject
        total, sentences = 0.0, 0
        with inference_mode(subject.model):
            for batch, rows in self.batches(some):
                losses = self.losses(subject, batch.to(subject.device), rows, hook)
                total, sentences = total + float(losses.double().sum()), sentences + len(losses)
        return total / max(sentences, 1)

    def batches(self, some: slice = slice(None)) -> Iterator[tuple[Batch, Tensor]]:
        """Batches of all sentences, or of some of them in the order of batches, which is the order of lengths."""
        text = self.text if some == slice(None) else self.text.part(some)
        for number in range(len(text.batches)):
            yield text.batch(number)

    def _outputs(self, subject: Subject, batch: Batch, hook: LayerHook | None = None) -> Outputs:
        logits = self.objective.reads_logits and subject.has_logits
        return subject.run(self.objective.prepare(batch), hook, logits=logits)
