"""The contract of an objective: one loss per sentence for examinations and healing, a sum for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnworks.core.registry import Registry
from attnworks.text.tokens import Batch

OBJECTIVES: Registry[type[Objective]] = Registry("objective")


class Loss(NamedTuple):
    """A sum and its number of terms; the mean over several batches is the sum of sums over the sum of terms."""

    total: Float[Tensor, ""]
    terms: int


class Choices(NamedTuple):
    """What a model chooses at every position of every sentence, of which a cross-entropy is the mean.

    logits     of all that can be chosen; where `counted` is False they may be any numbers, also NaN
    gold       the right choice
    counted    True at the positions that the mean is over
    """

    logits: Float[Tensor, "b n w"]
    gold: Int[Tensor, "b n"]
    counted: Bool[Tensor, "b n"]


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
    chooses              whether the losses are mean cross-entropies of `choices`
    relative             whether only the distance to the unchanged model has a meaning, and single losses have none
    of_whole_texts       whether it says something about a whole text, which must not be split
    """

    name: ClassVar[str]
    description: ClassVar[str]
    reads_logits: ClassVar[bool] = True
    chooses: ClassVar[bool] = False
    relative: ClassVar[bool] = False
    of_whole_texts: ClassVar[bool] = False

    def prepare(self, batch: Batch) -> Batch:
        """The batch that the model reads, with hidden words for instance."""
        return batch

    def losses(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Float[Tensor, " b"]:
        """One loss for each sentence of the batch as it was before `prepare`.

        rows    the numbers of the sentences in the corpus
        """
        raise NotImplementedError

    def choices(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Choices:
        """What the losses are mean cross-entropies of. Only objectives that say that they choose have this."""
        raise NotImplementedError

    def target(self, whole: Outputs, batch: Batch, rows: Tensor) -> Float[Tensor, " *t"]:
        """What `distance` compares with: of the outputs of the whole model, as little as that needs."""
        return self.losses(whole, batch, rows)

    def distance(
        self, outputs: Outputs, target: Float[Tensor, " *t"], batch: Batch, rows: Tensor
    ) -> Float[Tensor, " b"]:
        """By how much the loss of each sentence is larger than with the whole model.

        outputs    of a model with heads off
        target     of the whole model, by the method `target`
        """
        return self.losses(outputs, batch, rows) - target

    def total(self, model: nn.Module, batch: Batch) -> Loss:
        """The sum that training minimises. Only objectives that a model can be trained for have one."""
        raise NotImplementedError
