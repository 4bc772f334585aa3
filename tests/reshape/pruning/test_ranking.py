"""Rankings of heads: what is dead goes first, twins one by one, heads that back each other up not both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnworks.core.places import HeadId, Slot
from attnworks.models import AttentionConfig
from attnworks.models.multihead import MultiHead
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.pruning import ranking
from attnworks.reshape.pruning.l0_gates import train_gates
from attnworks.reshape.pruning.ranking import RANKINGS, rank
from attnworks.reshape.pruning.structural import role_gains
from attnworks.reshape.surgery import PruneUnit, heads_off
from attnworks.reshape.texts import split_texts
from attnworks.traces.edits import CountHeadsHook, HeadsOffHook
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import LayerHook, Subject, wrap
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.reshape.growth.growth_helpers import growing_bench
from tests.reshape.reshape_helpers import D_K, D_V, context_of, heads_of, model_of, subject_of
from tests.tiny_models import TINY

THREE = AttentionConfig(heads=3, d_k=D_K, d_v=D_V)
ONE_LAYER: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1}


def units_of(context: ReshapeContext) -> list[PruneUnit]:
    counted = CountHeadsHook()
    batch, _ = context.calibration.text.batch(0)
    with torch.no_grad():
        context.subject.run(batch, counted)
    return [(HeadId(slot, head),) for slot, heads in counted.heads.items() for head in range(heads)]


def layer_of(context: ReshapeContext, slot: Slot) -> MultiHead:
    return next(layer for layer in context.model.modules() if isinstance(layer, MultiHead) and layer.slot == slot)


def single(*heads: str) -> list[PruneUnit]:
    return [(HeadId.parse(head),) for head in heads]


SLOTS = (Slot("encoder", 0), Slot("decoder", 0), Slot("cross", 0))


# All of them ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", RANKINGS)
def test_every_unit_is_ranked_once_and_progress_is_told(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "train_gates", partial(train_gates, steps=3))
    told: list[tuple[str, int, int]] = []
    context = replace(growing_bench(), tell=lambda *event: told.append(event))
    pairs: list[PruneUnit] = [(HeadId(slot, 0), HeadId(slot, 1)) for slot in SLOTS]
    for units in (pairs, units_of(context)):
        assert sorted(rank(context, units, 2, by)) == sorted(units)
    assert all(0 <= done < total for _, done, total in told) and (bool(told) or by in ("random", "norm"))
    assert list(rank(context, [], 0, by)) == []


def test_names_stand_in_their_order() -> None:
    known = ["curvature", "ablation", "gradient", "gates", "redundancy", "role", "norm", "random"]
    assert list(RANKINGS) == known


@pytest.mark.parametrize("by", ["curvature", "ablation", "gradient", "gates", "norm"])
def test_dead_heads_go_first(by: str) -> None:
    """A head whose rows of W_O are zero changes nothing; each of the others alone turns the embedding."""
    five = AttentionConfig(heads=5, d_k=D_K, d_v=D_V)
    context = context_of(
        subject_of(model_of(attention=five, encoder_layers=1, decoder_layers=0)), objective="embedding"
    )
    dead = single("enc.0.1", "enc.0.3")
    with torch.no_grad():
        for ((slot, head),) in dead:
            layer_of(context, slot).W_O[head] = 0.0
    assert sorted(islice(rank(context, units_of(context), 2, by), 2)) == sorted(dead)


@pytest.mark.parametrize("by", ["curvature", "ablation", "gradient", "redundancy", "role", "norm"])
def test_a_model_of_hugging_face(by: str) -> None:
    model = TINY["bert"].build()
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.output.dense.weight[:, 5:10] = 0.0  # W_O of head 1 of enc.1
    context = context_of(wrap(model, tiny_tokenizer("bert")), split_texts(LINES), "embedding")
    units = units_of(context)
    order = list(rank(context, units, 2, by))
    assert sorted(order) == sorted(units) and len(units) == 6
    assert order[0] == (HeadId.parse("enc.1.1"),) or by in ("redundancy", "role")


def test_without_is_the_model_without_all_their_heads() -> None:
    off = heads_off([(HeadId.parse("enc.0.1"), HeadId.parse("enc.0.0")), (HeadId.parse("cross.1.2"),)])
    assert off.off == {Slot("encoder", 0): [1, 0], Slot("cross", 1): [2]}


def test_a_seed_decides_what_is_random() -> None:
    context, units = growing_bench(), single(*(f"enc.{layer}.{head}" for layer in range(5) for head in range(3)))
    orders = [list(RANKINGS["random"](replace(context, seed=seed), units, 1)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


# Ablation ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table(TextLoss):
    """A loss that is given for every set of heads of enc.0 that are off: own harms, and those of pairs."""

    alone: Sequence[float] = ()
    pairs: dict[tuple[int, int], float] = field(default_factory=dict)
    asked: list[frozenset[int]] = field(default_factory=list)

    def loss(self, off: frozenset[int]) -> float:
        return sum(self.alone[head] for head in off) + sum(self.pairs[pair] for pair in combinations(sorted(off), 2))

    def each(
        self, subject: Subject | None = None, hook: LayerHook | None = None, *, some: slice = slice(None)
    ) -> torch.Tensor:
        assert isinstance(hook, HeadsOffHook)
        off = frozenset(head for heads in hook.off.values() for head in heads)
        self.asked.append(off)
        return torch.tensor([self.loss(off)], dtype=torch.float64)


BENCH = context_of(subject_of(model_of(**ONE_LAYER)))


def with_table(alone: Sequence[float], pairs: dict[tuple[int, int], float]) -> tuple[ReshapeContext, Table]:
    text_loss = BENCH.calibration
    table = Table(text_loss.original, text_loss.objective, text_loss.text, alone, pairs)
    return replace(BENCH, calibration=table), table


def greedy(table: Table, heads: int, cut: int) -> list[int]:
    """All harms are measured again after every cut."""
    gone: list[int] = []
    for _ in range(cut):
        left = [head for head in range(heads) if head not in gone]
        gone.append(min(left, key=lambda head: table.loss(frozenset([*gone, head]))))
    return gone


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_lazy_is_greedy_where_harms_only_grow(data: st.DataObject) -> None:
    """L(off) = sum a_i + sum over pairs of b_ij with b_ij >= 0: a harm a_i + sum over gone j of b_ij only grows.

    All are whole numbers, so that sums are exact and equals are equal.
    """
    heads = data.draw(st.integers(1, 7))
    alone = [float(harm) for harm in data.draw(st.lists(st.integers(-20, 20), min_size=heads, max_size=heads))]
    pairs = {pair: float(data.draw(st.integers(0, 20))) for pair in combinations(range(heads), 2)}
    cut = data.draw(st.integers(0, heads))
    context, table = with_table(alone, pairs)
    order = rank(context, single(*(f"enc.0.{head}" for head in range(heads))), cut, "ablation")
    assert [head for ((_, head),) in islice(order, cut)] == greedy(table, heads, cut)


def test_harms_that_do_not_grow_are_measured_once_more_at_most() -> None:
    """Without interactions the smallest harm stays the smallest: the whole, each alone, and one for every later cut."""
    heads, cut = 11, 5
    context, table = with_table(
        [float((7 * head) % 11) for head in range(heads)], dict.fromkeys(combinations(range(11), 2), 0.0)
    )
    order = rank(context, single(*(f"enc.0.{head}" for head in range(heads))), cut, "ablation")
    assert [(7 * head) % 11 for ((_, head),) in islice(order, cut)] == list(range(cut))
    assert len(table.asked) == 1 + heads + (cut - 1)


def test_heads_that_back_each_other_up_do_not_both_go() -> None:
    """Heads 0 and 1 are the same, and so strong that the norm after them hardly feels which of them there are:
    (2 A + x) / |2 A + x| is near (A + x) / |A + x|, but not near x / |x|. Head 2 does a little.

    One at a time, 0 and 1 are the least harmful; in a row, 2 comes before the second of them.
    """
    context = context_of(subject_of(model_of(attention=THREE, **ONE_LAYER)), objective="embedding")
    layer, units = layer_of(context, Slot.parse("dec.0")), single(*(f"dec.0.{head}" for head in range(3)))
    with torch.no_grad():
        for weights in (layer.W_Q, layer.W_K, layer.W_V, layer.W_O, layer.b_Q, layer.b_K, layer.b_V):
            assert weights is not None
            weights[1] = weights[0]
        layer.W_O[:2] *= 1000.0
        layer.W_O[2] *= 300.0
    text_loss = context.calibration
    alone = [text_loss.mean(hook=heads_off([unit])) for unit in units]
    assert max(alone[:2]) < alone[2] < text_loss.mean(hook=heads_off(units[:2]))
    order = list(rank(context, units, 2, "ablation"))
    assert order in ([units[0], units[2], units[1]], [units[1], units[2], units[0]])


# Gradients -----------------------------------------------------------------------------------------------------------


def test_gradients_are_slopes_of_the_loss() -> None:
    """dL_s / d gate by a step of W_O[h] to both sides, as gates are factors of its rows; one sentence at a time."""
    context = context_of(subject_of(model_of(**ONE_LAYER)))
    text_loss, step, slopes = context.calibration, 1e-5, []
    for ((slot, head),) in (units := units_of(context)):
        W_O, sides = layer_of(context, slot).W_O, []
        for factor in (1 + step, (1 - step) / (1 + step)):
            with torch.no_grad():
                W_O[head] *= factor
                sides.append(torch.cat([text_loss.losses(text_loss.original, *batch) for batch in text_loss.batches()]))
        with torch.no_grad():
            W_O[head] /= 1 - step
        slopes.append(float((sides[0] - sides[1]).abs().mean()) / (2 * step))
    assert list(rank(context, units, 1, "gradient")) == [units[number] for number in torch.tensor(slopes).argsort()]


# Twins ---------------------------------------------------------------------------------------------------------------


def test_one_of_two_twins_goes_first_and_not_the_other() -> None:
    context = context_of(subject_of(model_of(attention=THREE, **ONE_LAYER)))
    layer, units = layer_of(context, Slot.parse("cross.0")), units_of(context)
    with torch.no_grad():
        for weights in (layer.W_Q, layer.W_K, layer.b_Q, layer.b_K):
            assert weights is not None
            weights[2] = weights[0]
    order = list(rank(context, units, 2, "redundancy"))
    twins = single("cross.0.0", "cross.0.2")
    assert order[0] in twins and order[1] not in twins


def given_distances(monkeypatch: pytest.MonkeyPatch, **layers: list[list[float]]) -> None:
    tables = {
        Slot.parse(name.replace("_", ".")): torch.tensor(rows, dtype=torch.float64) for name, rows in layers.items()
    }
    monkeypatch.setattr(ranking, "map_distances", lambda context: tables)


def test_of_a_pair_that_goes_which_is_nearer_to_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 and 1 are nearest, and 1 is nearer to 2. Then the two of the other layer, then 0; what is left is alone."""
    given_distances(
        monkeypatch, enc_0=[[0.0, 0.1, 0.5], [0.1, 0.0, 0.3], [0.5, 0.3, 0.0]], enc_1=[[0.0, 0.4], [0.4, 0.0]]
    )
    units = single("enc.0.0", "enc.0.1", "enc.0.2", "enc.1.0", "enc.1.1")
    order = [units[number] for number in (1, 3, 0, 2, 4)]
    assert list(rank(BENCH, units, 1, "redundancy")) == order


