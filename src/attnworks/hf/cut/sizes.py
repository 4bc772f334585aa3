"""The sizes of an attention layer that follow from its heads, before and after a cut, by name.

A size has the same name in a model and in a tiny twin of it, where all sizes differ. What an attribute counts is
learned in the twin, and carried over by the name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import nn

from attnworks.hf.cut.columns import Removal, slice_of
from attnworks.hf.layout import AttentionLayout

Pattern = Literal["heads", "groups", "within", "both", "none", "uneven"]
"""Which heads stay: some, where none share keys and values; whole groups that share them; as many of each group; as
many of some groups; no head; other numbers of several groups."""


class Size(NamedTuple):
    before: int
    after: int


def pattern_of(layer: AttentionLayout, kept: Sequence[int]) -> Pattern:
    """Which heads of a layer stay."""
    if not kept:
        return "none"
    per_group = [sum(head in kept for head in group) for group in layer.shares]
    left = {*per_group} - {0}
    if len(left) > 1 or len({len(group) for group in layer.shares}) > 1:
        return "uneven"
    if len(layer.shares) == layer.heads:
        return "heads"
    if left == {len(layer.shares[0])}:
        return "groups"
    return "both" if 0 in per_group else "within"


def some_heads(layer: AttentionLayout, pattern: Pattern) -> list[int] | None:
    """Heads of a layer that stay in this pattern, to try it with; None if there are too few for it."""
    groups = layer.shares
    if pattern == "none":
        return []
    if pattern in ("heads", "groups", "both") and len(groups) < 2:
        return None
    if pattern in ("within", "both") and len(groups[0]) < 2:
        return None
    few = groups[::2] if pattern in ("heads", "groups", "both") else groups
    kept = [head for group in few for head in (group[1:] if pattern in ("within", "both") else group)]
    if pattern == "uneven":
        if layer.heads < 2:
            return None
        kept = list(range(1, layer.heads))
    return sorted(kept)


def sizes_of(layer: AttentionLayout, kept: Sequence[int], removal: Removal) -> dict[str, Size]:
    """Every size that a cut changes, where as many heads stay in each group that keeps any."""
    left = [group for group in layer.shares if any(head in kept for head in group)]
    heads, shares = Size(layer.heads, len(kept)), Size(len(layer.shares), len(left))
    keys = Size(len({*layer.key_of}), len({layer.key_of[head] for head in kept}))
    found = {"heads": heads, "key heads": keys, "groups": shares}
    found |= {"heads per key head": _ratio(heads, keys), "heads per group": _ratio(heads, shares)}
    for count, size in (("heads", heads), ("key heads", keys), ("groups", shares)):
        for role, width in zip(("key", "value"), layer.widths, strict=True):
            found[f"{count} x {role} width"] = Size(size.before * width, size.after * width)
    for path, gone in removal.columns.items():
        found[f"columns of {relative(path, layer.path)}"] = Size(len(gone), int((~gone).sum()))
    for path, gone in removal.parameters.items():
        if (along := slice_of(gone)) is not None:
            found[f"entries of {relative(path, layer.path)}"] = Size(gone.shape[along[0]], len(along[1]))
    inputs = removal.inputs
    found[f"inputs of {relative(removal.output, layer.path)}"] = Size(len(inputs), int((~inputs).sum()))
    return {name: size for name, size in found.items() if size.before != size.after}


def _ratio(heads: Size, groups: Size) -> Size:
    return Size(heads.before // groups.before, heads.after // max(groups.after, 1))


def relative(path: str, start: str) -> str:
    """The path as seen from the module `start`, with ".." for each step outwards."""
    names, from_names = path.split("."), start.split(".")
    common = 0
    while common < min(len(names), len(from_names)) and names[common] == from_names[common]:
        common += 1
    return "/".join([".."] * (len(from_names) - common) + names[common:]) or "."


def absolute(path: str, start: str) -> str:
    """The inverse of `relative`."""
    names = start.split(".")
    for name in path.split("/"):
        if name == "..":
            names.pop()
        elif name != ".":
            names.append(name)
    return ".".join(names)


def related(model: nn.Module, layer: AttentionLayout, removal: Removal) -> list[str]:
    """The attention module, what it contains without the projections that are cut, and what contains it.

    The outermost one is an item of a list of modules: a block.
    """
    cut = {*removal.columns, removal.output}
    inside = [f"{layer.path}.{name}" for name, _ in model.get_submodule(layer.path).named_modules() if name]
    found, names = [layer.path, *(path for path in inside if path not in cut)], layer.path.split(".")
    while len(names) > 1 and not isinstance(model.get_submodule(".".join(names[:-1])), nn.ModuleList):
        names = names[:-1]
        found.append(".".join(names))
    return found
