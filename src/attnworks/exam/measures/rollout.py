"""Attention rollout: how many input tokens reach a token after each layer."""

from __future__ import annotations

import torch

from attnworks.attention.softmax import entropy
from attnworks.exam.measure import MEASURES, Declared, Measure, Placed, Sample
from attnworks.traces.forward import ForwardTrace
from attnworks.traces.frozen_pass import whole_maps
from attnworks.traces.paths import rollout, rollout_step


@MEASURES.register("rollout")
class Rollout(Measure):
    """exp(entropy) of the rows of A_l ... A_1 with A = (mean_h P_h + I) / 2, averaged over the real tokens.

    Source: Abnar and Zuidema 2020. Self-attention alone; the same for every input token would give their number.
    """

    name = "rollout"
    words = "how many input tokens reach a token after each layer, if heads count alike and values do not count"
    cost = "the attention maps of every layer, and one product of them per layer"

    def declares(self) -> tuple[Declared, ...]:
        words = "input tokens that reach a token after the layer: 1 is itself alone"
        return (Declared("rollout.effective", ("layer",), words, "Abnar and Zuidema 2020"),)

    @torch.no_grad()
    def forward(self, forward: ForwardTrace) -> list[Placed]:
        traces = [part.attention for block in forward.blocks for part in block.parts]
        own = [trace for trace in traces if trace is not None and trace.slot.kind == forward.kind]
        real = forward.tokens.real
        number = real.sum(-1)
        tokens = entropy(rollout([rollout_step(whole_maps(trace)) for trace in own])).exp()
        means = tokens.masked_fill(~real, 0.0).sum(-1) / number.clamp_min(1)
        return [
            Placed("rollout.effective", trace.slot, Sample(values, number > 0))
            for trace, values in zip(own, means, strict=True)
        ]
