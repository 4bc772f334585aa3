"""The family of fixed attention maps: how its members are written, and their tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from attnworks.core.errors import UsageError

MapMember = int | str
"""An offset o (key i + o), "first", "last", "mean", or "block4"."""
MapMembers = int | str | Sequence[MapMember]
"""As users write them: "-2..2/first/mean" or (-1, 0, "block4")."""

MAX_FIXED_MAPS = 1024
"""The largest number of members; more are taken for a typing mistake."""
_EXAMPLE = "-2..2/first/last/mean/block4"


def read_members(given: object, asked: str) -> tuple[MapMember, ...]:
    """Members that are separated by "/": -1 is the key before, -2..2 five offsets, block4 the first key of four.

    >>> read_members("-1..1/first/block4", "a family")
    (-1, 0, 1, 'first', 'block4')
    """
    parts = given.split("/") if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
    read = [_read(part, asked) for part in parts]
    count = sum(map(len, read))
    members = tuple(chain.from_iterable(read)) if count <= MAX_FIXED_MAPS else ()
    repeated = [member for member, times in Counter(members).items() if times > 1]
    if not members or repeated:
        found = f"{repeated[0]} more than once" if repeated else f"{count:,}"
        raise UsageError(asked, f"1 to {MAX_FIXED_MAPS:,} members, each once", found, f"write for instance {_EXAMPLE}")
    return members


def _read(part: object, asked: str) -> Sequence[MapMember]:
    word = str(part).strip() if isinstance(part, str) or type(part) is int else ""
    if word in ("first", "last", "mean") or re.fullmatch(r"block([2-9]|[1-9]\d+)", word, re.ASCII):
        return [word]
    offsets = re.fullmatch(r"([+-]?\d{1,9})(?:\.\.([+-]?\d{1,9}))?", word, re.ASCII)
    first, last = (int(end or offsets[1]) for end in offsets.groups()) if offsets else (1, 0)
    if last < first:
        expected, remedy = "-1, -2..2, first, last, mean or block4", f"separate members by /, as in {_EXAMPLE}"
        raise UsageError(asked, expected, repr(part), remedy)
    return range(first, last + 1)


def block_size(member: str) -> int:
    """4 for block4."""
    return int(member.removeprefix("block"))


def member_tables(
    members: MapMembers, n: int, *, causal: bool = False, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "m n n"]:
    """F_m(i, j) of all members over one whole sequence of n positions: rows of sum one, or zero without a key.

    Source: Conti 2024, section 3.1.2: Sigma_1 is the offset 0, a band of Sigma_2 is a mix of offsets, and block4 is
    the P_r of Sigma_3, the token first in each of its windows (S4.137-S4.140).
    """
    seen = torch.ones(n, n, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    read = read_members(members, f"tables of {members}")
    return torch.stack([positions(m, seen) & seen if fixed(m) else among(m, seen, dtype) for m in read]).to(dtype)


def fixed(member: MapMember) -> bool:
    """Whether its key depends on the query's position alone, and not on the keys that the query sees."""
    return isinstance(member, int) or member.startswith("block")


def positions(member: MapMember, like: Shaped[Tensor, "*a i j"]) -> Bool[Tensor, "i j"]:
    """True at the key of a fixed member, seen or not; queries are the last i positions."""
    i, j = like.shape[-2:]
    key = torch.arange(j, device=like.device)
    query = key[j - i :, None]
    if isinstance(member, int):
        return key == query + member
    return key == query - query % block_size(member)


def among(member: MapMember, seen: Bool[Tensor, "*a i j"], dtype: torch.dtype) -> Float[Tensor, "*a i j"]:
    """F_m(i, j) of a member that is not fixed: the first or last of the keys that a query sees, or all evenly."""
    if member == "mean":
        return seen / seen.sum(-1, keepdim=True, dtype=dtype).clamp_min(1)
    before = seen.cumsum(-1) if member == "first" else seen.flip(-1).cumsum(-1).flip(-1)
    return (seen & (before == 1)).to(dtype)
