"""Which heads are meant: 3.2, 4.*, enc.0.1, *."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from attnworks.core.errors import UsageError

NONE = "none"

Head = tuple[str, int]
"""A layer (enc.3) and the number of one of its heads."""
Unit = tuple[Head, ...]
"""Heads that go together: one, or all that share keys and values."""


def choose_heads(asked: str, layers: Mapping[str, int]) -> list[Head]:
    """The heads that some of the comma-separated patterns match, in the order of the model.

    layers    how many heads each layer has that may be chosen: {"enc.0": 8, "dec.0": 8}

    A head is layer.head, with enc or dec in front where the model has both; * stands for anything, none for no head.
    >>> choose_heads("0.2,1.*", {"enc.0": 3, "enc.1": 2})
    [('enc.0', 2), ('enc.1', 0), ('enc.1', 1)]
    """
    every = [(layer, head) for layer, heads in layers.items() for head in range(heads)]
    kinds = {layer.partition(".")[0] for layer in layers}
    chosen: set[Head] = set()
    if asked.strip() == NONE:
        return []
    if not every:
        raise UsageError(
            asked=f"heads {asked!r}",
            expected="a model whose layers have heads of their own",
            got="one without any, or whose layers share theirs",
            remedy="choose another model",
        )
    for pattern in (part.strip() for part in asked.split(",")):
        found = [head for head in every if _matches(pattern, head, kinds)]
        if not found:
            across = "cross" in pattern and "cross" not in kinds
            which = "heads" if "cross" in kinds else "heads of self-attention"
            raise UsageError(
                asked=f"heads {asked!r}",
                expected=f"{which} ({_all_of(layers)}), by name or with *",
                got="cross-attention, which has no positions in common" if across else repr(pattern),
                remedy=f"for instance {_example(every, kinds)}, {every[0][0]}.* or none",
            )
        chosen.update(found)
    return [head for head in every if head in chosen]


def _matches(pattern: str, head: Head, kinds: set[str]) -> bool:
    names = [f"{head[0]}.{head[1]}"]
    if len(kinds) == 1:
        names.append(names[0].partition(".")[2])
    return any(fnmatchcase(name, pattern) for name in names)


def _example(every: Sequence[Head], kinds: set[str]) -> str:
    layer, head = every[-1]
    name = f"{layer}.{head}"
    return name if len(kinds) > 1 else name.partition(".")[2]


def _all_of(layers: Mapping[str, int]) -> str:
    """enc.0.0 to enc.0.7, enc.1.0 to enc.1.7."""
    return ", ".join(f"{layer}.0 to {layer}.{heads - 1}" for layer, heads in layers.items() if heads)
