"""Window, BigBird, Longformer and graphs at the sizes of their engines, against dense attention with a table."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnworks.attention import Context, Geometry, Mask, Mechanism, MechanismSpec
from attnworks.attention.bigbird import BigBird
from attnworks.attention.dense import Dense
from attnworks.attention.graph import Graph
from attnworks.attention.longformer import Longformer
from attnworks.attention.patterns import GlobalPattern, WherePattern, WindowPattern
from attnworks.attention.sparse import Sparse, attend_flex
from attnworks.attention.window import WindowAttention
from attnworks.core.errors import UsageError
from tests.helpers import assert_close, qkv, unchecked

SPARSE: dict[str, Sparse] = {
    "window-0": WindowAttention(window=0),
    "window-3": WindowAttention(window=3),
    "window-40": WindowAttention(window=40),
    "window-300": WindowAttention(window=300),
    "dilated": WindowAttention(window=7, dilation=(1, 3)),
    "bigbird-16": BigBird(window=16, n_global=1, n_random=2, block=16),
    "bigbird-32": BigBird(window=0, n_global=0, n_random=1, block=32),
    "bigbird-5": BigBird(window=5, n_global=2, n_random=1, block=5),
    "longformer": Longformer(window=9, n_global=3),
    "longformer-dilated": Longformer(window=5, n_global=2, dilation="1/4"),
}
every_sparse = pytest.mark.parametrize("mechanism", SPARSE.values(), ids=SPARSE)


def padding_of(n: int) -> Tensor:
    """A sentence with its first half missing, one with holes."""
    real = torch.rand(2, n, generator=torch.Generator().manual_seed(7)) < 0.7
    real[0, : n // 2] = False
    return real


def outputs_and_gradients(mechanism: Mechanism, inputs: tuple[Tensor, ...], mask: Mask) -> list[Tensor]:
    Y = mechanism(*inputs, mask).Y
    weight = torch.randn(Y.shape, generator=torch.Generator().manual_seed(3), dtype=Y.dtype)
    return [Y, *torch.autograd.grad((Y * weight).sum(), inputs)]


@every_sparse
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("n", [31, 64, 211])
def test_engines_equal_dense_attention_with_the_table(mechanism: Sparse, n: int, causal: bool, padded: bool) -> None:
    inputs = qkv(2, 3, n, n, 5, 7, grad=True)
    real = padding_of(n) if padded else None
    got = outputs_and_gradients(mechanism, inputs, Mask(real, causal))
    want = outputs_and_gradients(Dense(), inputs, Mask(real, dense=mechanism.pattern.table(3, n, causal=causal)))
    for one, other in zip(got, want, strict=True):
        assert_close(one, other)


@every_sparse
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("padded", [False, True])
def test_the_last_queries_alone_give_the_last_rows(mechanism: Sparse, rows: int, padded: bool) -> None:
    Q, K, V = qkv(2, 3, 211, 211, 5, 7)
    mask = Mask(padding_of(211) if padded else None, causal=True)
    assert_close(mechanism(Q[:, :, -rows:], K, V, mask).Y, mechanism(Q, K, V, mask).Y[:, :, -rows:])


@every_sparse
def test_heads_in_groups_give_the_same(mechanism: Sparse, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits the cache decides how heads and sentences are grouped, and nothing else."""
    inputs = qkv(2, 5, 101, 101, 5, 7, grad=True)
    mask = Mask(padding_of(101))
    want = outputs_and_gradients(mechanism, inputs, mask)
    for cache in (1, 3 * 32 * 101 * 8, 10**9):
        monkeypatch.setattr("attnworks.attention.engines.steps.CACHE_BYTES", cache)
        for one, other in zip(outputs_and_gradients(mechanism, inputs, mask), want, strict=True):
            assert_close(one, other)


