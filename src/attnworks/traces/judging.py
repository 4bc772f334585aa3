"""The loss of a model on some text, by an objective."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from attnworks.models.modes import evaluating
from attnworks.text.tokens import TextBatch
from attnworks.traces.subject import Spectator, Subject
from attnworks.traces.text import ExamText
from attnworks.training.objectives.contract import Outputs, TextObjective


@dataclass(frozen=True, eq=False)
class Judge:
    """Judges models on a text.

    original    the model before any change, from which objectives that are relative measure distance
    """

    original: Subject
    objective: TextObjective
    text: ExamText

    def losses(
        self, subject: Subject, batch: TextBatch, rows: Tensor, spectator: Spectator | None = None
    ) -> Float[Tensor, " b"]:
        """One loss for each sentence of a batch."""
        outputs = self._outputs(subject, batch, spectator)
        if not self.objective.relative:
            return self.objective.losses(outputs, batch, rows)
        with evaluating(self.original.model):
            whole = self._outputs(self.original, batch)
        return self.objective.distance(outputs, Outputs(whole.hidden.clone()), batch, rows)

    def mean(
        self, subject: Subject | None = None, spectator: Spectator | None = None, *, some: slice = slice(None)
    ) -> float:
        """Over all sentences, or some of them; by default of the original model."""
        subject = self.original if subject is None else subject
        device = next(subject.model.parameters()).device
        total, sentences = 0.0, 0
        with evaluating(subject.model):
            for batch, rows in self.batches(some):
                losses = self.losses(subject, batch.to(device), rows, spectator)
                total, sentences = total + float(losses.double().sum()), sentences + len(losses)
        return total / max(sentences, 1)

    def batches(self, some: slice = slice(None)) -> Iterator[tuple[TextBatch, Tensor]]:
        """All sentences, or some in the order of batches, which is that of lengths: some are of all lengths."""
        text = self.text if some == slice(None) else self.text.part(some)
        for number in range(len(text.batches)):
            yield text.batch(number)

    def _outputs(self, subject: Subject, batch: TextBatch, spectator: Spectator | None = None) -> Outputs:
        able = subject.abilities
        scores = self.objective.reads_scores and (able.vocabulary or able.classes is not None)
        return subject.run(self.objective.prepare(batch), spectator, scores=scores)
