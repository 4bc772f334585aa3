"""What a part of a block reads: which stream, through which norm, and whether its rows depend on each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from attnworks.hf.evidence.block_runs import BlockRun, ModuleRun
from attnworks.hf.evidence.reach import noise_like, vjp
from attnworks.hf.evidence.stream_sums import NoSumError, stream_sums


class StreamReading(NamedTuple):
    """How a module whose output is added to the stream comes from the stream.

    norm      the norm through which it reads the stream, if there is one
    parts     the runs whose outputs are in the stream that it reads
    inside    the runs between the stream and the output, the last ones first
    mixer     the last of these that computes a row from other rows; None if no row depends on others
    ahead     whether a row depends on later rows of the stream
    """

    norm: ModuleRun | None
    parts: frozenset[ModuleRun]
    inside: tuple[ModuleRun, ...]
    mixer: ModuleRun | None
    ahead: bool


def read_by(part: ModuleRun, block: BlockRun, known: Mapping[ModuleRun, Collection[ModuleRun]]) -> StreamReading:
    """Follow one row of the output of a part back, by products with Jacobians, to where it reads the stream.

    known    runs at which the way back ends, each with the parts that are in the stream there
    """
    place = block.runs.index(part)
    walk = _Walk(block, block.runs[:place])
    cotangent = torch.zeros_like(part.output)
    rows = cotangent.view(-1, cotangent.shape[-1])
    row = len(rows) // 2
    rows[row] = noise_like(rows[row])
    local = walk.back(part, cotangent)
    norm, parts, inside, mixer = None, set[ModuleRun](), [part], None if local else part
    read = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    for run in reversed(block.runs[:place]):
        if (cotangent := walk.cotangent(run)) is None:
            continue
        if run in known:
            parts.update(known[run])
        elif (summed := _parts_in(run, block, known)) is not None:
            norm = norm or run
            parts.update(summed)
        else:
            inside.append(run)
            local = walk.back(run, cotangent)
            mixer = run if mixer is None and not local else mixer
            continue
        read |= _rows(cotangent, len(rows))
    if walk.entry is not None:
        read |= _rows(walk.entry, len(rows))
    others = read.clone()
    others[row] = False
    mixer = (mixer or part) if bool(others.any()) else None
    return StreamReading(norm, frozenset(parts), tuple(inside), mixer, bool(read[row + 1 :].any()))


class _Walk:
    """Cotangents of the runs of a block and of its entry."""

    def __init__(self, block: BlockRun, runs: list[ModuleRun]) -> None:
        self.leaves = [leaf for run in runs for leaf in run.leaves]
        self.block, self.entry = block, None
        self.found: dict[Tensor, Tensor] = {}

    def back(self, run: ModuleRun, cotangent: Tensor) -> bool:
        """Add to the cotangents of all that the output of a run is directly made of. Whether each has one row."""
        entry, *others = vjp(run.output, [self.block.entry, *self.leaves], cotangent)
        if entry is not None:
            self.entry = entry if self.entry is None else self.entry + entry
        rows = self.block.entry.numel() // self.block.entry.shape[-1]
        local = entry is None or int(_rows(entry, rows).sum()) <= 1
        for leaf, T in zip(self.leaves, others, strict=True):
            if T is not None and bool(T.any()):
                self.found[leaf] = self.found[leaf] + T if leaf in self.found else T
                local = local and int(_rows(T, rows).sum()) <= 1
        return local

    def cotangent(self, run: ModuleRun) -> Tensor | None:
        """None if the part does not depend on the run."""
        found = [self.found.get(leaf) for leaf in run.leaves]
        if all(T is None for T in found):
            return None
        pieces = [torch.zeros_like(leaf) if T is None else T for leaf, T in zip(run.leaves, found, strict=True)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -2)


def _parts_in(
    run: ModuleRun, block: BlockRun, known: Mapping[ModuleRun, Collection[ModuleRun]]
) -> set[ModuleRun] | None:
    """If a run is a norm of the stream, the runs whose outputs are in that stream; None if it is not."""
    if not run.may_be_norm or run.input is None or run.input.numel() != block.entry.numel():
        return None
    try:
        sums = stream_sums(run.input, block)
    except NoSumError:
        return None
    parts = {term.run for found in sums for term in found.terms}
    norms = {found.norm for found in sums if found.norm is not None}
    return parts if parts | norms <= known.keys() and all(found.stream == 1.0 for found in sums) else None


def _rows(cotangent: Tensor, rows: int) -> Bool[Tensor, " n"]:
    """Which rows of the stream have an influence."""
    if cotangent.numel() % rows:
        return torch.ones(rows, dtype=torch.bool, device=cotangent.device)
    return (cotangent.reshape(rows, -1) != 0).any(1)
