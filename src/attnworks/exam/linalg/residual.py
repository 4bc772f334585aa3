"""How far the rows of X are from being all the same. Rows that are not `real` (padding) never count."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.core.registry import unknown_name
from attnworks.core.tensors import widened
from attnworks.exam.linalg.centre import centre_composite, centre_inf
from attnworks.exam.linalg.norms import NORMS


def residual(X: Float[Tensor, "*a i e"], real: Bool[Tensor, "*a i"] | None = None) -> Float[Tensor, "*a i e"]:
    """R = X - 1 x^T with x the mean row, which minimises ||X - 1 x^T|| in every unitarily invariant norm.

    Source: Xie 2021, section 2 (S0.14); D4.
    Departs: x is the mean of the real rows, and the other rows of R are zero.
    """
    Y, _ = _from_first_row(X, real)
    return _keep(Y - _mean(Y, real).unsqueeze(-2), real)


def relative_residual(X: Float[Tensor, "*a i e"], real: Bool[Tensor, "*a i"] | None = None) -> Float[Tensor, "*a"]:
    """||R||_F / ||X||_F, from 0 (all rows equal: collapsed) to 1 (rows that cancel); 0 for X = 0.

    Source: S0.15: the absolute residual also falls when X as a whole vanishes, so that collapse is read off this ratio.
    """
    return relative_residual_norm(X, "frobenius", real).to(X.dtype)


def best_row(X: Float[Tensor, "*a i e"], norm: str, real: Bool[Tensor, "*a i"] | None = None) -> Float[Tensor, "*a e"]:
    """The x that minimises ||X - 1 x^T|| over the real rows; zero where there is none.

    Source: D4 (S0.14, S1.11). Mean for "frobenius" and "spectral" (there not the only one), column median for "one",
    column midrange for "max", linear programs for "inf" and "composite" (float64, without gradient).
    """
    Y, first = _from_first_row(widened(X), real)
    return (first.squeeze(-2) + _centre(Y, norm, real)).to(X.dtype)


def residual_norm(
    X: Float[Tensor, "*a i e"], norm: str, real: Bool[Tensor, "*a i"] | None = None
) -> Float[Tensor, "*a"]:
    """min_x ||X - 1 x^T|| over the real rows, in the named norm; exactly 0 for equal rows.

    Source: Xie 2021, section 2 (S0.14, S1.10): the distance to identical rows, which is not that to rank one.
    """
    Y, _ = _from_first_row(widened(X), real)
    R = _keep(Y - _centre(Y, norm, real).unsqueeze(-2), real)
    return NORMS[norm](R).to(Y.dtype)


def relative_residual_norm(
    X: Float[Tensor, "*a i e"], norm: str, real: Bool[Tensor, "*a i"] | None = None
) -> Float[Tensor, "*a"]:
    """min_x ||X - 1 x^T|| / ||X|| over the real rows, both in the named norm, between 0 and 1; 0 for X = 0.

    Source: S0.15, D7.
    """
    value = residual_norm(X, norm, real)
    return value / NORMS[norm](_keep(widened(X), real)).clamp_min(torch.finfo(value.dtype).tiny)


def _centre(Y: Tensor, norm: str, real: Tensor | None) -> Tensor:
    if norm not in CENTRES:
        raise unknown_name("norm", norm, CENTRES)
    return CENTRES[norm](Y, real)


def _mean(Y: Tensor, real: Tensor | None) -> Tensor:
    if real is None:
        return Y.mean(-2)
    return Y.sum(-2) / real.sum(-1, keepdim=True).clamp_min(1)


def _median(Y: Tensor, real: Tensor | None) -> Tensor:
    """The middle of the median interval; entries that are no numbers stay visible as NaN."""
    rows = Y.shape[-2] if real is None else real.sum(-1)[..., None, None]
    count = torch.as_tensor(rows, device=Y.device).expand(*Y.shape[:-2], 1, Y.shape[-1])
    ordered = (Y if real is None else Y.masked_fill(~real.unsqueeze(-1), torch.inf)).sort(-2).values
    lower, upper = ((count - shift).clamp_min(0) // 2 for shift in (1, 0))
    middle = (ordered.gather(-2, lower) + ordered.gather(-2, upper.clamp_max(Y.shape[-2] - 1))) / 2
    broken = Y.isnan().any(-2)
    return middle.squeeze(-2).masked_fill(count.squeeze(-2) == 0, 0.0).masked_fill(broken, torch.nan)


def _midrange(Y: Tensor, real: Tensor | None) -> Tensor:
    if real is None:
        return (Y.amax(-2) + Y.amin(-2)) / 2
    away = ~real.unsqueeze(-1)
    middle = (Y.masked_fill(away, -torch.inf).amax(-2) + Y.masked_fill(away, torch.inf).amin(-2)) / 2
    return middle.masked_fill(~real.any(-1, keepdim=True), 0.0)


CENTRES = {
    "frobenius": _mean,
    "spectral": _mean,
    "one": _median,
    "max": _midrange,
    "inf": centre_inf,
    "composite": centre_composite,
}


def _from_first_row(X: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """X less its first real row, so that equal rows give exact zeros (D7), and that row."""
    if real is None:
        first = X[..., :1, :]
        return X - first, first
    which = real.int().argmax(-1)[..., None, None].expand(*X.shape[:-2], 1, X.shape[-1])
    first = _keep(X, real).gather(-2, which)
    return _keep(X - first, real), first


def _keep(X: Tensor, real: Tensor | None) -> Tensor:
    return X if real is None else X.masked_fill(~real.unsqueeze(-1), 0.0)
