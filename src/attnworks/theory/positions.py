"""Where a token stands: the sinusoidal code and its shift, and the simpler codes the document rejects."""

from __future__ import annotations

import torch
from jaxtyping import Complex128, Float, Int
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.models.layers import _angles, frequencies


def shift_matrix(s: float, d: int, base: float = 10_000.0) -> Float[Tensor, "d d"]:
    """The orthogonal R_s with f(t + s) = R_s f(t): a 2 x 2 rotation [[c, s], [-s, c]] for each frequency.

    Source: Conti 2024, section 1.2.1 (S4.23-S4.25).
    Departs: the document writes a sin(omega t) + b with constants a, b; b contains cos(omega t).
    """
    angles = s * frequencies(d, base)
    c, s_ = angles.cos(), angles.sin()
    blocks = torch.stack([torch.stack([c, s_], -1), torch.stack([-s_, c], -1)], -2)
    return torch.block_diag(*blocks)


def sinusoid_complex(
    t: Int[Tensor, "*a"] | Float[Tensor, "*a"], d: int, base: float = 10_000.0
) -> Complex128[Tensor, "*a k"]:
    """exp(i omega_k t) for each frequency, [*a d/2] in complex128: imaginary parts are the sines of `sinusoid`, real
    parts its cosines.

    Source: Conti 2024, section 1.2.1 (S4.21).
    Departs: the document divides t by omega_k instead of multiplying it.
    """
    angles = _angles(t, d, base)
    return torch.polar(torch.ones_like(angles), angles)


def least_distance(n: int, d: int, base: float = 10_000.0) -> float:
    """The distance of those two among n >= 2 positions whose codes are nearest to each other.

        ||f(t) - f(s)|| = 2 sqrt(sum_k sin(omega_k (t - s) / 2)^2)
    Source: Conti 2024, section 1.2.1 (S4.22, S4.27). Never zero, as omega_0 = 1 and no whole number but 0 is a multiple
    of 2 pi. It depends on t - s alone, so that n - 1 differences are looked at.
    """
    if n < 2:
        raise UsageError(
            asked=f"the least distance among {n} positions",
            expected="two or more",
            got=str(n),
            remedy="ask for at least two positions",
        )
    halves = torch.arange(1, n, dtype=torch.float64).unsqueeze(-1) * frequencies(d, base) / 2
    return float(2 * halves.sin().norm(dim=-1).min())


def longest_wavelength(d: int, base: float = 10_000.0) -> float:
    """2 pi base^((d - 2) / d), after which the slowest pair comes back; what `base` has to be large for (S4.22)."""
    return float(2 * torch.pi / frequencies(d, base)[-1])
