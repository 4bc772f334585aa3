"""Sums of the gradients of attention layers over sentences, in constant memory, and a sample of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.places import Slot
from attnworks.models.modes import inference_mode
from attnworks.reshape.growth.graded import (
    GradedLayer,
    cap_slopes,
    graded_layers,
    has_linear_queries,
    query_states,
    score_scale,
    states_of,
)
from attnworks.reshape.growth.metric import ScoreSample
from attnworks.traces.frozen_pass import whole_maps
from attnworks.traces.layer import LayerTrace
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import LayerHook

FITTING_SLICE, CHECKING_SLICE, SEARCHING_SLICE = slice(0, None, 2), slice(1, None, 4), slice(3, None, 4)
"""Of all sentences, sorted by length: those to fit directions to, to check them on, and to search steps on."""
MIN_SENTENCES = 4
"""The smallest number of sentences of which each of these slices has one."""
MAX_METRIC_SENTENCES = 192
"""The largest number of sentences from which the metric of the scores is computed."""


class GrowthSums:
    """T = mean X'^T (dL/dS) Z and T_V = mean (P Z)^T dL/du of every head, over fitting and over checking sentences.

    With a bias of the queries, X' = [X | 1]; a bias of the keys never changes the softmax (S3.8). C_V is the mean of
    (P Z)^T P Z over the fitting sentences. Sums are in float64, products of one batch in the type of the model.

    keys      [2 h q f]    values    [2 h f e]    spread    [h f f], with q = e or e + 1
    scale     the factor of Q K^T in the scores; None if they are no such products
    linear    whether queries are plain maps of X; if not, they may be rotated by position
    """

    def __init__(self) -> None:
        self.sentences = torch.zeros(2, dtype=torch.float64)
        self.keys = self.values = self.spread = torch.zeros(())
        self.scale: float | None = None
        self.linear = True

    def add(self, layer: GradedLayer, first: int = 0) -> None:
        """A batch whose first sentence has this number among all."""
        trace = layer.trace
        parts = [slice((some.start - first) % some.step, None, some.step) for some in (FITTING_SLICE, CHECKING_SLICE)]
        X, Z = query_states(trace), states_of(trace.Z)
        G, seen = layer.by_scores(), layer.P @ Z.unsqueeze(1)
        D = layer.by_output.to(Z.dtype).unsqueeze(1)
        keys = torch.stack([summed_products(X[some].unsqueeze(1), (G[some] @ Z[some].unsqueeze(1))) for some in parts])
        values = torch.stack([summed_products(seen[some], D[some]) for some in parts])
        self.keys, self.values = self.keys + keys.double(), self.values + values.double()
        self.spread = self.spread + summed_products(seen[parts[0]], seen[parts[0]]).double()
        self.sentences += torch.tensor([len(X[some]) for some in parts])
        self.scale, self.linear = score_scale(trace), has_linear_queries(trace)

    @property
    def may_turn(self) -> bool:
        """Whether scores are products of queries and keys that may be rotated by position."""
        return self.scale is not None and not self.linear

    def of_heads(self, heads: Sequence[int]) -> GrowthSums:
        """The sums of some heads."""
        chosen, index = GrowthSums(), list(heads)
        chosen.sentences, chosen.scale, chosen.linear = self.sentences, self.scale, self.linear
        chosen.spread = self.spread[index]
        chosen.keys, chosen.values = self.keys[:, index], self.values[:, index]
        return chosen

    def means(self) -> tuple[Float[Tensor, "2 h q f"], Float[Tensor, "2 h f e"], Float[Tensor, "h f f"]]:
        per = self.sentences.clamp_min(1).to(self.keys.device)[:, None, None, None]
        return self.keys / per, self.values / per, self.spread / per[0]


def graded_pass(
    text_loss: TextLoss, outputs: Mapping[Slot, nn.Module], tell: Callable[[int, int], None]
) -> Iterator[tuple[GradedLayer, int]]:
    """One backward pass over the text, for all layers at once: layers, and the number of their first sentence."""
    start = 0
    for number, batch in enumerate(text_loss.text.batches if outputs else ()):
        tell(number, len(text_loss.text.batches))
        for layer in graded_layers(text_loss, *text_loss.text.batch(number), outputs):
            yield layer, start
        start += len(batch)


def gather_sums(
    text_loss: TextLoss,
    outputs: Mapping[Slot, nn.Module],
    tell: Callable[[int, int], None],
    seen_as: Callable[[GradedLayer], GradedLayer] = lambda layer: layer,
) -> dict[Slot, GrowthSums]:
    """One backward pass over the text, for all layers at once; `seen_as` may replace the heads of a layer."""
    sums = {slot: GrowthSums() for slot in outputs}
    for layer, start in graded_pass(text_loss, outputs, tell):
        sums[layer.trace.slot].add(seen_as(layer), start)
    return sums


def metric_sentences(text_loss: TextLoss, most: int | None = None) -> slice:
    """At most this many of the fitting sentences, of all lengths; by default MAX_METRIC_SENTENCES."""
    fitted = len(range(sum(map(len, text_loss.text.batches)))[FITTING_SLICE])
    most = MAX_METRIC_SENTENCES if most is None else most
    return slice(FITTING_SLICE.start, None, FITTING_SLICE.step * -(-fitted // most))


def gather_sample(text_loss: TextLoss, slot: Slot) -> ScoreSample:
    """Queries, keys and attention of one layer, in some of the fitting sentences, in float64."""
    collect, subject = _CollectSample(slot), text_loss.original
    with inference_mode(subject.model):
        for batch, rows in text_loss.batches(metric_sentences(text_loss)):
            text_loss.losses(subject, batch.to(subject.device), rows, collect)
    return _joined_sample(collect.states, collect.tables)


def gather_graded_sample(
    text_loss: TextLoss, slot: Slot, output: nn.Module, most: int
) -> tuple[ScoreSample, Float[Tensor, "n h i j"]]:
    """The same in at most this many sentences, and dL / dS of each of them."""
    states: list[tuple[Tensor, Tensor]] = []
    tables: list[tuple[Tensor, ...]] = []
    gradients: list[tuple[Tensor, ...]] = []
    for batch, rows in text_loss.batches(metric_sentences(text_loss, most)):
        for layer in graded_layers(text_loss, batch, rows, {slot: output}):
            states.append(_sample_states(layer.trace))
            tables.append(_sample_tables(layer.trace))
            gradients.append((layer.by_scores().double(),))
    (G,) = _joined_tables(gradients)
    return _joined_sample(states, tables), G


class _CollectSample(LayerHook):
    """The parts of a sample of one layer, batch by batch."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.states: list[tuple[Tensor, Tensor]] = []
        self.tables: list[tuple[Tensor, ...]] = []

    def attention(self, trace: LayerTrace) -> Tensor | None:
        if trace.slot == self.slot:
            self.states.append(_sample_states(trace))
            self.tables.append(_sample_tables(trace))
        return None


