"""Distance of the residual stream to equal rows, in every norm, each with its exact minimiser."""

from __future__ import annotations

import torch

from attnworks.exam.drawing import drawn
from attnworks.exam.linalg.norms import NORMS
from attnworks.exam.linalg.residual import residual_norm
from attnworks.exam.measure import MEASURES, Declared, Measure, Sample, Samples
from attnworks.traces.layer import StreamTrace

BY_LINEAR_PROGRAM = ("inf", "composite")
ONE_IN = 16
"""Linear programs are solved for one sentence in ONE_IN."""

MINIMISER = {
    "frobenius": "mean row",
    "spectral": "mean row",
    "one": "column medians",
    "max": "column midranges",
    "inf": "linear program",
    "composite": "linear programs",
}


@MEASURES.register("residuals")
class Residuals(Measure):
    """min_x ||X - 1 x^T||, absolute and over ||X||, in six norms.

    Source: Xie 2021, section 2 (S0.13, S0.14); the rank post (S1.11); D4.
    """

    name = "residuals"
    words = "distance to equal rows in six norms, each with its exact minimiser"
    cost = f"a linear program per depth for one sentence in {ONE_IN}: seconds for each"

    def declares(self) -> tuple[Declared, ...]:
        return tuple(
            Declared(
                f"residuals.{norm}{suffix}",
                ("depth",),
                f"{norm} distance to equal rows {words}; minimiser: {MINIMISER[norm]}",
                "S0.14, D4",
            )
            for norm in NORMS
            for suffix, words in (("", "over size; 0: all tokens the same"), ("_absolute", "as it is"))
        )

    def stream(self, stream: StreamTrace) -> Samples:
        real = stream.tokens.real
        several = real.sum(-1) > 1
        X = stream.X.double()
        samples: dict[str, Sample] = {}
        for norm in NORMS:
            few = norm in BY_LINEAR_PROGRAM
            chosen = several & drawn(stream.tokens, ONE_IN, self.setting.seed) if few else several
            values, size = torch.zeros(2, len(X), dtype=X.dtype, device=X.device)
            if chosen.any():
                values[chosen] = residual_norm(X[chosen], norm, real[chosen])
                size[chosen] = NORMS[norm](X[chosen] * real[chosen].unsqueeze(-1))
            relative = values / size.clamp_min(torch.finfo(X.dtype).tiny)
            samples[f"residuals.{norm}"] = Sample(relative, chosen)
            samples[f"residuals.{norm}_absolute"] = Sample(values, chosen)
        return samples
