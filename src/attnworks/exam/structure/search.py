"""The member P of a family nearest to a head H, errors up to eps forgiven: exact searches, for many heads at once.

With E = H - P clipped to +-eps, the L1 distance of H and P + E is sum_ij max(|h_ij - p_ij| - eps, 0). If every row i
attends one key tau_i, it is sum_ij max(|h_ij| - eps, 0) - sum_i G_{i tau_i} with G the `gain`; so that each search
below maximises a sum of gains, and finds P and E of the least distance together.
Source: D12 (S4.149).

The families Sigma_1 (identity), Sigma_2 (bands with holes) and Sigma_3 (blocks that attend one token).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attnworks.core.errors import UsageError

# --- assignments ------------------------------------------------------------------------------------------------------


def assignment(tau: Int[Tensor, "*a i"], j: int, *, dtype: torch.dtype | None = None) -> Float[Tensor, "*a i j"]:
    """P_ik = 1 if k = tau_i, else 0; a row of zeros where tau_i = -1.

    Source: Conti 2024, figure 13: tokens 3, 4, 5 attend token 4 (S4.136).
    Departs: the document calls every P a permutation; a map tau with repeated values is none, and singular (S4.134).
    """
    if tau.numel() and not (int(tau.min()) >= -1 and int(tau.max()) < j):
        got = f"{int(tau.min())} to {int(tau.max())}"
        raise UsageError("keys", f"0 to {j - 1}, or -1 for none", got, "count from 0")
    return (tau.unsqueeze(-1) == torch.arange(j, device=tau.device)).to(dtype or torch.get_default_dtype())


def shift_map(n: int, offset: Int[Tensor, "*a"]) -> Int[Tensor, "*a {n}"]:
    """tau_i = i + offset, or -1 outside the sequence."""
    tau = torch.arange(n, device=offset.device) + offset.unsqueeze(-1)
    return tau.masked_fill((tau < 0) | (tau >= n), -1)


# --- Sigma_2 ----------------------------------------------------------------------------------------------------------


def band_mask(n: int, left: int, right: int, *, device: torch.device | None = None) -> Bool[Tensor, "{n} {n}"]:
    """True where a band may have a value: i <= j + left and j <= i + right.

    Source: Conti 2024, section 3.1.2, left = w_1 and right = w_2 (S4.140).
    """
    if left < 0 or right < 0:
        raise UsageError("a band", "widths of 0 or more", f"left {left} and right {right}", "(0, 0) is I_n")
    place = torch.arange(n, device=device)
    ahead = place - place.unsqueeze(-1)
    return (ahead >= -left) & (ahead <= right)


def block_count(tau: Int[Tensor, "*a n"]) -> Int[Tensor, "*a"]:
    """The number of blocks of two or more rows of a member of Sigma_3: that of keys that several rows attend to."""
    return (torch.zeros_like(tau).scatter_add(-1, tau, torch.ones_like(tau)) > 1).sum(-1)


def beyond(D: Float[Tensor, "*a"], eps: float) -> Float[Tensor, "*a"]:
    """max(|d| - eps, 0)."""
    return (D.abs() - eps).clamp_min(0.0)


def gain(H: Float[Tensor, "*a i j"], eps: float) -> Float[Tensor, "*a i j"]:
    """G_ic = max(|h_ic| - eps, 0) - max(|h_ic - 1| - eps, 0): how much nearer P is if row i attends to key c."""
    return beyond(H, eps) - beyond(H - 1, eps)


def best_map(H: Float[Tensor, "*a i j"]) -> Int[Tensor, "*a i"]:
    """tau_i = argmax_c h_ic, of all maps of queries to keys: G_ic never falls as h_ic grows, for any eps.

    Source: D12 (i). For eps = 0 the distance is 2 sum_i (1 - max_c h_ic) if rows are weights.
    Holds when: always; and for 0 <= H <= 1 even if only some errors are forgiven, since then no |h - p| of another map
    is smaller than its partner under this one.
    """
    return H.argmax(-1)


def best_offset(H: Float[Tensor, "*a n n"], eps: float) -> Int[Tensor, "*a"]:
    """The o for which tau_i = i + o is best, of those with a key for at least half of the rows: |o| <= n / 2.

    Other rows are zero. Without the limit, a head far from all diagonals would get a corner of the map (o = n - 1, one
    row), which is nearly the zero matrix.
    """
    n = H.shape[-1]
    rows = F.pad(gain(H, eps).flip(-2), (0, n)).flatten(-2)[..., :-n]
    diagonals = rows.unflatten(-1, (n, 2 * n - 1)).sum(-2)  # row n - 1 - i is moved n - 1 - i to the right
    furthest = n // 2
    return diagonals[..., n - 1 - furthest : n + furthest].argmax(-1) - furthest


def best_column(H: Float[Tensor, "*a i j"], eps: float) -> Int[Tensor, "*a"]:
    """The c for which tau_i = c, for all rows, is best."""
    return gain(H, eps).sum(-2).argmax(-1)


def best_permutation(H: Float[Tensor, "*a n n"], eps: float) -> Int[Tensor, "*a n"]:
    """The best tau that is a permutation, by the Hungarian method: O(n^3).

    Source: D12 (ii).
    """
    return _assign(-gain(H, eps))


def best_blocks(H: Float[Tensor, "*a n n"], eps: float, price: float) -> Int[Tensor, "*a n"]:
    """The tau of Sigma_3 with the largest sum_i G_{i tau_i} - price * (number of blocks of two or more rows).

    For the first b rows it is best_b = max_{a < b} best_a + max_{a <= c < b} sum_{a <= i < b} G_ic - price [b - a > 1],
    the last block being rows a to b - 1: O(n^3) for all b.
    Source: D12 (iv).
    Holds when: price >= 0. Of equal values that with the narrowest last block is taken.
    """
    n = H.shape[-1]
    G = gain(H, eps).reshape(-1, n, n)
    sums = G.new_full((n, n), -torch.inf).tril(-1).repeat(len(G), 1, 1)  # over rows a .. b - 1, of columns from a on
    best = G.new_zeros(len(G), n + 1)
    start, column = torch.zeros(2, len(G), n, dtype=torch.long, device=H.device)
    for b in range(1, n + 1):
        sums[:, :b] += G[:, b - 1 : b]
        value, attended = sums[:, :b, :b].max(-1)
        value += best[:, :b]
        value[:, :-1] -= price
        best[:, b], narrower = value.flip(-1).max(-1)
        start[:, b - 1] = b - 1 - narrower
        column[:, b - 1] = attended.gather(-1, start[:, b - 1 : b])[:, 0]
    last, rows = torch.full_like(start[:, 0], n - 1), []
    for i in reversed(range(n)):
        first, attended = (table.gather(-1, last.unsqueeze(-1))[:, 0] for table in (start, column))
        rows.append(attended)
        last = torch.where(first == i, i - 1, last)
    return torch.stack(rows[::-1], -1).view(H.shape[:-1])


def best_order(H: Float[Tensor, "*a n n"], left: int, right: int, eps: float) -> Int[Tensor, "*a n"]:
    """The place of each row in the order that has least outside a band: row i of H is row order_i of the band.

    A linear assignment of rows to places, at the cost of row i in place p: sum_{j outside the band of p} max(|h_ij| -
    eps, 0).
    Source: D12 (iii), in place of the permutation by which the document makes its families diagonal (S4.141, S4.149).
    """
    outside = ~band_mask(H.shape[-1], left, right, device=H.device)
    return _assign(beyond(H, eps) @ outside.to(H.dtype).mT)


def _assign(cost: Tensor) -> Tensor:
    """A column for every row, each once, at the least sum of costs; one matrix at a time, in float64."""
    matrices = cost.detach().double().cpu().numpy().reshape(-1, *cost.shape[-2:])
    columns = [torch.from_numpy(linear_sum_assignment(matrix)[1]) for matrix in matrices]
    return torch.stack(columns).to(cost.device, torch.long).view(cost.shape[:-1])