def _sample_states(trace: LayerTrace) -> tuple[Float[Tensor, "b i e"], Float[Tensor, "b j f"]]:
    """X and Z, with zeros for padding."""
    X, Z = (
        states.double() * side.real.unsqueeze(-1)
        for states, side in ((query_states(trace), trace.queries), (states_of(trace.Z), trace.keys))
    )
    return X, Z


def _sample_tables(trace: LayerTrace) -> tuple[Float[Tensor, "b h i j"], ...]:
    """P, and the slopes of the cap where scores are capped."""
    slopes = cap_slopes(trace)
    return tuple(table.double() for table in (whole_maps(trace), slopes) if table is not None)


def _joined_sample(states: Sequence[tuple[Tensor, Tensor]], tables: Sequence[tuple[Tensor, ...]]) -> ScoreSample:
    X, Z = (_joined_states(side) for side in zip(*states, strict=True))
    P, *slopes = _joined_tables(tables)
    return ScoreSample(X, Z, P, slopes[0] if slopes else None)


def _joined_states(found: Sequence[Tensor]) -> Tensor:
    """The states of all batches, padded to the longest."""
    longest = max(X.shape[1] for X in found)
    return torch.cat([_padded(X, longest) for X in found])


def _joined_tables(found: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """The tables of all batches, padded to the most queries and keys."""
    i, j = (max(tables[0].shape[axis] for tables in found) for axis in (-2, -1))
    kinds = zip(*found, strict=True)
    return [torch.cat([_padded(_padded(table, i).mT, j).mT for table in tables]) for tables in kinds]


def summed_products(left: Float[Tensor, "b _ i e"], right: Float[Tensor, "b _ i f"]) -> Float[Tensor, "_ e f"]:
    """sum over sentences and positions of left^T right, for every head."""
    flat = [side.transpose(0, 1).flatten(1, 2) for side in (left, right)]
    return flat[0].mT @ flat[1]


def _padded(X: Float[Tensor, "*a i e"], length: int) -> Float[Tensor, "*a n e"]:
    return torch.nn.functional.pad(X, (0, 0, 0, length - X.shape[-2]))
