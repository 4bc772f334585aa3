"""What the loss wants of more keys and values, summed over any number of sentences in memory that does not grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.models.modes import evaluating
from attnworks.reshape.growth.directions import Reservoir
from attnworks.reshape.growth.graded import GradedLayer, graded_layers, score_scale
from attnworks.traces.frozen_pass import whole_maps
from attnworks.traces.layer import LayerTrace
from attnworks.traces.subject import Spectator
from attnworks.traces.text import Judge

LEARN, CHECK, SEARCH = slice(0, None, 2), slice(1, None, 4), slice(3, None, 4)
"""Of all sentences, sorted by length: those that directions come from, that check them, that steps are searched on."""
FEWEST = 4
"""Sentences without which one of these would be nothing."""
SAMPLE = 192
"""Most sentences for the metric of the scores."""

Progress = Callable[[int, int], None]


class Sums:
    """T = mean X'^T (dL/dS) Z and T_V = mean (P Z)^T dL/du of every head, over sentences that teach and that check.

    With a bias of the queries, X' = [X | 1]; a bias of the keys never changes the softmax (S3.8). C_V is the mean of
    (P Z)^T P Z over the sentences that teach. Sums are in float64, products of one batch in the type of the model.

    keys      [2 h q f]    values    [2 h f e]    spread    [h f f], with q = e or e + 1
    """

    def __init__(self) -> None:
        self.sentences = torch.zeros(2, dtype=torch.float64)
        self.keys = self.values = self.spread = torch.zeros(())
        self.scale: float | None = None

    def add(self, layer: GradedLayer, first: int = 0) -> None:
        """A batch whose first sentence has this number among all."""
        trace = layer.trace
        parts = [slice((some.start - first) % some.step, None, some.step) for some in (LEARN, CHECK)]
        X, Z = query_states(trace), _states(trace.Z)
        G, seen = layer.by_scores(), layer.P @ Z.unsqueeze(1)
        D = layer.by_output.to(Z.dtype).unsqueeze(1)
        keys = torch.stack([_summed(X[some].unsqueeze(1), (G[some] @ Z[some].unsqueeze(1))) for some in parts])
        values = torch.stack([_summed(seen[some], D[some]) for some in parts])
        self.keys, self.values = self.keys + keys.double(), self.values + values.double()
        self.spread = self.spread + _summed(seen[parts[0]], seen[parts[0]]).double()
        self.sentences += torch.tensor([len(X[some]) for some in parts])
        self.scale = score_scale(trace)

    def of_heads(self, heads: Sequence[int]) -> Sums:
        """The sums of some heads."""
        chosen, index = Sums(), list(heads)
        chosen.sentences, chosen.scale, chosen.spread = self.sentences, self.scale, self.spread[index]
        chosen.keys, chosen.values = self.keys[:, index], self.values[:, index]
        return chosen

    def means(self) -> tuple[Float[Tensor, "2 h q f"], Float[Tensor, "2 h f e"], Float[Tensor, "h f f"]]:
        per = self.sentences.clamp_min(1).to(self.keys.device)[:, None, None, None]
        return self.keys / per, self.values / per, self.spread / per[0]


def gather_sums(
    judge: Judge,
    branches: Mapping[str, nn.Module],
    watch: Progress,
    seen_as: Callable[[GradedLayer], GradedLayer] = lambda layer: layer,
) -> dict[str, Sums]:
    """One backward pass over the text, for all layers at once; `seen_as` may put other heads in their place."""
    sums, first = {slot: Sums() for slot in branches}, 0
    if not sums:
        return sums
    for number in range(len(judge.text.batches)):
        watch(number, len(judge.text.batches))
        for layer in graded_layers(judge, *judge.text.batch(number), branches):
            sums[str(layer.trace.slot)].add(seen_as(layer), first)
        first += len(judge.text.batches[number])
    return sums


def sampled(judge: Judge) -> slice:
    """At most SAMPLE of the sentences that teach, of all lengths."""
    taught = len(range(sum(map(len, judge.text.batches)))[LEARN])
    return slice(LEARN.start, None, LEARN.step * -(-taught // SAMPLE))


def gather_sample(judge: Judge, slot: str) -> Reservoir:
    """Queries, keys and attention of one layer, in some of the sentences that teach, in float64."""
    keep = _Keep(slot)
    device = next(judge.original.model.parameters()).device
    with evaluating(judge.original.model):
        for batch, rows in judge.batches(sampled(judge)):
            judge.losses(judge.original, batch.to(device), rows, keep)
    i, j = (max(P.shape[axis] for _, _, P in keep.found) for axis in (-2, -1))
    padded = ((_padded(X, i), _padded(Z, j), _padded(_padded(P, i).mT, j).mT) for X, Z, P in keep.found)
    return Reservoir(*(torch.cat(parts) for parts in zip(*padded, strict=True)))


class _Keep(Spectator):
    def __init__(self, slot: str) -> None:
        self.slot = slot
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []

    def attention(self, trace: LayerTrace) -> Tensor | None:
        if str(trace.slot) == self.slot:
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
