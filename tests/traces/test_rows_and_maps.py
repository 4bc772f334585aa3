"""Maps and rows of a layer, piece by piece, against plain loops over sentences, heads and queries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.attention import Mask
from attnworks.attention.heads import HeadWeights
from attnworks.core.notation import tolerance
from attnworks.core.places import Slot
from attnworks.text.tokens import Tokens
from attnworks.traces import maps as maps_module
from attnworks.traces.layer import LayerTrace
from attnworks.traces.maps import Maps, maps_of, same_lengths
from attnworks.traces.rows import LayerRows, output_grams, rows_of, sink_keys
from tests.traces.trace_helpers import random_tokens

HEADS, WIDTH, VALUE, STREAM, SPAN = 6, 5, 3, 11, 4
LENGTHS, KEY_LENGTHS = (7, 7, 7, 5, 3, 3, 1), (11, 11, 2, 5, 7, 7, 13)
ALL_SPECIAL = 3
"""A sentence that may have special tokens only."""
SCALE = 0.7
RTOL, ATOL = tolerance(torch.float64)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chance(*shape: int, share: float = 0.6, seed: int = 11) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def marked(tokens: Tokens, where: str) -> Tokens:
    """With special tokens at both ends, as they are, or anywhere, where one sentence has no other, or unknown."""
    if where == "ends":
        return tokens
    assert tokens.special is not None
    special = chance(*tokens.ids.shape, share=0.3, seed=5) & tokens.real
    special[ALL_SPECIAL] = tokens.real[ALL_SPECIAL]
    return replace(tokens, special=special if where == "anywhere" else None)


def traced(
    mask: Mask, *, cross: bool = False, groups: int = HEADS, special: str = "ends", **changes: Any
) -> LayerTrace:
    queries = marked(random_tokens(LENGTHS), special)
    keys = marked(random_tokens(KEY_LENGTHS, seed=1), special) if cross else queries
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


W_O = draw(HEADS, VALUE, STREAM, seed=9)
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
    "special-anywhere": traced(Mask(), special="anywhere", groups=3),
    "special-anywhere-causal": traced(Mask(causal=True), special="anywhere", groups=2),
    "special-anywhere-cross": traced(Mask(), special="anywhere", cross=True),
    "special-unknown": traced(Mask(causal=True), special="unknown"),
}
by_case = pytest.mark.parametrize("case", CASES)


class Row:
    """One query of one head of one sentence, computed key by key."""

    def __init__(self, trace: LayerTrace, s: int, h: int, i: int) -> None:
        n, m = int(trace.queries.lengths[s]), int(trace.keys.lengths[s])
        group = h * trace.K.shape[1] // HEADS
        self.scores = [SCALE * float(trace.Q[s, h, i] @ trace.K[s, group, j]) for j in range(m)]
        special = trace.keys.special
        self.behind = [j for j in range(1, m) if special is None or not bool(special[s, j])]
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
        self.effects = [
            float((self.P[j] * trace.V[s, h * trace.V.shape[1] // HEADS, j] @ W_O[h]).norm()) for j in range(m)
        ]


def equal(got: Tensor, expected: float) -> None:
    assert abs(float(got) - expected) <= 1e-10 + 1e-9 * abs(expected)


def some_keys(trace: LayerTrace, number: int) -> Tensor:
    """Different numbers for every query, some of them below zero or behind the last key."""
    source = torch.Generator().manual_seed(number)
    drawn = torch.rand(*trace.queries.ids.shape, KEYS + 5, generator=source)
    return drawn.argsort(-1)[..., :number] - 2


def pointers_of(trace: LayerTrace) -> dict[str, Tensor]:
    none = torch.full((*trace.queries.ids.shape, 1), -1)
    return {"one": some_keys(trace, 1), "nowhere": none, "some": some_keys(trace, 5), "zero": torch.zeros_like(none)}


@by_case
def test_rows_are_those_of_plain_loops(case: str) -> None:
    trace = CASES[case]
    pointers = pointers_of(trace)
    rows = rows_of(trace, SPAN, pointers)
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
                equal(rows.rest[s, h, i], sum(row.P[j] for j in row.behind))
                equal(rows.rest_max[s, h, i], max((row.P[j] for j in row.behind), default=0.0))
                for name, keys in pointers.items():
                    named = [j for j in row.behind if j in keys[s, i].tolist()]
                    equal(rows.pointed[name][s, h, i], sum(row.P[j] for j in named))
                most[i] = max(most[i], len(row.seen))
                for j in range(m):
                    received[j] += row.P[j] / n
                    if abs(j - i) <= SPAN and j in row.behind:
                        diagonal[j - i + SPAN] += row.P[j]
            for j in range(m):
                equal(rows.received[s, h, j], received[j])
            for offset in range(2 * SPAN + 1):
                equal(rows.diagonal[s, h, offset], diagonal[offset])
        assert rows.visible[s, :n].tolist() == most
    assert not rows.pointed["nowhere"].any() and not rows.pointed["zero"].any()
    assert rows.pointed["some"].any() and rows.pointed["one"].any()


@by_case
def test_effects_are_those_of_plain_loops(case: str) -> None:
    """|P_ij v_j W_O| of every weight by itself, where heads may share their values."""
    trace = CASES[case]
    pointers = pointers_of(trace)
    rows = rows_of(trace, SPAN, pointers, grams=W_O @ W_O.mT)
    assert rows.first_effect is not None and rows.effect is not None
    assert rows.rest_effect is not None and rows.pointed_effect is not None
    for s in range(B):
        for h in range(HEADS):
            for i in range(int(trace.queries.lengths[s])):
                row = Row(trace, s, h, i)
                equal(rows.first_effect[s, h, i], row.effects[0])
                equal(rows.effect[s, h, i], sum(row.effects))
                equal(rows.rest_effect[s, h, i], sum(row.effects[j] for j in row.behind))
                for name, keys in pointers.items():
                    named = [j for j in row.behind if j in keys[s, i].tolist()]
                    equal(rows.pointed_effect[name][s, h, i], sum(row.effects[j] for j in named))
    without = rows_of(trace, SPAN, pointers)
    for name in ("rest", "rest_max", "diagonal", "received"):
        torch.testing.assert_close(getattr(rows, name), getattr(without, name), rtol=RTOL, atol=ATOL)
    effects = (without.first_effect, without.effect, without.rest_effect, without.pointed_effect)
    assert effects == (None,) * 4


def test_the_first_token_and_special_tokens_are_sinks() -> None:
    tokens = CASES["special-anywhere"].keys
    assert tokens.special is not None
    found = sink_keys(tokens)
    for s, n in enumerate(LENGTHS):
        assert found[s].tolist() == [j < n and (j == 0 or bool(tokens.special[s, j])) for j in range(QUERIES)]
    assert found[ALL_SPECIAL].sum() == LENGTHS[ALL_SPECIAL]
    assert sink_keys(CASES["special-unknown"].keys).tolist() == [[True] + [False] * (QUERIES - 1)] * B


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_grams_of_output_weights(dtype: torch.dtype) -> None:
    """v (W_O W_O^T) v^T = |v W_O|^2, in float32 or wider."""
    other = draw(HEADS, STREAM, WIDTH, seed=1).to(dtype)
    values, weights = draw(HEADS, STREAM, VALUE, seed=2).to(dtype), W_O.to(dtype)
    grams = output_grams(HeadWeights(other, other, values, weights, None, None, None, None, HEADS, SCALE))
    assert grams.dtype == torch.promote_types(dtype, torch.float32)
    for h in range(HEADS):
        for a in range(VALUE):
            for b in range(VALUE):
                expected = float(weights[h, a].double() @ weights[h, b].double())
                assert abs(float(grams[h, a, b]) - expected) < (1e-12 if dtype == torch.float64 else 1e-4)


@by_case
def test_nothing_is_said_of_padding(case: str) -> None:
    trace = CASES[case]
    rows = rows_of(trace, SPAN, {"all": torch.arange(KEYS).expand(*trace.queries.ids.shape, -1)}, grams=W_O @ W_O.mT)
    away, keys_away = (~tokens.real[:, None].expand(B, HEADS, -1) for tokens in (trace.queries, trace.keys))
    at_queries = [value for value in fields(rows) if value.shape == rows.entropy.shape and value is not rows.argmax]
    assert len(at_queries) == 14 + (rows.received.shape == rows.entropy.shape)
    for values in at_queries:
        assert (values[away] == 0).all()
    assert (rows.argmax[away] == -1).all()
    assert (rows.received[keys_away] == 0).all() and (rows.visible[~trace.queries.real] == 0).all()


def fields(rows: LayerRows) -> list[Tensor]:
    by_name = [value for value in vars(rows).values() if isinstance(value, Mapping)]
    tensors = [value for value in vars(rows).values() if isinstance(value, Tensor)]
    return tensors + [value for named in by_name for value in named.values()]


@pytest.mark.parametrize("at_once", [1, 50, 300])
@by_case
def test_pieces_of_any_size_give_the_same(case: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = CASES[case]
    pointers, grams = pointers_of(trace), W_O @ W_O.mT
    whole, pieces = rows_of(trace, SPAN, pointers, grams=grams), list(maps_of(trace))
    monkeypatch.setattr(maps_module, "WEIGHTS_AT_ONCE", at_once)
    seen: list[Maps] = []
    small = rows_of(trace, SPAN, pointers, seen.append, grams=grams)
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
