"""Attention sinks: every number against plain loops, and heads that sink by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnworks.attention import Mask
from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import MeasureContext, Sample
from attnworks.exam.measures.sinks import Sinks
from attnworks.text.tokens import TokenRow, collate, count_rarity
from attnworks.traces.layer import LayerTrace
from tests.exam.measures.handmade_heads import PAD_ID, batched, examine, handmade_maps, keys_behind, look, trace_of
from tests.helpers import assert_close

H, LONGEST, VALUE, STREAM = 3, 7, 2, 5


def row(*special: bool) -> TokenRow:
    return TokenRow(tuple(range(5, 5 + len(special))), special, tuple(range(len(special))))


ROWS = [
    row(True, False, False, False, True, False, True),
    row(True, True, False, False, False),
    row(False, False, False),
    row(False, False, True),
    row(True),
    row(True, True),
    row(True, False, False, False, True),
]


def maps_and_trace(kind: Kind, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], LayerTrace, list[TokenRow]]:
    causal = kind == "decoder"
    queries = ROWS[::-1] if kind == "cross" else ROWS
    rarity = dict(count_rarity(ROWS))
    source = torch.Generator().manual_seed(3)
    maps = handmade_maps(["random 1", "random 3", "first"], queries, ROWS, rarity, causal, "random", source)
    K = collate(ROWS, PAD_ID, rarity)
    Q = collate(queries, PAD_ID, rarity) if kind == "cross" else K
    return maps, trace_of(Slot(kind, 0), batched(maps, Q, K).to(dtype), Q, K, causal), queries


def assert_sample(sample: Sample, by_loop: Callable[[int, Tensor], float | None], maps: list[Tensor]) -> None:
    """One number for each sentence and its P [i j]; None where the sentence says nothing."""
    assert sample.valid is not None
    values = sample.values if sample.values.dim() == 2 else sample.values.unsqueeze(-1)
    valid = (sample.valid if sample.valid.dim() == 2 else sample.valid.unsqueeze(-1)).expand_as(values)
    for sentence, heads in enumerate(maps):
        for head in range(values.shape[1]):
            expected = by_loop(sentence, heads[head])
            assert valid[sentence, head].item() == (expected is not None), sentence
            if expected is not None:
                assert_close(
                    values[sentence, head].double(), torch.tensor(expected, dtype=torch.float64), torch.float64
                )


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_sinks_by_loops(kind: Kind) -> None:
    maps, trace, queries = maps_and_trace(kind)
    found = look(Sinks(MeasureContext(LONGEST)), trace, LONGEST - 1)
    seen = [torch.ones_like(P).tril() if kind == "decoder" else torch.ones_like(P) for P in maps]
    even = [P / P.sum(-1, keepdim=True) for P in seen]

    def keys_of(s: int, i: int) -> range:
        return range(i + 1 if kind == "decoder" else len(ROWS[s]))

    def choices(s: int) -> list[int]:
        return [i for i in range(len(queries[s])) if len(keys_of(s, i)) > 1]

    def first(s: int, P: Tensor) -> float | None:
        return sum(P[i, 0].item() for i in choices(s)) / len(choices(s)) if choices(s) else None

    def share(s: int, P: Tensor) -> float | None:
        received = first(s, P)
        return None if received is None else float(received > 0.3)

    def delimiter(s: int, P: Tensor) -> float | None:
        marks = [j for j in range(1, len(ROWS[s])) if ROWS[s].special[j]]
        seeing = [i for i in choices(s) if any(j in keys_of(s, i) for j in marks)]
        if not seeing or 2 * len(seeing) < len(choices(s)):
            return None
        return sum(P[i, j].item() for i in seeing for j in marks) / len(seeing)

    def strongest(s: int, P: Tensor) -> float | None:
        if not choices(s):
            return None
        return max(sum(P[i, j].item() for i in choices(s)) / len(choices(s)) for j in range(len(ROWS[s])))

    def rest(s: int, P: Tensor) -> float | None:
        found = [P[i, j].item() for i in choices(s) for j in keys_behind(ROWS[s])]
        return sum(found) / len(choices(s)) if choices(s) else None

    loops = {"first": first, "share": share, "delimiter": delimiter, "strongest": strongest}
    for name, by_loop in loops.items():
        assert_sample(found[f"sinks.{name}"], by_loop, maps)
        assert_sample(found[f"sinks.{name}_chance"], by_loop, even)
    assert_sample(found["sinks.rest"], rest, maps)
    assert set(found) == {reading.name for reading in Sinks(MeasureContext(LONGEST)).declares()}


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_effects_by_loops(kind: Kind) -> None:
    """Shares of |P_ij v_j W_O|; a row without any effect counts as zero, and the first token of a sentence has none."""
    maps, trace, queries = maps_and_trace(kind)
    source = torch.Generator().manual_seed(4)
    V = torch.randn(len(ROWS), H, LONGEST, VALUE, generator=source, dtype=torch.float64)
    V[0, :, 0], V[2, 1] = 0.0, 0.0
    W_O = torch.randn(H, VALUE, STREAM, generator=source, dtype=torch.float64)
    trace = replace(trace, V=V, Y=torch.zeros(len(ROWS), H, LONGEST, VALUE, dtype=torch.float64))
    found = look(Sinks(MeasureContext(LONGEST)), trace, LONGEST - 1, W_O @ W_O.mT)
    for name in ("first", "rest"):
        sample = found[f"sinks.{name}_effect"]
        assert sample.valid is not None
        for s, heads in enumerate(maps):
            n = len(ROWS[s])
            choices = [i for i in range(len(queries[s])) if (i + 1 if kind == "decoder" else n) > 1]
            assert sample.valid.expand_as(sample.values)[s].tolist() == [bool(choices)] * H
            for h in range(H if choices else 0):
                expected = 0.0
                for i in choices:
                    effects = [float((heads[h, i, j] * V[s, h, j] @ W_O[h]).norm()) for j in range(n)]
                    part = [effects[j] for j in ([0] if name == "first" else keys_behind(ROWS[s]))]
                    expected += sum(part) / sum(effects) / len(choices) if sum(effects) else 0.0
                assert_close(sample.values[s, h], torch.tensor(expected, dtype=torch.float64))
    assert not found["sinks.first_effect"].values[0].any() and not found["sinks.rest_effect"].values[2, 1].any()
    without = look(Sinks(MeasureContext(LONGEST)), trace, LONGEST - 1)
    for name in ("first", "rest"):
        valid = without[f"sinks.{name}_effect"].valid
        assert valid is not None and not valid.any(), "without output weights"


def test_everything_on_the_first_token_is_one_in_every_sentence() -> None:
    tokens = collate(ROWS, PAD_ID)
    P = torch.zeros(len(ROWS), H, LONGEST, LONGEST, dtype=torch.float64)
    P[..., 0] = 1.0
    readings = examine([Sinks], [trace_of(Slot("decoder", 0), P, tokens, tokens, True)])
    for name, expected in (("first", 1.0), ("share", 1.0), ("strongest", 1.0), ("delimiter", 0.0)):
        (value,) = readings[f"sinks.{name}"].value
        assert isinstance(value, Tensor)
        assert_close(value, torch.full((H,), expected, dtype=torch.float64))
    count = readings["sinks.first"].count
    assert count is not None and count[0].tolist() == [6] * H


def test_even_attention_is_at_chance() -> None:
    tokens = collate(ROWS, PAD_ID)
    P = torch.ones(len(ROWS), H, LONGEST, LONGEST, dtype=torch.float64)
    for kind in ("encoder", "decoder"):
        readings = examine([Sinks], [trace_of(Slot(kind, 0), P, tokens, tokens, kind == "decoder")])
        for name in ("first", "share", "delimiter", "strongest"):
            (value,), (chance,) = readings[f"sinks.{name}"].value, readings[f"sinks.{name}_chance"].value
            assert isinstance(value, Tensor) and isinstance(chance, Tensor)
            assert_close(value, chance.expand_as(value))


def test_a_window_hides_the_first_token() -> None:
    """Causal attention to two keys: only the second query sees the first token and another one."""
    tokens = collate(ROWS[:1], PAD_ID)
    P = torch.ones(1, H, LONGEST, LONGEST, dtype=torch.float64)
    P[:, :, 1, 0] = 3.0
    window = torch.ones(LONGEST, LONGEST, dtype=torch.bool).tril().triu(-1)
    whole = trace_of(Slot("decoder", 0), P, tokens, tokens, True)
    trace = LayerTrace(
        whole.slot, whole.Q, whole.K, whole.V, whole.Y, Mask(tokens.real, True, window), None, tokens, tokens,
        weigh=lambda: P,
    )  # fmt: skip
    found = look(Sinks(MeasureContext(LONGEST)), trace, LONGEST - 1)
    assert_close(found["sinks.first"].values, torch.full((1, H), 0.75, dtype=torch.float64))
    assert_close(found["sinks.first_chance"].values, torch.full((1,), 0.5, dtype=torch.float64))
    assert_close(found["sinks.strongest_chance"].values, torch.full((1,), 1 / 6, dtype=torch.float64))


def test_one_token_says_nothing() -> None:
    tokens = collate([ROWS[4]], PAD_ID)
    for kind in ("encoder", "decoder", "cross"):
        P = torch.ones(1, H, 1, 1, dtype=torch.float64)
        found = look(Sinks(MeasureContext(1)), trace_of(Slot(kind, 0), P, tokens, tokens, kind == "decoder"), 0)
        for sample in found.values():
            assert sample.valid is not None and not sample.valid.any() and sample.values.isfinite().all()


def test_single_precision_stays_single() -> None:
    _, trace, _ = maps_and_trace("decoder", torch.float32)
    _, double, _ = maps_and_trace("decoder")
    found, expected = (look(Sinks(MeasureContext(LONGEST)), layer, LONGEST - 1) for layer in (trace, double))
    for name, sample in found.items():
        assert_close(sample.values, expected[name].values, torch.float32)
