"""Which columns go with some heads, by hand: those that serve these heads and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnworks.core.places import Slot
from attnworks.hf.cut.columns import numbers_of, refusal_to_remove, removal_of, slice_of
from attnworks.hf.cut.sizes import Size, pattern_of, sizes_of, some_heads
from attnworks.hf.layout import AttentionLayout, ColumnSource, ProjectionRole

WIDTH = 2


def reach(*rows: str) -> Tensor:
    """One row for each head: 1 for a column that reaches it."""
    return torch.tensor([[column == "1" for column in row] for row in rows])


def source(path: str, role: ProjectionRole, rows: Tensor, *, is_parameter: bool = False) -> ColumnSource:
    return ColumnSource(path, is_parameter, rows, {role: rows})


QUERY = source("a.attn.q", "query", reach("11000000", "00110000", "00001100", "00000011"))
KEY = source("a.attn.k", "key", reach("1100", "1100", "0011", "0011"))
VALUE = source("a.attn.v", "value", reach("1100", "1100", "0011", "0011"))
NORM = source("a.attn.norm.weight", "query", reach("11", "11", "11", "11"), is_parameter=True)
SINKS = ColumnSource("a.attn.sinks", True, reach("1000", "0100", "0010", "0001"))
LAYER = AttentionLayout(
    path="a.attn",
    slots=(Slot("decoder", 0),),
    heads=4,
    shares=((0, 1), (2, 3)),
    key_of=(0, 0, 1, 1),
    widths=(WIDTH, WIDTH),
    query=None,
    key=None,
    value=None,
    turned=False,
    output=None,
    output_path="a.attn.o",
    output_reach=QUERY.reach,
    factor=None,
    sources=(QUERY, KEY, VALUE, NORM, SINKS),
)


def gone(layer: AttentionLayout, removed: set[int], *others: AttentionLayout) -> dict[str, tuple[int, ...]]:
    found = removal_of([layer, *others], layer, removed)
    return {path: numbers_of(mask) for path, mask in {**found.columns, **found.parameters}.items()}


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        ({0}, {"a.attn.q": (0, 1), "a.attn.sinks": (0,)}),
        ({0, 1}, {"a.attn.q": (0, 1, 2, 3), "a.attn.k": (0, 1), "a.attn.v": (0, 1), "a.attn.sinks": (0, 1)}),
        ({1, 2}, {"a.attn.q": (2, 3, 4, 5), "a.attn.sinks": (1, 2)}),
        (
            {0, 1, 2, 3},
            {
                "a.attn.q": tuple(range(8)),
                "a.attn.k": tuple(range(4)),
                "a.attn.v": tuple(range(4)),
                "a.attn.norm.weight": (0, 1),
                "a.attn.sinks": (0, 1, 2, 3),
            },
        ),
    ],
    ids=str,
)
def test_columns_of_no_other_head(removed: set[int], expected: dict[str, tuple[int, ...]]) -> None:
    assert gone(LAYER, removed) == expected


def test_columns_that_another_layer_needs() -> None:
    """A later layer that reads the keys and values of this one."""
    later = replace(LAYER, path="b.attn", sources=(KEY, VALUE))
    assert gone(LAYER, {0, 1}, later) == {"a.attn.q": (0, 1, 2, 3), "a.attn.sinks": (0, 1)}


def test_a_weight_goes_only_with_what_it_is_applied_to() -> None:
    """Where queries cannot be cut (a norm over all heads), neither can the weights of their norm."""
    mixed = source("a.attn.q", "query", torch.ones(4, 8, dtype=torch.bool))
    norm = source("a.attn.norm.weight", "query", QUERY.reach, is_parameter=True)
    layer = replace(LAYER, sources=(mixed, VALUE, norm))
    assert gone(layer, {0, 1}) == {"a.attn.v": (0, 1)}


def test_heads_that_are_mixed() -> None:
    mixed = replace(LAYER, output_reach=reach("11100000", "00110000", "00001100", "00000011"))
    assert refusal_to_remove(mixed, {0}) == "heads that are mixed before a module reads them"
    assert refusal_to_remove(mixed, {0, 1}) is None and refusal_to_remove(LAYER, {0}) is None
    unread = replace(LAYER, output_path=None, output_reach=None, problems={"output": "no projection reads the heads"})
    assert refusal_to_remove(unread, {0}) == "no projection reads the heads"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (("1100",), (1, (2, 3))),
        (("11", "00"), (0, (1,))),
        (("10", "10"), (1, (1,))),
        (("10", "00"), None),
    ],
    ids=str,
)
def test_slices(rows: tuple[str, ...], expected: tuple[int, tuple[int, ...]] | None) -> None:
    assert slice_of(reach(*rows)) == expected


@pytest.mark.parametrize(
    ("kept", "pattern"),
    [
        ([], "none"),
        ([0, 1], "groups"),
        ([0, 2], "within"),
        ([1], "both"),
        ([0, 1, 2], "uneven"),
        ([0, 1, 2, 3], "groups"),
    ],
    ids=str,
)
def test_patterns(kept: list[int], pattern: str) -> None:
    assert pattern_of(LAYER, kept) == pattern
    alone = replace(LAYER, shares=((0,), (1,), (2,), (3,)))
    assert pattern_of(alone, kept) == ("heads" if kept else "none")


@pytest.mark.parametrize("pattern", ["none", "groups", "within", "both", "uneven"])
def test_heads_to_try(pattern: str) -> None:
    kept = some_heads(LAYER, pattern)  # pyright: ignore[reportArgumentType]
    assert kept is not None and pattern_of(LAYER, kept) == pattern


def test_sizes() -> None:
    found = sizes_of(LAYER, [3], removal_of([LAYER], LAYER, {0, 1, 2}))
    assert found["heads"] == Size(4, 1) and found["groups"] == found["key heads"] == Size(2, 1)
    assert found["heads per group"] == Size(2, 1) and found["heads x key width"] == Size(8, 2)
    assert found["columns of q"] == Size(8, 2) and found["columns of k"] == Size(4, 2)
    assert found["inputs of o"] == Size(8, 2) and found["entries of sinks"] == Size(4, 1)
    assert "entries of norm/weight" not in found
    whole_group = sizes_of(LAYER, [2, 3], removal_of([LAYER], LAYER, {0, 1}))
    assert "heads per group" not in whole_group, "it stays as it was"
