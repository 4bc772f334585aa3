"""The contract of a measure: its inputs, its outputs, and the notes that explain missing values."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.attention.heads import HeadWeights
from attnworks.core.display import listed_layers
from attnworks.core.places import Kind, Slot
from attnworks.core.registry import Registry
from attnworks.exam.reading import LayerValues, Reading, Readings
from attnworks.text.tokens import Tokens
from attnworks.traces.forward import ForwardTrace
from attnworks.traces.layer import LayerTrace, StreamTrace
from attnworks.traces.loss import TextLoss
from attnworks.traces.maps import Maps
from attnworks.traces.rows import LayerRows
from attnworks.traces.subject import Subject

BY_DEPTH, BY_LAYER, BY_HEAD = ("depth",), ("layer",), ("layer", "head")
"""Axes of most readings."""
MAX_OFFSET = 512
"""Offsets between query and key beyond this are not counted."""
NO_HEADS_LEFT = "no heads are left there"
Fold = Literal["mean", "largest", "constant"]
MEASURES_ELSEWHERE = ("attnworks.reshape.growth.bottleneck",)
"""Modules of measures in packages that this one must not import, by name."""
MEASURES: Registry[type[Measure]] = Registry(
    "measure", "attnworks.measures", built_in=("attnworks.exam.measures", *MEASURES_ELSEWHERE)
)


@dataclass(frozen=True)
class ReadingSpec:
    """A reading that a measure promises.

    name         measure.reading, such as saturation.entropy
    axes         axes of the value: ("layer", "head"), ("depth",), ("layer", "head", "offset"), ...
    description  one line: what a large or small value means
    source       where the formula comes from
    fold         "mean" over sentences with spread and interval, "largest" over sentences, or "constant" (of weights)
    ticks        labels along further axes, if they are not 0, 1, 2, ...
    """

    name: str
    axes: tuple[str, ...]
    description: str
    source: str
    fold: Fold = "mean"
    ticks: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def reading(self, kind: Kind, value: Iterable[LayerValues], **statistics: tuple[Tensor, ...]) -> Reading:
        """The promised reading; `statistics` are the other parts, by their names in `Reading.parts`."""
        spread, low, high, count = map(statistics.get, ("spread", "low", "high", "count"))
        interval = None if low is None or high is None else (low, high)
        about = (self.description, self.source)
        return Reading(self.name, kind, self.axes, tuple(value), *about, spread, interval, count, self.ticks)


class Sample(NamedTuple):
    """One value per sentence: [b h ...] by head, else [b ...]. Sentences that are not `valid` are left out."""

    values: Tensor
    valid: Bool[Tensor, "b ..."] | None = None


class PlacedSample(NamedTuple):
    """A sample of a reading in one layer, or in all layers of a kind together."""

    reading: str
    where: Slot | Kind
    sample: Sample


Samples = Mapping[str, Sample]


@dataclass(frozen=True)
class MeasureContext:
    """What a measure knows about the examination before it starts.

    max_length  number of real tokens of the longest sequence
    seed        seed of random draws
    sentences   number of all sentences
    lengths     number of real tokens of the longer side of every sentence, where they are known
    """

    max_length: int
    seed: int = 0
    sentences: int = 1
    lengths: Sequence[int] = ()

    @property
    def span(self) -> int:
        """The largest offset between query and key that is counted."""
        return min(self.max_length - 1, MAX_OFFSET)

    def up_to(self, tokens: int) -> int:
        """The number of sentences with at most this many tokens."""
        return sum(length <= tokens for length in self.lengths) if self.lengths else self.sentences


class Measure:
    """One quantity or several that belong together. A measure overrides those of these methods that it needs:

    pointers   keys whose weight the measure needs, from the tokens alone: name -> up to k different keys of each query
               [b i k], -1 for none
    rows       statistics of attention rows, one layer at a time
    maps       whole attention maps, some sentences and heads at a time
    layer      Q, K, V, X of a layer
    stream     the residual stream at a depth
    weights    the weights of a layer, once
    forward    all layers of one stack together, with frozen attention; only where the parts add up to the stream
    gradient   dL / d gate of every head, per sentence, at gates of one
    ablated    L without a head minus L, per sentence
    from_loss  what follows from the loss of the model, once over the whole text
    probe      readings on texts of the measure's own, once
    conclude   readings that follow from other readings

    Every forward and backward pass runs once for all measures.
    Promises, tested for every registered measure: padding is ignored; batches in any order give the same numbers; every
    declared reading is returned, and no other.

    reasons    layer -> why the measure does not apply to it
    refusal    why the measure gives no reading of this model at all, if it knows the reason
    """

    name: ClassVar[str]
    description: ClassVar[str]
    cost: ClassVar[str]
    """What it costs in addition to a forward pass."""
    default: ClassVar[bool] = False
    needs_pairs: ClassVar[bool] = False
    """Whether it is about two texts in one sequence; without any, a note says so only if it was chosen by name."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Measures whose readings it needs, and that are therefore taken, too."""
    passes: ClassVar[int] = 0
    """How often `from_loss` runs over the whole text, for the progress bar."""
    probe_sequences: ClassVar[int] = 0
    """How many sequences `probe` runs at most, for the progress bar."""

    def __init__(self, context: MeasureContext) -> None:
        self.context = context
        self.reasons: dict[Slot, str] = {}
        self.refusal: str | None = None

    def cost_of_text(self) -> str:
        """`cost`, with the numbers of this text where they are known."""
        return self.cost

    def declares(self) -> tuple[ReadingSpec, ...]:
        raise NotImplementedError

    def pointers(self, slot: Slot, queries: Tokens, keys: Tokens) -> Mapping[str, Int[Tensor, "b i _"]]:
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

    def forward(self, forward: ForwardTrace) -> Iterable[PlacedSample]:
        return ()

    def gradient(self, slot: Slot, gates: Float[Tensor, "b h"]) -> Samples:
        return {}

    def ablated(self, slot: Slot, change: Float[Tensor, "b h"]) -> Samples:
        return {}

    def from_loss(self, loss: TextLoss, advance: Callable[[int], None]) -> tuple[Sequence[Reading], Sequence[str]]:
        """Readings, and notes of the examination; runs in the first process only.

        loss        the loss of the model on the whole text
        advance     called with the number of sentences of each batch, in each of the `passes` over the text
        """
        return (), ()

    def probe(self, subject: Subject, advance: Callable[[int], None]) -> tuple[Sequence[Reading], Sequence[str]]:
        """Readings on texts of its own, and notes of the examination; runs in the first process only.

        advance     called with the number of sequences of each batch, `probe_sequences` in all
        """
        return (), ()

    def conclude(self, readings: Readings) -> Iterable[Reading]:
        return ()

    def remarks(self, readings: Readings) -> Iterable[str]:
        """Sentences about how reliable its readings are."""
        return ()

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        """Why no sentence has a value for this reading in these layers: a clause, "" for no note, None if unknown."""
        return None


