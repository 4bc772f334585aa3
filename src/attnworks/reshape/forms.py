"""The structured form of a head: the mix of fixed maps that is nearest to its attention over a corpus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.linalg.simplex import nearest_mix
from attnworks.mechanisms.members import Member, member_tables, read_members
from attnworks.reshape.heads import Head
from attnworks.traces.layer import LayerTrace
from attnworks.traces.maps import maps_of
from attnworks.traces.subject import Spectator

SLACK = 0.05
"""A form of one member is taken if its squared distance is at most so much larger than that of the best mix."""
SMALLEST = 0.01
"""Members with less of a mix than this are left out; those that were asked for get as much, so that they can learn."""
LARGEST_ERROR = 0.95
"""Of eps: at eps itself an error could not learn."""
SPAN = 16
"""Offsets of the error are at most this."""
NAMES: dict[str, str] = {"previous": "-1", "self": "0", "next": "1"}
WORDS: dict[Member, str] = {value: name for name, text in NAMES.items() for value in [int(text)]}


@dataclass(frozen=True)
class Form:
    """What a head will do: members with their weights, offsets of the error with theirs.

    distance    of the mix from the head: mean of ||P_i - mix_i||^2 over rows, as a share of ||P_i||^2
    """

    members: tuple[Member, ...]
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
        """Such as: previous; or 62 % previous, 30 % first, 8 % mean."""
        if len(self.members) == 1:
            return _word(self.members[0])
        ranked = sorted(zip(self.mix, self.members, strict=True), key=lambda part: -part[0])
        return ", ".join(f"{100 * weight:.0f} % {_word(member)}" for weight, member in ranked)


def read_form(form: str, window: int) -> tuple[Member, ...] | None:
    """The members of a form: its name, or its members as in `structured`; None for auto and mix, which are fitted."""
    if form in ("auto", "mix"):
        return None
    return read_members(f"{-window}..{window}" if form == "band" else NAMES.get(form, form), f"form {form!r}")


def candidates(window: int, causal: bool) -> tuple[Member, ...]:
    """Offsets up to the window, the first token, the last, and all evenly; to the left only under causality."""
    right = 0 if causal else window
    return (*range(-window, right + 1), "first", *(() if causal else ("last",)), "mean")


class Overlaps(Spectator):
    """Sums, over all rows of the text, of what the best mix and the best error of each head depend on.

    <F_m, F_n>, <F_m, P_h>, ||P_h||^2 for every head h, and the sum of P_h at each offset with how often there is one.
    """

    def __init__(self, members: Mapping[str, tuple[Member, ...]]) -> None:
        self.members = members
        self.gram: dict[str, Float[Tensor, "m m"]] = {}
        self.with_heads: dict[str, Float[Tensor, "h m"]] = {}
        self.squares: dict[str, Float[Tensor, " h"]] = {}
        self.at_offset: dict[str, Float[Tensor, "h o"]] = {}
        self.offsets: dict[str, Float[Tensor, " o"]] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        slot = str(trace.slot)
        if slot not in self.members:
            return None
        if slot not in self.gram:
            self._begin(slot, trace.heads)
        for maps in maps_of(trace):
            P, n = maps.P.double(), maps.P.shape[-1]
            F = member_tables(self.members[slot], n, causal=trace.slot.kind == "decoder")
            self.with_heads[slot][maps.heads] += torch.einsum("mij,bhij->hm", F, P)
            self.squares[slot][maps.heads] += P.square().sum((0, 2, 3))
            spread = range(-min(SPAN, n - 1), min(SPAN, n - 1) + 1)
            at = torch.stack([P.diagonal(o, -2, -1).sum((0, 2)) for o in spread], -1)
            self.at_offset[slot][maps.heads, SPAN + spread.start : SPAN + spread.stop] += at
            if maps.heads.start == 0:
                self.gram[slot] += len(P) * torch.einsum("mij,nij->mn", F, F)
                counts = torch.tensor([float(n - abs(o)) for o in spread], dtype=torch.float64)
                self.offsets[slot][SPAN + spread.start : SPAN + spread.stop] += len(P) * counts
        return None

    def _begin(self, slot: str, heads: int) -> None:
        m, o = len(self.members[slot]), 2 * SPAN + 1
        zeros = (torch.zeros(shape, dtype=torch.float64) for shape in ((m, m), (heads, m), (heads,), (heads, o), (o,)))
        tables = (self.gram, self.with_heads, self.squares, self.at_offset, self.offsets)
        for table, zero in zip(tables, zeros, strict=True):
            table[slot] = zero

    def form(self, head: Head, form: str, eps: float, errors: int) -> Form:
        """The nearest mix of the members, or with form "auto" a single one that is nearly as near; then the error."""
        (slot, number), members = head, self.members[head[0]]
        squares, overlap = self.squares[slot][number], self.with_heads[slot][number]
        G = self.gram[slot] - overlap - overlap[:, None] + squares
        mix = nearest_mix(G)
        best, single = float(mix @ G @ mix), int(G.diagonal().argmin())
        if form == "auto" and float(G[single, single]) <= (1 + SLACK) * best + 1e-12 * float(squares):
            mix = torch.nn.functional.one_hot(torch.tensor(single), len(members)).double()
        few = form in ("auto", "mix")
        mix = torch.where(mix < SMALLEST, 0.0, mix) if few else mix.clamp_min(SMALLEST)
        kept = mix.nonzero().squeeze(-1).tolist()
        mix = mix / mix.sum()
        inside = tuple(members[place] for place in kept)
        offsets, values = self._error(slot, number, inside, eps, errors)
        distance = float(mix @ G @ mix) / max(float(squares), 1e-300)
        return Form(inside, tuple(mix[kept].tolist()), offsets, values, eps, distance)

    def _error(
        self, slot: str, head: int, members: Iterable[Member], eps: float, errors: int
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The offsets outside of the members with most of the weight, and their mean weight, clipped to eps (D11)."""
        held = torch.tensor([place - SPAN in members for place in range(2 * SPAN + 1)])
        weight = self.at_offset[slot][head].masked_fill(held, 0.0)
        ranked = [place for place in weight.argsort(descending=True, stable=True).tolist() if weight[place] > 0]
        chosen = sorted(ranked[: errors if eps > 0 else 0])
        mean = weight / self.offsets[slot].clamp_min(1)
        values = (min(float(mean[place]), LARGEST_ERROR * eps) for place in chosen)
        return tuple(place - SPAN for place in chosen), tuple(values)


def _word(member: Member) -> str:
    if isinstance(member, int):
        return WORDS.get(member, f"{abs(member)} {'before' if member < 0 else 'after'}")
    return member
