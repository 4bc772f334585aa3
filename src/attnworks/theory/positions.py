"""Where a token stands: the sinusoidal code and its shift, and the simpler codes the document rejects."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Complex128, Float, Int
from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.models.config import PositionKind


def frequencies(d: int, base: float = 10_000.0) -> Float[Tensor, " pairs"]:
    """omega_k = base^(-2k/d) for k = 0 .. d/2 - 1, in float64."""
    return base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)


def sinusoid(t: Int[Tensor, "*a"] | Float[Tensor, "*a"], d: int, base: float = 10_000.0) -> Float[Tensor, "*a d"]:
    """f(t)_{2k} = sin(omega_k t), f(t)_{2k+1} = cos(omega_k t), in float64.

    Source: Conti 2024, eq. 1 (S4.20).
    Holds when: d is even. Then ||f(t)||^2 = d/2 and f(t).f(s) = sum_k cos(omega_k (t - s)).
    """
    angles = _angles(t, d, base)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


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


def _angles(t: Tensor, d: int, base: float) -> Float[Tensor, "*a k"]:
    return t.to(torch.float64).unsqueeze(-1) * frequencies(d, base).to(t.device)


class Positions(nn.Module):
    """Adds a code of each position to the embeddings.

    sinusoid            eq. 1, for any length
    learned             one trained row for each position up to `max_length`
    index               adds i: grows with the length (S4.19)
    normalised-index    adds i / n: the same position has another code in a sentence of another length (S4.19)
    none                adds nothing: self-attention then cannot tell permutations apart (S4.30)
    """

    def __init__(self, kind: PositionKind, d_e: int, base: float, max_length: int) -> None:
        super().__init__()
        self.kind, self.d_e, self.base, self.max_length = kind, d_e, base, max_length
        if kind == "learned":
            self.table = nn.Parameter(torch.randn(max_length, d_e) * 0.02)

    def forward(
        self, X: Float[Tensor, "b i e"], padding: Bool[Tensor, "b i"] | None = None, start: int = 0
    ) -> Float[Tensor, "b i e"]:
        """`start` is the position of the first row, for decoding step by step."""
        end = start + X.shape[1]
        if self.kind == "none":
            return X
        if self.kind == "sinusoid":
            return X + sinusoid(torch.arange(start, end, device=X.device), self.d_e, self.base).to(X.dtype)
        if self.kind == "learned":
            if end > self.max_length:
                raise UsageError(
                    asked=f"a sequence of {end} tokens",
                    expected=f"at most {self.max_length}, the learned positions of this model",
                    got=f"{end} tokens",
                    remedy="shorten the text, or build the model with a larger max_length",
                )
            return X + self.table[start:end]
        index = torch.arange(start, end, device=X.device, dtype=X.dtype)[None, :, None]
        if self.kind == "index":
            return X + index
        lengths = end if padding is None else (start + padding.sum(-1)).clamp_min(1)[:, None, None]
        return X + index / lengths
