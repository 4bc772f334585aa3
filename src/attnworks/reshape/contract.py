"""What a reshape is: a frozen record of its options that makes a new model and says what that should do to the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import nn

from attnworks.core.display import Progress, silent
from attnworks.core.registry import Registry
from attnworks.exam.lineage import HeadMap
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


class ReshapeResult(NamedTuple):
    """A new model, what was done where, and by how much the loss should rise.

    rise_at_length  the same on texts joined to `flops_length` tokens, if it is known
    facts     further numbers for the receipt, by name
    others    models, or ways to run the old one, to measure beside it, by the names of their losses in the receipt
    left_out  places that could have been changed and were not, with the reason
    heads     for every layer that lost or gained heads, which head became which
    """

    model: nn.Module
    done: dict[str, str]
    rise: float
    facts: Mapping[str, float] = {}
    others: Mapping[str, nn.Module | LayerHook] = {}
    left_out: Mapping[str, str] = {}
    heads: Mapping[str, HeadMap] = {}
    rise_at_length: float | None = None


class Reshape:
    """Frozen options, written down in receipts, and `make`. A reshape of nothing gives the same weights bit for bit."""

    name: ClassVar[str]
    calibration_sentences: ClassVar[int] = 256
    """Sentences from which forms, directions and predictions come."""

    @property
    def keeps_optimizer_state(self) -> bool:
        """Whether weights only become more, so that what an optimizer remembers of them can be kept."""
        return False

    @property
    def flops_length(self) -> int | None:
        """Tokens for which the receipt counts FLOPs, and to which held-out sentences are joined for a second loss.

        None: the mean number of tokens of a sentence, and no second loss.
        """
        return None

    def check(self, model: nn.Module) -> None:
        """Refuse a model that this cannot be done to, before any work."""

    def make(self, context: ReshapeContext) -> ReshapeResult:
        raise NotImplementedError

    def again(self, done: Mapping[str, str]) -> Reshape:
        """What does the same to another model; another reshape where this one chose by what differs from run to run."""
        del done
        return self


RESHAPES: Registry[type[Reshape]] = Registry("reshape")
