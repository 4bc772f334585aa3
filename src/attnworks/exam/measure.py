"""The contract of a measure: what it sees, what it reads, and how that accumulates over a corpus."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.attention.heads import HeadWeights
from attnworks.core.registry import Registry
from attnworks.exam.reading import Reading, Readings
from attnworks.text.tokens import Tokens
from attnworks.traces.forward import ForwardTrace
from attnworks.traces.layer import Kind, LayerTrace, Slot, StreamTrace
from attnworks.traces.maps import Maps
from attnworks.traces.rows import LayerRows
from attnworks.traces.text import Judge

WIDEST_SPAN = 512
"""Offsets further than this are not told apart."""
FoldName = Literal["mean", "largest", "constant"]
MEASURES: Registry[type[Measure]] = Registry("measure")


@dataclass(frozen=True)
class Declared:
    """A reading that a measure promises.

    name      measure.reading, such as saturation.entropy
    axes      of the value: ("layer", "head"), ("depth",), ("layer", "head", "offset"), ...
    words     one line for people: what a large or small value means
    source    of the formula
    fold      "mean" over sentences with spread and interval, "largest" over sentences, or "constant" (of weights)
    ticks     labels along further axes, if they are not 0, 1, 2, ...
    """

    name: str
    axes: tuple[str, ...]
    words: str
    source: str
    fold: FoldName = "mean"
    ticks: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


class Sample(NamedTuple):
    """One value per sentence, [b h ...] for heads and [b ...] else; where not `valid`, the sentence says nothing."""

    values: Tensor
    valid: Bool[Tensor, "b ..."] | None = None


class Placed(NamedTuple):
    """A sample that belongs to a layer, or to all layers of a kind."""

    reading: str
    where: Slot | Kind
    sample: Sample


Samples = Mapping[str, Sample]


@dataclass(frozen=True)
class Setting:
    """What a measure may know beforehand of the examination.

    longest    real tokens of the longest sequence
    seed       of anything drawn at random
    sentences  how many there are in all
    lengths    real tokens of the longer side of every sentence, where they are known
    """

    longest: int
    seed: int = 0
    sentences: int = 1
    lengths: Sequence[int] = ()

    @property
    def span(self) -> int:
        """The largest offset between query and key that is told apart."""
        return min(self.longest - 1, WIDEST_SPAN)

    def up_to(self, tokens: int) -> int:
        """How many sentences have at most this many tokens."""
        return sum(length <= tokens for length in self.lengths) if self.lengths else self.sentences


class Measure:
    """One file, registered by name. It overrides those looks that it needs; each runs once for all measures.

    pointers  which key each query is asked about, from the tokens alone: name -> position [b i] or -1
    rows      statistics of attention rows, one layer at a time
    maps      whole attention maps, some sentences and heads at a time
    layer     Q, K, V, X of a layer
    stream    the residual stream at a depth
    weights   the weights of a layer, once
    forward   all layers of one stack together, with attention to be frozen; only where the stream adds up
    gradient  dL / d gate of every head, per sentence, at gates of one
    ablated   L with a head off minus L, per sentence
    from_loss what follows from the loss of the model, once over the whole text
    conclude  readings that follow from the folded ones

    `remarks` says how far its readings can be trusted, in notes of the examination.
    `reasons` has layers that the measure does not apply to, and why; `why_missing` says why else a reading is empty.

    Promises, tested for every registered name: padding never counts; batches fold to the same numbers in any order;
    every declared reading is given, and no other.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    """One line for people."""
    cost: ClassVar[str]
    """What it costs beside a forward pass, stated beforehand."""
    default: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ()
    """Measures whose readings its conclusions rest on, and that are taken along."""
    passes: ClassVar[int] = 0
    """How often `from_loss` goes over the whole text, for the progress bar."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.reasons: dict[Slot, str] = {}

    def declares(self) -> tuple[Declared, ...]:
        raise NotImplementedError

    def pointers(self, slot: Slot, queries: Tokens, keys: Tokens) -> Mapping[str, Int[Tensor, "b i"]]:
        return {}

    def rows(self, rows: LayerRows) -> Samples:
        return {}

    def maps(self, maps: Maps) -> Samples:
        return {}

    def layer(self, trace: LayerTrace) -> Samples:
        return {}

    def stream(self, stream: StreamTrace) -> Samples:
        return {}

    def weights(self, slot: Slot, weights: HeadWeights) -> Samples:
        return {}

    def forward(self, forward: ForwardTrace) -> Iterable[Placed]:
        return ()

    def gradient(self, slot: Slot, gates: Float[Tensor, "b h"]) -> Samples:
        return {}

    def ablated(self, slot: Slot, change: Float[Tensor, "b h"]) -> Samples:
        return {}

    def from_loss(self, loss: Judge, advance: Callable[[int], None]) -> tuple[Sequence[Reading], Sequence[str]]:
        """Readings, and notes of the examination; only the first process asks for them.

        loss        of the model on the whole text
        advance     called with the number of sentences of each batch, in each of the `passes` over the text
        """
        del loss, advance
        return (), ()

    def conclude(self, readings: Readings) -> Iterable[Reading]:
        return ()

    def remarks(self, readings: Readings) -> Iterable[str]:
        """What its readings rest on, where that is little; sentences for people."""
        del readings
        return ()

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        """Why no sentence counted for this reading in these layers: a clause, "" without a note, None if unknown."""
        del name, slots, readings
        return None


def drawn(tokens: Tokens, one_in: int, seed: int) -> Bool[Tensor, " b"]:
    """One sentence in `one_in`, by a checksum of its tokens and the seed: the same ones in whatever batches."""
    sums = [
        zlib.crc32(str((seed, row[: int(length)])).encode())
        for row, length in zip(tokens.ids.tolist(), tokens.lengths, strict=True)
    ]
    return torch.tensor([number % one_in == 0 for number in sums], device=tokens.ids.device)
