"""What the loss wants of more columns: against gradients of models that really have them.

A column alpha (X alpha + bias) (Z beta)^T that is added to the scores with length t changes the loss of one sentence by
t <dL/dS, X' [alpha; bias] (Z beta)^T> = t <X'^T (dL/dS) Z, [alpha; bias] beta^T> to first order, and columns of values,
which add t P Z a b to the output, by t <(P Z)^T dL/du, a b>. In a model that really has the columns alpha in W_Q and
zeros in W_K, dL/dW_K is s T^T [alpha; bias] there; with zeros in W_Q and beta in W_K, dL/d[W_Q; b_Q] is s T beta. With
values a and outputs 0, dL/dW_O is a^T T_V; with values 0 and outputs b, dL/dW_V is T_V b^T.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.attention.heads import HeadMatrices
from attnworks.core.places import Slot
from attnworks.models import AttentionConfig
from attnworks.models.anatomy import heads_of
from attnworks.reshape.growth.apply import Addition, GrowthPlace, GrowthStep, Keys, Values, grown
from attnworks.reshape.growth.graded import graded_layers
from attnworks.reshape.growth.statistics import (
    CHECKING_SLICE,
    FITTING_SLICE,
    MAX_METRIC_SENTENCES,
    SEARCHING_SLICE,
    GrowthSums,
    gather_sample,
    gather_sums,
)
from attnworks.reshape.surgery import layers_of
from attnworks.reshape.texts import TextSplit
from attnworks.text.passages import Passage, Text
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import wrap
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.helpers import assert_close
from tests.model_helpers import randn, the
from tests.reshape.reshape_helpers import D_E, SENTENCES, context_of, model_of, subject_of
from tests.tiny_models import TINY
from tests.traces.trace_helpers import Keep, dense_map

P_ = 2
UNEQUAL = AttentionConfig(heads=2, d_k=(3, 5), d_v=(4, 2))
NO_BIAS = AttentionConfig(heads=2, d_k=3, d_v=5, bias=False)
PASSAGES = [Passage(Text(one), Text(other)) for one, other in pairwise(SENTENCES)]
LINE_PAIRS = [Passage(Text(one), Text(other)) for one, other in zip(LINES * 2, LINES[::-1] * 2, strict=True)]


def silent(done: int, total: int) -> None:
    del done, total


@cache
def text_loss(case: str) -> TextLoss:
    """Thirteen sentences or so of several lengths, padded in batches."""
    if case in ("bert", "bart", "t5", "opt"):
        given = LINE_PAIRS if case in ("bart", "t5") else [Passage(Text(line)) for line in LINES * 2]
        subject = wrap(TINY[case].build(), tiny_tokenizer(case))
        return context_of(subject, TextSplit(given, given, {})).calibration
    changes: dict[str, Any] = {
        "own": {},
        "no bias": {"attention": NO_BIAS, "norm": "pre"},
        "unequal": {"attention": UNEQUAL},
        "decoder": {"encoder_layers": 0},
    }[case]
    given = PASSAGES if case != "decoder" else [Passage(Text(line)) for line in SENTENCES]
    return context_of(subject_of(model_of(**changes)), TextSplit(given, given, {})).calibration


@cache
def sums(case: str) -> dict[Slot, GrowthSums]:
    model = text_loss(case).original.model
    return gather_sums(text_loss(case), {slot: part.branch for slot, part in layers_of(model).items()}, silent)


def head_gradient(case: str, place: GrowthPlace, addition: Addition, some: slice) -> HeadMatrices:
    """Of the mean loss of some sentences, by the weights of one head of the grown model."""
    own = text_loss(case)
    original: Any = own.original
    scale = the(sums(case)[place.slot].scale)
    subject = original.with_model(
        grown(original.model, [GrowthStep(place, addition, scale if isinstance(addition, Keys) else 1.0, scale)])
    )
    model, sentences = subject.model, 0
    for batch, rows in own.batches(some):
        losses = own.losses(subject, batch, rows)
        losses.sum().backward()
        sentences += len(losses)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad / sentences)
    assert place.head is not None
    return heads_of(layers_of(model)[place.slot])[place.head]


def batched(own: TextLoss, batches: list[list[int]]) -> TextLoss:
    return replace(own, text=replace(own.text, batches=batches))


PLACES = [
    ("own", GrowthPlace(Slot.parse("enc.0"), 1)),
    ("own", GrowthPlace(Slot.parse("enc.1"), 0)),
    ("own", GrowthPlace(Slot.parse("dec.0"), 0)),
    ("own", GrowthPlace(Slot.parse("cross.0"), 1)),
    ("own", GrowthPlace(Slot.parse("cross.1"), 0)),
    ("no bias", GrowthPlace(Slot.parse("enc.0"), 0)),
    ("no bias", GrowthPlace(Slot.parse("dec.1"), 1)),
    ("no bias", GrowthPlace(Slot.parse("cross.0"), 0)),
    ("unequal", GrowthPlace(Slot.parse("enc.0"), 0)),
    ("unequal", GrowthPlace(Slot.parse("cross.1"), 1)),
    ("decoder", GrowthPlace(Slot.parse("dec.0"), 1)),
    ("bert", GrowthPlace(Slot.parse("enc.0"), 2)),
    ("bart", GrowthPlace(Slot.parse("cross.1"), 0)),
    ("bart", GrowthPlace(Slot.parse("dec.0"), 4)),
    ("t5", GrowthPlace(Slot.parse("dec.1"), 1)),
    ("opt", GrowthPlace(Slot.parse("dec.0"), 1)),
]


@pytest.mark.parametrize(("case", "place"), PLACES, ids=lambda value: str(value))
def test_sums_are_gradients_of_models_that_have_the_columns(case: str, place: GrowthPlace) -> None:
    keys, values, _ = sums(case)[place.slot].means()
    scale = the(sums(case)[place.slot].scale)
    (f, e), biased = values.shape[-2:], keys.shape[-2] > values.shape[-1]
    assert biased == (case not in ("no bias", "t5"))
    alpha, beta, bias = randn(e, P_), randn(f, P_, seed=1), randn(P_, seed=2)
    a, b = randn(f, P_, seed=3), randn(P_, e, seed=4)
    left = torch.cat([alpha, bias.unsqueeze(0)]) if biased else alpha
    own_bias, no_bias = (bias, torch.zeros(P_).double()) if biased else (None, None)
    dtype = torch.float32 if case == "t5" else torch.float64  # T5 has norms in float32
    for half, some in enumerate((FITTING_SLICE, CHECKING_SLICE)):
        T, T_V = keys[half, place.head], values[half, place.head]
        found = head_gradient(case, place, Keys(alpha, torch.zeros_like(beta), own_bias), some)
        assert_close(found.W_K[:, -P_:], scale * T.mT @ left, dtype)
        found = head_gradient(case, place, Keys(torch.zeros_like(alpha), beta, no_bias), some)
        assert_close(found.W_Q[:, -P_:], scale * (T @ beta)[:e], dtype)
        if biased:
            assert_close(the(found.b_Q)[-P_:], scale * (T @ beta)[-1], dtype)
        assert_close(head_gradient(case, place, Values(a, 0 * b), some).W_O[-P_:], a.mT @ T_V, dtype)
        assert_close(head_gradient(case, place, Values(0 * a, b), some).W_V[:, -P_:], T_V @ b.mT, dtype)
        assert T.abs().max() > 1e-8 and T_V.abs().max() > 1e-8


@pytest.mark.parametrize("place", [GrowthPlace(Slot.parse("enc.1"), 1), GrowthPlace(Slot.parse("cross.0"), 0)], ids=str)
def test_sums_are_slopes_of_the_loss(place: GrowthPlace) -> None:
    """The loss of models with columns of a small length, up and down."""
    own = text_loss("own")
    original: Any = own.original
    keys, values, _ = sums("own")[place.slot].means()
    alpha, beta, bias = randn(D_E, P_), randn(D_E, P_, seed=1), randn(P_, seed=2)
    a, b = randn(D_E, P_, seed=3), randn(P_, D_E, seed=4)
    for half, some in enumerate((FITTING_SLICE, CHECKING_SLICE)):
        for addition, T, change in (
            (Keys(alpha, beta, bias), keys, torch.cat([alpha, bias.unsqueeze(0)]) @ beta.mT),
            (Values(a, b), values, a @ b),
        ):
            up, down = (
                own.mean(
                    original.with_model(grown(original.model, [GrowthStep(place, addition, t, 3**-0.5)])), some=some
                )
                for t in (1e-6, -1e-6)
            )
            expected = float((T[half, place.head] * change).sum())
            assert (up - down) / 2e-6 == pytest.approx(expected, rel=2e-3, abs=1e-9) and abs(expected) > 1e-7


@pytest.mark.parametrize("case", ["own", "no bias"])
def test_a_bias_of_the_keys_would_change_nothing(case: str) -> None:
    """Rows of dL/dS sum to zero, so that X'^T (dL/dS) 1 = 0 (S3.8): T needs no column for it."""
    own, slot = text_loss(case), Slot.parse("dec.1")
    keys = sums(case)[slot].means()[0]
    assert keys.shape[-1] == D_E
    branch = {slot: layers_of(own.original.model)[slot].branch}
    for graded in graded_layers(own, *own.text.batch(0), branch):
        assert_close(graded.by_scores().sum(-1), torch.zeros_like(graded.by_scores()[..., 0]))