def test_heads_of_a_unit_are_no_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 and 1, the same, go together: their nearest others are at (0.6 + 0.8) / 2. 2 and 3 are at 0.3 of each other,
    and 2 has a second neighbour. Without it nobody has any."""
    D = torch.ones(4, 4, dtype=torch.float64)
    for (one, other), distance in {(0, 1): 0.0, (0, 2): 0.6, (1, 2): 0.8, (2, 3): 0.3}.items():
        D[one, other] = D[other, one] = distance
    given_distances(monkeypatch, enc_0=D.tolist())
    units: list[PruneUnit] = [
        (HeadId.parse("enc.0.0"), HeadId.parse("enc.0.1")),
        (HeadId.parse("enc.0.2"),),
        (HeadId.parse("enc.0.3"),),
    ]
    assert list(rank(BENCH, units, 1, "redundancy")) == [units[1], units[0], units[2]]


# Roles ---------------------------------------------------------------------------------------------------------------


def test_heads_with_a_role_stay() -> None:
    """One head sees the previous token, one the first, which is a sink, and one all of them evenly, which is chance."""
    forms = [f"structured:members={member},error=none" for member in ("-1", "first", "mean")]
    context = context_of(subject_of(model_of(slots={"enc.0": heads_of(*forms)}, attention=THREE, **ONE_LAYER)))
    units = single(*(f"enc.0.{head}" for head in range(3)))
    previous, first, mean = (role_gains(context)[HeadId(Slot.parse("enc.0"), head)] for head in range(3))
    assert previous > 0.6 and first < 0.1 and mean < 1e-9
    assert list(rank(context, units, 1, "role"))[-1] == units[0]


@pytest.mark.parametrize("by", ["redundancy", "role"])
def test_heads_without_maps_go_last(by: str) -> None:
    """Also where no mixture happens to be negative, and numbers could be had."""
    slots = {"enc.0": heads_of(*["linformer:rank=3,length=40"] * 3)}
    context = context_of(subject_of(model_of(slots=slots, attention=THREE, **ONE_LAYER)))
    with torch.no_grad():
        for parameter in layer_of(context, Slot.parse("enc.0")).mechanisms.parameters():
            parameter.abs_()
    units = units_of(context)
    order = list(rank(context, units, 1, by))
    alone = 0 if by == "role" else 2  # the last heads of the two other layers have nobody left, either
    assert {*units[:3]} <= {*order[-3 - alone :]}
