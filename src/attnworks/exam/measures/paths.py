"""The measures `paths` and `rollout`: how many layers the output passed through, and how many tokens reach it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.attention.softmax import entropy
from attnworks.core.places import Slot
from attnworks.core.tensors import widened
from attnworks.exam.linalg.residual import relative_residual
from attnworks.exam.measure import BY_HEAD, BY_LAYER, MEASURES, Measure, PlacedSample, ReadingSpec, Sample
from attnworks.traces.forward import ForwardTrace
from attnworks.traces.frozen_pass import FrozenOutput, FrozenStep, frozen_steps, whole_maps
from attnworks.traces.layer import LayerTrace
from attnworks.traces.paths import cotangents, path_counts, paths_by_length, rollout, rollout_step


@MEASURES.register("paths")
class Paths(Measure):
    """The stream x after the last block as a sum, with attention and the scales of norms frozen, in two ways.

    x = sum_j C_j over lengths, and x = embedding + heads + MLPs + biases, each carried through the norms that follow.
    Shares are <part, x> / <x, x> of each real token, averaged over those of a sentence; either way they sum to one.
    Source: S0.11, S0.12, D1, D2, S1.17.
    Departs: MLPs are not linear. Paths start anew at the output of each MLP, which adds no length.
    """

    name = "paths"
    description = "how much of the output came through 0, 1, 2, ... attention layers, and from each head"
    cost = "about 20 to 25 layer forwards for 12 layers; grows with the square of the depth"

    def declares(self) -> tuple[ReadingSpec, ...]:
        length, apart = ("length",), "how far apart tokens are in paths of a length; 0: collapsed"
        return (
            ReadingSpec("paths.share", length, "share of the output by number of attention layers passed", "D1, S0.12"),
            ReadingSpec("paths.norm", length, "size of all paths of a length, relative to the output", "D1, S1.17"),
            ReadingSpec("paths.residual", length, apart, "S1.17"),
            ReadingSpec("paths.count", length, "paths of a length that begin at the embedding", "S0.12", "constant"),
            ReadingSpec("paths.head", BY_HEAD, "share of the output that a head wrote", "S0.11"),
            ReadingSpec(
                "paths.mlp", BY_LAYER, "share of the output that MLPs, or what replaces attention, wrote", "S0.11"
            ),
            ReadingSpec("paths.embedding", (), "share of the output that is the embedding itself", "S0.11"),
            ReadingSpec("paths.bias", (), "share of the output that output biases and norms wrote", "D2"),
            ReadingSpec("paths.error", (), "output minus the sum of all paths; only rounding", "D1", "largest"),
        )

    @torch.no_grad()
    def forward(self, forward: ForwardTrace) -> list[PlacedSample]:
        steps = frozen_steps(forward)
        output = _output(forward)
        return [*_by_length(forward, steps, output), *_by_part(forward, steps, output)]


class _Output(NamedTuple):
    """The exit x of the last block, zero at padding, and G with <x, G> = 1: the share of a part y is <y, G>."""

    x: Float[Tensor, "b i e"]
    G: Float[Tensor, "b i e"]
    counted: Bool[Tensor, "b i"]
    valid: Bool[Tensor, " b"]


def _output(forward: ForwardTrace) -> _Output:
    x = _zero_padding(forward.blocks[-1].exit, forward)
    squares = x.square().sum(-1)
    counted = forward.tokens.real & (squares > 0)
    weight = counted / (counted.sum(-1, keepdim=True) * squares)
    return _Output(x, x * torch.where(counted, weight, 0.0).unsqueeze(-1), counted, counted.any(-1))


def _by_length(forward: ForwardTrace, steps: list[FrozenStep], output: _Output) -> Iterator[PlacedSample]:
    x, G, counted, valid = output
    plain = [frozen.step for frozen in steps]
    C = paths_by_length(_zero_padding(forward.blocks[0].entry, forward), plain)
    real = forward.tokens.real
    tiny = torch.finfo(x.dtype).tiny
    missed = (C.sum(0) - x).abs().amax(-1).masked_fill(~real, 0.0).amax(-1)
    sizes = torch.where(counted, C.norm(dim=-1), 0.0)
    ratio = sizes / x.norm(dim=-1).clamp_min(tiny)
    samples = {
        "paths.share": Sample((C * G).sum((-2, -1)).mT, valid.unsqueeze(-1)),
        "paths.norm": Sample((ratio.sum(-1) / counted.sum(-1).clamp_min(1)).mT, valid.unsqueeze(-1)),
        "paths.residual": Sample(relative_residual(C, real.expand(len(C), *real.shape)).mT, (sizes.sum(-1) > 0).mT),
        "paths.count": Sample(C.new_tensor(path_counts(plain), dtype=torch.float64)),
        "paths.error": Sample(missed / x.abs().amax((-2, -1)).clamp_min(tiny), real.any(-1)),
    }
    for reading, sample in samples.items():
        yield PlacedSample(reading, forward.kind, sample)


def _by_part(forward: ForwardTrace, steps: list[FrozenStep], output: _Output) -> Iterator[PlacedSample]:
    at_entry, at_steps = cotangents(output.G, [frozen.step for frozen in steps])
    valid, bias = output.valid, output.x.new_zeros(len(output.x))
    mlps = {block.anatomy.layer: torch.zeros_like(bias) for block in forward.blocks}
    for (step, layer, parts, outputs), cotangent in zip(steps, at_steps, strict=True):
        for part, written in zip(parts, outputs, strict=True):
            if part.attention is None or written is None:
                mlps[layer] += _share(_zero_padding(part.output, forward), cotangent.before)
                continue
            G = written.transposed(cotangent.before)
            values = _head_shares(part.attention, written, G)
            yield PlacedSample("paths.head", part.attention.slot, Sample(values, valid.unsqueeze(-1)))
            if written.b_O is not None:
                bias += _share(written.b_O, G)
            if written.after is not None and written.after.beta is not None:
                bias += _share(written.after.beta, cotangent.before)
        if step.norm is not None and step.norm.beta is not None:
            bias += _share(step.norm.beta, cotangent.after)
    for layer, values in mlps.items():
        yield PlacedSample("paths.mlp", Slot(forward.kind, layer), Sample(values, valid))
    embedding = _share(_zero_padding(forward.blocks[0].entry, forward), at_entry)
    yield PlacedSample("paths.embedding", forward.kind, Sample(embedding, valid))
    yield PlacedSample("paths.bias", forward.kind, Sample(bias, valid))


def _head_shares(attention: LayerTrace, written: FrozenOutput, G: Float[Tensor, "b i e"]) -> Float[Tensor, "b h"]:
    """<Y_h W_O,h, G> = <Y_h, G W_O,h^T>: no head's part of the stream is ever formed."""
    Y = attention.Y.to(G.dtype).masked_fill(~attention.queries.real[:, None, :, None], 0.0)
    return (Y * (G.unsqueeze(1) @ written.W_O.to(Y.dtype).mT)).sum((-2, -1))


