"""Where the parts of a Hugging Face model sit: its blocks, what kind of attention they have, and head-first weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention.heads import HeadGroups, HeadWeights, HeadWidths
from attnworks.core.errors import UsageError
from attnworks.core.places import Kind
from attnworks.hf.families import HF_FAMILIES, Family, PartPlace, Projection, Projections, Stack
from attnworks.models.anatomy import BlockAnatomy, Part, StackKind
from attnworks.models.config import NormOrder

ModelKind = Literal["encoder", "decoder", "encoder-decoder"]
CROSS_ATTENTION_NAMES = ("cross", "encoder_attn", "encdec")
"""Parts of the names that transformers gives to cross-attention."""

MECHANISMS_ATTRIBUTE = "attnworks_mechanisms"
"""The attribute of an attention module that holds mechanisms of attnworks."""


@dataclass(frozen=True, eq=False)
class HFPart(Part):
    """A part of a block of a Hugging Face model. Its `attention` is what transformers passes to attention functions.

    shrinkable   linear maps to queries and keys that still work with fewer heads, if there are such
    place        the block, and where in it the projections of the attention are
    """

    shrinkable: tuple[nn.Linear, nn.Linear] | None = None
    place: tuple[nn.Module, Projections] | None = None

    @property
    def layer(self) -> tuple[nn.Module, Projections, Any]:
        """The block, its projections and the attention module, of a part that is an attention layer."""
        assert self.place is not None and self.attention is not None
        return *self.place, self.attention


def hf_anatomy(model: nn.Module) -> tuple[BlockAnatomy, ...] | None:
    """The blocks of a Hugging Face model, encoder before decoder; None for a model whose parts are not known."""
    config = getattr(model, "config", None)
    family = HF_FAMILIES.get(str(getattr(config, "model_type", None)))
    if family is None:
        return None
    base = getattr(model, "base_model", model)
    blocks = tuple(block for stack in family.stacks for block in _stack_anatomy(base, config, family, stack))
    return blocks or None


def parts_unknown(model: nn.Module) -> UsageError:
    """The error for a change of heads in a model whose parts are not known."""
    expected, got = "a model of attnworks, or of a family whose parts are known", "a model whose parts are not known"
    remedy = "attnworks.hf.families.HF_FAMILIES lists those that are"
    return UsageError(f"other heads in {type(model).__name__}", expected, got, remedy)


def attention_kinds(model: nn.Module) -> dict[nn.Module, Kind]:
    """Every attention module and its kind. Where the parts are not known, names and `is_causal` decide."""
    blocks = hf_anatomy(model)
    if blocks is None:
        return {
            module: _guessed_kind(name.lower(), module)
            for name, module in model.named_modules()
            if hasattr(module, "is_causal") or "Attention" in type(module).__name__
        }
    return {
        part.attention: block.slot(part).kind for block in blocks for part in block.parts if part.attention is not None
    }


def model_kind(model: Any) -> ModelKind:
    """The kind of a model of Hugging Face. If its parts are not known, a model that can generate is a decoder."""
    config, known = model.config, hf_anatomy(model) is not None
    kinds = set(attention_kinds(model).values()) - {"cross"}
    if getattr(config, "is_encoder_decoder", False) and not (known and len(kinds) == 1):
        return "encoder-decoder"
    writes = not known and (getattr(config, "is_decoder", False) or model.can_generate())
    return "decoder" if "decoder" in kinds or writes else "encoder"


def _guessed_kind(name: str, module: nn.Module) -> Kind:
    if any(part in name for part in CROSS_ATTENTION_NAMES):
        return "cross"
    return "decoder" if getattr(module, "is_causal", False) else "encoder"


def head_groups_of(module: nn.Module) -> HeadGroups | None:
    """The mechanisms of attnworks in an attention layer of Hugging Face, if it has any."""
    return getattr(module, MECHANISMS_ATTRIBUTE, None)


def _stack_anatomy(base: nn.Module, config: Any, family: Family, stack: Stack) -> list[BlockAnatomy]:
    kind: StackKind = "decoder" if len(family.stacks) == 1 and getattr(config, "is_decoder", False) else stack.kind
    norm: NormOrder = family.norm if family.pre_flag is None or getattr(config, family.pre_flag) else "post"
    parallel = family.parallel_flag is not None and getattr(config, family.parallel_flag)
    blocks: list[BlockAnatomy] = []
    for layer, block in enumerate(_stack_blocks(base, config, stack)):
        parts = [_part_anatomy(block, place) for place in stack.parts if _submodule(block, place.branch) is not None]
        if len(parts) < sum(not place.optional for place in stack.parts):
            return []
        blocks.append(BlockAnatomy(kind, layer, block, tuple(parts), norm, parallel))
    return blocks


def _stack_blocks(base: nn.Module, config: Any, stack: Stack) -> list[nn.Module]:
    """One entry per layer that is run. ALBERT runs the blocks of one group for several layers, then the next group."""
    found = _submodule(base, stack.blocks)
    if not isinstance(found, nn.ModuleList):
        return []
    if stack.shared is None:
        return list(found)
    layers, groups = config.num_hidden_layers, len(found)
    return [block for layer in range(layers) for block in getattr(found[int(layer / (layers / groups))], stack.shared)]


def _part_anatomy(block: nn.Module, place: PartPlace) -> HFPart:
    branch, norm, at = block.get_submodule(place.branch), block.get_submodule(place.norm), place.projections
    if place.attention is None or at is None:
        return HFPart(place.role, branch, norm, None, None)
    attention = block.get_submodule(place.attention)
    weights = partial(_part_weights, block, attention, at)
    return HFPart(place.role, branch, norm, attention, weights, _shrinkable(block, attention, at), (block, at))


def _shrinkable(block: nn.Module, attention: Any, at: Projections) -> tuple[nn.Linear, nn.Linear] | None:
    """Separate projections of queries and keys that the layer cuts into heads by the width of a head.

    None in a family whose heads share keys and values, even where a layer has one head of each group left.
    """
    config = getattr(attention, "config", None)
    groups = getattr(config, "num_key_value_heads", None)
    if groups is not None and groups != getattr(config, "num_attention_heads", None):
        return None
    query, key = (block.get_submodule(place.path) for place in (at.query, at.key))
    if not isinstance(query, nn.Linear) or not isinstance(key, nn.Linear) or at.counts_heads or at.query.pieces > 1:
        return None
    return (query, key) if query.out_features == key.out_features else None


def is_empty(attention: nn.Module) -> bool:
    """Whether an attention layer of Hugging Face's has lost all heads."""
    return getattr(attention, "attnworks_empty", False)


