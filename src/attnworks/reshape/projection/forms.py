"""The structured form of a head: the mix of fixed maps nearest to its attention over a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import nnls
from torch import Tensor

from attnworks.attention.fixed_maps import MapMember, member_tables, read_members
from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.traces.layer import LayerTrace
from attnworks.traces.maps import Maps, maps_of
from attnworks.traces.subject import LayerHook

SINGLE_MAP_SLACK = 0.05
"""A single member is chosen if its squared distance exceeds that of the best mix by at most this share."""
MIN_MIX_WEIGHT = 0.01
"""Members below this share of the largest weight are left out; if they were asked for, they are raised to it."""
MAX_ERROR_SHARE = 0.95
"""The largest error as a share of eps; an error of eps itself could not be trained."""
ERROR_SPAN_TOKENS = 16
"""The largest offset of an error, in tokens."""
OFFSET_OF_NAME: dict[str, str] = {"previous": "-1", "self": "0", "next": "1"}
NAME_OF_OFFSET: dict[MapMember, str] = {value: name for name, text in OFFSET_OF_NAME.items() for value in [int(text)]}


@dataclass(frozen=True)
class Form:
    """The structured form of a head: members with their weights, and offsets of the error with theirs.

    distance    of the mix from the head: sum of ||P_i - mix_i||^2 over rows, as a share of that of ||P_i||^2
    """

    members: tuple[MapMember, ...]
    mix: tuple[float, ...]
    error: tuple[int, ...]
    errors: tuple[float, ...]
    eps: float
    distance: float

    @property
    def spec(self) -> str:
        error = "/".join(map(str, self.error)) or "none"
        return f"structured:members={'/'.join(map(str, self.members))},error={error},eps={float(self.eps)!r}"

    def __str__(self) -> str:
        """Such as: previous; or 62 % previous, 30 % first, 8 % mean; errors at -5, 7."""
        ranked = sorted(zip(self.mix, self.members, strict=True), key=lambda part: -part[0])
        shown = [f"{100 * weight:.0f} % {_word(member)}" for weight, member in ranked if weight >= MIN_MIX_WEIGHT]
        rest = f", {len(ranked) - len(shown)} more" * (len(shown) < len(ranked))
        words = _word(self.members[0]) if len(self.members) == 1 else ", ".join(shown) + rest
        return words + ("; errors at " + ", ".join(map(str, self.error))) * bool(self.error)


def read_form(form: str, window: int) -> tuple[MapMember, ...] | None:
    """The members of a form: names, or members as in `structured`; None for auto and mix, which are fitted."""
    if form in ("auto", "mix"):
        return None
    named = {**OFFSET_OF_NAME, "band": f"{-window}..{window}"}
    parts = "/".join(named.get(part, part) for part in form.split("/"))
    return read_members(parts, f"form {form!r} (known are auto, mix, {', '.join(named)})")


def candidates(window: int, causal: bool) -> tuple[MapMember, ...]:
    """Offsets up to the window, the first token, the last, and all evenly; to the left only under causality."""
    right = 0 if causal else window
    return (*range(-window, right + 1), "first", *(() if causal else ("last",)), "mean")


class FormSums:
    """Sums over the rows of a text from which the best mix and the best error of the heads of a layer are computed.

    gram           <F_m, F_n> of the members
    with_heads     <F_m, P_h>
    squares        ||P_h||^2
    heads_at       of P_h at every offset up to ERROR_SPAN_TOKENS
    members_at     of F_m at the same
    rows_at        how many rows have a key there
    """

    def __init__(self, members: tuple[MapMember, ...], heads: int, causal: bool) -> None:
        m, o = len(members), 2 * ERROR_SPAN_TOKENS + 1
        self.members, self.causal = members, causal
        self.gram, self.with_heads, self.squares, self.heads_at, self.members_at, self.rows_at = (
            torch.zeros(shape, dtype=torch.float64)
            for shape in ((m, m), (heads, m), (heads,), (heads, o), (m, o), (o,))
        )

    def add(self, maps: Maps) -> None:
        P, n = maps.P.double().cpu(), maps.P.shape[-1]
        F = member_tables(self.members, n, causal=self.causal)
        whole = F.any(-1).all(0)
        inner = F[:, whole] if whole.any() else F
        compared = P[..., whole, :] if whole.any() else P
        self.with_heads[maps.heads] += torch.einsum("mij,bhij->hm", inner, compared)
        self.squares[maps.heads] += compared.square().sum((0, 2, 3))
        self.heads_at[maps.heads] += _along_offsets(P).sum(0)
        if maps.heads.start == 0:
            self.gram += len(P) * torch.einsum("mij,nij->mn", inner, inner)
            self.members_at += len(P) * _along_offsets(F)
            self.rows_at += len(P) * _along_offsets(torch.ones(1, n, n, dtype=torch.float64))[0]


class FormHook(LayerHook):
    """Computes the sums of some layers.

    members    layer -> members that its heads are compared with
    into       layer -> the layer that its sums are counted for: the first of those that share its weights

    Mixes are compared with heads on rows where each member has a key. On other rows the mechanism divides the mix by
    the sum of the members that are left. A sentence without a complete row counts with all of its rows.
    """

    def __init__(self, members: Mapping[Slot, tuple[MapMember, ...]], into: Mapping[Slot, Slot] | None = None) -> None:
        self.members, self.into = members, into or {}
        self.sums: dict[Slot, FormSums] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        slot = trace.slot
        if slot in self.members:
            sums = self.sums.setdefault(
                self.into.get(slot, slot), FormSums(self.members[slot], trace.heads, slot.causal)
            )
            for maps in maps_of(trace):
                sums.add(maps)
        return None

    def form(self, head: HeadId, form: str, eps: float, errors: int) -> Form:
        """The nearest mix of the members, or with form "auto" a single one that is nearly as near; then the error."""
        slot, number = head
        sums, fitted = self.sums[self.into.get(slot, slot)], form in ("auto", "mix")
        usable = sums.gram.diagonal() > 0
        if not usable.any():
            asked, got = f"form {form!r} in {slot}", ", ".join(map(_word, sums.members))
            remedy = "choose offsets within the sentences, to the left in a decoder"
            raise UsageError(asked, "members that at least one token can attend to", got, remedy)
        members = [member for member, seen in zip(sums.members, usable.tolist(), strict=True) if seen]
        squares, overlap = sums.squares[number], sums.with_heads[number, usable]
        G = sums.gram[usable][:, usable] - overlap - overlap[:, None] + squares
        mix = nearest_mix(G)
        best, single = float(mix @ G @ mix), int(G.diagonal().argmin())
        if form == "auto" and float(G[single, single]) <= (1 + SINGLE_MAP_SLACK) * best + 1e-12 * float(squares):
            mix = torch.nn.functional.one_hot(torch.tensor(single), len(members)).double()
        least = MIN_MIX_WEIGHT * mix.max()
        mix = torch.where(mix < least, 0.0, mix) if fitted else mix.clamp_min(float(least))
        mix = mix / mix.sum()
        kept = mix.nonzero().squeeze(-1).tolist()
        inside = tuple(members[place] for place in kept)
        offsets, values = _error(sums, number, inside, mix @ sums.members_at[usable], eps, errors)
        distance = float(mix @ G @ mix) / max(float(squares), 1e-300)
        return Form(inside, tuple(mix[kept].tolist()), offsets, values, eps, distance)


def _along_offsets(P: Float[Tensor, "*a n n"]) -> Float[Tensor, "*a o"]:
    """The sum of every diagonal from -ERROR_SPAN_TOKENS to ERROR_SPAN_TOKENS; zero for those that there are not."""
    n = P.shape[-1]
    found = P.new_zeros(*P.shape[:-2], 2 * ERROR_SPAN_TOKENS + 1)
    for offset in range(-min(ERROR_SPAN_TOKENS, n - 1), min(ERROR_SPAN_TOKENS, n - 1) + 1):
        found[..., ERROR_SPAN_TOKENS + offset] = P.diagonal(offset, -2, -1).sum(-1)
    return found


def _error(
    sums: FormSums, head: int, members: Sequence[MapMember], explained: Float[Tensor, " o"], eps: float, errors: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The offsets where most of the head is left after the mix, and the mean of that, clipped to eps (D11, D12)."""
    held = torch.tensor([place - ERROR_SPAN_TOKENS in members for place in range(2 * ERROR_SPAN_TOKENS + 1)])
    left = (sums.heads_at[head] - explained).masked_fill(held, 0.0)
    real = left > 1e-9 * sums.heads_at[head].sum()
    ranked = [place for place in left.argsort(descending=True, stable=True).tolist() if real[place]]
    chosen = sorted(ranked[: errors if eps > 0 else 0])
    mean = left / sums.rows_at.clamp_min(1)
    return tuple(place - ERROR_SPAN_TOKENS for place in chosen), tuple(
        min(float(mean[p]), MAX_ERROR_SHARE * eps) for p in chosen
    )