def _share(part: Float[Tensor, "*b e"], G: Float[Tensor, "b i e"]) -> Float[Tensor, " b"]:
    return (part * G).sum((-2, -1))


def _zero_padding(stream: Float[Tensor, "b i e"], forward: ForwardTrace) -> Float[Tensor, "b i e"]:
    return widened(stream.detach()).masked_fill(~forward.tokens.real.unsqueeze(-1), 0.0)


@MEASURES.register("rollout")
class Rollout(Measure):
    """exp(entropy) of the rows of A_l ... A_1 with A = (mean_h P_h + I) / 2, averaged over the real tokens.

    Source: Abnar and Zuidema 2020. Only self-attention is followed; equal weights give the number of tokens.
    """

    name = "rollout"
    description = "how many input tokens reach a token after each layer, with equal heads and without values"
    cost = "the attention maps of every layer, and one product of them per layer"

    def declares(self) -> tuple[ReadingSpec, ...]:
        words = "input tokens that reach a token after the layer: 1 is itself alone"
        return (ReadingSpec("rollout.effective", BY_LAYER, words, "Abnar and Zuidema 2020"),)

    @torch.no_grad()
    def forward(self, forward: ForwardTrace) -> list[PlacedSample]:
        traces = [part.attention for block in forward.blocks for part in block.parts]
        own = [trace for trace in traces if trace is not None and trace.slot.kind == forward.kind]
        if not own:
            return []
        real = forward.tokens.real
        number = real.sum(-1)
        tokens = entropy(rollout([rollout_step(whole_maps(trace)) for trace in own])).exp()
        means = tokens.masked_fill(~real, 0.0).sum(-1) / number.clamp_min(1)
        return [
            PlacedSample("rollout.effective", trace.slot, Sample(values, number > 0))
            for trace, values in zip(own, means, strict=True)
        ]
