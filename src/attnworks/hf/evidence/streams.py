"""The blocks of the residual stream of a model, and what each of them adds to it, found in one forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from attnworks.core.places import Kind, Slot
from attnworks.hf.evidence.block import FoundBlock, check_sum, find_block
from attnworks.hf.evidence.block_runs import BlockRun, record_block_runs
from attnworks.hf.evidence.stream_sums import NoSumError
from attnworks.hf.layout import AttentionLayout, BlockLayout, PartLayout
from attnworks.models.anatomy import StackKind


def block_layouts(
    model: nn.Module, run: Callable[[], object], attention: Mapping[str, Kind]
) -> tuple[BlockLayout, ...]:
    """The blocks of all stacks that have attention, or what takes its place, in the order in which they run.

    Blocks are items of lists of modules, or of lists inside if their items have attention and an MLP of their own. The
    first block of each kind is looked into; the others have the same parts, which is checked by adding them up. A block
    whose parts do not add up has a `problem`.

    Args:
        model: Any model of transformers, in evaluation mode.
        run: Runs the model once, on one sentence.
        attention: The kind of attention of every module that calls attention, by its path.
    """
    finder = _Finder(attention)
    found = [one for block in record_block_runs(model, run) for one in finder.blocks(block)]
    stacks: dict[str, list[FoundBlock]] = {}
    for one in found:
        stacks.setdefault(one.run.stack, []).append(one)
    kinds: dict[str, StackKind] = {
        path: _kind(stack, attention) for path, stack in stacks.items() if any(one.mixes for one in stack)
    }
    count = Counter[StackKind]()
    blocks: list[BlockLayout] = []
    for one in found:
        if one.run.stack in kinds:
            kind = kinds[one.run.stack]
            blocks.append(replace(one.layout, kind=kind, layer=count[kind]))
            count[kind] += 1
    return tuple(blocks)


def numbered_by_blocks(layers: Sequence[AttentionLayout], blocks: Sequence[BlockLayout]) -> tuple[AttentionLayout, ...]:
    """Attention layers under the numbers of the blocks that they are in, if that gives each layer its own name."""
    numbers: dict[str, list[int]] = {}
    for block in blocks:
        for part in block.parts:
            if part.attention is not None:
                numbers.setdefault(part.attention, []).append(block.layer)
    found: list[AttentionLayout] = []
    for layer in layers:
        inside = numbers.get(layer.path, [])
        if len(inside) == len(layer.slots):
            slots = tuple(Slot(slot.kind, number) for slot, number in zip(layer.slots, inside, strict=True))
            layer = replace(layer, slots=slots)
        found.append(layer)
    names = Counter(slot for layer in found for slot in layer.slots)
    return tuple(found) if max(names.values(), default=1) == 1 else tuple(layers)


def _kind(stack: Sequence[FoundBlock], attention: Mapping[str, Kind]) -> StackKind:
    """Of a stack: that of its first self-attention; without any, a decoder if no row depends on later ones."""
    for one in stack:
        for path, kind in attention.items():
            if kind != "cross" and path.startswith(f"{one.run.path}."):
                return kind
    return "encoder" if any(one.ahead for one in stack) else "decoder"


class _Finder:
    """Finds the layouts of blocks, and remembers one of each kind."""

    def __init__(self, attention: Mapping[str, Kind]) -> None:
        self.attention = attention
        self.known: dict[object, FoundBlock] = {}

    def blocks(self, block: BlockRun) -> list[FoundBlock]:
        """The block itself, or the blocks inside it."""
        found = self._found(block)
        if found.layout.problem is None and not _is_group(found):
            return [found]
        inner = [one for item in block.inner for one in self.blocks(item)]
        return inner if any(one.layout.problem is None for one in inner) else [found]

    def _found(self, block: BlockRun) -> FoundBlock:
        kind = self._signature(block)
        known = self.known.get(kind)
        if known is not None and known.layout.problem is None:
            layout = _renamed(known, block)
            try:
                check_sum(layout, block)
            except NoSumError:
                pass
            else:
                return replace(known, run=block, layout=layout)
        found = find_block(block, self.attention)
        self.known.setdefault(kind, found)
        return found

    def _signature(self, block: BlockRun) -> object:
        """Equal for blocks of the same kind: their class, the shapes of their parameters, and what runs in them."""
        shapes = tuple((name, tuple(parameter.shape)) for name, parameter in block.module.named_parameters())
        runs = tuple((run.path.removeprefix(block.path), self.attention.get(run.path)) for run in block.runs)
        return type(block.module), shapes, runs


def _is_group(found: FoundBlock) -> bool:
    """Whether all parts are in items of lists inside the block, and several in one: these are the blocks then."""
    holders = [
        next((item.path for item in found.run.inner if part.branch.startswith(f"{item.path}.")), None)
        for part in found.layout.parts
    ]
    return None not in holders and len(set(holders)) < len(holders)


def _renamed(known: FoundBlock, block: BlockRun) -> BlockLayout:
    """The layout of a block of the same kind, under the names of this one."""

    def renamed(path: str | None) -> str | None:
        if path is None or not path.startswith(f"{known.run.path}."):
            return path
        return block.path + path.removeprefix(known.run.path)

    def moved(part: PartLayout) -> PartLayout:
        branch, *others = (renamed(path) for path in (part.branch, part.norm, part.attention, part.bias))
        assert branch is not None
        norm, attention, bias = others
        return replace(part, branch=branch, norm=norm, attention=attention, bias=bias)

    return replace(known.layout, path=block.path, parts=tuple(map(moved, known.layout.parts)))
