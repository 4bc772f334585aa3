"""The measures `spectra` and `sketch`: singular values of maps and weights, and the error of random projections."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from attnworks.attention.heads import HeadWeights
from attnworks.attention.sketched import sketch_error_formula
from attnworks.core.places import Slot
from attnworks.exam.linalg.bounds import product_singular_values
from attnworks.exam.linalg.krylov import leading_spectrum
from attnworks.exam.linalg.spectrum import (
    cumulative_energy,
    effective_rank,
    gram_singular_values,
    rank_for_energy,
    stable_rank,
)
from attnworks.exam.measure import BY_HEAD, MEASURES, Measure, ReadingSpec, Sample, Samples
from attnworks.traces.maps import Maps

CURVE_SHARES = tuple(tick / 10 for tick in range(11))
"""Shares of the number of singular values at which the curve of energy is read."""
ENERGY_SHARE = 0.9
WHOLE_SPECTRUM_BELOW = 112
"""Maps with fewer rows or columns have their whole spectrum computed; for larger ones the leading part is cheaper."""
MIN_EVENNESS = 0.5
"""The leading part is computed only if one direction has at least this share of the energy: then it is short."""
SKETCH_RANKS = (8, 16, 32, 64, 128)
"""Rows k of the random projection."""


@MEASURES.register("spectra")
class Spectra(Measure):
    """Energy s_1^2 + ... + s_r^2 over ||P||_F^2 along r / n, and ranks, with n the smaller number of queries and keys.

    Source: the long-tail curves of Conti 2024, figure 10 (S4.109), and S4.130.
    Holds when: ranks at 90 % and stable ranks are exact, up to rounding, for every map. So is the curve for maps with
    fewer than 112 rows or columns, or whose queries do not attend much alike. Of the others only the values that hold
    90 % of the energy are computed, which is cheaper there: their curve is exact up to there, and a lower bound beyond,
    too low by 0.1 at most: the straight line to (1, 1), below which no curve of falling values comes.
    """

    name = "spectra"
    description = "how many singular values attention maps need, and how large those of W_QK and W_VO are"
    cost = "an eigenvalue problem per map: several times the forward pass"

    def declares(self) -> tuple[ReadingSpec, ...]:
        def of_map(name: str, words: str, source: str, *axes: str) -> ReadingSpec:
            ticks = {"share": CURVE_SHARES} if axes else {}
            return ReadingSpec(f"spectra.{name}", (*BY_HEAD, *axes), words, source, ticks=ticks)

        def of_weights(product: str, letters: str) -> tuple[ReadingSpec, ...]:
            quantities = (
                ("stable", f"stable rank of {letters}: 1 if one direction dominates", "S4.109"),
                ("effective", f"effective rank of {letters}: how many directions it uses", "Roy and Vetterli 2007"),
                ("norm", f"largest singular value of {letters}", "D6"),
            )
            return tuple(
                ReadingSpec(f"spectra.{product}_{name}", BY_HEAD, words, source, "constant")
                for name, words, source in quantities
            )

        return (
            of_map("curve", "energy in a share of the singular values: early rise means low rank", "S4.109", "share"),
            of_map("rank90", "share of the singular values that holds 90 % of the energy", "S4.109"),
            of_map("rank90_count", "number of singular values that holds 90 % of the energy", "S4.109"),
            of_map("stable_rank", "stable rank of the map: 1 if all queries attend alike", "S4.130"),
            *of_weights("qk", "W_QK"),
            *of_weights("vo", "W_VO"),
        )

    def maps(self, maps: Maps) -> Samples:
        P, n = maps.P.detach(), min(maps.P.shape[-2:])
        if n < WHOLE_SPECTRUM_BELOW or bool((_evenness(P) < MIN_EVENNESS).any()):
            s = gram_singular_values(P)
            rank, stable, energy = rank_for_energy(s, ENERGY_SHARE), stable_rank(s), cumulative_energy(s)
        else:
            leading = leading_spectrum(P, ENERGY_SHARE)
            rank, stable = leading.rank, leading.stable_rank()
            energy = _straight_on(leading.cumulative_energy(), leading.known, n)
        return {
            "spectra.curve": Sample(_at_shares(energy)),
            "spectra.rank90": Sample(rank.double() / n),
            "spectra.rank90_count": Sample(rank.double()),
            "spectra.stable_rank": Sample(stable),
        }

    def weights(self, slot: Slot, weights: HeadWeights) -> Samples:
        W_Q, W_K, W_V, W_O = (W.detach().double() for W in (weights.W_Q, weights.W_K, weights.W_V, weights.W_O))
        samples: dict[str, Sample] = {}
        for product, A, B in (("qk", W_Q, W_K), ("vo", W_V, W_O.mT)):
            s = product_singular_values(A, B)
            found = {"stable": stable_rank(s), "effective": effective_rank(s), "norm": s[:, 0]}
            samples |= {f"spectra.{product}_{name}": Sample(value) for name, value in found.items()}
        return samples


def _evenness(P: Tensor) -> Tensor:
    """i |c|^2 / ||P||_F^2, c the mean row of P: a lower bound of s_1^2 / ||P||_F^2, 1 if all queries attend alike."""
    return P.shape[-2] * P.mean(-2).square().sum(-1) / P.square().sum((-2, -1))


def _straight_on(energy: Tensor, known: Tensor, n: int) -> Tensor:
    """The energies of all n values: as given up to the known ones, then a line from the last of those to 1."""
    energy = torch.nn.functional.pad(energy, (0, n - energy.shape[-1]), value=0.0)
    known = known.unsqueeze(-1)
    last = energy.gather(-1, (known - 1).clamp_min(0)) * (known > 0)
    rank = torch.arange(1, n + 1, device=energy.device)
    line = last + (1 - last) * (rank - known) / (n - known).clamp_min(1)
    return torch.where(rank <= known, energy, line.to(energy.dtype))


def _at_shares(energy: Tensor) -> Tensor:
    """Energies at ranks 1 ... n, read at shares of n from 0 to 1; between two ranks along the line that joins them."""
    n = energy.shape[-1]
    curve = torch.cat([torch.zeros_like(energy[..., :1]), energy], -1)
    place = torch.tensor(CURVE_SHARES, dtype=torch.float64, device=energy.device) * n
    low = place.floor().long().clamp_max(n - 1)
    part = (place - low).to(energy.dtype)
    return curve[..., low] * (1 - part) + curve[..., low + 1] * part


@MEASURES.register("sketch")
class Sketch(Measure):
    """||P R^T R V - P V||_F / ||P V||_F with R [k j] from N(0, 1/k), and the root of the mean of its square over all R.

    Source: theorem 2.3 of Xie 2021 (S0.21, S0.28) and its repair D8.
    Departs: R depends on the seed, the layer, the head and the number of keys alone, so that batches may come in any
    order; a smaller k uses the first rows of the same draw. Sentences of one length share R: with few lengths, the
    interval is narrower than that over all R.
    """

    name = "sketch"
    description = "error of attention through k random projections of the keys"
    cost = "per map and k four thin products: about as much as the attention itself"

    def declares(self) -> tuple[ReadingSpec, ...]:
        axes, ticks = (*BY_HEAD, "k"), {"k": tuple(map(float, SKETCH_RANKS))}
        error = "error for one random projection, relative to P V"
        return (
            ReadingSpec("sketch.error", axes, error, "S0.21, S0.28", ticks=ticks),
            ReadingSpec("sketch.formula", axes, "root mean square of that error over all draws", "D8", ticks=ticks),
        )

    def maps(self, maps: Maps) -> Samples:
        P, V = maps.P.detach(), maps.V.detach().to(maps.P.dtype)
        R = self._draws(maps.slot, maps.heads, P)
        Y, PR, RV = P @ V, P @ R.mT, R @ V
        size = torch.linalg.matrix_norm(Y)
        errors = [torch.linalg.matrix_norm(PR[..., :k] @ RV[..., :k, :] / k - Y) / size for k in SKETCH_RANKS]
        formula = [sketch_error_formula(P, V, k) for k in SKETCH_RANKS]
        valid = (size > 0).unsqueeze(-1)
        return {
            "sketch.error": Sample(torch.stack(errors, -1), valid),
            "sketch.formula": Sample(torch.stack(formula, -1), valid),
        }

    def _draws(self, slot: Slot, heads: slice, P: Tensor) -> Tensor:
        """Standard normal [h k j] for the largest k."""

        def draw(head: int) -> Tensor:
            seed = zlib.crc32(f"{self.context.seed} {slot} {head} {P.shape[-1]}".encode())
            source = torch.Generator().manual_seed(seed)
            return torch.randn(max(SKETCH_RANKS), P.shape[-1], generator=source, dtype=torch.float64)

        return torch.stack([draw(head) for head in range(heads.start, heads.stop)]).to(P)
