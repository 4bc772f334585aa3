"""What a reshape is: a frozen record of its options that makes a new model and says what that should do to the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import nn

from attnworks.registry import Registry
from attnworks.reshape.events import Watch, silently
from attnworks.reshape.judging import Judge
from attnworks.traces.examinee import Examinee


@dataclass(frozen=True, eq=False)
class Bench:
    """A model to be reshaped, and the text to look at beforehand.

    length    mean number of tokens of a sentence
    """

    examinee: Examinee
    looked_at: Judge
    length: int
    watch: Watch = silently

    @property
    def model(self) -> nn.Module:
        return self.examinee.subject.model


class Made(NamedTuple):
    """A new model, what was done where, and by how much the loss should rise."""

    model: nn.Module
    done: dict[str, str]
    rise: float


class Reshape:
    """Frozen options, written down in receipts, and `make`. A reshape of nothing gives the same weights bit for bit."""

    name: ClassVar[str]

    def check(self, model: nn.Module) -> None:
        """Refuse a model that this cannot be done to, before any work."""

    def make(self, bench: Bench) -> Made:
        raise NotImplementedError


RESHAPES: Registry[type[Reshape]] = Registry("reshape")
