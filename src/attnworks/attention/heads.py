"""The heads of an attention layer: weights of equal or unequal widths, and which mechanism each head uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnworks.attention import Attended, Context, Geometry, Mask, Mechanism, MechanismSpec
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.core.tensors import tensors_of

HeadGroup = tuple[MechanismSpec, tuple[int, ...]]


class HeadWidths(nn.Module):
    """How the columns of a projection are divided among heads. Narrower heads are padded with zeros.

    widths    one for all heads, or one for each of them
    widest    the largest width of all heads of the layer, including heads that have no columns here
    shape     of a parameter with one number per column: (h, k) where all widths are equal, else (w,) with w their sum
    """

    places: Int[Tensor, " w"] | None

    def __init__(self, heads: int, widths: int | Sequence[int], widest: int) -> None:
        super().__init__()
        self.heads, self.widest = heads, widest
        self.unequal = None if isinstance(widths, int) or {*widths} <= {widest} else tuple(widths)
        self.shape = (heads, widest) if self.unequal is None else (sum(self.unequal),)
        self.register_buffer("places", None if self.unequal is None else self._places(self.unequal), persistent=False)

    def _places(self, widths: Sequence[int]) -> Int[Tensor, " w"]:
        """The place of each of the w columns among the h * widest columns of heads that are all padded to `widest`."""
        return torch.cat([head * self.widest + torch.arange(width) for head, width in enumerate(widths)])

    def cut(self, joined: Float[Tensor, "*a w"]) -> Float[Tensor, "*a h k"]:
        """Columns of all heads -> the columns of each head, padded to `widest`."""
        if self.places is not None:
            wide = joined.new_zeros(*joined.shape[:-1], self.heads * self.widest)
            joined = wide.index_copy(-1, self.places, joined)
        return joined.unflatten(-1, (self.heads, self.widest))

    def join(self, heads: Float[Tensor, "*a h k"]) -> Float[Tensor, "*a w"]:
        """The inverse of `cut`."""
        joined = heads.flatten(-2)
        return joined if self.places is None else joined.index_select(-1, self.places)

    def split(self, W: Tensor, axis: int = -1) -> list[Tensor]:
        """A parameter, split along the axis of its columns: [e k] of each head, or [v e] for axis 0, or biases [k]."""
        return list(W if self.unequal is None else W.split(self.unequal, axis))

    def fill(self, W: Tensor, parts: Sequence[Tensor], axis: int = -1) -> None:
        """The inverse of `split`, in place."""
        if parts:
            W.copy_(torch.stack(list(parts)) if self.unequal is None else torch.cat(list(parts), axis))

    def of_heads(self, W: Tensor) -> Float[Tensor, "h e k"]:
        """A weight [h e k], or [e w] where widths differ, as [h e k]."""
        return W if W.dim() == 3 else self.cut(W).movedim(-2, 0)


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """The weights of one attention layer as the mathematics has them: head first, multiplied from the right.

    groups    how many distinct keys and values there are; where heads share them, they are repeated for each head
    scale     S = scale Q K^T (+ what the model adds for positions); None where the mechanism itself decides
    *_widths  of each head, where they are less than those of the tensors, which are padded with zeros
    turns     the angle of each column of queries and keys, as in `HeadMatrices`; None where no column has one
    """

    W_Q: Float[Tensor, "h e k"]
    W_K: Float[Tensor, "h f k"]
    W_V: Float[Tensor, "h f v"]
    W_O: Float[Tensor, "h v e"]
    b_Q: Float[Tensor, "h k"] | None  # noqa: N815
    b_K: Float[Tensor, "h k"] | None  # noqa: N815
    b_V: Float[Tensor, "h v"] | None  # noqa: N815
    b_O: Float[Tensor, " e"] | None  # noqa: N815
    groups: int
    scale: float | None
    key_widths: tuple[int, ...] | None = None
    value_widths: tuple[int, ...] | None = None
    turns: Float[Tensor, "h k"] | None = None

    def columns(self) -> tuple[int, int]:
        """The widths of all heads together: of queries (and keys), and of values."""
        h, k, v = len(self.W_Q), self.W_Q.shape[-1], self.W_V.shape[-1]
        return sum(self.key_widths or (h * k,)), sum(self.value_widths or (h * v,))


class HeadMatrices(NamedTuple):
    """The weights of one head, multiplied from the right; k = 0 for a head that attends by position alone.

    turns    the angle of each column of queries and keys. Two neighbouring columns with the same angle, which is not
             zero, are a frequency pair: at position i they are rotated by i times the angle. Columns with angle zero
             are as they are, whatever the model does with them (rotary positions). None: all angles are zero
    """

    W_Q: Float[Tensor, "e k"]
    W_K: Float[Tensor, "f k"]
    W_V: Float[Tensor, "f v"]
    W_O: Float[Tensor, "v e"]
    b_Q: Float[Tensor, " k"] | None = None  # noqa: N815
    b_K: Float[Tensor, " k"] | None = None  # noqa: N815
    b_V: Float[Tensor, " v"] | None = None  # noqa: N815
    turns: Float[Tensor, " k"] | None = None

    @property
    def weights(self) -> tuple[Tensor | None, ...]:
        """All tensors but the angles, which no training changes."""
        return self[:-1]

    def each(self, change: Callable[[Tensor], Tensor]) -> HeadMatrices:
        """The head with all its weights changed; angles stay."""
        changed = (None if tensor is None else change(tensor) for tensor in self.weights)
        return HeadMatrices(*changed, turns=self.turns)  # pyright: ignore[reportArgumentType]


class Scoring(NamedTuple):
    """How each head of a layer computes its weights.

    scales    s of a head whose weights are softmax(s Q K^T + mask); None for any other head
    softmax   whether the weights of a head are a softmax of any scores (`Mechanism.softmax`)
    """

    scales: tuple[float | None, ...]
    softmax: tuple[bool, ...]

    @classmethod
    def of(cls, by_head: Sequence[Mechanism], d_k: int, context: Context) -> Scoring:
        """The scoring of heads that use these mechanisms, with keys of width d_k."""
        scales = tuple(mechanism.dot_scale(d_k, context) for mechanism in by_head)
        return cls(scales, tuple(mechanism.softmax for mechanism in by_head))

    @property
    def scale(self) -> float | None:
        """The factor of Q K^T, if it is the same in all heads."""
        return self.scales[0] if len({*self.scales}) == 1 else None


class HeadGroups(nn.ModuleList):
    """The mechanisms of a layer, each with the heads that use it.

    content_heads  heads whose weights depend on Q and K; the others attend by position alone and have neither
    """

    order: Tensor

    def __init__(self, groups: Sequence[HeadGroup], d_k: int, d_v: int) -> None:
        super().__init__(spec.build(Geometry(len(heads), d_k, d_v)) for spec, heads in groups)
        self.specs, self.heads = tuple(spec for spec, _ in groups), tuple(heads for _, heads in groups)
        by_content = zip(self.mechanisms, self.heads, strict=True)
        self.content_heads = tuple(
            sorted(head for mechanism, heads in by_content if mechanism.by_content for head in heads)
        )
        self.count = sum(map(len, self.heads))
        self.register_buffer("order", torch.tensor(sum(self.heads, ())).argsort(), persistent=False)

    @property
    def mechanisms(self) -> list[Mechanism]:
        return cast("list[Mechanism]", list(self))

    def by_head(self) -> tuple[str, ...]:
        """The mechanism of each head."""
        found = {head: str(spec) for spec, heads in zip(self.specs, self.heads, strict=True) for head in heads}
        return tuple(found[head] for head in range(self.count))

    def scoring(self, d_k: int, context: Context) -> Scoring:
        """The scoring of each head, with keys of width d_k."""
        found = {head: own for own, heads in zip(self.mechanisms, self.heads, strict=True) for head in heads}
        return Scoring.of([found[head] for head in range(self.count)], d_k, context)

    def forward(
        self,
        Q: Float[Tensor, "b q i k"],
        K: Float[Tensor, "b q j k"],
        V: Float[Tensor, "b h j v"],
        mask: Mask,
        context: Context,
        *,
        weights: bool = False,
    ) -> Attended:
        """Each mechanism on its own heads; Q and K are those of `content_heads`, or of all heads.

        One mechanism for all heads is the common case, and copies nothing. Heads without scores ignore what a mask adds
        to scores (such as T5's positions).
        """
        if not self.count:
            return Attended(V.new_zeros(*V.shape[:2], Q.shape[2], V.shape[3]), Q @ K.mT if weights else None)
        if len(self) == 1:
            mechanism = self.mechanisms[0]
            Q, K = (T if T.shape[1] == self.count else _nothing(T, self.count) for T in (Q, K))
            return mechanism(Q, K, V, mask if mechanism.by_content else mask.hiding(), context, weights=weights)
        parts: list[Attended] = []
        given = self.content_heads if Q.shape[1] < self.count else range(self.count)
        row = {head: row for row, head in enumerate(given)}
        for mechanism, heads in zip(self.mechanisms, self.heads, strict=True):
            rows = [row[head] for head in heads if head in row]
            own = [T[:, rows] if rows else _nothing(T, len(heads)) for T in (Q, K)]
            global_qkv = context.global_qkv and tuple(T[:, heads] for T in context.global_qkv)
            seen = mask_of_heads(mask if mechanism.by_content else mask.hiding(), heads)
            parts.append(mechanism(*own, V[:, heads], seen, replace(context, global_qkv=global_qkv), weights=weights))
        Y = torch.cat([part.Y for part in parts], 1)[:, self.order]
        maps = [part.P for part in parts if part.P is not None]
        return Attended(Y, torch.cat(maps, 1)[:, self.order] if len(maps) == len(parts) else None)

    def bound_to_width(self) -> bool:
        """Whether parameters of a mechanism depend on the width of heads, or columns of zeros change its result.

        They change it where columns are mapped one by one, as in linear attention with phi(0) = 1. Such mechanisms have
        no factor 1/sqrt(k), and no scores that are products of Q and K.
        """
        described = tuple(zip(self.specs, self.heads, strict=True))
        with torch.device("meta"):
            built = [HeadGroups(described, width, width) for width in (2, 3)]
        narrow, wide = ([tensor.shape for tensor in (*g.parameters(), *g.buffers())] for g in built)
        return narrow != wide or any(
            mechanism.by_content and mechanism.default_scale(4) != 0.5 and mechanism.dot_scale(4, Context()) is None
            for mechanism in self.mechanisms
        )

    def every_head(self, Q: Float[Tensor, "b q ..."]) -> Float[Tensor, "b h ..."]:
        """Q or K of all heads, with zeros for the heads that have none."""
        if Q.shape[1] == self.count:
            return Q
        found = Q.new_zeros(Q.shape[0], self.count, *Q.shape[2:])
        heads = torch.tensor(self.content_heads, device=Q.device, dtype=torch.long)
        return found.index_copy(1, heads, Q[:, : len(heads)])

    def whole(self, W: Float[Tensor, "q ..."]) -> Float[Tensor, "h ..."]:
        """W_Q, W_K or their biases with a slice of zeros for each head that has none."""
        return W if len(W) == self.count else self.every_head(W.unsqueeze(0)).squeeze(0)


def _nothing(like: Tensor, heads: int) -> Tensor:
    """Zeros [b heads . k], without memory, as Q or K of mechanisms that ignore them."""
    return like.new_zeros(()).expand(like.shape[0], heads, *like.shape[2:])


def mask_of_heads(mask: Mask, heads: tuple[int, ...]) -> Mask:
    """The part of a dense per-head mask that belongs to these heads."""
    dense = mask.dense
    if dense is None or dense.dim() < 3 or dense.shape[-3] == 1:
        return mask
    return Mask(mask.real, mask.causal, dense[..., list(heads), :, :])


@torch.no_grad()
def carry_over(old: HeadGroups, new: HeadGroups, origins: Sequence[int | None] | None = None) -> None:
    """Copy the parameters of mechanisms that are in both; a row that belongs to a head moves with the head.

    origins    the old number of each new head, None for one that was not there; the same numbers unless given
    """
    for spec, heads, mechanism in zip(new.specs, new.heads, new.mechanisms, strict=True):
        came_from = heads if origins is None else [origins[head] for head in heads]
        for before, held, theirs in zip(old.specs, old.heads, old.mechanisms, strict=True):
            if before == spec and not {*held}.isdisjoint(came_from):
                _carry_tensors(tensors_of(theirs), held, tensors_of(mechanism), came_from)


def _carry_tensors(
    theirs: Mapping[str, Tensor], held: Sequence[int], own: Mapping[str, Tensor], heads: Sequence[int | None]
) -> None:
    for name, tensor in own.items():
        tensor.requires_grad_(theirs[name].requires_grad)
        if (len(tensor), len(theirs[name])) == (len(heads), len(held)):
            for row, head in enumerate(heads):
                if head in held:
                    tensor[row] = theirs[name][held.index(head)]
        elif tensor.shape == theirs[name].shape:
            tensor.copy_(theirs[name])


def check_held(held: Sequence[int], kept: Sequence[int], slot: Slot) -> None:
    """Refuse heads that need W_Q and W_K but have lost them."""
    if lost := sorted({*kept} - {*held}):
        asked, remedy = f"queries and keys in head {slot}.{lost[0]}", "undo the reshape: attnworks undo"
        raise UsageError(asked, "a head that has them", "one that attends by position alone", remedy)


def grouped(specs: Sequence[str]) -> list[HeadGroup]:
    """Each distinct mechanism with the heads that use it, in order of their first head."""
    return [
        (MechanismSpec.parse(text), tuple(head for head, spec in enumerate(specs) if spec == text))
        for text in dict.fromkeys(specs)
    ]


def fold_scores(W_Q: Float[Tensor, "h e k"], W_K: Float[Tensor, "h f k"]) -> Float[Tensor, "h e f"]:
    """W_QK,h = W_Q,h W_K,h^T: all that the scores of a head without biases depend on.

    Source: Xie 2021, theorem 2.2 (S0.17).
    """
    return W_Q @ W_K.mT


def fold_values(
    W_V: Float[Tensor, "h f v"],
    W_O: Float[Tensor, "h v e"],
    b_V: Float[Tensor, "h v"] | None = None,
    b_O: Float[Tensor, " e"] | None = None,
) -> tuple[Float[Tensor, "h f e"], Float[Tensor, " e"]]:
    """W_h = W_V,h W_O,h and b^T = b_O^T + sum_h b_V,h^T W_O,h, so that SA(X) = sum_h P_h X W_h + 1 b^T.

    Source: Xie 2021, section 2 (S0.6, S0.8).
    Holds when: the rows of every P_h sum to one.
    Departs: the output bias b_O, missing in the document, is included.
    """
    bias = W_O.new_zeros(W_O.shape[-1])
    bias = bias if b_O is None else bias + b_O
    if b_V is not None:
        bias = bias + torch.einsum("hv,hve->e", b_V, W_O)
    return W_V @ W_O, bias
