"""Saturation against the functions of linalg.softmax, row by row."""

from __future__ import annotations

import torch

from attnworks.attention import Mask
from attnworks.attention.softmax import entropy, jacobian_norm
from attnworks.core.places import Slot
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measures.saturation import Saturation
from attnworks.text.tokens import TokenRow, collate
from attnworks.traces.layer import LayerTrace
from attnworks.traces.rows import rows_of

B, H, N, K = 2, 3, 7, 5
LENGTHS = (7, 4)


def trace(scale: float = 0.7, spread: float = 2.0) -> LayerTrace:
    tokens = collate([TokenRow(tuple(range(3, 3 + n)), (False,) * n, (-1,) * n) for n in LENGTHS], 0)
    Q, K_, V = (spread * torch.randn(B, H, N, K, dtype=torch.float64) for _ in range(3))
    return LayerTrace(Slot("encoder", 0), Q, K_, V, V, Mask(), scale, tokens, tokens)


def test_rows_against_softmax() -> None:
    seen = trace()
    got = Saturation(MeasureContext(N)).rows(rows_of(seen, N - 1))
    for b, n in enumerate(LENGTHS):
        S = 0.7 * seen.Q[b, :, :n] @ seen.K[b, :, :n].mT
        P = S.softmax(-1)
        for name, value in (
            ("entropy", entropy(P)),
            ("max_weight", P.amax(-1)),
            ("jacobian", jacobian_norm(P)),
            ("score_range", S.amax(-1) - S.amin(-1)),
        ):
            torch.testing.assert_close(got[f"saturation.{name}"].values[b], value.mean(-1))


def test_size_of_scores_against_loops() -> None:
    seen = trace()
    measure = Saturation(MeasureContext(N))
    got = {**measure.layer(seen), **measure.rows(rows_of(seen, N - 1))}
    for b, n in enumerate(LENGTHS):
        q, k = seen.Q[b, :, :n], seen.K[b, :, :n]
        rms = (0.7 * q @ k.mT).square().mean((-2, -1)).sqrt()
        alone = 0.7 * K**0.5 * q.square().mean((-2, -1)).sqrt() * k.square().mean((-2, -1)).sqrt()
        torch.testing.assert_close(got["saturation.score_rms"].values[b], rms)
        torch.testing.assert_close(got["saturation.score_expected"].values[b], alone)


def test_aligned_queries_and_keys_grow_with_sqrt_k() -> None:
    seen = trace()
    one = torch.ones_like(seen.Q)
    aligned = LayerTrace(seen.slot, one, one, one, one, Mask(), 1.0, seen.queries, seen.keys)
    measure = Saturation(MeasureContext(N))
    got = {**measure.layer(aligned), **measure.rows(rows_of(aligned, N - 1))}
    growth = got["saturation.score_rms"].values / got["saturation.score_expected"].values
    torch.testing.assert_close(growth, torch.full((B, H), K**0.5, dtype=torch.float64))
