"""One backward pass: how the loss depends on what every attention layer gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention.heads import Head, mask_of_heads
from attnworks.core.errors import UsageError
from attnworks.models.modes import held_still
from attnworks.text.tokens import TextBatch
from attnworks.traces.frozen_pass import whole_maps
from attnworks.traces.layer import LayerTrace
from attnworks.traces.subject import Spectator, first
from attnworks.traces.text import Judge


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
            raise UsageError(
                asked=f"the gradient by the scores of {self.trace.slot}",
                expected="scores that are not capped",
                got=f"scores capped at {self.trace.softcap:g}",
                remedy="leave out this layer, or choose another model",
            )
        V = self.trace.shared(self.trace.V, slice(None)).detach()
        return softmax_back(self.P, self.by_heads.to(self.P.dtype) @ V.to(self.P.dtype).mT)

    def as_head(self, keys: Head, a: Float[Tensor, "f p"], b: Float[Tensor, "p e"], parent: int) -> GradedLayer:
        """As if the layer had one head, with these queries and keys, values Z a and outputs b.

        It sees what its parent sees and has the sink logit of its parent; what a model adds to scores for positions, a
        new head does without.
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
    judge: Judge, batch: TextBatch, rows: Tensor, branches: Mapping[str, nn.Module]
) -> Iterator[GradedLayer]:
    """Every layer that is asked for, by the module whose output is added to the stream, after one backward pass."""
    subject = judge.original
    probes = _Probes(set(branches))
    with held_still(subject.model), probes.outputs(branches), torch.enable_grad():
        loss = judge.losses(subject, batch.to(next(subject.model.parameters()).device), rows, probes).sum()
        slots = [slot for slot in branches if slot in probes.traces and slot in probes.by_output]
        wanted = [probe for slot in slots for probe in (probes.by_heads[slot], probes.by_output[slot])]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
    gradients = [torch.zeros_like(probe) if g is None else g for probe, g in zip(wanted, found, strict=True)]
    with torch.no_grad():
        for slot, by_heads, by_output in zip(slots, gradients[::2], gradients[1::2], strict=True):
            trace = probes.traces.pop(slot)
            yield GradedLayer(trace, whole_maps(trace).detach(), by_heads, by_output)


class _Probes(Spectator):
    """Zeros, added to the heads and to the output of layers, whose gradients are those of heads and outputs."""

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted
        self.traces: dict[str, LayerTrace] = {}
        self.by_heads: dict[str, Tensor] = {}
        self.by_output: dict[str, Tensor] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        slot = str(trace.slot)
        if slot not in self.wanted:
            return None
        self.traces[slot] = trace
        self.by_heads[slot] = torch.zeros_like(trace.Y, requires_grad=True)
        return trace.Y + self.by_heads[slot]

    @contextmanager
    def outputs(self, branches: Mapping[str, nn.Module]) -> Iterator[None]:
        with ExitStack() as hooks:
            for slot, branch in branches.items():
                hooks.callback(branch.register_forward_hook(self._output(slot)).remove)
            yield

    def _output(self, slot: str) -> Callable[[nn.Module, Any, Any], Any]:
        def gave(_: nn.Module, __: Any, output: Any) -> Any:
            self.by_output[slot] = torch.zeros_like(first(output), requires_grad=True)
            probed = first(output) + self.by_output[slot]
            return (probed, *output[1:]) if isinstance(output, tuple) else probed

        return gave