@pytest.mark.parametrize("slot", [Slot.parse("enc.1"), Slot.parse("dec.0"), Slot.parse("cross.1")])
def test_the_spread_of_what_heads_see(slot: Slot) -> None:
    """C_V = mean (P Z)^T P Z over the sentences that teach, added up sentence by sentence."""
    own = text_loss("own")
    expected, sentences = torch.zeros(2, D_E, D_E, dtype=torch.float64), 0
    for batch, rows in own.batches(FITTING_SLICE):
        keep = Keep()
        with torch.no_grad():
            own.losses(own.original, batch, rows, keep)
        trace = next(trace for trace in keep.traces if trace.slot == slot)
        seen = dense_map(trace) @ the(trace.Z).unsqueeze(1)
        for sentence, length in zip(seen, trace.queries.lengths.tolist(), strict=True):
            expected += sentence[:, :length].mT @ sentence[:, :length]
            sentences += 1
    assert sentences == int(sums("own")[slot].sentences[0])
    assert_close(sums("own")[slot].means()[2], expected / sentences)


# Batches -------------------------------------------------------------------------------------------------------------


def one_batch(own: TextLoss) -> list[int]:
    """The first twelve sentences, thirds of which are whole fours."""
    return [index for batch in own.text.batches for index in batch][:12]


