"""Where the parts of a transformer sit: blocks, and in each block attention, MLP, norms and head-first weights.

The same description serves attnworks's own models and those of Hugging Face whose family is in `families.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.data.text_batch import Kind as AttentionKind
from attnworks.errors import UsageError
from attnworks.hf.anatomy import HeadsIn, HeadsOut
from attnworks.hf.attention import groups_of
from attnworks.hf.families import FAMILIES, Family, Kind, PartPlace, Projection, Projections, Role, Stack
from attnworks.models.block import Block, Residual
from attnworks.models.config import NormOrder
from attnworks.models.head_groups import HeadWeights
from attnworks.models.multihead import MultiHead
from attnworks.models.pure import PureAttention
from attnworks.models.transformer import Transformer

ModelKind = Literal["encoder", "decoder", "encoder-decoder"]
CROSS = ("cross", "encoder_attn", "encdec")
"""Parts of the names that transformers gives to cross-attention."""


@dataclass(frozen=True, eq=False)
class Part:
    """One summand of the residual stream.

    branch       the module whose output (the first, if there are several) is added to the stream
    norm         the layer norm that belongs to the part, before or after it as the block says
    attention    the module that computes attention: ours, or what transformers hands to its attention functions
    weights      reads the weights of the attention as they are now, as views wherever that is possible
    shrinkable   linear maps to queries and keys that still work with fewer heads, if there are such
    place        a block of Hugging Face's, and where in it the projections of the attention are
    """

    role: Role
    branch: nn.Module
    norm: nn.Module | None
    attention: nn.Module | None
    weights: Callable[[], HeadWeights] | None
    shrinkable: tuple[nn.Linear, nn.Linear] | None = None
    place: tuple[nn.Module, Projections] | None = None


@dataclass(frozen=True, eq=False)
class BlockAnatomy:
    """One layer, whose first input and first output are the residual stream.

    norm        "pre": x + f(norm(x)) for each part; "post": norm(x + f(x)); None: no norms
    parallel    attention and MLP read the same stream, instead of one after the other
    skip        whether there is a residual sum at all; the theorems on rank collapse switch it off
    """

    kind: Kind
    layer: int
    module: nn.Module
    parts: tuple[Part, ...]
    norm: NormOrder | None
    parallel: bool
    skip: bool = True


def anatomy_of(model: nn.Module) -> tuple[BlockAnatomy, ...] | None:
    """The blocks of a model, encoder before decoder; None for a model whose parts are not known."""
    if isinstance(model, PureAttention):
        return tuple(_own_block("encoder", layer, block) for layer, block in enumerate(model.layers))
    if isinstance(model, Transformer):
        stacks: tuple[tuple[Kind, nn.ModuleList], ...] = (("encoder", model.encoder), ("decoder", model.decoder))
        return tuple(_own_block(kind, layer, block) for kind, stack in stacks for layer, block in enumerate(stack))
    config = getattr(model, "config", None)
    family = FAMILIES.get(str(getattr(config, "model_type", None)))
    if family is None:
        return None
    base = getattr(model, "base_model", model)
    blocks = tuple(block for stack in family.stacks for block in _foreign_stack(base, config, family, stack))
    return blocks or None


def attention_kinds(model: nn.Module) -> dict[nn.Module, AttentionKind]:
    """Every attention module and its kind: where the parts are not known, a decoder's if it says that it is causal."""
    blocks = anatomy_of(model)
    if blocks is None:
        return {
            module: _guessed_kind(name.lower(), module)
            for name, module in model.named_modules()
            if hasattr(module, "is_causal") or "Attention" in type(module).__name__
        }
    return {
        part.attention: "cross" if part.role == "cross" else block.kind
        for block in blocks
        for part in block.parts
        if part.attention is not None
    }


def model_kind(model: Any) -> ModelKind:
    """What a model of Hugging Face is as a whole; one that says nothing of causality is a decoder if it can write."""
    config, known = model.config, anatomy_of(model) is not None
    kinds = set(attention_kinds(model).values()) - {"cross"}
    if getattr(config, "is_encoder_decoder", False) and not (known and len(kinds) == 1):
        return "encoder-decoder"
    writes = not known and (getattr(config, "is_decoder", False) or model.can_generate())
    return "decoder" if "decoder" in kinds or writes else "encoder"


def _guessed_kind(name: str, module: nn.Module) -> AttentionKind:
    if any(part in name for part in CROSS):
        return "cross"
    return "decoder" if getattr(module, "is_causal", False) else "encoder"


