"""The contract of an objective: one loss per sentence for examinations and healing, a sum for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.registry import Registry
from attnworks.text.tokens import Batch

OBJECTIVES: Registry[type[Objective]] = Registry("objective")


class Loss(NamedTuple):
    """A sum and its number of terms; the mean over several batches is the sum of sums over the sum of terms."""

    total: Float[Tensor, ""]
    terms: int


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model gives for a batch.

    hidden    the last residual stream of the decoder, or of the encoder if there is no decoder
    logits    the result of the output layer: over the vocabulary at each position, or over classes; None if it did
              not run
    """

    hidden: Float[Tensor, "b i e"]
    logits: Tensor | None = None


@dataclass(frozen=True)
class Abilities:
    """What an objective may ask of a model.

    kind          "encoder", "decoder" (causal) or "encoder-decoder"
    vocabulary    whether logits are over a vocabulary at each position
    classes       number of classes of whole texts, for a classifier
    mask_id       the token that stands for a hidden word
    end_id        the token with which a decoder ends a sentence
    """

    kind: str
    vocabulary: bool
    classes: int | None = None
    mask_id: int | None = None
    end_id: int | None = None


class Objective:
    """A loss for examining, healing and training models.

    name, description    the name of the option, and what the objective measures, in words
    reads_logits         whether it needs logits; if not, the model's output layer need not run
    relative             whether only the distance to the unchanged model has a meaning, and single losses have none
    """

    name: ClassVar[str]
    description: ClassVar[str]
    reads_logits: ClassVar[bool] = True
    relative: ClassVar[bool] = False

    def prepare(self, batch: Batch) -> Batch:
        """The batch that the model reads, with hidden words for instance."""
        return batch

    def losses(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Float[Tensor, " b"]:
        """One loss for each sentence of the batch as it was before `prepare`.

        rows    the numbers of the sentences in the corpus
        """
        raise NotImplementedError

    def distance(self, outputs: Outputs, whole: Outputs, batch: Batch, rows: Tensor) -> Float[Tensor, " b"]:
        """By how much the loss of each sentence is larger than with the whole model.

        outputs, whole    of a model with heads off, and of the whole model
        """
        return self.losses(outputs, batch, rows) - self.losses(whole, batch, rows)

    def total(self, model: nn.Module, batch: Batch) -> Loss:
        """The sum that training minimises. Only objectives that a model can be trained for have one."""
        raise NotImplementedError
