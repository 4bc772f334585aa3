"""The contract of an objective: a sum for training, and one loss per sentence for examinations and healing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.registry import Registry
from attnworks.text.batches import Batch
from attnworks.text.tokens import TextBatch

OBJECTIVES: Registry[type[Objective]] = Registry("objective")
TEXT_OBJECTIVES: Registry[type[TextObjective]] = Registry("objective")


class Loss(NamedTuple):
    """A sum and what it is a sum over; the mean of several batches is the sum of sums over the sum of terms."""

    total: Float[Tensor, ""]
    terms: int


@runtime_checkable
class Objective(Protocol):
    def __call__(self, model: nn.Module, batch: Batch) -> Loss: ...


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model gives for a batch.

    hidden    the last residual stream of the stack that is read last
    scores    what the model's own head makes of it: over the vocabulary at each position, or over classes; None without
    """

    hidden: Float[Tensor, "b i e"]
    scores: Tensor | None = None


@dataclass(frozen=True)
class Abilities:
    """What an objective may ask of a model.

    kind          "encoder", "decoder" (causal) or "encoder-decoder"
    vocabulary    whether scores are over a vocabulary at each position
    classes       over how many classes whole texts are scored, if they are
    mask_id       the token that stands for a hidden word
    end_id        the token with which a decoder ends a sentence
    """

    kind: str
    vocabulary: bool
    classes: int | None = None
    mask_id: int | None = None
    end_id: int | None = None


class TextObjective:
    """prepare changes what the model reads (hides words, say); losses gives one number per sentence, to be small."""

    name: ClassVar[str]
    words: ClassVar[str]
    reads_scores: ClassVar[bool] = True
    """Whether it asks for scores at all; without, the model's own head need not run."""
    relative: ClassVar[bool] = False
    """Whether losses mean nothing by themselves, and only the distance to the whole model does."""

    def prepare(self, batch: TextBatch) -> TextBatch:
        return batch

    def losses(self, outputs: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        """Of the batch as it was before `prepare`; `rows` are the numbers of its sentences in the corpus."""
        raise NotImplementedError

    def distance(self, outputs: Outputs, whole: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        """How much worse each sentence is than with the whole model, where `outputs` are of a model with heads off."""
        return self.losses(outputs, batch, rows) - self.losses(whole, batch, rows)