def _word(member: MapMember) -> str:
    if isinstance(member, int):
        return NAME_OF_OFFSET.get(member, f"{abs(member)} {'before' if member < 0 else 'after'}")
    return member


def nearest_mix(G: Float[Tensor, "m m"]) -> Float[Tensor, " m"]:
    """argmin of a^T G a over a >= 0, sum a = 1: with G_mn = <F_m - H, F_n - H>, the mix of the F_m nearest to H.

    min over b >= 0 of b^T G b + (1 - sum b)^2 has the same direction: for b = t a it is q / (1 + q) at the best t,
    which grows with q = a^T G a. That is least squares without negative numbers, solved exactly by an active set.
    Source: Lawson and Hanson 1974, chapter 23, for the solver; the nearest point of a convex set is S4.148.
    Holds when: G is positive semidefinite up to rounding. Among several best mixes one is given.
    """
    values, vectors = torch.linalg.eigh(G.double())
    root = (values.clamp_min(0).sqrt()[:, None] * vectors.mT) / values.abs().max().clamp_min(1e-300).sqrt()
    stacked = torch.cat([root, torch.ones(1, len(G), dtype=torch.float64)])
    target = np.append(np.zeros(len(G)), 1.0)
    b, _ = nnls(stacked.numpy(), target)
    return torch.from_numpy(b / b.sum()).to(G.dtype)
