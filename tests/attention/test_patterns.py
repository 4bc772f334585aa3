"""Windows, global tokens, random blocks: drawn, counted, against their one-pair definitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnworks.attention.bigbird import BigBird, blocks_seen
from attnworks.attention.complexity import graph_diameter
from attnworks.attention.longformer import Longformer
from attnworks.attention.patterns import (
    BlockPattern,
    FullPattern,
    GlobalPattern,
    Pattern,
    RandomPattern,
    WherePattern,
    WindowPattern,
    picture,
)
from attnworks.attention.window import WindowAttention, window_edges
from attnworks.core.errors import UsageError
from tests.helpers import unchecked

PATTERNS = {
    "full": FullPattern(),
    "window": WindowPattern(2),
    "dilated": WindowPattern(2, (1, 3)),
    "blocks": BlockPattern(3, 3),
    "global": GlobalPattern(2),
    "random": RandomPattern(2, 3, 5),
    "random-tokens": RandomPattern(2),
    "rule": WherePattern(lambda i, j: (i + j) % 3 == 0),
    "union": WindowPattern(1) | GlobalPattern(1) | RandomPattern(1, 2),
    "bigbird": BigBird(window=2, n_global=1, n_random=2, block=2).pattern,
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("causal", [False, True])
def test_tables_are_the_pairs(pattern: Pattern, causal: bool) -> None:
    n, heads = 13, 2
    table = pattern.table(heads, n, causal=causal)
    for h in range(heads):
        for i in range(n):
            for j in range(n):
                assert bool(table[h, i, j]) == (pattern.sees(h, i, j, n, causal) and (j <= i or not causal))
    assert torch.equal(pattern.table(heads, n, queries=5, causal=causal), table[:, 8:])


def test_pictures() -> None:
    assert picture(WindowPattern(1).table(1, 4)[0]) == "■ ■ · ·\n■ ■ ■ ·\n· ■ ■ ■\n· · ■ ■"
    assert picture(WindowPattern(1, (2,)).table(1, 4)[0]) == "■ · ■ ·\n· ■ · ■\n■ · ■ ·\n· ■ · ■"
    assert picture(GlobalPattern(1).table(1, 3, causal=True)[0]) == "■ · ·\n■ · ·\n■ · ·"
    assert picture(BlockPattern(2, 2).table(1, 5)[0]) == "■ ■ ■ ■ ·\n■ ■ ■ ■ ·\n■ ■ ■ ■ ■\n■ ■ ■ ■ ■\n· · ■ ■ ■"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: WindowPattern(-1), "WindowPattern with window=-1: expected a whole number from 0"),
        (lambda: WindowPattern(1, 2), "a tuple of whole numbers from 1"),  # pyright: ignore[reportArgumentType]
        (lambda: WindowPattern(1, (0,)), "a tuple of whole numbers from 1"),
        (lambda: BlockPattern(3, 0), "BlockPattern with block=0: expected a whole number from 1"),
        (lambda: BlockPattern(3, 2), "a window of whole blocks, got 1.50 blocks; choose window=4"),
        (lambda: GlobalPattern(-1), "GlobalPattern with count=-1"),
        (lambda: RandomPattern(-1), "RandomPattern with count=-1"),
    ],
)
def test_patterns_that_make_no_sense(build: Callable[[], Pattern], message: str) -> None:
    with unchecked(), pytest.raises(UsageError, match=message):
        build()


# --- random blocks ----------------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 60),
    count=st.integers(0, 4),
    block=st.integers(1, 5),
    apart=st.integers(0, 3),
    first=st.integers(0, 3),
    causal=st.booleans(),
    seed=st.integers(0, 5),
)
@settings(max_examples=150, deadline=None)
def test_drawn_blocks_are_allowed_distinct_and_as_many_as_there_are(
    n: int, count: int, block: int, apart: int, first: int, causal: bool, seed: int
) -> None:
    drawn = RandomPattern(count, block, seed, apart, first).drawn(3, n, causal)
    blocks, whole = -(-n // block), n // block
    assert drawn.shape == (3, blocks, count)
    for head in drawn.tolist():
        for own, row in enumerate(head):
            candidates = {
                other for other in range(first, whole) if abs(other - own) > apart and (other < own or not causal)
            }
            chosen = [other for other in row if other >= 0]
            assert set(chosen) <= candidates and len(set(chosen)) == len(chosen)
            assert len(chosen) == min(count, len(candidates))
            assert row == chosen + [-1] * (count - len(chosen))


def test_every_candidate_is_drawn_alike() -> None:
    drawn = np.concatenate([RandomPattern(2, seed=seed).drawn(4, 11)[:, 5].flatten() for seed in range(500)])
    counts = np.bincount(drawn, minlength=11)
    assert counts[5] == 0
    expected = 4 * 500 * 2 / 10
    others = counts[np.arange(11) != 5]
    assert float(((others - expected) ** 2 / expected).sum()) < 34  # 9 degrees of freedom: 1e-4 above 34


def test_a_longer_causal_sequence_begins_alike() -> None:
    random = RandomPattern(3, 2, 1, 1, 1)
    assert np.array_equal(random.drawn(2, 17, causal=True)[:, :8], random.drawn(2, 59, causal=True)[:, :8])


def test_heads_and_seeds_draw_differently() -> None:
    drawn = RandomPattern(2).drawn(2, 50)
    assert not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn, RandomPattern(2, seed=1).drawn(2, 50))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 5, 12, 29])
def test_blocks_seen_are_the_pattern(n: int, causal: bool) -> None:
    mechanism = BigBird(window=2, n_global=1, n_random=2, block=2)
    seen = blocks_seen(mechanism.random, 3, n, causal)
    table = mechanism.pattern.table(3, n, causal=causal)
    for head in range(3):
        for query in range(2, n):  # the first block is global
            row = [block for block in seen[head, query // 2].tolist() if block >= 0]
            assert row[-1] == query // 2 and len(set(row)) == len(row)
            keys = {
                key for block in row for key in (2 * block, 2 * block + 1) if key < n and (key <= query or not causal)
            }
            assert keys == set(table[head, query].nonzero()[:, 0].tolist())


# --- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "window", "g", "r", "edges"),
    [(12, 1, 2, 2, 92), (64, 1, 2, 2, None), (64, 3, 0, 0, 436), (59, 2, 3, 1, None)],
)
def test_bigbird_edges_by_the_formula(n: int, window: int, g: int, r: int, edges: int | None) -> None:
    """g n + (n - g)(g + r + 2w + 1) - w (w + 1) (S4.81), at most n (2w + 1 + r + 2g)."""
    formula = g * n + (n - g) * (g + r + 2 * window + 1) - window * (window + 1)
    mechanism = BigBird(window=window, n_global=g, n_random=r, block=1)
    assert mechanism.edges(n, n, 1, causal=False) == formula == int(mechanism.pattern.table(1, n).sum())
    assert edges is None or formula == edges
    assert formula <= n * (2 * window + 1 + r + 2 * g)


@pytest.mark.parametrize("block", [2, 3])
def test_bigbird_edges_in_blocks(block: int) -> None:
    """The same formula for the blocks, times block^2."""
    m, w, g, r = 17, 1, 2, 2
    formula = g * m + (m - g) * (g + r + 2 * w + 1) - w * (w + 1)
    mechanism = BigBird(window=w * block, n_global=g, n_random=r, block=block)
    assert mechanism.edges(m * block, m * block, 3, causal=False) == 3 * block**2 * formula


@given(
    n=st.integers(1, 40),
    rows=st.integers(1, 40),
    window=st.integers(0, 9),
    dilation=st.sampled_from([(1,), (2,), (1, 3), (5, 2)]),
    g=st.integers(0, 4),
    causal=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_counted_edges_are_the_tables(
    n: int, rows: int, window: int, dilation: tuple[int, ...], g: int, causal: bool
) -> None:
    rows = min(rows, n) if causal else n
    for mechanism in (
        WindowAttention(window=window, dilation=dilation),
        Longformer(window=window, dilation=dilation, n_global=g),
        BigBird(window=window // 2 * 2, n_global=g, n_random=2, block=2),
    ):
        table = mechanism.pattern.table(3, n, queries=rows, causal=causal)
        assert mechanism.edges(rows, n, 3, causal) == int(table.sum())


def test_window_edges_in_numbers() -> None:
    """436 = 64 * 7 - 12 for three tokens to each side (S4.82)."""
    assert window_edges(64, 64, 3) == 436
    assert window_edges(64, 64, 100) == 64 * 64
    assert window_edges(64, 64, 3, causal=True) == 64 * 4 - 6


def test_global_tokens_connect_any_pair_in_two_layers() -> None:
    """S4.78: one global token makes the diameter two."""
    assert graph_diameter((WindowPattern(1) | GlobalPattern(1)).table(1, 29)[0]) == 2
    assert graph_diameter(WindowPattern(1).table(1, 29)[0]) == 28