def stream_identity_error(
    block: BlockAnatomy,
    entry: Float[Tensor, "*a e"],
    exit: Float[Tensor, "*a e"],
    branch_outputs: Sequence[Tensor | None],
) -> float:
    """max |exit - recomposed| / max |exit|, with x_0 = entry, x_p = norm_p(x_{p-1} + f_p) ("post") or x_{p-1} + f_p.

    Without skip x_p = f_p takes the place of the sum, or sum_p f_p where the parts are parallel.
    Source: S4.33 (post) and S3.6 (without norm). One output f_p per part; None for a part that did not run, such as
    cross-attention without anything to look at.
    Holds when: dropout is off, and nothing is clamped, as some models of Hugging Face do in float16.
    """
    x, adds = entry, block.skip
    for part, output in zip(block.parts, branch_outputs, strict=True):
        if output is None:
            continue
        x, adds = x + output.reshape(x.shape) if adds else output.reshape(x.shape), block.skip or block.parallel
        if block.norm == "post" and part.norm is not None:
            x = part.norm(x)
    error, size = (exit - x).detach().abs().max().item(), exit.detach().abs().max().item()
    return error / size if size else error


def check_streams(model: nn.Module, run: Callable[[], object]) -> dict[tuple[Kind, int], float]:
    """The `stream_identity_error` of every block that takes part in `run()`, one forward pass of the model."""
    blocks = anatomy_of(model)
    if blocks is None:
        raise UsageError(
            asked=f"the residual stream of {type(model).__name__}",
            expected=f"a model of attnworks, or one of {', '.join(FAMILIES)}",
            got="a model whose parts are not known",
            remedy="use a model of one of these families",
        )
    return {
        (block.kind, block.layer): stream_identity_error(
            block, passage.entry, passage.exit, [passage.output(part.branch) for part in block.parts]
        )
        for block, passage in run_watched(blocks, run)
    }


def run_watched(blocks: Sequence[BlockAnatomy], run: Callable[[], object]) -> list[tuple[BlockAnatomy, Passage]]:
    """Every block that takes part in `run()`, one forward pass, with what passed through it."""
    passages: dict[nn.Module, list[Passage]] = {block.module: [] for block in blocks}
    hooks: list[Any] = []
    try:
        for module in passages:
            parts = next(block.parts for block in blocks if block.module is module)
            hooks += _watch(module, [part.branch for part in parts], passages[module])
        run()
    finally:
        for hook in hooks:
            hook.remove()
    _check_one_pass(blocks, passages)
    in_order = {module: iter(ran) for module, ran in passages.items()}
    return [(block, next(in_order[block.module])) for block in blocks if passages[block.module]]


class Passage:
    """One run of a block: the stream at its entry and exit, and what its branches gave."""

    def __init__(self, entry: Tensor) -> None:
        self.entry = self.exit = entry
        self.pieces: dict[nn.Module, list[Tensor]] = {}

    def output(self, branch: nn.Module) -> Tensor | None:
        """A branch may run on one piece of the sequence after the other; None if it did not run at all."""
        pieces = self.pieces.get(branch)
        return None if pieces is None else torch.cat(pieces, -2)


