"""Add columns to heads, and heads to layers; pad the state of an optimizer to the new shapes."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention.heads import HeadMatrices
from attnworks.core.places import Slot
from attnworks.core.tensors import parameters_of
from attnworks.models.anatomy import heads_of
from attnworks.reshape.surgery import layers_of, put_heads


class Keys(NamedTuple):
    """S + step (X alpha + 1 bias^T) (Z beta + 1 key_bias^T)^T: p more columns of W_Q, b_Q, W_K and b_K.

    turns    angles of frequency pairs, as in `HeadMatrices`: the columns are rotated before they are multiplied
    """

    alpha: Float[Tensor, "e p"]
    beta: Float[Tensor, "f p"]
    bias: Float[Tensor, " p"] | None = None
    key_bias: Float[Tensor, " p"] | None = None
    turns: Float[Tensor, " p"] | None = None


class Values(NamedTuple):
    """u + step P Z a b: p more columns of W_V, and rows of W_O."""

    a: Float[Tensor, "f p"]
    b: Float[Tensor, "p e"]


class NewHead(NamedTuple):
    """u + step P' Z a b: one more head. P' comes from the queries and keys of `like`, which no step changes."""

    like: HeadMatrices
    a: Float[Tensor, "f p"]
    b: Float[Tensor, "p e"]


class Rewritten(NamedTuple):
    """A head in the place of the one that is there, whatever the step."""

    head: HeadMatrices


Addition = Keys | Values | NewHead | Rewritten


class GrowthPlace(NamedTuple):
    """Where something can be added; `head` is None for a new head of the layer."""

    slot: Slot
    head: int | None

    def __str__(self) -> str:
        return str(self.slot) if self.head is None else f"{self.slot}.{self.head}"


class GrowthStep(NamedTuple):
    """An addition, and how far to go; `scale` is the factor of the layer's scores."""

    place: GrowthPlace
    addition: Addition
    length: float
    scale: float = 1.0


def grown(model: nn.Module, steps: Sequence[GrowthStep]) -> nn.Module:
    """A copy of the model with all these additions. Steps of length zero leave its function as it is."""
    new = copy.deepcopy(model)
    grow_in_place(new, steps)
    return new


def grow_in_place(model: nn.Module, steps: Sequence[GrowthStep]) -> None:
    layers = layers_of(model)
    for slot in dict.fromkeys(step.place.slot for step in steps):
        heads = heads_of(layers[slot])
        put_heads(model, slot, grown_heads(heads, [step for step in steps if step.place.slot == slot]))


def grown_heads(heads: Sequence[HeadMatrices], steps: Sequence[GrowthStep]) -> list[HeadMatrices]:
    """The heads of one layer, with what these steps add."""
    new = list(heads)
    for (_, head), addition, length, scale in steps:
        if isinstance(addition, NewHead):
            new.append(_new_head(addition, length))
            continue
        assert head is not None
        match addition:
            case Keys():
                new[head] = _wider_keys(new[head], addition, length, scale)
            case Values(a, b):
                new[head] = _wider_values(new[head], a, b, length)
            case Rewritten():
                new[head] = addition.head
    return new


def stretched(model: nn.Module, like: nn.Module) -> nn.Module:
    """A copy of the model with the widths and heads of a grown one; everything new is zero.

    The weights may be moments of an optimizer, put in the place of the weights.
    """
    new, wanted = copy.deepcopy(model), layers_of(like)
    for slot, part in layers_of(new).items():
        heads, others = heads_of(part), heads_of(wanted[slot])
        wider = [_padded(head, other) for head, other in zip(heads, others, strict=False)]
        put_heads(new, slot, [*wider, *(other.each(torch.zeros_like) for other in others[len(heads) :])])
    return new


def _padded(head: HeadMatrices, like: HeadMatrices) -> HeadMatrices:
    sizes = iter(tensor.shape for tensor in like.weights if tensor is not None)
    return head.each(lambda tensor: _into(tensor.new_zeros(next(sizes)), tensor))._replace(turns=like.turns)


def _into(zeros: Tensor, corner: Tensor) -> Tensor:
    zeros[tuple(slice(size) for size in corner.shape)] = corner
    return zeros


def _wider_keys(head: HeadMatrices, keys: Keys, length: float, scale: float) -> HeadMatrices:
    root = math.sqrt(abs(length / scale))
    sign = math.copysign(1.0, length * scale)
    zeros = keys.alpha.new_zeros(keys.alpha.shape[1])
    bias = zeros if keys.bias is None else sign * root * keys.bias
    key_bias = zeros if keys.key_bias is None else root * keys.key_bias
    turns = None
    if head.turns is not None or keys.turns is not None:
        old = keys.alpha.new_zeros(head.W_Q.shape[1]) if head.turns is None else head.turns
        turns = torch.cat([old, (zeros if keys.turns is None else keys.turns).to(old)])
    return head._replace(
        W_Q=_beside(head.W_Q, sign * root * keys.alpha),
        W_K=_beside(head.W_K, root * keys.beta),
        b_Q=None if head.b_Q is None else _beside(head.b_Q, bias),
        b_K=None if head.b_K is None else _beside(head.b_K, key_bias),
        turns=turns,
    )


def _wider_values(head: HeadMatrices, a: Tensor, b: Tensor, length: float) -> HeadMatrices:
    root = math.sqrt(abs(length))
    return head._replace(
        W_V=_beside(head.W_V, math.copysign(root, length) * a),
        W_O=_beside(head.W_O, root * b, 0),
        b_V=None if head.b_V is None else _beside(head.b_V, a.new_zeros(a.shape[1])),
    )


def _new_head(new: NewHead, length: float) -> HeadMatrices:
    like = new.like
    b_V = None if like.b_V is None else like.b_V[:0]
    return _wider_values(like._replace(W_V=like.W_V[:, :0], W_O=like.W_O[:0], b_V=b_V), new.a, new.b, length)


def _beside(old: Tensor, new: Tensor, axis: int = -1) -> Tensor:
    return torch.cat([old, new.to(old)], axis)


def stretched_state(state: Mapping[str, Tensor], old: nn.Module, new: nn.Module) -> dict[str, Tensor]:
    """`optimizer_tensors` of the old model with zeros for every new weight; counters stay as they are.

    Adam's moments have the shapes of the weights: they are put in the place of the weights and padded as these were.
    """
    moments = {key.rpartition("/")[2] for key, value in state.items() if value.dim()}
    grown = {key: value for key, value in state.items() if key.rpartition("/")[2] not in moments}
    for moment in moments:
        holder = copy.deepcopy(old)
        with torch.no_grad():
            for name, parameter in parameters_of(holder).items():
                parameter.copy_(state.get(f"{name}/{moment}", torch.zeros_like(parameter)))
        stretched_names = parameters_of(stretched(holder, new)).items()
        grown |= {f"{name}/{moment}": value.detach() for name, value in stretched_names if f"{name}/{moment}" in state}
    return grown