def gathered(own: TextLoss, batches: list[list[int]]) -> dict[Slot, GrowthSums]:
    layers = layers_of(own.original.model)
    return gather_sums(batched(own, batches), {slot: part.branch for slot, part in layers.items()}, silent)


def assert_same_sums(one: GrowthSums, other: GrowthSums) -> None:
    for name in ("keys", "values", "spread", "sentences"):
        found, expected = getattr(one, name), getattr(other, name)
        assert (found - expected).abs().max() <= 1e-12 * expected.abs().max(), name
    assert one.scale == other.scale


@pytest.mark.parametrize("sizes", [(5, 3, 4), (1,) * 12, (11, 1)], ids=str)
@pytest.mark.parametrize("case", ["own", "decoder"])
def test_sums_do_not_depend_on_the_size_of_batches(case: str, sizes: tuple[int, ...]) -> None:
    """What a sentence is for follows from its place among all, and padding counts for nothing."""
    own = text_loss(case)
    rows = one_batch(own)
    ends = list(accumulate(sizes))
    split = gathered(own, [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)])
    for slot, expected in gathered(own, [rows]).items():
        assert_same_sums(split[slot], expected)


def test_sums_do_not_depend_on_the_order_of_batches() -> None:
    own = text_loss("decoder")
    rows = one_batch(own)
    turned = gathered(own, [rows[8:], rows[:4], rows[4:8]])
    for slot, expected in gathered(own, [rows]).items():
        assert_same_sums(turned[slot], expected)


def test_memory_does_not_grow_with_the_text() -> None:
    own = text_loss("decoder")
    rows = one_batch(own)
    once, often = gathered(own, [rows])[Slot.parse("dec.0")], gathered(own, [rows] * 10)[Slot.parse("dec.0")]

    def numbers(sums: GrowthSums) -> int:
        return sum(value.numel() for value in vars(sums).values() if isinstance(value, Tensor))

    assert numbers(once) == numbers(often) == 2 + 2 * 2 * (D_E + 1) * D_E + 2 * 2 * D_E**2 + 2 * D_E**2
    assert often.sentences.tolist() == [10 * 6, 10 * 3]
    for many, one in zip(often.means(), once.means(), strict=True):
        assert_close(many, one)


