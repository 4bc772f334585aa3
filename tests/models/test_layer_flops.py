"""The FLOPs of a layer in closed form, against counted ones and the figures of S4.69."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnworks.models.counting import layer_flops, quadratic_share


@pytest.mark.parametrize(("n", "d", "share"), [(512, 1024, 0.077), (512, 512, 0.143), (2048, 12_288, 0.027)])
def test_shares_of_known_models(n: int, d: int, share: float) -> None:
    assert quadratic_share(n, d) == pytest.approx(share, abs=5e-4)
    assert quadratic_share(n, d) == pytest.approx(n / (n + 6 * d), rel=1e-12)


def test_half_of_it_at_six_times_the_width() -> None:
    assert quadratic_share(6 * 11, 11) == 0.5
    assert quadratic_share(2 * 11 + 17, 11, 17) == 0.5


@pytest.mark.parametrize("d_ff", [None, 19])
def test_a_layer_by_counting(d_ff: int | None) -> None:
    n, heads, d = 13, 3, 15
    layer = nn.TransformerEncoderLayer(d, heads, d_ff or 4 * d, dropout=0.0, batch_first=True)
    X = torch.randn(1, n, d, requires_grad=True)
    counter = FlopCounterMode(display=False)
    with counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        layer(X)
    assert counter.get_total_flops() == sum(layer_flops(n, d, d_ff).values())
