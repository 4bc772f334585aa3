"""Which keys a query may see. No n x n tensor is built unless the user gives one or asks for one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.core.errors import UsageError


@dataclass(frozen=True, eq=False)
class Mask:
    """Padding, causality and, if need be, a dense pattern; a query sees a key if all of them allow it.

    real      True where the key is a real token, False where it is padding (as Hugging Face's `attention_mask`)
    causal    queries are the last positions of the keys' sequence, and none sees a later key
    dense     boolean (True: may see) or additive (added to the scores; -inf hides the key), broadcast over b and h

    >>> Mask.from_lengths([2, 3]).real.tolist()
    [[True, True, False], [True, True, True]]
    """

    real: Bool[Tensor, "b j"] | None = None
    causal: bool = False
    dense: Bool[Tensor, "*#bh i j"] | Float[Tensor, "*#bh i j"] | None = None

    @classmethod
    def from_lengths(cls, lengths: list[int] | Int[Tensor, " b"], *, causal: bool = False) -> Mask:
        """The mask of right-padded sequences of these lengths."""
        lengths = torch.as_tensor(lengths)
        if not len(lengths):
            raise UsageError("a mask from lengths", "one or more", "none", "give a length each")
        positions = torch.arange(int(lengths.max()), device=lengths.device)
        return cls(real=positions < lengths.unsqueeze(-1), causal=causal)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Mask:
        """On another device; an additive dense part in another type, which decides what it hides."""
        dense = self.dense
        if dense is not None:
            dense = dense.to(device=device, dtype=dtype if dense.is_floating_point() else None)
        return Mask(None if self.real is None else self.real.to(device=device), self.causal, dense)

    def check(self, b: int, h: int, i: int, j: int) -> None:
        """Refuse a mask that does not fit queries [b h i k] and keys [b h j k]."""
        real = self.real
        if real is not None and (tuple(real.shape) not in {(b, j), (1, j)} or real.dtype != torch.bool):
            expected, found = f"one boolean per key, shape [{b}, {j}]", f"shape {list(real.shape)} of {_type(real)}"
            remedy = "pass real as [batch, keys] with True for real tokens"
            raise UsageError("attention with a mask of real keys", expected, found, remedy)
        if self.causal and i > j:
            expected = f"{i} keys or more for {i} queries"
            raise UsageError("causal attention", expected, f"{j} keys", "leave causal=True out")
        if self.dense is not None:
            self._check_dense(self.dense, (b, h, i, j))

    def _check_dense(self, dense: Tensor, shape: tuple[int, int, int, int]) -> None:
        asked = "attention with a dense mask"
        if dense.dtype != torch.bool and not dense.is_floating_point():
            raise UsageError(asked, "booleans, or floats to add", _type(dense), "call .bool() on it")
        leading = dense.shape[:-2]  # [], [h] or [b h], each of its full size or 1
        fits = len(leading) <= 2 and all(
            own in (1, full) for own, full in zip(leading[::-1], shape[1::-1], strict=False)
        )
        if not fits or dense.shape[-2:] != shape[2:]:
            expected = f"a shape that broadcasts to {list(shape)} and ends in {list(shape[2:])}"
            remedy = "pass dense as [queries, keys], [batch, 1, queries, keys] or [batch, heads, queries, keys]"
            raise UsageError(asked, expected, f"shape {list(dense.shape)}", remedy)

    def additive(self) -> Float[Tensor, "*#bh i j"] | None:
        """The finite part of an additive dense mask, or None where there is none."""
        if self.dense is None or self.dense.dtype == torch.bool:
            return None
        return self.dense.masked_fill(self.dense == -torch.inf, 0.0)

    def hiding(self) -> Mask:
        """The same mask without its additive part: only which keys may be seen."""
        if self.additive() is None or self.dense is None:
            return self
        return Mask(self.real, self.causal, self.dense != -torch.inf)

    def allowed(self, i: int, j: int, device: torch.device | None = None) -> Bool[Tensor, "#b #h #i j"] | None:
        """All conditions as one boolean tensor that broadcasts to [b h i j], or None if every key may be seen.

        This builds what it returns: [b 1 1 j] for padding alone, an i x j table if causal.
        """
        parts: list[Tensor] = []
        if self.real is not None:
            parts.append(self.real[:, None, None, :])
        if self.causal and i > 1:
            parts.append(torch.ones(i, j, dtype=torch.bool, device=device).tril(j - i)[None, None])
        if self.dense is not None:
            parts.append(as_four_axes(self.dense if self.dense.dtype == torch.bool else self.dense != -torch.inf))
        return reduce(and_, parts) if parts else None

    def by_rows(self, i: int, j: int, *, last: bool = True) -> Mask:
        """The same mask as padding and causality, beside what it adds to scores; itself if it hides more than that.

        last    queries are the last positions of the keys' sequence, as under causality: a single one always, several
                where there are more keys and all later ones are hidden

        Queries that see no key are not compared: what they compute is not used.
        """
        if self.dense is None:
            return replace(self, causal=True) if last and i == 1 else self
        if self.real is not None or self.causal:
            return self
        allowed, added = self.allowed(i, j), self.additive()
        assert allowed is not None
        real, used = allowed.any(-2).any(1), allowed.any(-1, keepdim=True)
        added = None if added is None or not bool(added.any()) else added
        for causal in (last,) if i == 1 else (True, False):
            found = Mask(None if bool(real.all()) else real, causal and i <= j, added)
            hiding = Mask(real, found.causal).allowed(i, j, allowed.device)
            if bool(((hiding == allowed) | ~used).all()):
                return found
        later = torch.ones(i, j, dtype=torch.bool, device=allowed.device).triu(j - i + 1)
        return replace(self, causal=True) if last and i < j and not bool((allowed & later).any()) else self

    def rows_with_keys(self, i: int, j: int) -> Bool[Tensor, "b i"] | None:
        """True at queries that see any key, under padding and causality, in O(b j); None if there is no padding."""
        if self.real is None:
            return None
        if not self.causal:
            return self.real.any(-1, keepdim=True).expand(-1, i)
        return self.real.cumsum(-1)[:, j - i :] > 0


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def as_four_axes(table: Tensor) -> Tensor:
    """[i j] or [h i j] or [b h i j] -> [b h i j] with leading axes of size one."""
    return table.reshape((1,) * (4 - table.dim()) + tuple(table.shape))