def _no_heads(block: nn.Module, at: Projections) -> HeadWeights:
    """The weights of a layer without heads: [0 e 1], [0 f 1] and [0 1 e]."""
    query, key, output = (cast("Any", block.get_submodule(path)) for path in (at.query.path, at.key.path, at.output))
    (e, f), like = (map_.weight.shape[1] for map_ in (query, key)), output.weight
    W_Q, W_K, W_V, W_O = (like.new_zeros(0, *shape) for shape in ((e, 1), (f, 1), (f, 1), (1, len(like))))
    b = None if query.bias is None else like.new_zeros(0, 1)
    return HeadWeights(W_Q, W_K, W_V, W_O, b, b, b, output.bias, 0, None)


def _part_weights(block: nn.Module, attention: nn.Module, at: Projections) -> HeadWeights:
    """W_Q [h e k], W_K [h f k], W_V [h f v] and W_O [h v e], repeated where heads share keys and values."""
    if is_empty(attention):
        return _no_heads(block, at)
    width: int = getattr(attention, at.width)
    (W_Q, b_Q), (W_K, b_K), (W_V, b_V) = (_heads(block, place, width) for place in (at.query, at.key, at.value))
    own = head_groups_of(attention)
    keys, values = (_widths(block, place) for place in (at.query, at.value))
    if own is not None and W_Q.shape[0] < own.count:
        W_Q, W_K = own.whole(W_Q), own.whole(W_K)
        b_Q, b_K = (None if b is None else own.whole(b) for b in (b_Q, b_K))
        keys = tuple(width if head in own.content_heads else 0 for head in range(own.count))
    heads, groups = W_Q.shape[0], W_K.shape[0]
    if groups != heads:
        W_K, W_V = (W.repeat_interleave(heads // groups, 0) for W in (W_K, W_V))
        b_K, b_V = (None if b is None else b.repeat_interleave(heads // groups, 0) for b in (b_K, b_V))
    output = block.get_submodule(at.output)
    W_O = output.by_head() if isinstance(output, HeadsIn) else _matrix(output).unflatten(0, (heads, -1))
    b_O, scale = getattr(output, "bias", None), cast("Any", attention.scaling if own is None else None)
    return HeadWeights(W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O, groups, scale and float(scale), keys, values)


def _widths(block: nn.Module, place: Projection) -> tuple[int, ...] | None:
    module = block.get_submodule(place.path)
    return module.head_widths if isinstance(module, HeadsOut) else None


def _heads(block: nn.Module, place: Projection, width: int) -> tuple[Tensor, Tensor | None]:
    """Columns [e (h k)] and their bias [(h k)], cut into heads [h e k] and [h k]."""
    module = block.get_submodule(place.path)
    if isinstance(module, HeadsOut):
        return module.by_head()
    shape, axis = ((-1, place.pieces, width), -2) if place.per_head else ((place.pieces, -1, width), -3)
    W, b = (
        None if T is None else T.unflatten(-1, shape).select(axis, place.piece)
        for T in (_matrix(module), getattr(module, "bias", None))
    )
    assert W is not None
    return W.transpose(0, 1), b


def _matrix(module: nn.Module) -> Tensor:
    """W of X W. torch's Linear keeps it transposed; Conv1D of GPT-2 does not."""
    weight: Any = module.weight
    return weight.T if isinstance(module, nn.Linear) else weight


def _submodule(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


# Linear maps to and from heads of unequal widths, for attention layers that cut all heads by one width.


class HeadsOut(nn.Module):
    """X -> X W^T + b, with the columns of each head padded with zeros to one width: [*a e] -> [*a (h k)].

    The weight [w e] and the bias [w] hold the true columns alone, in the layout of torch's Linear.
    """

    def __init__(self, d_e: int, widths: Sequence[int], widest: int, *, bias: bool) -> None:
        super().__init__()
        self.head_widths, self.widths = tuple(widths), HeadWidths(len(widths), widths, widest)
        self.weight = nn.Parameter(torch.empty(sum(widths), d_e))
        self.bias = nn.Parameter(torch.empty(sum(widths))) if bias else None

    def forward(self, X: Float[Tensor, "*a e"]) -> Float[Tensor, "*a c"]:
        return self.widths.cut(F.linear(X, self.weight, self.bias)).flatten(-2)

    def by_head(self) -> tuple[Float[Tensor, "h e k"], Float[Tensor, "h k"] | None]:
        """W and b of X W + b, padded with zeros."""
        return self.widths.of_heads(self.weight.T), None if self.bias is None else self.widths.cut(self.bias)


class HeadsIn(nn.Module):
    """The opposite map [*a (h v)] -> [*a e]: the true columns of each head, times W^T, plus b. The weight is [e w]."""

    def __init__(self, d_e: int, widths: Sequence[int], widest: int, *, bias: bool) -> None:
        super().__init__()
        self.widths = HeadWidths(len(widths), widths, widest)
        self.weight = nn.Parameter(torch.empty(d_e, sum(widths)))
        self.bias = nn.Parameter(torch.empty(d_e)) if bias else None

    def forward(self, Y: Float[Tensor, "*a c"]) -> Float[Tensor, "*a e"]:
        return F.linear(self.widths.join(Y.unflatten(-1, (self.widths.heads, -1))), self.weight, self.bias)

    def by_head(self) -> Float[Tensor, "h v e"]:
        """W of Y W + b, padded with zeros."""
        return self.widths.of_heads(self.weight).mT