def test_some_heads() -> None:
    whole = sums("bart")[Slot.parse("dec.0")]
    some = whole.of_heads((3, 0))
    for all_heads, two in zip(whole.means(), some.means(), strict=True):
        assert torch.equal(all_heads[..., [3, 0], :, :], two)
    assert some.scale == whole.scale


def test_sums_of_a_small_type_are_in_float64() -> None:
    model = model_of(torch.float32)
    own = context_of(subject_of(model), TextSplit(PASSAGES, PASSAGES, {})).calibration
    found = gathered(own, [list(batch) for batch in own.text.batches])[Slot.parse("cross.0")]
    assert found.keys.dtype == found.values.dtype == found.spread.dtype == torch.float64
    torch.testing.assert_close(found.keys, sums("own")[Slot.parse("cross.0")].keys, rtol=1e-3, atol=1e-4)


# Which sentences are for what ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sentences", [1, 2, 3, 4, 5, 11, 64])
def test_every_sentence_has_one_part_to_play(sentences: int) -> None:
    learn, check, search = (list(range(sentences)[some]) for some in (FITTING_SLICE, CHECKING_SLICE, SEARCHING_SLICE))
    assert sorted(learn + check + search) == list(range(sentences))
    assert len(learn) == -(-sentences // 2) and len(check) - len(search) in (0, 1)


@pytest.mark.parametrize("case", ["own", "bart"])
def test_parts_of_a_text_are_its_sentences(case: str) -> None:
    own = text_loss(case)
    parts = [
        [row for _, rows in own.batches(some) for row in rows.tolist()]
        for some in (FITTING_SLICE, CHECKING_SLICE, SEARCHING_SLICE)
    ]
    assert sorted(chain(*parts)) == sorted(own.text.kept)
    found = next(iter(sums(case).values())).sentences.tolist()
    assert found == [len(parts[0]), len(parts[1])]
    total = sum(
        own.mean(some=some) * len(part)
        for some, part in zip((FITTING_SLICE, CHECKING_SLICE, SEARCHING_SLICE), parts, strict=True)
    )
    assert total / sum(map(len, parts)) == pytest.approx(own.mean(), rel=1e-12)


# The sample for the metric -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "slot"),
    [
        ("own", Slot.parse("cross.1")),
        ("own", Slot.parse("enc.0")),
        ("no bias", Slot.parse("dec.1")),
        ("bert", Slot.parse("enc.1")),
    ],
)
def test_a_sample_is_what_sentences_show_one_by_one(case: str, slot: Slot) -> None:
    own = text_loss(case)
    sample = gather_sample(own, slot)
    order = [index for _, rows in own.batches(FITTING_SLICE) for index in rows.tolist()]
    assert len(sample.X) == len(sample.Y) == len(sample.P) == len(order)
    assert {part.dtype for part in sample[:3]} == {torch.float64}
    place = {row: index for index, row in enumerate(own.text.kept)}
    for number, row in enumerate(order):
        alone = batched(own, [[place[row]]])
        keep = Keep()
        with torch.no_grad():
            alone.losses(alone.original, *alone.text.batch(0), keep)
        trace = next(trace for trace in keep.traces if trace.slot == slot)
        i, j = trace.Q.shape[2], trace.K.shape[2]
        X, P = the(trace.X), dense_map(trace)
        if case != "no bias":
            X = torch.cat([X, torch.ones_like(X[..., :1])], -1)
        assert_close(sample.X[number, :i], X[0])
        assert_close(sample.Y[number, :j], the(trace.Z)[0])
        assert_close(sample.P[number, :, :i, :j], P[0])
        assert not sample.P[number, :, i:].any() and not sample.P[number, :, :, j:].any()
        assert not sample.X[number, i:].any() and not sample.Y[number, j:].any(), "whatever padding was like"


def test_a_large_text_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    own = text_loss("own")
    assert MAX_METRIC_SENTENCES >= 100
    monkeypatch.setattr("attnworks.reshape.growth.statistics.MAX_METRIC_SENTENCES", 3)
    taught = int(sums("own")[Slot.parse("enc.0")].sentences[0])
    sample = gather_sample(own, Slot.parse("enc.0"))
    assert 1 <= len(sample.X) <= 3 + len(own.text.batches) < taught + len(own.text.batches)
