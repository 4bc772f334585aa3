"""The hook of an examination: passes every layer and every residual stream to the measures that read them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from attnworks.core.places import Kind, Slot
from attnworks.core.tensors import Scratch
from attnworks.exam.attended import AttendedSums
from attnworks.exam.measure import (
    Measure,
    PlacedSample,
    Samples,
    overrides,
)
from attnworks.exam.statistics import Accumulator, not_finite
from attnworks.traces.layer import LayerTrace, StreamTrace
from attnworks.traces.maps import Maps
from attnworks.traces.rows import grams_of, rows_of
from attnworks.traces.subject import LayerHook


class MeasureHook(LayerHook):
    """Gives every layer of a forward pass to the measures, and accumulates their samples."""

    def __init__(
        self, measures: Sequence[Measure], accumulator: Accumulator, attended: AttendedSums | None = None
    ) -> None:
        self.accumulator, self.attended = accumulator, attended
        self.by_method = {
            method: [measure for measure in measures if overrides(measure, method)]
            for method in ("pointers", "rows", "maps", "layer", "stream", "weights")
        }
        self.span = max((measure.context.span for measure in measures), default=0)
        self.measured_weights: set[Slot] = set()
        self.grams: dict[Slot, Tensor | None] = {}
        self.scratch = Scratch()

    def attention(self, trace: LayerTrace) -> Tensor | None:
        slot = trace.slot
        if _overflows(trace.Y.transpose(1, 2), trace.queries.real):
            raise not_finite(f"activations of {slot}")
        if self.by_method["weights"] and slot not in self.measured_weights and trace.weights is not None:
            self.measured_weights.add(slot)
            for measure in self.by_method["weights"]:
                self._fold(measure.weights(slot, trace.weights), slot)
        for measure in self.by_method["layer"]:
            self._fold(measure.layer(trace), slot)
        if self.by_method["rows"] or self.by_method["maps"]:
            pointers = {}
            for measure in self.by_method["pointers"]:
                pointers |= measure.pointers(slot, trace.queries, trace.keys)
            read_maps = partial(self._maps, trace.heads) if self.by_method["maps"] else None
            rows = rows_of(trace, self.span, pointers, read_maps, self.scratch, self._grams(trace))
            for measure in self.by_method["rows"]:
                self._fold(measure.rows(rows), slot)
            if self.attended is not None:
                self.attended.add(rows)
        return None

    def stream(self, stream: StreamTrace) -> None:
        """A stream that is not [b i e], as models of unknown families may have, is ignored."""
        if stream.X.ndim != 3 or stream.X.shape[:2] != stream.tokens.ids.shape:
            return
        if _overflows(stream.X, stream.tokens.real):
            raise not_finite(_named(stream))
        for measure in self.by_method["stream"]:
            try:
                samples = measure.stream(stream)
            except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
                raise not_finite(f"{measure.name} of {_named(stream)}") from error
            self._fold(samples, Slot(stream.kind, stream.depth))

    def _grams(self, trace: LayerTrace) -> Tensor | None:
        """`grams_of` a layer, computed once."""
        if trace.slot not in self.grams:
            self.grams[trace.slot] = grams_of(trace)
        return self.grams[trace.slot]

    def _maps(self, heads: int, maps: Maps) -> None:
        for measure in self.by_method["maps"]:
            for name, sample in measure.maps(maps).items():
                self.accumulator.add(PlacedSample(name, maps.slot, sample), heads=maps.heads, of=heads)

    def _fold(self, samples: Samples, where: Slot | Kind) -> None:
        for name, sample in samples.items():
            self.accumulator.add(PlacedSample(name, where, sample))


def _named(stream: StreamTrace) -> str:
    what = "the embeddings" if stream.depth == 0 else f"the output of layer {stream.depth - 1}"
    return f"{what} of the {stream.kind}"


def _overflows(X: Tensor, real: Tensor) -> bool:
    """Whether a number at a real token is not finite. If the sum of all numbers is finite, so are all of them."""
    return not bool(torch.isfinite(X.sum())) and not bool(torch.isfinite(X[real]).all())
