"""The blocks of a transformer, and in each block its attention layers, MLP, norms and head-first weights.

The types describe any model. The blocks of attnworks models are found here, those of Hugging Face models in
`hf/anatomy.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, cast

from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention import Geometry
from attnworks.attention.heads import HeadMatrices, HeadWeights
from attnworks.core.places import Slot
from attnworks.models.block import Block, PureAttention, Residual
from attnworks.models.config import NormOrder
from attnworks.models.multihead import MultiHead
from attnworks.models.transformer import Transformer

Role = Literal["self", "cross", "mixer", "mlp"]
"""Of a part of a block; in a mixer tokens depend on each other without attention, as in a state-space layer."""
ATTENTION_ROLES: tuple[Role, ...] = ("self", "cross")
StackKind = Literal["encoder", "decoder"]


class ValueWeights(NamedTuple):
    """The maps of an attention layer after its weights P: it computes sum_h P_h (Z W_V,h + b_V,h) W_O,h + b_O."""

    W_V: Float[Tensor, "h f v"]
    W_O: Float[Tensor, "h v e"]
    b_V: Float[Tensor, "h v"] | None  # noqa: N815
    b_O: Float[Tensor, " e"] | None  # noqa: N815


@dataclass(frozen=True, eq=False)
class Part:
    """One summand of the residual stream.

    branch      the module whose output (the first, if there are several) is added to the stream
    norm        the layer norm of the part: before it or after the sum, as BlockAnatomy.norm says
    attention   the module that computes attention
    weights     reads the present weights of the attention, as views where possible; None where they are not known
    output      the projection that reads the heads, if it is not the branch itself
    shares      heads that share keys and values, group by group; None where none do
    turned      whether queries and keys are rotated by position
    factor      the branch is multiplied by this before it is added
    bias        a vector that the block adds with it
    step        attention reads the sum of all parts of earlier steps; other parts may read less than that
    number      of the attention layer, if it is not that of the block: a block may have several
    """

    role: Role
    branch: nn.Module
    norm: nn.Module | None
    attention: nn.Module | None
    weights: Callable[[], HeadWeights] | None
    output: nn.Module | None = None
    shares: tuple[tuple[int, ...], ...] | None = None
    turned: bool = False
    factor: float = 1.0
    bias: nn.Parameter | None = None
    step: int = 0
    number: int | None = None

    def summand(self, output: Tensor) -> Tensor:
        """What is added to the stream, from the output of the branch."""
        scaled = output if self.factor == 1.0 else self.factor * output
        return scaled if self.bias is None else scaled + self.bias

    def output_for(self, summand: Tensor) -> Tensor:
        """The output of the branch with which this is added to the stream."""
        scaled = summand if self.bias is None else summand - self.bias
        return scaled if self.factor == 1.0 else scaled / self.factor

    @property
    def ends_in_norm(self) -> bool:
        """Whether the branch is a norm of what the part computes, or another module without parts and matrices."""
        simple = not any(True for _ in self.branch.children())
        return simple and all(parameter.dim() < 2 for parameter in self.branch.parameters())

    @property
    def heads(self) -> int:
        """How many heads the attention has."""
        assert self.weights is not None
        return len(self.weights().W_O)

    def geometry(self) -> Geometry:
        """The number of heads, and the largest widths of their queries and values."""
        assert self.weights is not None
        W = self.weights()
        return Geometry(self.heads, W.W_Q.shape[-1], W.W_V.shape[-1])

    def multiply_adds(self) -> int:
        """Of its projections, for one query and one key."""
        assert self.weights is not None
        W = self.weights()
        (_, e, k), (_, f, v), (hk, hv) = W.W_Q.shape, W.W_V.shape, W.columns()
        return e * (hk + hv) + f * (min(hk, W.groups * k) + min(hv, W.groups * v))

    def W_O(self) -> Float[Tensor, "h v e"] | None:
        """The output projection of each head; None where heads are gated or mixed before it."""
        assert self.weights is not None
        return self.weights().W_O

    def growing_weights(self) -> HeadWeights:
        """The weights to which columns can be added."""
        assert self.weights is not None
        return self.weights()

    def value_weights(self) -> ValueWeights | None:
        """The maps of values and of the output, which may be known where those of queries and keys are not."""
        if self.weights is None:
            return None
        W = self.weights()
        return ValueWeights(W.W_V, W.W_O, W.b_V, W.b_O)

    def groups(self) -> list[int]:
        """For each head the number of the group that shares its keys and values."""
        shares = self.shares or tuple((head,) for head in range(self.heads))
        found = {head: number for number, group in enumerate(shares) for head in group}
        return [found[head] for head in range(self.heads)]


@dataclass(frozen=True, eq=False)
class BlockAnatomy:
    """One layer, whose first input and first output are the residual stream.

    norm        "pre": x + f(norm(x)) for each part; "post": norm(x + f(x)); None: no norms
    skip        whether there is a residual sum at all; the theorems on rank collapse switch it off
    """

    kind: StackKind
    layer: int
    module: nn.Module
    parts: tuple[Part, ...]
    norm: NormOrder | None
    skip: bool = True

    @property
    def parallel(self) -> bool:
        """Whether all parts read the same stream, instead of one after the other."""
        return len(self.parts) > 1 and all(part.step == self.parts[0].step for part in self.parts)

    def slot(self, part: Part) -> Slot:
        """The name of one of its attention layers."""
        number = self.layer if part.number is None else part.number
        return Slot("cross" if part.role == "cross" else self.kind, number)


def own_anatomy(model: nn.Module) -> tuple[BlockAnatomy, ...] | None:
    """The blocks of an attnworks model, encoder before decoder; None for a recurrent model and for any other."""
    if isinstance(model, PureAttention):
        return tuple(_own_block("encoder", layer, block) for layer, block in enumerate(model.layers))
    if isinstance(model, Transformer):
        stacks: tuple[tuple[StackKind, nn.ModuleList], ...] = (("encoder", model.encoder), ("decoder", model.decoder))
        return tuple(_own_block(kind, layer, block) for kind, stack in stacks for layer, block in enumerate(stack))
    return None


def attention_layers(blocks: Sequence[BlockAnatomy] | None) -> dict[Slot, Part]:
    """Every attention layer that has known weights and shares its module with no other: enc.0, dec.1, cross.1."""
    parts = every_layer(blocks)
    modules = [part.attention for part in parts.values()]
    return {slot: part for slot, part in parts.items() if modules.count(part.attention) == 1}


def every_layer(blocks: Sequence[BlockAnatomy] | None) -> dict[Slot, Part]:
    """Every attention layer with known weights, including those that share their module."""
    return {
        block.slot(part): part
        for block in blocks or ()
        for part in block.parts
        if part.role in ATTENTION_ROLES and part.weights is not None
    }


def heads_of(part: Part) -> list[HeadMatrices]:
    """The heads of a layer, each in its own width, as views of the weights where possible."""
    W = part.growing_weights()
    keys = W.key_widths or (W.W_Q.shape[-1],) * len(W.W_Q)
    values = W.value_widths or (W.W_V.shape[-1],) * len(W.W_V)
    return [_head(W, head, *widths) for head, widths in enumerate(zip(keys, values, strict=True))]


def _head(W: HeadWeights, head: int, k: int, v: int) -> HeadMatrices:
    """One head of width k (queries and keys) and v (values)."""
    biases = (None if b is None else b[head, :width] for b, width in ((W.b_Q, k), (W.b_K, k), (W.b_V, v)))
    turns = None if W.turns is None else W.turns[head, :k]
    found = HeadMatrices(W.W_Q[head, :, :k], W.W_K[head, :, :k], W.W_V[head, :, :v], W.W_O[head, :v], *biases)
    return found._replace(turns=turns)


def _own_block(kind: StackKind, layer: int, block: nn.Module) -> BlockAnatomy:
    assert isinstance(block, Block)
    first = block.attention_residual
    parts = [_own_attention("self", block.attention, first)]
    if block.cross is not None:
        parts.append(_own_attention("cross", block.cross, block.cross_residual, 1))
    if block.mlp is not None:
        parts.append(Part("mlp", block.mlp, block.mlp_residual.norm, None, None, step=len(parts)))
    order = cast("NormOrder | None", first.order)
    return BlockAnatomy(kind, layer, block, tuple(parts), order, skip=first.skip)


def _own_attention(role: Role, attention: MultiHead, residual: Residual, step: int = 0) -> Part:
    return Part(role, attention, residual.norm, attention, partial(_own_weights, attention), step=step)


def _own_weights(own: MultiHead) -> HeadWeights:
    config, content_heads = own.config, own.mechanisms.content_heads
    keys = tuple(width if head in content_heads else 0 for head, width in enumerate(config.key_widths))
    parts = (*own.head_first(), *own.head_first_biases(), own.b_O)
    return HeadWeights(*parts, config.heads, config.scale, keys, config.value_widths)
