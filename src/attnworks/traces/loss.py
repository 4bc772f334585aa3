"""The loss of a model, before and after a change, on a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
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

    original    the model before any change, to which relative objectives measure the distance. It runs once on every
                batch, and what they need of its outputs is kept
    """

    original: Subject
    objective: Objective
    text: TokenizedText
    _targets: dict[bytes, Tensor] = field(default_factory=dict, init=False, repr=False)

    def losses(
        self, subject: Subject, batch: Batch, rows: Tensor, hook: LayerHook | None = None
    ) -> Float[Tensor, " b"]:
        """One loss for each sentence of a batch. The original is at distance zero from itself, and is not run."""
        if self.objective.relative and subject is self.original and hook is None:
            return torch.zeros(len(rows))
        outputs = self._outputs(subject, batch, hook)
        if not self.objective.relative:
            return self.objective.losses(outputs, batch, rows)
        return self.objective.distance(outputs, self._target(batch, rows), batch, rows)

    def _target(self, batch: Batch, rows: Tensor) -> Tensor:
        """What a relative objective compares these sentences with; kept, so that the original runs on them once."""
        sides = (batch.source,) if batch.target is None else (batch.source, batch.target)
        read = [rows, *(tensor for side in sides for tensor in (side.ids, side.real))]
        key = b"".join(tensor.cpu().numpy().tobytes() for tensor in read)
        if key not in self._targets:
            with inference_mode(self.original.model):
                target = self.objective.target(self._outputs(self.original, batch), batch, rows)
            with torch.inference_mode(False):
                self._targets[key] = target.clone()
        return self._targets[key]

    def mean(
        self, subject: Subject | None = None, hook: LayerHook | None = None, *, some: slice = slice(None)
    ) -> float:
        """The mean loss over all sentences, or some of them; by default that of the original model."""
        losses = self.each(subject, hook, some=some)
        return float(losses.sum()) / max(len(losses), 1)

    def each(
        self, subject: Subject | None = None, hook: LayerHook | None = None, *, some: slice = slice(None)
    ) -> Float[Tensor, " s"]:
        """The loss of every sentence in the order of batches, or of some of them; by default of the original model."""
        subject = self.original if subject is None else subject
        with inference_mode(subject.model):
            losses = [
                self.losses(subject, batch.to(subject.device), rows, hook).double().cpu()
                for batch, rows in self.batches(some)
            ]
        return torch.cat(losses) if losses else torch.zeros(0, dtype=torch.float64)

    def batches(self, some: slice = slice(None)) -> Iterator[tuple[Batch, Tensor]]:
        """Batches of all sentences, or of some of them in the order of batches, which is the order of lengths."""
        text = self.text if some == slice(None) else self.text.part(some)
        for number in range(len(text.batches)):
            yield text.batch(number)

    def _outputs(self, subject: Subject, batch: Batch, hook: LayerHook | None = None) -> Outputs:
        logits = self.objective.reads_logits and subject.has_logits
        return subject.run(self.objective.prepare(batch), hook, logits=logits)
