"""One forward pass in which every module hands on a leaf, recorded block by block.

A block is an item of a list of modules. Each tensor inside it then depends only on the leaves that it is directly made
of, and on the stream at the entry of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.hf.evidence.cut_graph import first_floats, leaf_of, replaced


@dataclass(eq=False)
class ModuleRun:
    """One run of a module in a block, or its runs on one piece of the sequence after the other.

    input     what it read first, with its graph; None if it read no numbers
    output    what it computed, with its graph
    leaves    what it handed on: one leaf for each piece
    """

    path: str
    module: nn.Module
    input: Tensor | None
    output: Tensor
    leaves: tuple[Tensor, ...]

    @property
    def value(self) -> Tensor:
        """What it handed on, without a graph."""
        return self.output.detach()

    @property
    def may_be_norm(self) -> bool:
        """Whether the module has neither matrices nor modules inside."""
        simple = not any(True for _ in self.module.children())
        return simple and all(parameter.dim() < 2 for parameter in self.module.parameters())


@dataclass(eq=False)
class BlockRun:
    """One run of an item of a list of modules.

    entry    what it read first: the stream
    exit     its first output, with its graph; None if that is no stream, since its shape is another one
    runs     what ran inside, in the order in which it ended
    inner    runs of items of lists inside
    """

    path: str
    module: nn.Module
    entry: Tensor
    exit: Tensor | None = None
    runs: list[ModuleRun] = field(default_factory=list)
    inner: list[BlockRun] = field(default_factory=list)

    @property
    def stack(self) -> str:
        """The path of the list."""
        return self.path.rpartition(".")[0]

    def relative(self, path: str) -> str:
        """The path of a module inside, seen from the block."""
        return path.removeprefix(self.path + ".")


def record_block_runs(model: nn.Module, run: Callable[[], object]) -> list[BlockRun]:
    """Run the model once, in `run()`: the runs of all items of lists that are in no other list's item."""
    recorder = _Recorder(model)
    with ExitStack() as stack, torch.enable_grad():
        for module in model.modules():
            stack.enter_context(module.register_forward_pre_hook(recorder.before, with_kwargs=True))
            stack.enter_context(module.register_forward_hook(recorder.after, with_kwargs=True))
        run()
    return recorder.outermost


class _Recorder:
    def __init__(self, model: nn.Module) -> None:
        self.paths = {module: path for path, module in model.named_modules()}
        self.items = {item for module in model.modules() if isinstance(module, nn.ModuleList) for item in module}
        self.outermost: list[BlockRun] = []
        self.open: list[BlockRun] = []
        self.recorded: list[bool] = []

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module in self.items and (entry := first_floats([*args, *kwargs.values()])) is not None:
            block = BlockRun(self.paths[module], module, entry)
            (self.open[-1].inner if self.open else self.outermost).append(block)
            self.open.append(block)
            self.recorded.append(torch.is_grad_enabled())
            torch.set_grad_enabled(True)
            if entry.is_leaf:
                entry.requires_grad_(True)

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        made, read = first_floats(output), first_floats([*args, *kwargs.values()])
        if self.open and self.open[-1].module is module:
            self._close(made)
        if made is None or (read is not None and _is_same(made, read)):
            return None
        leaf = leaf_of(made)
        changed = replaced(output, made, leaf.clone())
        if changed is not output:
            for block in self.open:
                block.runs.append(ModuleRun(self.paths[module], module, read, made, (leaf,)))
        return changed

    def _close(self, made: Tensor | None) -> None:
        block = self.open.pop()
        torch.set_grad_enabled(self.recorded.pop())
        block.runs = _joined(block)
        if made is None or made.shape != block.entry.shape or made.dim() < 2:
            return
        if made.requires_grad and block.entry.requires_grad:
            block.exit = made


def _is_same(made: Tensor, read: Tensor) -> bool:
    """Whether a module, such as dropout in evaluation, hands on what it read."""
    return made.shape == read.shape and made.data_ptr() == read.data_ptr()


def _joined(block: BlockRun) -> list[ModuleRun]:
    """The runs of a block, where those on pieces of the sequence are one run."""
    pieces: dict[str, list[ModuleRun]] = {}
    for run in block.runs:
        pieces.setdefault(run.path, []).append(run)
    joined: list[ModuleRun] = []
    for run in block.runs:
        group = pieces[run.path]
        if not _is_split(group, block.entry):
            joined.append(run)
        elif run is group[-1]:
            joined.append(_join(group))
    return joined


def _is_split(group: Sequence[ModuleRun], entry: Tensor) -> bool:
    """Whether these runs of a module have the outputs of a run on the whole sequence, in pieces along it."""
    lengths = [run.output.shape[-2] if run.output.dim() == entry.dim() else 0 for run in group]
    return len(group) > 1 and sum(lengths) == entry.shape[-2] and min(lengths) > 0


def _join(group: Sequence[ModuleRun]) -> ModuleRun:
    inputs = [run.input for run in group if run.input is not None]
    read = torch.cat(inputs, -2) if len(inputs) == len(group) else None
    leaves = tuple(leaf for run in group for leaf in run.leaves)
    return ModuleRun(group[0].path, group[0].module, read, torch.cat([run.output for run in group], -2), leaves)