def _watch(module: nn.Module, branches: list[nn.Module], passages: list[Passage]) -> list[Any]:
    def entered(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = args[0] if args else kwargs["hidden_states"]
        passages.append(Passage(stream.detach()))

    def gave(branch: nn.Module, _: Any, output: Any) -> None:
        passages[-1].pieces.setdefault(branch, []).append(first(output).detach())

    def left(_: nn.Module, __: Any, output: Any) -> None:
        passages[-1].exit = first(output).detach()

    return [
        module.register_forward_pre_hook(entered, with_kwargs=True),
        *(branch.register_forward_hook(gave) for branch in branches),
        module.register_forward_hook(left),
    ]


def first(output: Any) -> Tensor:
    """What a module gives, or the first of several things."""
    return output[0] if isinstance(output, tuple) else output


def _check_one_pass(blocks: Sequence[BlockAnatomy], passages: dict[nn.Module, list[Passage]]) -> None:
    """A side of the model may be left out, such as an encoder whose output is given, but nothing may run twice."""
    for module, times in Counter(block.module for block in blocks).items():
        if len(passages[module]) not in (0, times):
            raise UsageError(
                asked="the residual stream of one forward pass",
                expected=f"{times} run(s) of each {type(module).__name__}",
                got=str(len(passages[module])),
                remedy="let run() call the model once, without generating",
            )
    if not any(passages.values()):
        raise UsageError(
            asked="the residual stream of one forward pass",
            expected="a forward pass of the model",
            got="none",
            remedy="let run() call the very model that is checked",
        )


def _own_block(kind: Kind, layer: int, block: nn.Module) -> BlockAnatomy:
    assert isinstance(block, Block)
    first = block.attention_residual
    parts = [_own_attention("self", block.attention, first)]
    if block.cross is not None and block.cross_residual is not None:
        parts.append(_own_attention("cross", block.cross, block.cross_residual))
    if block.mlp is not None and block.mlp_residual is not None:
        parts.append(Part("mlp", block.mlp, block.mlp_residual.norm, None, None))
    order = cast("NormOrder | None", first.order)
    return BlockAnatomy(kind, layer, block, tuple(parts), order, parallel=False, skip=first.skip)


def _own_attention(role: Role, attention: MultiHead, residual: Residual) -> Part:
    return Part(role, attention, residual.norm, attention, partial(_own_weights, attention))


def _own_weights(own: MultiHead) -> HeadWeights:
    config, looking = own.config, own.mechanisms.looking
    keys = tuple(width if head in looking else 0 for head, width in enumerate(config.key_widths))
    parts = (*own.head_first(), *own.head_first_biases(), own.b_O)
    return HeadWeights(*parts, config.heads, config.scale, keys, config.value_widths)


def _foreign_stack(base: nn.Module, config: Any, family: Family, stack: Stack) -> list[BlockAnatomy]:
    kind: Kind = "decoder" if len(family.stacks) == 1 and getattr(config, "is_decoder", False) else stack.kind
    norm: NormOrder = family.norm if family.pre_flag is None or getattr(config, family.pre_flag) else "post"
    parallel = family.parallel_flag is not None and getattr(config, family.parallel_flag)
    blocks: list[BlockAnatomy] = []
    for layer, block in enumerate(_foreign_blocks(base, config, stack)):
        parts = [_foreign_part(block, place) for place in stack.parts if _at(block, place.branch) is not None]
        if len(parts) < sum(not place.optional for place in stack.parts):
            return []
        blocks.append(BlockAnatomy(kind, layer, block, tuple(parts), norm, parallel))
    return blocks


def _foreign_blocks(base: nn.Module, config: Any, stack: Stack) -> list[nn.Module]:
    """One entry per layer that is run. ALBERT runs the blocks of a group over and over, then those of the next."""
    found = _at(base, stack.blocks)
    if not isinstance(found, nn.ModuleList):
        return []
    if stack.shared is None:
        return list(found)
    layers, groups = config.num_hidden_layers, len(found)
    return [block for layer in range(layers) for block in getattr(found[int(layer / (layers / groups))], stack.shared)]


def _foreign_part(block: nn.Module, place: PartPlace) -> Part:
    attention = None if place.attention is None else block.get_submodule(place.attention)
    weights = None
    if attention is not None and place.projections is not None:
        weights = partial(_foreign_weights, block, attention, place.projections)
    branch, norm = block.get_submodule(place.branch), block.get_submodule(place.norm)
    at = place.projections
    shrinkable, where = (None, None) if at is None else (_shrinkable(block, attention, at), (block, at))
    return Part(place.role, branch, norm, attention, weights, shrinkable, where)


def _shrinkable(block: nn.Module, attention: Any, at: Projections) -> tuple[nn.Linear, nn.Linear] | None:
    """Projections of queries and keys that are maps of their own and that the layer cuts into heads by their width.

    Not in a family whose heads share keys and values, even where a layer has one head of each group left.
    """
    config = getattr(attention, "config", None)
    groups = getattr(config, "num_key_value_heads", None)
    if groups is not None and groups != getattr(config, "num_attention_heads", None):
        return None
    query, key = (block.get_submodule(place.path) for place in (at.query, at.key))
    if not isinstance(query, nn.Linear) or not isinstance(key, nn.Linear) or at.counts_heads or at.query.of > 1:
        return None
    return (query, key) if query.out_features == key.out_features else None


def is_empty(attention: nn.Module) -> bool:
    """Whether an attention layer of Hugging Face's has lost all heads."""
    return getattr(attention, "attnworks_empty", False)


def _no_heads(block: nn.Module, at: Projections) -> HeadWeights:
    query, key, output = (cast("Any", block.get_submodule(path)) for path in (at.query.path, at.key.path, at.output))
    (e, f), like = (map_.weight.shape[1] for map_ in (query, key)), output.weight
    W_Q, W_K, W_V, W_O = (like.new_zeros(0, *shape) for shape in ((e, 1), (f, 1), (f, 1), (1, len(like))))
    b = None if query.bias is None else like.new_zeros(0, 1)
    return HeadWeights(W_Q, W_K, W_V, W_O, b, b, b, output.bias, 0, None)


def _foreign_weights(block: nn.Module, attention: nn.Module, at: Projections) -> HeadWeights:
    if is_empty(attention):
        return _no_heads(block, at)
    width: int = getattr(attention, at.width)
    (W_Q, b_Q), (W_K, b_K), (W_V, b_V) = (_heads(block, place, width) for place in (at.query, at.key, at.value))
    own = groups_of(attention)
    keys, values = (_widths(block, place) for place in (at.query, at.value))
    if own is not None and W_Q.shape[0] < own.count:
        W_Q, W_K = own.whole(W_Q), own.whole(W_K)
        b_Q, b_K = (None if b is None else own.whole(b) for b in (b_Q, b_K))
        keys = tuple(width if head in own.looking else 0 for head in range(own.count))
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
    return module.of_each if isinstance(module, HeadsOut) else None


def _heads(block: nn.Module, place: Projection, width: int) -> tuple[Tensor, Tensor | None]:
    """Columns [e (h k)] and their bias [(h k)], cut into heads [h e k] and [h k]."""
    module = block.get_submodule(place.path)
    if isinstance(module, HeadsOut):
        return module.by_head()
    shape, axis = ((-1, place.of, width), -2) if place.per_head else ((place.of, -1, width), -3)
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


def _at(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None