@every_sparse
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(padding_of(67))], ids=["none", "causal", "padding"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_gives_the_same(mechanism: Sparse, mask: Mask) -> None:
    """The way of a GPU, walked on a CPU: forward only."""
    Q, K, V = qkv(2, 4, 67, 67, 16, 16, torch.float32)
    rule = mechanism.rule(Context(), 4, 67, mask.causal, Q.device)
    with unchecked():
        got = attend_flex(Q, K, V, rule, mask, 0.25)
    assert_close(got, mechanism(Q, K, V, mask, Context(scale=0.25)).Y)


# --- window -----------------------------------------------------------------------------------------------------------


def test_a_window_over_everything_is_dense_attention() -> None:
    inputs = qkv(2, 3, 29, 29, 5, 7)
    assert_close(WindowAttention(window=28)(*inputs).Y, Dense()(*inputs).Y)
    assert (WindowAttention(window=20)(*inputs).Y - Dense()(*inputs).Y).abs().max() > 1e-2


def test_a_window_of_nothing_copies_the_values() -> None:
    Q, K, V = qkv(2, 3, 29, 29, 5, 7)
    assert_close(WindowAttention(window=0)(Q, K, V).Y, V)


@pytest.mark.parametrize("dilation", [0, -1, "1/0", "a", "1/", (), 2.5, True])
def test_a_dilation_that_is_none(dilation: object) -> None:
    with unchecked(), pytest.raises(UsageError, match="whole numbers from 1, one for all heads or several"):
        WindowAttention(dilation=dilation)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "spec", ["window:window=-1", "window:window=wide", "bigbird:block=0", "longformer:n_global=-1"]
)
def test_sizes_that_are_none(spec: str) -> None:
    with unchecked(), pytest.raises(UsageError, match="a whole number from"):
        MechanismSpec.parse(spec).build(Geometry(2, 3, 5))


@pytest.mark.parametrize("shape", [(5, 16), (4, 5, 16), (1, 2, 4, 5, 16)])
def test_tensors_without_four_axes(shape: tuple[int, ...]) -> None:
    with unchecked(), pytest.raises(UsageError, match=r"four axes: \[batch, heads, positions, width\], got \["):
        WindowAttention()(*torch.randn(3, *shape).unbind())


def test_from_one_sequence_to_another() -> None:
    with pytest.raises(UsageError) as caught:
        WindowAttention()(*qkv())
    assert str(caught.value) == (
        "window attention from one sequence to another: expected queries and keys of one sequence, got 5 queries and 7 "
        "keys; use dense attention across, or Mask(causal=True) if the queries are the last positions"
    )


# --- BigBird ----------------------------------------------------------------------------------------------------------


def test_a_window_of_parts_of_blocks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a window of whole blocks, got 1\.50 blocks; choose window=128"):
        BigBird(window=96, block=64)


def test_bigbird_without_randomness_is_longformer_by_blocks_of_one() -> None:
    inputs = qkv(2, 3, 61, 61, 5, 7)
    bigbird = BigBird(window=4, n_global=2, n_random=0, block=1)
    assert_close(bigbird(*inputs).Y, Longformer(window=4, n_global=2)(*inputs).Y)


def test_seeds_draw_other_graphs() -> None:
    inputs = qkv(1, 2, 211, 211, 5, 7)
    outputs = [BigBird(window=16, block=16, seed=seed)(*inputs).Y for seed in (0, 0, 1)]
    assert torch.equal(outputs[0], outputs[1]) and not torch.allclose(outputs[0], outputs[2])


# --- Longformer -------------------------------------------------------------------------------------------------------


