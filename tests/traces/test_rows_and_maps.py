"""Maps and rows of a layer, piece by piece, against plain loops over sentences, heads and queries."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.attention import Mask
from attnworks.core.notation import tolerance
from attnworks.core.places import Slot
from attnworks.text.tokens import Tokens
from attnworks.traces import maps as maps_module
from attnworks.traces.layer import LayerTrace
from attnworks.traces.maps import Maps, maps_of, same_lengths
from attnworks.traces.rows import LayerRows, rows_of
from tests.traces.trace_helpers import random_tokens

HEADS, WIDTH, VALUE, SPAN = 6, 5, 3, 4
LENGTHS, KEY_LENGTHS = (7, 7, 7, 5, 3, 3, 1), (11, 11, 2, 5, 7, 7, 13)
SCALE = 0.7
RTOL, ATOL = tolerance(torch.float64)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chance(*shape: int, share: float = 0.6, seed: int = 11) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def traced(mask: Mask, *, cross: bool = False, groups: int = HEADS, **changes: Any) -> LayerTrace:
    queries = random_tokens(LENGTHS)
    keys = random_tokens(KEY_LENGTHS, seed=1) if cross else queries
    (b, i), j = queries.ids.shape, keys.ids.shape[1]
    Q, K, V = draw(b, HEADS, i, WIDTH, seed=2), draw(b, groups, j, WIDTH, seed=3), draw(b, groups, j, VALUE, seed=4)
    Y = draw(b, HEADS, i, VALUE, seed=5)
    slot = Slot("cross" if cross else "decoder" if mask.causal else "encoder", 1)
    fields: dict[str, Any] = {"scale": SCALE, "queries": queries, "keys": keys}
    return LayerTrace(slot, Q, K, V, Y, mask, **(fields | changes))


def table(shape: tuple[int, ...], *, additive: bool, seed: int = 11) -> Tensor:
    allowed = chance(*shape, seed=seed)
    allowed[..., 0] = True
    return draw(*shape, seed=seed).masked_fill(~allowed, -torch.inf) if additive else allowed


QUERIES, KEYS = max(LENGTHS), max(KEY_LENGTHS)
B = len(LENGTHS)


def blind_table() -> Tensor:
    """Some queries see no key at all."""
    allowed = table((B, 1, QUERIES, QUERIES), additive=False)
    allowed[0, :, 2], allowed[3, :, 0], allowed[6] = False, False, False
    return allowed


def smallest(dtype: torch.dtype) -> Tensor:
    summands = table((B, 1, QUERIES, QUERIES), additive=True)
    return summands.masked_fill(summands == -torch.inf, torch.finfo(dtype).min)


CASES: dict[str, LayerTrace] = {
    "padding": traced(Mask()),
    "causal": traced(Mask(causal=True)),
    "cross": traced(Mask(), cross=True),
    "grouped": traced(Mask(causal=True), groups=2),
    "one-key-head": traced(Mask(), groups=1),
    "dense": traced(Mask(dense=table((B, 1, QUERIES, QUERIES), additive=False))),
    "dense-for-all": traced(Mask(dense=table((QUERIES, QUERIES), additive=False))),
    "dense-per-head": traced(Mask(dense=table((B, HEADS, QUERIES, QUERIES), additive=False))),
    "dense-heads-alone": traced(Mask(dense=table((HEADS, QUERIES, QUERIES), additive=False), causal=True)),
    "additive": traced(Mask(dense=table((B, 1, QUERIES, QUERIES), additive=True))),
    "additive-per-head": traced(Mask(dense=table((1, HEADS, QUERIES, KEYS), additive=True)), cross=True, groups=3),
    "smallest-number": traced(Mask(dense=smallest(torch.float32))),
    "blind": traced(Mask(dense=blind_table())),
}
by_case = pytest.mark.parametrize("case", CASES)


class Row:
    """One query of one head of one sentence, computed key by key."""

    def __init__(self, trace: LayerTrace, s: int, h: int, i: int) -> None:
        n, m = int(trace.queries.lengths[s]), int(trace.keys.lengths[s])
        group = h * trace.K.shape[1] // HEADS
        self.scores = [SCALE * float(trace.Q[s, h, i] @ trace.K[s, group, j]) for j in range(m)]
        assert i < n
        self.seen: list[int] = []
        S: dict[int, float] = {}
        for j in range(m):
            added = 0.0
            if trace.mask.dense is not None:
                full = trace.mask.dense.expand(B, HEADS, QUERIES, trace.K.shape[2])[s, h, i, j]
                if full.dtype == torch.bool:
                    added = 0.0 if full else -math.inf
                else:
                    added = float(full) if float(full) > -1e30 else -math.inf
            if (trace.mask.causal and j > i) or added == -math.inf:
                continue
            self.seen.append(j)
            S[j] = self.scores[j] + added
        total = sum(math.exp(score) for score in S.values())
        self.P = [math.exp(S[j]) / total if j in S else 0.0 for j in range(m)]
        self.entropy = -sum(p * math.log(p) for p in self.P if p)
        p = torch.tensor(self.P, dtype=torch.float64)
        self.jacobian = float(torch.linalg.matrix_norm(p.diag() - p.outer(p)))
        self.range = max(S.values()) - min(S.values()) if S else 0.0
        self.argmax = max(S, key=lambda j: S[j]) if S else -1
        self.norm = math.sqrt(sum(score**2 for score in self.scores))


def equal(got: Tensor, expected: float) -> None:
    assert abs(float(got) - expected) <= 1e-10 + 1e-9 * abs(expected)


@by_case
def test_rows_are_those_of_plain_loops(case: str) -> None:
    trace = CASES[case]
    pointer = torch.randint(-1, KEYS + 3, trace.queries.ids.shape, generator=torch.Generator().manual_seed(7))
    rows = rows_of(trace, SPAN, {"somewhere": pointer, "nowhere": torch.full_like(pointer, -1)})
    for s in range(B):
        n, m = int(trace.queries.lengths[s]), int(trace.keys.lengths[s])
        most = [0] * n
        for h in range(HEADS):
            received, diagonal = [0.0] * m, [0.0] * (2 * SPAN + 1)
            for i in range(n):
                row = Row(trace, s, h, i)
                equal(rows.entropy[s, h, i], row.entropy)
                equal(rows.max_weight[s, h, i], max(row.P))
                equal(rows.jacobian_norm[s, h, i], row.jacobian)
                equal(rows.score_range[s, h, i], row.range)
                equal(rows.score_norm[s, h, i], row.norm)
                alone = len(row.seen) == 1 or row.range > 0
                assert int(rows.argmax[s, h, i]) == (row.argmax if alone else -1)
                at = int(pointer[s, i])
                equal(rows.pointed["somewhere"][s, h, i], row.P[at] if 0 <= at < m else 0.0)
                most[i] = max(most[i], len(row.seen))
                for j in range(m):
                    received[j] += row.P[j] / n
                    if abs(j - i) <= SPAN:
                        diagonal[j - i + SPAN] += row.P[j]
            for j in range(m):
                equal(rows.received[s, h, j], received[j])
            for offset in range(2 * SPAN + 1):
                equal(rows.diagonal[s, h, offset], diagonal[offset])
        assert rows.visible[s, :n].tolist() == most
    assert not rows.pointed["nowhere"].any()


@by_case
def test_nothing_is_said_of_padding(case: str) -> None:
    trace = CASES[case]
    rows = rows_of(trace, SPAN, {"first": torch.zeros_like(trace.queries.ids)})
    away, keys_away = (~tokens.real[:, None].expand(B, HEADS, -1) for tokens in (trace.queries, trace.keys))
    for values in (rows.entropy, rows.max_weight, rows.jacobian_norm, rows.score_range, rows.score_norm):
        assert (values[away] == 0).all()
    assert (rows.pointed["first"][away] == 0).all() and (rows.argmax[away] == -1).all()
    assert (rows.received[keys_away] == 0).all() and (rows.visible[~trace.queries.real] == 0).all()


def fields(rows: LayerRows) -> list[Tensor]:
    return [value for value in vars(rows).values() if isinstance(value, Tensor)] + list(rows.pointed.values())


@pytest.mark.parametrize("at_once", [1, 50, 300])
@by_case
def test_pieces_of_any_size_give_the_same(case: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = CASES[case]
    pointers = {"first": torch.zeros_like(trace.queries.ids)}
    whole, pieces = rows_of(trace, SPAN, pointers), list(maps_of(trace))
    monkeypatch.setattr(maps_module, "WEIGHTS_AT_ONCE", at_once)
    seen: list[Maps] = []
    small = rows_of(trace, SPAN, pointers, seen.append)
    for got, expected in zip(fields(small), fields(whole), strict=True):
        torch.testing.assert_close(got, expected, rtol=RTOL, atol=ATOL)
    assert len(seen) > len(pieces)
    assert all(piece.P.numel() <= max(at_once, piece.P.shape[-2] * piece.P.shape[-1]) for piece in seen)
    covered = torch.zeros(B, HEADS, dtype=torch.int64)
    for piece in seen:
        covered[piece.sentences, piece.heads] += 1
    assert (covered == 1).all()


@by_case
def test_maps_times_values_are_those_of_attention(case: str) -> None:
    trace = CASES[case]
    for piece in maps_of(trace):
        (i, j), group = piece.P.shape[-2:], HEADS // trace.V.shape[1]
        V = trace.V.repeat_interleave(group, 1)[piece.sentences, piece.heads, :j]
        assert torch.equal(piece.V, V) and piece.slot == trace.slot
        assert {int(n) for n in trace.queries.lengths[piece.sentences]} == {i}
        assert {int(m) for m in trace.keys.lengths[piece.sentences]} == {j}
        sums = piece.P.sum(-1)
        torch.testing.assert_close(sums, (piece.P.amax(-1) > 0).double(), rtol=RTOL, atol=ATOL)


def test_weights_of_layers_that_score_otherwise() -> None:
    """Without a scale the layer's own weights are read off; their scores have no norm."""
    plain = CASES["causal"]
    P = torch.zeros(B, HEADS, QUERIES, QUERIES, dtype=torch.float64)
    for piece in maps_of(plain):
        P[piece.sentences, piece.heads, : piece.P.shape[-2], : piece.P.shape[-1]] = piece.P
    trace = traced(Mask(causal=True), scale=None, weigh=lambda: P)
    got, expected = rows_of(trace, SPAN), rows_of(plain, SPAN)
    for name in ("entropy", "max_weight", "jacobian_norm", "received", "diagonal", "score_range"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=1e-9, atol=1e-10)
    assert torch.equal(got.argmax, expected.argmax) and torch.equal(got.visible, expected.visible)
    assert not got.score_norm.any()


