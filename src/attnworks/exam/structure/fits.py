"""Which family a head belongs to: the nearest member of each, compared at equal length of description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.core.checks import choice, integer, number
from attnworks.core.errors import UsageError
from attnworks.core.tensors import widened
from attnworks.exam.structure.members import FORM_FAMILIES, Member, Terms
from attnworks.exam.structure.search import beyond, shift_map


def small_errors(R: Float[Tensor, "*a i j"], eps: float, budget: int | None = None) -> Float[Tensor, "*a i j"]:
    """The E nearest to R with |e_ij| <= eps and at most `budget` e_ij not zero, in L1 and in Frobenius norm.

    Source: D11.
    """
    number("eps", eps, 0)
    if budget is not None:
        integer("budget", budget, 0, remedy="budget=None allows any number of errors")
    if budget is None or budget >= R.shape[-2:].numel():
        return R.clamp(-eps, eps)
    flat = R.flatten(-2)
    where = largest_entries(flat.detach().abs(), budget)
    return torch.zeros_like(flat).scatter_(-1, where, flat.gather(-1, where).clamp(-eps, eps)).view(R.shape)


def largest_entries(sizes: Float[Tensor, "*a m"], count: int) -> Int[Tensor, "*a {count}"]:
    """Indices of the `count` largest values of each row, in no order; of equal values the first.

    numpy selects in a third of the time of torch.topk, which does not say which of equal values it returns.
    """
    if count == 0:
        return sizes.new_empty(*sizes.shape[:-1], 0, dtype=torch.long)
    rows = widened(sizes).cpu().numpy().reshape(-1, sizes.shape[-1])
    found = np.empty((len(rows), count), dtype=np.int64)
    for row, where in zip(rows, found, strict=True):
        least = np.partition(row, -count)[-count]
        above = np.flatnonzero(row > least)
        where[: len(above)] = above
        where[len(above) :] = np.flatnonzero(row == least)[: count - len(above)]
    return torch.from_numpy(found).to(sizes.device).view(*sizes.shape[:-1], count)


@dataclass(frozen=True)
class StructureFit:
    """The nearest member of each family, and how near it is. Axes f and g are those of `families`.

    bits       the length of the description of P
    duels      at f, g: sum_ij |h - p - e| per row for family f, if it may use the bits of the longer of f and g
    winner     the family that wins its duels
    members    the member of each family: `members["map"].tau`, `members["permuted-band"].order`
    """

    families: tuple[str, ...]
    bits: Float[Tensor, "*a f"]
    duels: Float[Tensor, "*a f f"]
    winner: Int[Tensor, "*a"]
    members: Mapping[str, Member]
    budget: int | None

    @property
    def error(self) -> Float[Tensor, "*a f"]:
        """sum_ij |h - p - e| per row: of P and E alone."""
        return self.duels.diagonal(dim1=-2, dim2=-1)

    @property
    def at_equal_cost(self) -> Float[Tensor, "*a f"]:
        """The error if every family may use the bits of the longest description."""
        return self.duels.amin(-1)

    @property
    def names(self) -> np.ndarray:
        """The family of each head, as an array of the shape of `winner`."""
        return np.asarray(np.array(self.families)[self.winner.cpu().numpy()])

    def form(self, family: str) -> Float[Tensor, "*a i j"]:
        """P of this family."""
        return self._member(family).form()

    def remainder(self, family: str) -> Float[Tensor, "*a i j"]:
        """E of this family: H - P clipped to +-eps, at the `budget` largest |h - p| if there is a budget."""
        member = self._member(family)
        return small_errors(member.H - member.form(), member.terms.eps, self.budget)

    def _member(self, family: str) -> Member:
        return self.members[choice("family", family, self.families)]


def fit(
    H: Float[Tensor, "*a i j"],
    families: Sequence[str] | None = None,
    eps: float = 0.02,
    budget: int | None = None,
    band: tuple[int, int] = (2, 2),
    causal: bool = False,
    offset: Int[Tensor, "*#a"] | None = None,
) -> StructureFit:
    """H = P + E + rest with P the member of each family that leaves the least, and the family that explains H best.

    Families are compared two by two by their error at equal cost, never by the error alone, as a longer description
    always fits better. Both may use the bits of the longer description. The bits that P does not need pay for
    corrections: entries of H written exactly, at the largest |h - p|. Each takes log2 i + log2 j + q bits, with
    q = log2(1 / (2 eps)) for its value. With D the |h - p| in falling order, m corrections and errors allowed at s
    entries, the error is sum_{k > m} D_k - sum_{m < k <= m + s} min(D_k, eps). The winner beats every other family, or
    most of them if none beats all; ties go to the shorter description, then to the first.
    Families: `FORM_FAMILIES`; by default all that are defined for the shape of H. With `offset`, the member of "offset"
    is the one with this offset for each head, in place of the nearest.
    Source: Conti 2024, eq. 19 and 20, with D12 for the search (S4.133, S4.149).
    Holds when: 0 <= eps < 1/2, as an error of one half is no information. The winner depends on the candidates: it is
    the best of these. With a budget, P is still that of the search without one (for "map" and 0 <= H <= 1 it stays the
    best), and values inside a band count as exact.
    Departs: families are not compared at the bits of the longest description (`at_equal_cost`). With a band among the
    candidates, these would suffice to write a sharp head entry by entry, without any structure.
    """
    H = _checked(H, eps, budget)
    chosen = _chosen(families, H.shape[-2] == H.shape[-1])
    terms = Terms(H.shape[-2], H.shape[-1], eps, band, causal, offset)
    members = {name: FORM_FAMILIES[name](H, terms) for name in chosen}
    bits = torch.stack([H.new_zeros(H.shape[:-2], dtype=torch.float64) + m.bits() for m in members.values()], -1)
    errors = [
        _errors(H - member.form(), eps, budget, _corrections(own, bits, terms))
        for member, own in zip(members.values(), bits.unbind(-1), strict=True)
    ]
    duels = torch.stack(errors, -2)
    return StructureFit(chosen, bits, duels, winner(duels, bits), members, budget)


def offset_duels(fitted: StructureFit, offsets: Int[Tensor, " o"]) -> Float[Tensor, "*a o f"]:
    """The duels of the family "offset" for each of these offsets, rather than the nearest: `fitted.duels` at "offset"
    if `fit` were given that offset.

    Only the n entries on a diagonal depend on its offset. So the m largest of all other |h - p| are among the m + n
    largest |h|, which are found once for all offsets.
    Holds when: `fitted` has the family "offset", and no budget.
    """
    member, bits = fitted.members["offset"], fitted.bits
    H, terms, n = member.H, member.terms, member.terms.j
    counts = _corrections(bits[..., fitted.families.index("offset")], bits, terms).clamp_max(n * n)
    most = int(counts.max())
    D = beyond(H, terms.eps).flatten(-2)
    top = D.topk(min(most + n, n * n))
    ahead = top.indices % n - top.indices // n  # [*a t]: key - query of the t largest entries
    inside = offsets[offsets.abs() < n]
    offsets_tried = torch.cat([inside, inside.new_tensor([n])])  # the last one has no key for any row
    tau = shift_map(n, offsets_tried)  # [o n]
    keyed = tau >= 0
    along = H[..., torch.arange(n, device=H.device), tau.clamp_min(0)]  # [*a o n]: the diagonal of each offset
    before, after = (beyond(along - one, terms.eps).double().masked_fill(~keyed, 0.0) for one in (0, 1))
    others = top.values.double().unsqueeze(-2).masked_fill(ahead.unsqueeze(-2) == offsets_tried.unsqueeze(-1), 0.0)
    candidates = torch.cat([others, after], -1)
    written = F.pad(candidates.topk(min(most, candidates.shape[-1])).values.cumsum(-1), (1, 0))
    taken = written.gather(-1, counts.unsqueeze(-2).expand(*written.shape[:-1], -1))
    total = D.sum(-1, dtype=torch.float64).unsqueeze(-1) + (after - before).sum(-1)
    found = ((total.unsqueeze(-1) - taken).clamp_min(0.0) / n).to(H.dtype)
    place = torch.where(offsets.abs() < n, (offsets.abs() < n).cumsum(0) - 1, len(inside))
    return found[..., place, :]


def _corrections(own: Float[Tensor, "*a"], bits: Float[Tensor, "*a f"], terms: Terms) -> Int[Tensor, "*a f"]:
    """The number of entries that a family may write exactly, against each other family."""
    return ((bits - own.unsqueeze(-1)).clamp_min(0.0) / terms.correction + 1e-9).long()


def _errors(R: Tensor, eps: float, budget: int | None, corrections: Tensor) -> Tensor:
    """sum |r - e| per row [*a g] with this number of corrections [*a g]; only the largest entries are sorted."""
    D = R.abs().flatten(-2)
    if budget is None:
        D, budget = (D - eps).clamp_min(0.0), 0
    start = corrections.clamp_max(D.shape[-1])
    top = D.topk(min(int(start.max()) + budget, D.shape[-1])).values.double()
    end = (start + budget).clamp_max(top.shape[-1])
    written, forgiven = (F.pad(part.cumsum(-1), (1, 0)) for part in (top, top.clamp_max(eps)))
    taken = written.gather(-1, start) + forgiven.gather(-1, end) - forgiven.gather(-1, start)
    left = D.sum(-1, keepdim=True, dtype=torch.float64) - taken
    return (left.clamp_min(0.0) / R.shape[-2]).to(R.dtype)


def winner(duels: Float[Tensor, "*a f f"], bits: Float[Tensor, "*a f"]) -> Int[Tensor, "*a"]:
    """Most duels won, or drawn within rounding; then the fewest bits; then the first."""
    won = (duels <= duels.mT + 8 * torch.finfo(duels.dtype).eps).sum(-1)
    return bits.masked_fill(won < won.amax(-1, keepdim=True), torch.inf).argmin(-1)


def _checked(H: Tensor, eps: float, budget: int | None) -> Tensor:
    asked = "a fit of attention maps"
    if not isinstance(H, Tensor):
        raise UsageError(asked, "a tensor [..., queries, keys]", type(H).__name__, "call torch.as_tensor on it")
    if H.ndim < 2 or not H.numel() or not H.is_floating_point() or not H.isfinite().all():
        got, remedy = f"{str(H.dtype).removeprefix('torch.')} of shape {list(H.shape)}", "give maps after the softmax"
        raise UsageError(asked, "finite weights [..., queries, keys]", got, remedy)
    number("a fit with eps", eps, 0, 0.5, below=True, remedy="0.02 is usual")
    if budget is not None:
        integer("a fit with budget", budget, 0, remedy="budget=None allows any number of errors")
    return widened(H.detach())


def _chosen(families: Sequence[str] | None, square: bool) -> tuple[str, ...]:
    """The families asked for, or all that are defined for the shape."""
    defined = tuple(name for name, family in FORM_FAMILIES.items() if square or family.rectangular)
    asked = (families,) if isinstance(families, str) else families
    chosen = defined if asked is None else tuple(dict.fromkeys(asked))
    for name in chosen:
        choice("family", name, FORM_FAMILIES)
    refused = [name for name in chosen if name not in defined]
    if refused or not chosen:
        expected = f"families of {', '.join(defined)}" + ("" if square else " for unequal queries and keys")
        got, remedy = ", ".join(refused) or "none", "leave families out for all that are defined"
        raise UsageError("a fit of attention maps", expected, got, remedy)
    return chosen