def chosen_tokens(n: int) -> Tensor:
    """Two global tokens in one sentence, none in the next, one at the end in the third."""
    tokens = torch.zeros(3, n, dtype=torch.bool)
    tokens[0, [2, n // 2]] = True
    tokens[2, n - 1] = True
    return tokens


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [11, 4])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("dilation", ["1", "1/2"])
def test_global_tokens_of_each_sentence(causal: bool, rows: int, padded: bool, second: bool, dilation: str) -> None:
    if not causal and rows < 11:
        return
    mechanism = Longformer(window=1, dilation=dilation)
    first, again = (qkv(3, 2, rows, 11, 5, 7, seed=seed, grad=True) for seed in (1, 2))
    context = Context(global_tokens=chosen_tokens(11), global_qkv=(again.Q, again.K, again.V) if second else None)
    real = torch.ones(3, 11, dtype=torch.bool)
    real[0, 2] = real[1, :3] = False
    mask = Mask(real if padded else None, causal)
    leaves = (*first, *again) if second else tuple(first)
    want = mechanism.reference(*first, mask, context)
    weight = torch.randn(3, 2, rows, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = torch.autograd.grad((want.Y * weight).sum(), leaves)
    for weights in (False, True):
        got = mechanism(*first, mask, context, weights=weights)
        assert_close(got.Y, want.Y)
        assert not weights or (got.P is not None and want.P is not None and torch.equal(got.P > 0, want.P > 0))
        gradients = torch.autograd.grad((got.Y * weight).sum(), leaves)
        for one, other in zip(gradients, expected, strict=True):
            assert_close(one, other)
    table = torch.ones(rows, 11, dtype=torch.bool)
    assert_close(mechanism(*first, Mask(mask.real, causal, table), context).Y, want.Y)


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"global_tokens": torch.zeros(3, 7, dtype=torch.int64)}, r"\[3, 7\], got shape \[3, 7\] of int64"),
        ({"global_tokens": torch.zeros(3, 5, dtype=torch.bool)}, r"\[3, 7\], got shape \[3, 5\] of bool"),
        ({"global_tokens": torch.zeros(2, 7, dtype=torch.bool)}, r"\[3, 7\], got shape \[2, 7\] of bool"),
        ({"global_qkv": (ONE, ONE, ONE)}, r"the shapes of Q, K and V: .* got \[1\], "),
    ],
)
def test_a_context_that_does_not_fit(fields: dict[str, Any], message: str) -> None:
    with unchecked(), pytest.raises(UsageError, match=message):
        Longformer()(*qkv(i=7), None, Context(**fields))


def test_only_global_tokens_use_the_second_projections() -> None:
    first, again = qkv(1, 2, 29, 29, 5, 7, seed=1), qkv(1, 2, 29, 29, 5, 7, seed=2)
    mechanism = Longformer(window=3, n_global=2)
    plain, twice = mechanism(*first).Y, mechanism(*first, None, Context(global_qkv=(again.Q, again.K, again.V))).Y
    assert torch.equal(plain[:, :, 2:], twice[:, :, 2:])
    assert_close(twice[:, :, :2], Dense()(*again).Y[:, :, :2])


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_the_full_graph_is_dense_attention() -> None:
    """S4.75, with the scale and without the residual of eq. 11."""
    inputs = qkv()
    dense = Dense()(*inputs).Y
    assert torch.equal(Graph()(*inputs).Y, dense)
    for full in (torch.ones(5, 7, dtype=torch.bool), [range(7)] * 5, lambda i, j: True):
        assert_close(Graph(graph=full)(*inputs).Y, dense)


RING = [[(i - 1) % 7, i, (i + 1) % 7] for i in range(7)]


@pytest.mark.parametrize(
    "graph",
    [
        RING,
        torch.tensor([[j in row for j in range(7)] for row in RING]),
        np.array([[j in row for j in range(7)] for row in RING]),
        lambda i, j: (i - j) % 7 <= 1 or (j - i) % 7 <= 1,
        WherePattern(lambda i, j: ((i - j) % 7 <= 1) | ((j - i) % 7 <= 1)),
    ],
    ids=["lists", "matrix", "array", "predicate", "rule"],
)
@pytest.mark.parametrize(
    "mask", [Mask(), Mask(causal=True), Mask.from_lengths([7, 5, 1])], ids=["none", "causal", "padding"]
)
def test_a_ring_given_in_five_ways(graph: object, mask: Mask) -> None:
    inputs = qkv(i=7, grad=True)
    mechanism = Graph(graph=graph)  # pyright: ignore[reportArgumentType]
    table = torch.tensor([[j in row for j in range(7)] for row in RING])
    want = outputs_and_gradients(Dense(), inputs, Mask(mask.real, mask.causal, table))
    for one, other in zip(outputs_and_gradients(mechanism, inputs, mask), want, strict=True):
        assert_close(one, other)
    assert mechanism.cost(7, 7, Geometry(2, 11, 13)).edges == 2 * 21
    got = mechanism(*inputs, mask, weights=True)
    assert_close(got.Y, mechanism.reference(*inputs, mask, Context()).Y)


