"""The base class of reshapes: frozen options that make a new model and predict the change of the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import nn

from attnworks.core.display import Progress, silent
from attnworks.core.registry import Registry
from attnworks.exam.lineage import HeadMap
from attnworks.models.modes import inference_mode
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import LayerHook, Subject


@dataclass(frozen=True, eq=False)
class ReshapeContext:
    """A model to be reshaped, and its loss on the calibration text.

    length    mean number of tokens of a sentence
    """

    subject: Subject
    calibration: TextLoss
    length: int
    tell: Progress = silent
    seed: int = 0

    @property
    def model(self) -> nn.Module:
        return self.subject.model


def run_over_text(text_loss: TextLoss, hook: LayerHook, stage: str, tell: Progress) -> None:
    """Run the original model over the whole text, with a hook that sees every layer."""
    subject, batches = text_loss.original, len(text_loss.text.batches)
    with inference_mode(subject.model):
        for number in range(batches):
            tell(stage, number, batches)
            subject.run(text_loss.text.batch(number)[0].to(subject.device), hook)


class ReshapeResult(NamedTuple):
    """A new model, what was done where, and the predicted rise of the loss.

    rise_at_length  the predicted rise on texts joined to `flops_length` tokens, if it is known
    facts           further numbers for the receipt, by name
    others          other models, or hooks on the old one, whose losses the receipt also gets, by name
    left_out        places that could have been changed and were not, with the reason
    heads           for every layer that lost or gained heads, which head became which
    warnings        what one should know before one uses the model, for the receipt: whole sentences
    """

    model: nn.Module
    done: dict[str, str]
    rise: float
    facts: Mapping[str, float] = {}
    others: Mapping[str, nn.Module | LayerHook] = {}
    left_out: Mapping[str, str] = {}
    heads: Mapping[str, HeadMap] = {}
    rise_at_length: float | None = None
    warnings: tuple[str, ...] = ()


class Reshape:
    """Frozen options, written down in receipts, and `make`. A reshape of nothing gives the same weights bit for bit."""

    name: ClassVar[str]
    calibration_sentences: ClassVar[int] = 256
    """The number of sentences to which forms and directions are fitted, and from which the rise is predicted."""
    calibration_tokens: ClassVar[int] = 8192
    """For a language model, the tokens of the passages in their place."""

    @property
    def keeps_optimizer_state(self) -> bool:
        """Whether weights are only added, so that the optimizer state of the others can be kept."""
        return False

    @property
    def flops_length(self) -> int | None:
        """Tokens for which the receipt counts FLOPs, and to which held-out sentences are joined for a second loss.

        None: the mean number of tokens of a sentence, and no second loss.
        """
        return None

    def check(self, model: nn.Module) -> None:
        """Raise an error for a model that cannot be reshaped in this way, before any work."""

    def make(self, context: ReshapeContext) -> ReshapeResult:
        raise NotImplementedError

    def again(self, done: Mapping[str, str], heads: Mapping[str, HeadMap]) -> Reshape:
        """The reshape that repeats what a receipt says; it differs from this one if this one chose by measured times.

        done     what was done where
        heads    which head became which
        """
        del done, heads
        return self


AUTO = "auto"
"""The value of an option by which the reshape chooses the places itself."""
RESHAPES: Registry[type[Reshape]] = Registry("reshape", "attnworks.reshapes")
