"""One walk through a model: every chosen measure looks at each layer as it passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnworks.core.tensors import Scratch
from attnworks.exam.measure import Measure, Placed, Samples
from attnworks.exam.statistics import Folds, not_finite
from attnworks.traces.layer import Kind, LayerTrace, Slot, StreamTrace
from attnworks.traces.maps import Maps
from attnworks.traces.rows import rows_of
from attnworks.traces.subject import Spectator


class Walk(Spectator):
    """Shows layers to measures and folds what they say."""

    def __init__(self, measures: Sequence[Measure], folds: Folds) -> None:
        self.folds = folds
        self.asking, self.reading_rows, self.reading_maps, self.reading_layers, self.reading_streams = (
            [measure for measure in measures if overrides(measure, look)]
            for look in ("pointers", "rows", "maps", "layer", "stream")
        )
        self.weighing = [measure for measure in measures if overrides(measure, "weights")]
        self.span = max((measure.setting.span for measure in measures), default=0)
        self.weighed: set[Slot] = set()
        self.scratch = Scratch()

    def attention(self, trace: LayerTrace) -> Tensor | None:
        slot = trace.slot
        if _overflows(trace.Y.transpose(1, 2), trace.queries.real):
            raise not_finite(f"activations of {slot}")
        if self.weighing and slot not in self.weighed and trace.weights is not None:
            self.weighed.add(slot)
            for measure in self.weighing:
                self._fold(measure.weights(slot, trace.weights), slot)
        for measure in self.reading_layers:
            self._fold(measure.layer(trace), slot)
        if self.reading_rows or self.reading_maps:
            pointers = {}
            for measure in self.asking:
                pointers |= measure.pointers(slot, trace.queries, trace.keys)
            rows = rows_of(
                trace, self.span, pointers, self._maps(trace.heads) if self.reading_maps else None, self.scratch
            )
            for measure in self.reading_rows:
                self._fold(measure.rows(rows), slot)
        return None

    def stream(self, stream: StreamTrace) -> None:
        """A stream that a model of no known family lays out in its own way is not read."""
        if stream.X.shape[:2] != stream.tokens.ids.shape:
            return
        if _overflows(stream.X, stream.tokens.real):
            raise not_finite(_named(stream))
        for measure in self.reading_streams:
            try:
                samples = measure.stream(stream)
            except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
                raise not_finite(f"{measure.name} of {_named(stream)}") from error
            self._fold(samples, Slot(stream.kind, stream.depth))

    def _maps(self, heads: int):
        def look(maps: Maps) -> None:
            for measure in self.reading_maps:
                for name, sample in measure.maps(maps).items():
                    self.folds.add(Placed(name, maps.slot, sample), heads=maps.heads, of=heads)

        return look

    def _fold(self, samples: Samples, where: Slot | Kind) -> None:
        for name, sample in samples.items():
            self.folds.add(Placed(name, where, sample))


def _named(stream: StreamTrace) -> str:
    what = "the embeddings" if stream.depth == 0 else f"the output of layer {stream.depth - 1}"
    return f"{what} of the {stream.kind}"


def _overflows(X: Tensor, real: Tensor) -> bool:
    """Whether something at real tokens is not finite; one sum tells where all is well."""
    return not bool(torch.isfinite(X.sum())) and not bool(torch.isfinite(X[real]).all())


def overrides(measure: Measure, look: str) -> bool:
    """Whether the measure has this look, rather than the base class's empty one."""
    return getattr(type(measure), look) is not getattr(Measure, look)
