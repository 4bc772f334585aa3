"""The mechanisms of attnworks in a layer whose heads change."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from attnworks.attention.heads import HeadGroups, carry_over, grouped
from attnworks.hf.head_modules import head_groups_of
from attnworks.hf.swapped_attention import remove_groups, set_groups


def keep_groups(
    attention: Any, origins: Sequence[int | None], widths: tuple[int, int], undo: ExitStack | None = None
) -> None:
    """Rebuild the HeadGroups of a layer, if it has any, for other heads.

    origins    the number that each head had before; None for a new one
    widths     of queries and keys, and of values
    """
    if (old := head_groups_of(attention)) is None:
        return
    if undo is not None:
        undo.callback(set_groups, attention, old)
    remove_groups(attention)
    if origins:
        by_head = old.by_head()
        specs = tuple("dense" if origin is None else by_head[origin] for origin in origins)
        like = next((each for each in (*old.parameters(), *attention.parameters())), None)
        new = HeadGroups(grouped(specs), *widths).train(attention.training)
        carry_over(old, new if like is None else new.to(like), origins)
        set_groups(attention, new)
