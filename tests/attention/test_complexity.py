"""Rows of the complexity table, derived from mechanisms: against their costs, their references, and toys we know."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from attnworks import attention
from attnworks.attention import MECHANISMS, Attended, AttentionCost, Context, Geometry, Mask, MechanismSpec
from attnworks.attention.complexity import (
    Complexity,
    CostGrowth,
    LongestPath,
    complexity,
    cost_growth,
    graph_diameter,
    layers_needed,
    longest_path,
    pays_from,
    recurrent_complexity,
    support,
)
from attnworks.attention.dense import Dense
from attnworks.core.errors import UsageError
from tests.helpers import qkv

GEOMETRY = Geometry(2, 32, 32)
every_mechanism = pytest.mark.parametrize("name", attention.names())


def row(text: str, n: int = 4096, geometry: Geometry = GEOMETRY) -> Complexity:
    return complexity(MechanismSpec.parse(text), n, geometry)


# --- toys whose rows are known ----------------------------------------------------------------------------------------


class Patterned(Dense):
    """Dense attention on the pairs of `linked`, which gets the offsets j - i."""

    def linked(self, offset: Tensor) -> Tensor:
        raise NotImplementedError

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        offset = torch.arange(K.shape[2]) - torch.arange(Q.shape[2])[:, None]
        return super().attend(Q, K, V, Mask(dense=self.linked(offset)), context, weights)


class ToyWindow(Patterned):
    name = "toy-window"

    def __init__(self, *, window: int = 5, start: int = 3, even: int = 4) -> None:
        super().__init__()
        if even % 3 == 2:
            raise UsageError("even", "another", str(even), "choose another")
        self.window, self.start = window, start

    def linked(self, offset: Tensor) -> Tensor:
        return offset.abs() <= self.window

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        edges = geometry.heads * queries * min(keys, 2 * self.window + 1)
        return AttentionCost(edges, 2 * edges * (geometry.d_k + geometry.d_v) + 1000 * queries + self.start, 4 * edges)


class ToyPowers(Patterned):
    """Everyone sees positions 1, 2, 4, 8, ... away."""

    name = "toy-powers"

    def linked(self, offset: Tensor) -> Tensor:
        return offset.abs().double().log2() % 1 == 0

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        edges = geometry.heads * queries * (2 * keys.bit_length())
        return AttentionCost(edges, 2 * edges * (geometry.d_k + geometry.d_v), 4 * queries)


class ToySplit(Patterned):
    """Odd positions see odd ones, even ones even ones."""

    name = "toy-split"
    needs = frozenset({"global_tokens", "global_qkv"})

    def linked(self, offset: Tensor) -> Tensor:
        return offset % 2 == 0

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        return AttentionCost(1, math.isqrt(queries) * queries, geometry.d_k**2)


class ToyRing(Patterned):
    """Neighbours, and the two ends are neighbours too."""

    name = "toy-ring"
    cost = ToySplit.cost

    def linked(self, offset: Tensor) -> Tensor:
        return (offset.abs() == 1) | (offset.abs() == len(offset) - 1)


class ToyLate(Patterned):
    """Up to 65 positions all see each other, and in longer sequences two layers are enough."""

    name = "toy-late"
    cost = ToySplit.cost

    def linked(self, offset: Tensor) -> Tensor:
        return (offset.abs() <= 64) | (offset % 64 == 0)


class ToyShort(Dense):
    """Dense, for at most `length` positions."""

    name = "toy-short"

    def __init__(self, *, length: int = 100) -> None:
        super().__init__()
        self.length = length

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        if Q.shape[2] > self.length:
            raise UsageError("all", f"{self.length}", f"{Q.shape[2]}", "cut it")
        return super().attend(Q, K, V, mask, context, weights)


TOYS = (ToyWindow, ToyPowers, ToySplit, ToyRing, ToyLate, ToyShort)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for toy in TOYS:
        monkeypatch.setitem(MECHANISMS._entries, toy.name, toy)
    yield


@pytest.mark.usefixtures("toys")
def test_a_mechanism_that_nobody_listed_gets_its_row() -> None:
    found = row("toy-window")
    assert (str(found.time), str(found.memory), found.steps) == ("O(n d)", "O(n)", "O(1)")
    assert found.path == LongestPath("O(n)", layers_needed(4096, 5)) and found.options == ("window",)
    assert found.cost == ToyWindow().cost(4096, 4096, GEOMETRY)
    assert row("toy-window:window=64").path == LongestPath("O(n)", 64)
    assert row("toy-window:window=0").path == LongestPath("never", None)


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("window", [1, 2, 7, 16, 50])
def test_paths_of_windows_in_closed_form(window: int) -> None:
    """S4.85."""
    for n in (2999, 65536):
        assert row(f"toy-window:window={window}", n).path.layers == layers_needed(n, window)


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("n", [1, 2, 61, 257])
def test_a_short_sequence_is_measured_and_not_guessed(n: int) -> None:
    assert row("toy-window", n).path == LongestPath("O(n)", layers_needed(n, 5))


@pytest.mark.usefixtures("toys")
def test_logarithmic_paths_and_roots_and_pieces() -> None:
    guessed, n = longest_path(MechanismSpec("toy-powers"), 700, 1, scale=1), 700
    measured = graph_diameter(support(MechanismSpec("toy-powers"), n, 1))
    assert guessed.law == "O(log n)" and guessed.layers == measured
    assert str(row("toy-powers").time) == "O(n d)"  # a logarithm counts for nothing
    assert row("toy-ring", 4099).path == LongestPath("O(n)", 2049)
    split = row("toy-split")
    assert (str(split.time), str(split.memory)) == ("O(n√n)", "O(d²)")
    assert split.path == LongestPath("never", None)


@pytest.mark.usefixtures("toys")
def test_graphs_are_as_large_as_it_takes_and_as_is_allowed() -> None:
    assert row("toy-late").path == LongestPath("O(1)", 2) and row("toy-late", 61).path == LongestPath("O(1)", 1)
    assert row("toy-short").path == row("toy-short:length=17").path == LongestPath("O(1)", 1)
    with pytest.raises(UsageError, match="expected 7, got 17"):
        row("toy-short:length=7")


def test_words_of_growth() -> None:
    assert [str(CostGrowth(*powers)) for powers in ((2, 1), (0.5, 2), (0, 0), (1.5, 0), (3, 0.5), (4, 1))] == [
        "O(n² d)",
        "O(√n d²)",
        "O(1)",
        "O(n√n)",
        "O(n³ √d)",
        "O(n^4 d)",
    ]
    assert cost_growth(lambda n, d: AttentionCost(1, 7 * n**2 * d + 10 * n * d**2, 3 * n**3 + n * d)) == (
        (2, 1),
        (3, 0),
    )
    assert cost_growth(lambda n, d: AttentionCost(n, n**2 * d + 1000 * n * d, n)) == (
        (2, 1),
        (1, 0),
    )  # only where n is large


# --- what is registered -----------------------------------------------------------------------------------------------


@every_mechanism
def test_growth_is_that_of_the_cost(name: str) -> None:
    """From n to 2n to 4n, and from one width to twice it, at other sizes than those where growth is read."""
    found, spec = row(name, 97), MechanismSpec(name)

    def cost(n: int, width: int) -> AttentionCost:
        geometry = Geometry(1, width, width)
        return spec.build(geometry).cost(n, n, geometry)

    # All pairs are counted where they are few: some mechanisms do it one by one.
    n, width = (384, 96) if cost(768, 96).edges == 768**2 else (98304, 384)
    once, twice, fourfold, wide = (cost(*size) for size in ((n, width), (2 * n, width), (4 * n, width), (n, 2 * width)))
    for said, part in ((found.time, "flops"), (found.memory, "bytes")):
        before, at, after, wider = (getattr(measured, part) for measured in (once, twice, fourfold, wide))
        assert math.log2(at / before) == pytest.approx(said.length, abs=0.3)
        assert math.log2(after / at) == pytest.approx(said.length, abs=0.2)
        assert math.log2(wider / before) == pytest.approx(said.width, abs=0.4)


@every_mechanism
def test_short_paths_are_those_of_the_reference(name: str) -> None:
    n, geometry = 23, Geometry(1, 2, 2)
    mechanism = MechanismSpec(name).build(geometry).double()
    if mechanism.needs:
        return
    P = mechanism.reference(*qkv(1, 1, n, n, 2, 2), Mask(), Context()).P
    assert P is not None
    assert longest_path(MechanismSpec(name), n, 1, scale=1).layers == graph_diameter(P[0, 0] != 0)


KNOWN = {
    "dense": ("O(n² d)", "O(n d)", "O(1)"),
    "luong-dot": ("O(n² d)", "O(n d)", "O(1)"),
    "luong-multiplicative": ("O(n² d)", "O(n d)", "O(1)"),
    "bahdanau-additive": ("O(n² d)", "O(n² d)", "O(1)"),
    "window": ("O(n d)", "O(n d)", "O(n)"),
    "bigbird": ("O(n d)", "O(n d)", "O(1)"),
    "linear": ("O(n d²)", "O(n d)", "O(1)"),
    "longformer": ("O(n d)", "O(n d)", "O(1)"),
    "linformer": ("O(n d)", "O(n d)", "O(1)"),
    "truncated": ("O(n³)", "O(n²)", "O(1)"),
}


@pytest.mark.parametrize("name", [name for name in KNOWN if name in MECHANISMS])
def test_rows_of_the_documents(name: str) -> None:
    """S0.25, S4.70, S4.81, S4.82, S4.86, S4.99, S4.118; paths S4.78, S4.85."""
    found = row(name)
    assert (str(found.time), str(found.memory), found.path.law) == KNOWN[name]


def test_the_recurrent_row() -> None:
    n, geometry = 41, Geometry(3, 5, 7)
    found = recurrent_complexity(n, geometry)
    assert (str(found.time), str(found.memory), found.steps) == ("O(n d²)", "O(n d)", "O(n)")
    assert found.path == LongestPath("O(n)", layers_needed(n, 1))
    matrices = [weight for weight in nn.LSTM(21, 21).parameters() if weight.dim() == 2]
    assert found.cost.flops == 2 * n * sum(weight.numel() for weight in matrices)


# --- where it pays ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_it_pays_from_the_first_length_that_is_cheaper(causal: bool) -> None:
    window, dense = ToyWindow(window=7), Dense()
    first = pays_from(window, GEOMETRY, causal=causal)
    assert first is not None
    for n in range(1, 3 * first):
        cheaper = window.cost(n, n, GEOMETRY).flops < dense.cost(n, n, GEOMETRY, causal=causal).flops
        assert cheaper == (n >= first)


def test_what_is_never_or_always_cheaper() -> None:
    assert pays_from(MECHANISMS["luong-dot"](), GEOMETRY) is None
    assert pays_from(ToySplit(), GEOMETRY) == 1