def test_keys_without_weight_have_no_score() -> None:
    """The range of ln P is over the keys that are seen: ln 0 stands for no number."""
    P = torch.zeros(B, HEADS, QUERIES, QUERIES, dtype=torch.float64)
    P[..., 0], P[..., 1] = 0.8, 0.2
    rows = rows_of(traced(Mask(), scale=None, weigh=lambda: P), SPAN)
    found = rows.score_range[rows.score_range > 0]
    assert len(found) and torch.allclose(found.double(), torch.tensor(4.0).log().double(), atol=1e-5)


def test_half_precision_is_weighed_in_float32() -> None:
    trace = CASES["padding"]
    fields = {name: getattr(trace, name).bfloat16() for name in ("Q", "K", "V", "Y")}
    half = LayerTrace(trace.slot, **fields, mask=Mask(), scale=SCALE, queries=trace.queries, keys=trace.keys)
    rows = rows_of(half, SPAN)
    assert rows.entropy.dtype == torch.float32
    torch.testing.assert_close(rows.entropy.double(), rows_of(trace, SPAN).entropy, rtol=3e-2, atol=3e-2)


def test_the_mean_of_a_sentence() -> None:
    trace = CASES["padding"]
    rows = rows_of(trace, SPAN)
    values, valid = rows.mean(rows.entropy)
    assert valid.all()
    for s, n in enumerate(LENGTHS):
        torch.testing.assert_close(values[s], rows.entropy[s, :, :n].mean(-1), rtol=RTOL, atol=ATOL)
    where = torch.zeros(B, QUERIES, dtype=torch.bool)
    where[0, [1, 3]], where[4] = True, True
    values, valid = rows.mean(rows.entropy, where)
    assert valid.flatten().tolist() == [True, False, False, False, True, False, False]
    torch.testing.assert_close(values[0], rows.entropy[0, :, [1, 3]].mean(-1), rtol=RTOL, atol=ATOL)
    torch.testing.assert_close(values[4], rows.entropy[4, :, :3].mean(-1), rtol=RTOL, atol=ATOL)


def lengths_alone(lengths: tuple[int, ...]) -> Tokens:
    return random_tokens(lengths)


@pytest.mark.parametrize("pairs", [1, 49, 98, 99, 10**6])
def test_runs_of_one_length(pairs: int) -> None:
    queries, keys = lengths_alone((7, 7, 7, 5, 5, 7)), lengths_alone((7, 7, 7, 5, 3, 7))
    runs = list(same_lengths(queries, keys, pairs))
    assert [s for run, _, _ in runs for s in range(run.start, run.stop)] == list(range(6))
    for run, i, j in runs:
        assert {*queries.lengths[run].tolist()} == {i} and {*keys.lengths[run].tolist()} == {j}
        assert (run.stop - run.start) * i * j <= max(pairs, i * j)
    assert len(runs) == {1: 6, 49: 6, 98: 5, 99: 5, 10**6: 4}[pairs]
