"""Gradients of every attention layer from one backward pass, and their sums over sentences in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention.heads import HeadMatrices, mask_of_heads
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.models.modes import eval_mode, inference_mode
from attnworks.reshape.growth.directions import ScoreSample
from attnworks.text.tokens import Batch
from attnworks.traces.frozen_pass import whole_maps
from attnworks.traces.layer import LayerTrace
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import LayerHook, first

FITTING_SLICE, CHECKING_SLICE, SEARCHING_SLICE = slice(0, None, 2), slice(1, None, 4), slice(3, None, 4)
"""Of all sentences, sorted by length: those to fit directions to, to check them on, and to search steps on."""
MIN_SENTENCES = 4
"""The smallest number of sentences of which each of these slices has one."""
MAX_METRIC_SENTENCES = 192
"""The largest number of sentences from which the metric of the scores is computed."""


@dataclass(frozen=True, eq=False)
class GradedLayer:
    """An attention layer of one forward pass, with the gradient of the sum of all losses.

    P            attention, zero in rows and columns of padding
    by_heads     dL / dY
    by_output    dL / du, for what the layer adds to the stream
    """

    trace: LayerTrace
    P: Float[Tensor, "b h i j"]
    by_heads: Float[Tensor, "b h i v"]
    by_output: Float[Tensor, "b i e"]

    def by_scores(self) -> Float[Tensor, "b h i j"]:
        """dL / dS = P o (dP - 1 (P . dP)) with dP = dL/dY V^T; its rows sum to zero (S3.10), or with a sink logit to
        the opposite of what the sink would get. Where scores are capped, this is not their gradient, and is refused.
        """
        if self.trace.softcap is not None:
            asked, got = f"the gradient by the scores of {self.trace.slot}", f"scores capped at {self.trace.softcap:g}"
            raise UsageError(asked, "scores that are not capped", got, "leave out this layer, or choose another model")
        V = self.trace.shared(self.trace.V, slice(None)).detach()
        return softmax_back(self.P, self.by_heads.to(self.P.dtype) @ V.to(self.P.dtype).mT)

    def as_head(self, keys: HeadMatrices, a: Float[Tensor, "f p"], b: Float[Tensor, "p e"], parent: int) -> GradedLayer:
        """As if the layer had one head, with these queries and keys, values Z a and outputs b.

        It has the mask and the sink logit of its parent, but not what the model adds to scores for positions.
        """
        trace, wide = self.trace, self.P.dtype
        assert trace.X is not None and trace.Z is not None
        X, Z = trace.X.detach().to(wide), trace.Z.detach().to(wide)
        Q, K = (
            (states @ W.to(wide) + (0.0 if bias is None else bias.to(wide))).unsqueeze(1)
            for states, W, bias in ((X, keys.W_Q, keys.b_Q), (Z, keys.W_K, keys.b_K))
        )
        V = (Z @ a.to(wide)).unsqueeze(1)
        if trace.scale and (scale := score_scale(trace)) is not None:
            Q = Q * (scale / trace.scale)
        mask = mask_of_heads(trace.mask.hiding(), (parent,))
        sink = None if trace.sink is None else trace.sink[parent : parent + 1]
        alone = replace(trace, Q=Q, K=K, V=V, Y=V.new_zeros(*Q.shape[:3], V.shape[-1]), mask=mask, sink=sink)
        by_heads = (self.by_output.to(wide) @ b.to(wide).mT).unsqueeze(1)
        return GradedLayer(alone, whole_maps(alone), by_heads, self.by_output)


def score_scale(trace: LayerTrace) -> float | None:
    """The factor of (X W_Q + b_Q) (Z W_K)^T in the scores; OPT puts it into Q before attention is computed."""
    own = None if trace.weights is None else trace.weights.scale
    return trace.scale if trace.scale is None or own is None else own


def softmax_back(P: Float[Tensor, "*a i j"], by_weights: Float[Tensor, "*a i j"]) -> Float[Tensor, "*a i j"]:
    """The gradient by the scores, given that by the weights P = softmax(S)."""
    by_scores = P * by_weights
    return by_scores - P * by_scores.sum(-1, keepdim=True)


def graded_layers(
    text_loss: TextLoss, batch: Batch, rows: Tensor, branches: Mapping[Slot, nn.Module]
) -> Iterator[GradedLayer]:
    """Every layer that is asked for, by the module whose output is added to the stream, after one backward pass."""
    subject = text_loss.original
    probes = _Probes(set(branches))
    with eval_mode(subject.model), ExitStack() as hooks, torch.enable_grad():
        for slot, branch in branches.items():
            hooks.callback(branch.register_forward_hook(partial(probes.output, slot)).remove)
        loss = text_loss.losses(subject, batch.to(subject.device), rows, probes).sum()
        slots = [slot for slot in branches if slot in probes.traces and slot in probes.by_output]
        wanted = [probe for slot in slots for probe in (probes.by_heads[slot], probes.by_output[slot])]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
    gradients = [torch.zeros_like(probe) if g is None else g for probe, g in zip(wanted, found, strict=True)]
    with torch.no_grad():
        for slot, by_heads, by_output in zip(slots, gradients[::2], gradients[1::2], strict=True):
            trace = probes.traces.pop(slot)
            yield GradedLayer(trace, whole_maps(trace).detach(), by_heads, by_output)


class _Probes(LayerHook):
    """Zeros, added to the heads and to the output of layers, whose gradients are those of heads and outputs."""

    def __init__(self, wanted: set[Slot]) -> None:
        self.wanted = wanted
        self.traces: dict[Slot, LayerTrace] = {}
        self.by_heads: dict[Slot, Tensor] = {}
        self.by_output: dict[Slot, Tensor] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        slot = trace.slot
        if slot not in self.wanted:
            return None
        self.traces[slot] = trace
        self.by_heads[slot] = torch.zeros_like(trace.Y, requires_grad=True)
        return trace.Y + self.by_heads[slot]

    def output(self, slot: Slot, _module: nn.Module, _args: Any, output: Any) -> Any:
        """A forward hook of the module whose output is added to the stream."""
        self.by_output[slot] = torch.zeros_like(first(output), requires_grad=True)
        probed = first(output) + self.by_output[slot]
        return (probed, *output[1:]) if isinstance(output, tuple) else probed


class GrowthSums:
    """T = mean X'^T (dL/dS) Z and T_V = mean (P Z)^T dL/du of every head, over fitting and over checking sentences.

    With a bias of the queries, X' = [X | 1]; a bias of the keys never changes the softmax (S3.8). C_V is the mean of
    (P Z)^T P Z over the fitting sentences. Sums are in float64, products of one batch in the type of the model.

    keys      [2 h q f]    values    [2 h f e]    spread    [h f f], with q = e or e + 1
    """

    def __init__(self) -> None:
        self.sentences = torch.zeros(2, dtype=torch.float64)
        self.keys = self.values = self.spread = torch.zeros(())
        self.scale: float | None = None

    def add(self, layer: GradedLayer, first: int = 0) -> None:
        """A batch whose first sentence has this number among all."""
        trace = layer.trace
        parts = [slice((some.start - first) % some.step, None, some.step) for some in (FITTING_SLICE, CHECKING_SLICE)]
        X, Z = query_states(trace), _states(trace.Z)
        G, seen = layer.by_scores(), layer.P @ Z.unsqueeze(1)
        D = layer.by_output.to(Z.dtype).unsqueeze(1)
        keys = torch.stack([_summed(X[some].unsqueeze(1), (G[some] @ Z[some].unsqueeze(1))) for some in parts])
        values = torch.stack([_summed(seen[some], D[some]) for some in parts])
        self.keys, self.values = self.keys + keys.double(), self.values + values.double()
        self.spread = self.spread + _summed(seen[parts[0]], seen[parts[0]]).double()
        self.sentences += torch.tensor([len(X[some]) for some in parts])
        self.scale = score_scale(trace)

    def of_heads(self, heads: Sequence[int]) -> GrowthSums:
        """The sums of some heads."""
        chosen, index = GrowthSums(), list(heads)
        chosen.sentences, chosen.scale, chosen.spread = self.sentences, self.scale, self.spread[index]
        chosen.keys, chosen.values = self.keys[:, index], self.values[:, index]
        return chosen

    def means(self) -> tuple[Float[Tensor, "2 h q f"], Float[Tensor, "2 h f e"], Float[Tensor, "h f f"]]:
        per = self.sentences.clamp_min(1).to(self.keys.device)[:, None, None, None]
        return self.keys / per, self.values / per, self.spread / per[0]


def gather_sums(
    text_loss: TextLoss,
    branches: Mapping[Slot, nn.Module],
    tell: Callable[[int, int], None],
    seen_as: Callable[[GradedLayer], GradedLayer] = lambda layer: layer,
) -> dict[Slot, GrowthSums]:
    """One backward pass over the text, for all layers at once; `seen_as` may replace the heads of a layer."""
    sums, first = {slot: GrowthSums() for slot in branches}, 0
    if not sums:
        return sums
    for number in range(len(text_loss.text.batches)):
        tell(number, len(text_loss.text.batches))
        for layer in graded_layers(text_loss, *text_loss.text.batch(number), branches):
            sums[layer.trace.slot].add(seen_as(layer), first)
        first += len(text_loss.text.batches[number])
    return sums


def metric_sentences(text_loss: TextLoss) -> slice:
    """At most MAX_METRIC_SENTENCES of the fitting sentences, of all lengths."""
    fitted = len(range(sum(map(len, text_loss.text.batches)))[FITTING_SLICE])
    return slice(FITTING_SLICE.start, None, FITTING_SLICE.step * -(-fitted // MAX_METRIC_SENTENCES))


def gather_sample(text_loss: TextLoss, slot: Slot) -> ScoreSample:
    """Queries, keys and attention of one layer, in some of the fitting sentences, in float64."""
    collect, subject = _CollectSample(slot), text_loss.original
    with inference_mode(subject.model):
        for batch, rows in text_loss.batches(metric_sentences(text_loss)):
            text_loss.losses(subject, batch.to(subject.device), rows, collect)
    i, j = (max(P.shape[axis] for _, _, P in collect.found) for axis in (-2, -1))  # queries and keys, padded to these
    padded = ((_padded(X, i), _padded(Z, j), _padded(_padded(P, i).mT, j).mT) for X, Z, P in collect.found)
    return ScoreSample(*(torch.cat(parts) for parts in zip(*padded, strict=True)))


class _CollectSample(LayerHook):
    """X [b i e], Z [b j f] and P [b h i j] of one layer in every batch, with zeros for padding."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []

    def attention(self, trace: LayerTrace) -> Tensor | None:
        if trace.slot == self.slot:
            X, Z = (
                states.double() * side.real.unsqueeze(-1)
                for states, side in ((query_states(trace), trace.queries), (_states(trace.Z), trace.keys))
            )
            self.found.append((X, Z, whole_maps(trace).double()))
        return None


def query_states(trace: LayerTrace) -> Float[Tensor, "b i e"]:
    """X, with a column of ones where queries have a bias."""
    X = _states(trace.X)
    biased = trace.weights is not None and trace.weights.b_Q is not None
    return torch.cat([X, torch.ones_like(X[..., :1])], -1) if biased else X


def _states(X: Tensor | None) -> Tensor:
    assert X is not None
    return X.detach().to(torch.promote_types(X.dtype, torch.float32))


def _summed(left: Float[Tensor, "b _ i e"], right: Float[Tensor, "b _ i f"]) -> Float[Tensor, "_ e f"]:
    """sum over sentences and positions of left^T right, for every head."""
    flat = [side.transpose(0, 1).flatten(1, 2) for side in (left, right)]
    return flat[0].mT @ flat[1]


def _padded(X: Float[Tensor, "*a i e"], length: int) -> Float[Tensor, "*a n e"]:
    return torch.nn.functional.pad(X, (0, 0, 0, length - X.shape[-2]))