def sampled_sentences(tokens: Tokens, one_in: int, seed: int) -> Bool[Tensor, " b"]:
    """True for about one sentence in `one_in`, by a checksum of its tokens and the seed: the same in any batch."""
    sums = [
        zlib.crc32(str((seed, row[: int(length)])).encode())
        for row, length in zip(tokens.ids.tolist(), tokens.lengths, strict=True)
    ]
    return torch.tensor([number % one_in == 0 for number in sums], device=tokens.ids.device)


def overrides(measure: Measure, method: str) -> bool:
    """Whether the measure defines this method, which is empty in the base class."""
    return getattr(type(measure), method) is not getattr(Measure, method)


def absence_note(measure: Measure) -> str:
    """Why a measure gave no reading of a model."""
    reason = measure.refusal
    if reason is None and overrides(measure, "weights"):
        reason = "the weights of the heads of this model are not known"
    elif reason is None and overrides(measure, "stream"):
        reason = "the residual stream of this model is not known"
    return f"{measure.name} was not computed: {reason or 'no layer of this model has a value for it'}"


def missing_notes(measure: Measure, readings: Readings, slots: Collection[Slot]) -> Iterator[str]:
    """Notes on readings without a value from any sentence: which, in which layers, and why; one note per reason.

    Readings that are missing in some layers only are noted where the reason is known. `slots` are the attention layers
    of the model: layers between them, which have no attention, get no note.
    """
    names = [spec.name for spec in measure.declares() if readings.of(spec.name)]
    by_reason: dict[tuple[str, tuple[Slot, ...]], list[str]] = {}
    layers: dict[str, list[Slot]] = {}
    empty_layers = {slot: NO_HEADS_LEFT if slot in slots else "" for slot in _without_heads(readings)}
    reasons = {**empty_layers, **measure.reasons}
    for name in names:
        layers[name] = [slot for reading in readings.of(name) for slot in _slots(reading)]
        empty = [slot for reading in readings.of(name) for slot in _slots(reading, empty=True)]
        known = [reasons.get(slot) for slot in empty]
        for reason in dict.fromkeys(known):
            where = [slot for slot, other in zip(empty, known, strict=True) if other == reason]
            why = measure.why_missing(name, where, readings) if reason is None else reason
            if why is None and len({*where, *empty_layers} & {*layers[name]}) == len(layers[name]):
                why = "no sentence has a value for it"
            if why:
                by_reason.setdefault((why, () if why == NO_HEADS_LEFT else tuple(where)), []).append(name)
    if by_reason.pop((NO_HEADS_LEFT, ()), None):
        kinds = {reading.kind for name in names for reading in readings.of(name)}
        cut = [slot for slot in empty_layers if slot in slots and slot.kind in kinds]
        yield f"{measure.name} was not computed in {listed_layers(cut)}: {NO_HEADS_LEFT}"
    for (why, places), found in by_reason.items():
        what = measure.name if found == names and len(names) > 1 else ", ".join(found)
        were = "was" if len(found) == 1 or what == measure.name else "were"
        everywhere = all({*layers[name]} <= {*places, *empty_layers} for name in found)
        where = "" if everywhere else f" in {listed_layers(places)}"
        yield f"{what} {were} not computed{where}: {why}"


def _without_heads(readings: Readings) -> Iterator[Slot]:
    """Layers all of whose heads were cut, and layers without attention."""
    for reading in readings.values():
        if reading.axes[:2] == ("layer", "head"):
            yield from (Slot(reading.kind, layer) for layer, row in enumerate(reading.value) if not len(row))


def _slots(reading: Reading, *, empty: bool = False) -> list[Slot]:
    """The layers of a reading that have numbers; with `empty`, those without a value from any sentence."""
    if reading.count is None:
        return []
    rows = enumerate(reading.count)
    return [Slot(reading.kind, row) for row, count in rows if count.numel() and not (empty and bool(count.any()))]