def test_a_predicate_is_asked_about_numbers() -> None:
    """Tensors would never be found in a set, and the edge would be lost without a word."""
    extra = {(0, 3)}
    graph = Graph(graph=lambda i, j: i == j or (i, j) in extra)
    P = graph(*qkv(i=7), weights=True).P
    assert P is not None and bool((P[:, :, 0, 3] > 0).all())
    assert len(graph.collected(2, 7, 7, causal=False)[0]) == 8


def test_a_graph_can_be_pickled() -> None:
    graph = Graph(graph=RING)
    inputs = qkv(i=7)
    want = graph(*inputs).Y
    assert torch.equal(pickle.loads(pickle.dumps(graph))(*inputs).Y, want)


def test_ragged_neighbours_and_none_at_all() -> None:
    graph = [[], [0, 1, 2, 3, 4, 5, 6], [3], [], [6, 0]]
    inputs = qkv(grad=True)
    table = torch.tensor([[j in row for j in range(7)] for row in graph])
    for real in (None, torch.tensor([[1, 1, 1, 0, 1, 1, 1]]).bool()):
        got = outputs_and_gradients(Graph(graph=graph), inputs, Mask(real))
        for one, other in zip(got, outputs_and_gradients(Dense(), inputs, Mask(real, dense=table)), strict=True):
            assert_close(one, other)
        assert (got[0][:, :, [0, 3]] == 0).all()


def test_patterns_unite_in_a_graph() -> None:
    inputs = qkv(2, 2, 41, 41, 5, 7)
    assert_close(
        Graph(graph=WindowPattern(3) | GlobalPattern(2))(*inputs).Y, Longformer(window=3, n_global=2)(*inputs).Y
    )
    assert_close(
        Graph(graph=WindowPattern(3, (1, 2)))(*inputs).Y, WindowAttention(window=3, dilation=(1, 2))(*inputs).Y
    )


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (torch.ones(7, 7, dtype=torch.bool), r"a graph of 5 queries and 7 keys, got a matrix \[7, 7\]"),
        ([[0]] * 4, "a graph of 5 queries and 7 keys, got 4 lists with keys up to 0"),
        ([[0], [1], [2], [3], [7]], "got 5 lists with keys up to 7"),
        (torch.ones(5, 7), "a boolean matrix, a list of neighbours for each query, a predicate"),
        ([[-1]], "got lists with other entries than positions from 0"),
        ("ring", "a boolean matrix, a list of neighbours"),
    ],
)
def test_graphs_that_do_not_fit(graph: object, message: str) -> None:
    with unchecked(), pytest.raises(UsageError, match=message):
        Graph(graph=graph)(*qkv())  # pyright: ignore[reportArgumentType]


# --- memory -----------------------------------------------------------------------------------------------------------

LONG = """
import resource, torch
from attnworks.attention import Mask, MechanismSpec, Geometry
torch.set_num_threads(1)
mechanism = MechanismSpec.parse({spec!r}).build(Geometry(8, 64, 64))
inputs = [torch.randn(1, 8, 65_536, 64, requires_grad=True) for _ in range(3)]
mechanism(*inputs, Mask(causal={causal})).Y.sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "causal"),
    [
        ("window:window=256", False),
        ("window:window=64,dilation=1/4", True),
        ("bigbird", False),
        ("longformer:window=256,n_global=16", False),
        ("linear", False),
        ("linear", True),
        ("linformer:rank=256,length=65536", False),
    ],
)
def test_65536_tokens_forward_and_backward_in_under_4_gigabytes(spec: str, causal: bool) -> None:
    code = LONG.format(spec=spec, causal=causal)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4e9
