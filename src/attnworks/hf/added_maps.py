"""Projections beside those of an attention layer: more columns for its heads, and more heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.hf.head_modules import HeadsIn, HeadsOut
from attnworks.hf.layout import ProjectionRole

ROLES: tuple[ProjectionRole, ...] = ("query", "key", "value")
ADDED_ATTRIBUTE = "attnworks_added"
"""The attribute of an attention module that holds its added columns."""


@dataclass(frozen=True)
class AddedShape:
    """All but the weights of what is added to an attention layer, as JSON.

    attention, query, key, value, output    modules: the layer, its projections, and the projection that reads its heads
    heads      how many heads the layer has without
    key_of     for each of them, the number of its head of keys and values as attention is given them
    keys       how many columns of queries and keys are added to each head; those of new heads follow
    values     the same for values
    turns      the angle of each added column of queries and keys, head by head; none if no column is turned
    factor     the scores gain factor (X W_Q + b_Q) (Z W_K + b_K)^T; None for the factor that the layer itself gives
    biased     which projections have a bias
    crosses    whether keys and values come from another sequence than queries
    """

    attention: str
    query: str
    key: str
    value: str
    output: str
    heads: int
    key_of: tuple[int, ...]
    keys: tuple[int, ...]
    values: tuple[int, ...]
    turns: tuple[float, ...]
    factor: float | None
    biased: tuple[str, ...]
    crosses: bool

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> AddedShape:
        """The shape with these entries; an error for others, or for numbers that do not fit each other."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()
        }
        if {*given} != {field.name for field in fields(cls)}:
            raise ValueError(f"entries {', '.join(given)}")
        shape = cls(**given)
        widths = (*shape.keys, *shape.values)
        if not all(type(width) is int and width >= 0 for width in widths) or len(shape.keys) != len(shape.values):
            raise ValueError(f"widths {shape.keys} and {shape.values}")
        if not 0 < shape.heads == len(shape.key_of) <= len(shape.keys) or len(shape.turns) not in (0, sum(shape.keys)):
            raise ValueError(f"{shape.heads} heads, of which {len(shape.keys)} have columns")
        return shape


class Widened(NamedTuple):
    """Queries, keys and values of the heads of a layer, with the added columns behind their own, and of new heads."""

    Q: Float[Tensor, "b h i k"]
    K: Float[Tensor, "b h j k"]
    V: Float[Tensor, "b h j v"]


