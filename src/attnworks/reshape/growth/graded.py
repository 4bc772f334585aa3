"""Gradients of every attention layer from one backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention.heads import HeadMatrices, mask_of_heads
from attnworks.core.places import Slot
from attnworks.models.anatomy import Part
from attnworks.models.modes import eval_mode
from attnworks.text.tokens import Batch
from attnworks.traces.frozen_pass import whole_maps
from attnworks.traces.layer import LayerTrace, first, linear_queries
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import LayerHook


@dataclass(frozen=True, eq=False)
class GradedLayer:
    """An attention layer of one forward pass, with the gradient of the sum of all losses.

    P            attention, zero in rows and columns of padding
    by_heads     dL / dY
    by_output    dL / du for the output u of its last projection, before what else happens to it on its way to the
                 stream (a gate, a norm, a factor)
    """

    trace: LayerTrace
    P: Float[Tensor, "b h i j"]
    by_heads: Float[Tensor, "b h i v"]
    by_output: Float[Tensor, "b i e"]

    def by_scores(self) -> Float[Tensor, "b h i j"]:
        """dL / dS = P o (dP - 1 (P . dP)) with dP = dL/dY V^T; its rows sum to zero (S3.10), or with a sink logit to
        the opposite of what the sink would get. Where scores are capped, it is by s Q K^T, before the cap.
        """
        V = self.trace.shared(self.trace.V, slice(None)).detach()
        by_capped = softmax_back(self.P, self.by_heads.to(self.P.dtype) @ V.to(self.P.dtype).mT)
        slopes = cap_slopes(self.trace)
        return by_capped if slopes is None else by_capped * slopes

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


@torch.no_grad()
def cap_slopes(trace: LayerTrace) -> Float[Tensor, "b h i j"] | None:
    """d c tanh(S / c) / dS = 1 - tanh(S / c)^2, where scores are capped."""
    if trace.softcap is None:
        return None
    every = slice(None)
    S = trace.scores(every, every, trace.Q.shape[2], trace.K.shape[2])
    return 1.0 - (S / trace.softcap).square()


def score_scale(trace: LayerTrace) -> float | None:
    """The factor of (X W_Q + b_Q) (Z W_K)^T in the scores; OPT puts it into Q before attention is computed."""
    own = None if trace.weights is None else trace.weights.scale
    return trace.scale if trace.scale is None or own is None else own


def has_linear_queries(trace: LayerTrace) -> bool:
    """Whether queries are a multiple of X W_Q + b_Q, as far as is known: neither rotated by position nor normed."""
    X, W = trace.X, trace.weights
    if X is None or W is None or W.W_Q[:, 0].shape != trace.Q[0, :, 0].shape:
        return False
    return linear_queries(X, trace.Q, W)


def softmax_back(P: Float[Tensor, "*a i j"], by_weights: Float[Tensor, "*a i j"]) -> Float[Tensor, "*a i j"]:
    """The gradient by the scores, given that by the weights P = softmax(S)."""
    by_scores = P * by_weights
    return by_scores - P * by_scores.sum(-1, keepdim=True)


def graded_layers(
    text_loss: TextLoss, batch: Batch, rows: Tensor, outputs: Mapping[Slot, nn.Module]
) -> Iterator[GradedLayer]:
    """Every layer that is asked for, by the module that gives its output, after one backward pass."""
    subject = text_loss.original
    probes = _Probes(set(outputs))
    with eval_mode(subject.model), ExitStack() as hooks, torch.enable_grad():
        for slot, module in outputs.items():
            hooks.callback(module.register_forward_hook(partial(probes.output, slot)).remove)
        loss = text_loss.losses(subject, batch.to(subject.device), rows, probes).sum()
        slots = [slot for slot in outputs if slot in probes.traces and slot in probes.by_output]
        wanted = [probe for slot in slots for probe in (probes.by_heads[slot], probes.by_output[slot])]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
    gradients = [torch.zeros_like(probe) if g is None else g for probe, g in zip(wanted, found, strict=True)]
    with torch.no_grad():
        for slot, by_heads, by_output in zip(slots, gradients[::2], gradients[1::2], strict=True):
            trace = probes.traces.pop(slot)
            by_output = by_output.reshape(*trace.Y.shape[:1], trace.Y.shape[2], -1)  # [b i e], also from [(b i) e]
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
        """A forward hook of the module that gives the output of the layer."""
        self.by_output[slot] = torch.zeros_like(first(output), requires_grad=True)
        probed = first(output) + self.by_output[slot]
        return (probed, *output[1:]) if isinstance(output, tuple) else probed


def output_of(part: Part) -> nn.Module:
    """The module that gives the output of a layer, to which new values are added: its last projection."""
    return part.branch if part.output is None else part.output


def query_states(trace: LayerTrace) -> Float[Tensor, "b i e"]:
    """X, with a column of ones where queries have a bias."""
    X = states_of(trace.X)
    biased = trace.weights is not None and trace.weights.b_Q is not None
    return torch.cat([X, torch.ones_like(X[..., :1])], -1) if biased else X


def key_states(trace: LayerTrace) -> Float[Tensor, "b j f"]:
    """Z, with a column of ones where keys have a bias: it matters for columns that turn by position alone."""
    Z = states_of(trace.Z)
    biased = trace.weights is not None and trace.weights.b_K is not None
    return torch.cat([Z, torch.ones_like(Z[..., :1])], -1) if biased else Z


def states_of(X: Tensor | None) -> Tensor:
    assert X is not None
    return X.detach().to(torch.promote_types(X.dtype, torch.float32))
