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
    """A sum and what it is a sum over; the mean of several batches is the sum of sums over the sum of terms."""

    total: Float[Tensor, ""]
    terms: int


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model gives for a batch.

    hidden    the last residual stream of the stack that is read last
    logits    what the output layer makes of it: over the vocabulary at each position, or over classes; None without
    """

    hidden: Float[Tensor, "b i e"]
    logits: Tensor | None = None


@dataclass(frozen=True)
class Abilities:
    """What an objective may ask of a model.

    kind          "encoder", "decoder" (causal) or "encoder-decoder"
    vocabulary    whether logits are over a vocabulary at each position
    classes       over how many classes whole texts are scored, if they are
    mask_id       the token that stands for a hidden word
    end_id        the token with which a decoder ends a sentence
    """

    kind: str
    vocabulary: bool
    classes: int | None = None
    mask_id: int | None = None
    end_id: int | None = None


class Objective:
    """What a model is judged by, healed by and trained for.

    name, description    how it is asked for, and what it measures, in words
    reads_logits         whether it needs logits at all; without them the model's output layer need not run
    relative             whether losses have no meaning of their own, and only the distance to the whole model has
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