class AddedColumns(nn.Module):
    """X W_Q + b_Q, Z W_K + b_K, Z W_V + b_V and Y W_O of the columns that are added to a layer.

    The columns of all heads lie one after the other, without padding: w_k of queries and of keys, w_v of values.
    inputs, outputs    numbers per token that the projections "query", "key" and "value" read, and that of the output
                       gives
    """

    def __init__(self, shape: AddedShape, inputs: Mapping[str, int], outputs: int) -> None:
        super().__init__()
        self.shape = shape
        self.query = self._map(shape.keys, inputs["query"], "query")
        self.key = self._map(shape.keys, inputs["key"], "key")
        self.value = self._map(shape.values, inputs["value"], "value")
        self.output = HeadsIn(outputs, shape.values, max(shape.values), bias=False) if any(shape.values) else None
        self.cache_layers = 0
        partners, signs = _pairs(shape)
        self.register_buffer("partners", partners, persistent=False)
        self.register_buffer("signs", signs, persistent=False)

    partners: Tensor
    signs: Tensor

    def _map(self, widths: Sequence[int], inputs: int, role: str) -> HeadsOut | None:
        return HeadsOut(inputs, widths, max(widths), bias=role in self.shape.biased) if any(widths) else None

    @property
    def heads(self) -> int:
        """Those of the layer, and new ones."""
        return len(self.shape.keys)

    def queries(self, X: Float[Tensor, "b i e"]) -> Float[Tensor, "b i wk"]:
        return _columns(self.query, X)

    def keys_and_values(self, Z_K: Float[Tensor, "b j f"], Z_V: Float[Tensor, "b j g"]) -> Float[Tensor, "b j w"]:
        """The columns of keys, then those of values."""
        return torch.cat([_columns(self.key, Z_K), _columns(self.value, Z_V)], -1)

    def widen(
        self,
        Q: Float[Tensor, "b h i k"],
        K: Float[Tensor, "b g j k"],
        V: Float[Tensor, "b g j v"],
        queries: Float[Tensor, "b i wk"],
        others: Float[Tensor, "b j w"],
    ) -> Widened:
        """Q, K and V of all heads: those that the layer computed, with these columns, and those of new heads.

        Queries are the last tokens of the sequence of the keys; only such distances matter for columns that turn.
        """
        keys, values = others.split([queries.shape[-1], others.shape[-1] - queries.shape[-1]], -1)
        i, j = queries.shape[1], keys.shape[1]
        queries, keys = self._turned(queries, j - i), self._turned(keys, 0)
        K, V = (T if T.shape[1] == self.shape.heads else T[:, list(self.shape.key_of)] for T in (K, V))
        Q, K = (self._beside(T, self.query, columns, self.shape.keys) for T, columns in ((Q, queries), (K, keys)))
        return Widened(Q, K, self._beside(V, self.value, values, self.shape.values))

    def _beside(
        self, own: Float[Tensor, "b h n k"], linear: HeadsOut | None, columns: Tensor, widths: Sequence[int]
    ) -> Float[Tensor, "b m n w"]:
        """The columns of each head behind its own, and below them those of new heads; narrower heads end in zeros."""
        if linear is None:
            return F.pad(own, (0, 0, 0, 0, 0, len(widths) - own.shape[1]))
        added = linear.widths.cut(columns.to(own.dtype)).transpose(1, 2)
        heads = own.shape[1]
        more, new = max(widths[:heads]), max(widths[heads:], default=0)
        wider = torch.cat([own, added[:, :heads, :, :more]], -1)
        if heads == len(widths):
            return wider
        width = max(wider.shape[-1], new)
        parts = (wider, added[:, heads:, :, :new])
        return torch.cat([F.pad(part, (0, width - part.shape[-1])) for part in parts], 1)

    def split(
        self, Y: Float[Tensor, "b h i v"], own: int
    ) -> tuple[Float[Tensor, "b m i w"], Float[Tensor, "b i wv"] | None]:
        """The output of the heads of the layer in their own columns, and that of all added columns."""
        heads, linear = self.shape.heads, self.output
        if linear is None:
            return Y[:, :heads, :, :own], None
        width = linear.widths.widest
        parts = [Y[:, :heads, :, own : own + width], Y[:, heads:, :, :width]]
        added = torch.cat([F.pad(part, (0, width - part.shape[-1])) for part in parts], 1)
        return Y[:, :heads, :, :own], linear.widths.join(added.transpose(1, 2))

    def project(self, Y: Float[Tensor, "b i wv"]) -> Float[Tensor, "b i e"]:
        """What the added columns add to the output of the layer."""
        assert self.output is not None
        return F.linear(Y, self.output.weight)

    def _turned(self, columns: Float[Tensor, "b n wk"], first: int) -> Float[Tensor, "b n wk"]:
        """Each pair rotated by its angle times the position; the first row has the position `first`."""
        if not any(self.shape.turns):
            return columns
        wide = torch.promote_types(columns.dtype, torch.float32)
        positions = torch.arange(first, first + columns.shape[1], device=columns.device, dtype=wide)
        angles = torch.tensor(self.shape.turns, device=columns.device, dtype=wide)
        phases = positions[:, None] * angles
        X = columns.to(wide)
        return (X * phases.cos() + self.signs.to(wide) * X[..., self.partners] * phases.sin()).to(columns.dtype)


def _columns(linear: HeadsOut | None, X: Float[Tensor, "b n e"]) -> Float[Tensor, "b n w"]:
    return X[..., :0] if linear is None else F.linear(X, linear.weight, linear.bias)


def _pairs(shape: AddedShape) -> tuple[Tensor, Tensor]:
    """For each added column of keys the other one of its pair, and the sign of what it takes from it; 0 without a pair.

    Two neighbouring columns of a head with the same angle are a pair, (x, y) -> (x cos - y sin, y cos + x sin).
    """
    partners, signs = list(range(sum(shape.keys))), [0.0] * sum(shape.keys)
    start = 0
    for width in shape.keys:
        column, stop = start, start + width
        while shape.turns and column < stop:
            angle = shape.turns[column]
            if not angle:
                column += 1
                continue
            if column + 1 == stop or shape.turns[column + 1] != angle:
                raise ValueError(f"angle {angle} of one column, not of a pair")
            partners[column : column + 2], signs[column : column + 2] = (column + 1, column), (-1.0, 1.0)
            column += 2
        start = stop
    return torch.tensor(partners, dtype=torch.long), torch.tensor(signs)


def added_to(module: nn.Module) -> AddedColumns | None:
    """The columns that were added to an attention layer, if there are any."""
    return getattr(module, ADDED_ATTRIBUTE, None)
