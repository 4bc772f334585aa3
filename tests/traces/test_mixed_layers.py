"""Layers whose heads use different mechanisms: each head is read as it scores, and the others as before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.attention import Mask
from attnworks.core.places import Slot
from attnworks.exam.measure import MeasureContext, Sample
from attnworks.exam.measures.saturation import Saturation
from attnworks.hf.subject import HFSubject
from attnworks.reshape.surgery import mechanisms_of, with_mechanisms
from attnworks.traces.layer import LayerTrace
from attnworks.traces.own import OwnSubject
from attnworks.traces.rows import rows_of
from tests.model_helpers import VOCABULARY, filled, the, transformer
from tests.tiny_models import shared
from tests.traces.trace_helpers import Keep, dense_map, random_batch

SOURCE, TARGET = (7, 4), (5, 3)
SCORES = ("saturation.score_range", "saturation.score_rms", "saturation.score_expected")
SLOTS = {
    "own": ("enc.0", "dec.0"),
    "bert": ("enc.0",),
    "gpt2": ("dec.0",),
    "t5": ("enc.0", "dec.0"),
    "llama": ("dec.0",),
}
PLACES = [
    pytest.param(model, Slot.parse(slot), id=f"{model}-{slot}") for model, slots in SLOTS.items() for slot in slots
]


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    """As in an examination: weights are computed when a trace is first read."""
    with torch.no_grad():
        yield


@cache
def model_of(name: str) -> Any:
    return transformer() if name == "own" else shared(name)


def first_layer(name: str, model: Any, slot: Slot) -> LayerTrace:
    kept = Keep()
    words = min(VOCABULARY, 50)
    two = name in ("own", "t5")
    subject = OwnSubject(model) if name == "own" else HFSubject(model)
    subject.run(random_batch(SOURCE, TARGET if two else None, words), kept)
    (found,) = [trace for trace in kept.traces if trace.slot == slot]
    return found


def mixed(name: str, slot: Slot, mechanism: str) -> tuple[LayerTrace, LayerTrace, list[bool]]:
    """The layer as it was, the same with a mechanism in every other head, and which heads are as they were."""
    model = model_of(name)
    kept = [head % 2 == 0 for head in range(len(mechanisms_of(model)[slot]))]
    changed = with_mechanisms(model, {slot: ["dense" if same else mechanism for same in kept]})
    return first_layer(name, model, slot), first_layer(name, changed, slot), kept


def read(trace: LayerTrace) -> dict[str, Sample]:
    measure = Saturation(MeasureContext(max(SOURCE)))
    return {**measure.layer(trace), **measure.rows(rows_of(trace, 1))}


def counted(sample: Sample) -> list[bool]:
    """Which heads count, which must be the same in all sentences."""
    valid = the(sample.valid).expand(sample.values.shape)
    assert torch.equal(valid, valid[:1].expand_as(valid))
    return valid[0].tolist()


@pytest.mark.parametrize(("model", "slot"), PLACES)
def test_heads_that_were_not_changed_have_the_same_scores(model: str, slot: Slot) -> None:
    before, after, kept = mixed(model, slot, "structured:members=-1/0")
    assert before.scale is not None and after.scale is None
    old, new = read(before), read(after)
    for name in SCORES:
        assert counted(new[name]) == kept, name
        torch.testing.assert_close(new[name].values[:, kept], old[name].values[:, kept])
    torch.testing.assert_close(dense_map(after)[:, kept], dense_map(before)[:, kept])


@pytest.mark.parametrize(("mechanism", "softmax"), [("window:window=2", True), ("linear", False)])
@pytest.mark.parametrize("model", ["own", "bert"])
def test_only_a_softmax_has_a_range_of_scores(model: str, mechanism: str, softmax: bool) -> None:
    _, after, kept = mixed(model, Slot.parse("enc.0"), mechanism)
    found = read(after)
    assert counted(found["saturation.score_range"]) == [softmax or same for same in kept]
    assert counted(found["saturation.score_rms"]) == counted(found["saturation.score_expected"]) == kept


@pytest.mark.parametrize("model", ["own", "bert"])
def test_a_layer_without_scores_reads_none(model: str) -> None:
    whole = model_of(model)
    heads = len(mechanisms_of(whole)[Slot.parse("enc.0")])
    found = read(
        first_layer(model, with_mechanisms(whole, {Slot.parse("enc.0"): ["structured"] * heads}), Slot.parse("enc.0"))
    )
    assert not {*SCORES} & {*found} and "saturation.entropy" in found


@pytest.mark.parametrize(("model", "slot"), PLACES)
def test_maps_are_the_weights_of_the_layer(model: str, slot: Slot) -> None:
    """What a mask adds to scores, T5's positions, counts once."""
    _, after, _ = mixed(model, slot, "structured:members=-1/0")
    P = the(after.weigh)()
    real = after.queries.real[:, None, :, None] & after.keys.real[:, None, None, :]
    torch.testing.assert_close(dense_map(after), P.masked_fill(~real, 0.0))


def test_dense_heads_of_ours_are_examined_as_those_of_the_model() -> None:
    """A layer of Hugging Face's that was given dense attention scores as it did before."""
    model = model_of("bert")
    heads = len(mechanisms_of(model)[Slot.parse("enc.0")])
    before = first_layer("bert", model, Slot.parse("enc.0"))
    after = first_layer("bert", with_mechanisms(model, {Slot.parse("enc.0"): ["dense"] * heads}), Slot.parse("enc.0"))
    assert after.scale == pytest.approx(the(before.scale)) and after.bilinear is before.bilinear is True


def test_ranges_that_weights_cannot_represent() -> None:
    """exp(-200) is zero in float32, so that the range of such scores cannot be read off the weights."""
    sharp = filled(transformer(torch.float32), 3, spread=4.0)
    before = first_layer("own", sharp, Slot.parse("enc.0"))
    heads = len(mechanisms_of(sharp)[Slot.parse("enc.0")])
    after = first_layer(
        "own",
        with_mechanisms(sharp, {Slot.parse("enc.0"): ["structured"] + ["dense"] * (heads - 1)}),
        Slot.parse("enc.0"),
    )
    ranges: list[Tensor] = [read(trace)["saturation.score_range"].values[:, 1:] for trace in (before, after)]
    assert ranges[0].max() > 200
    torch.testing.assert_close(ranges[1], ranges[0])


def test_weights_given_by_a_layer_already_have_what_its_mask_adds() -> None:
    trace = first_layer("own", model_of("own"), Slot.parse("enc.0"))
    P = dense_map(trace)
    added = torch.randn(P.shape[-2:], dtype=P.dtype)
    given = replace(trace, scale=None, scoring=None, weigh=lambda: P, mask=Mask(dense=added))
    torch.testing.assert_close(dense_map(given), P)
