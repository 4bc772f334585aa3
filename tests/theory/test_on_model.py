"""Claims on trained models: every law on own and foreign ones, broken where its hypothesis is broken by hand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnworks.core.errors import UsageError
from attnworks.models import Transformer, build
from attnworks.text.passages import Passage, Text
from attnworks.text.vocabulary import Vocabulary
from attnworks.theory.laws import LAYER_LAWS, LawLayer
from attnworks.theory.on_model import LawTally, check_on_model
from attnworks.theory.sides import Sides, at_most, same
from attnworks.traces.layer import LayerTrace
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import LayerHook, Subject, open_subject
from tests.exam_helpers import LINES, save_tiny
from tests.model_helpers import attention_config, filled, recurrent_config, transformer_config

THEOREMS = ("D1", "D5", "D6", "S0.1", "S1.5", "S4.130", "S4.47")
"""These hold on any model; the others tell of the model."""


def subject(spread: float, **changes: Any) -> Subject:
    """An encoder-decoder with random weights that knows the words of LINES."""
    words = Vocabulary.train("word", [line.split() for line in LINES])
    config = transformer_config(vocabulary=len(words), target_vocabulary=len(words), **changes)
    return OwnSubject(filled(Transformer(config).double(), spread=spread), "random", words)


def pairs(lines: Sequence[str]) -> list[Passage]:
    return [Passage(Text(line), Text(line)) for line in lines]


def tallies(who: Subject, lines: Sequence[str] = LINES, wanted: Container[str] | None = None) -> dict[str, LawTally]:
    found = check_on_model(who, pairs(lines), wanted=wanted)
    return {tally.law.id: tally for tally in found}


def first_layer(who: Subject, change: Callable[[LayerTrace], LayerTrace]) -> LawLayer:
    """The first attention layer of a model on one sentence, changed."""

    class First(LayerHook):
        def attention(self, trace: LayerTrace) -> None:
            seen.append(change(trace))

    seen: list[LayerTrace] = []
    who.model.requires_grad_(False)
    who.run(who.read(pairs(LINES[1:2]), batch_tokens=1).batch(0)[0], First())
    return LawLayer(seen[0])


@pytest.mark.parametrize("spread", [0.02, 0.4, 2.0])
def test_theorems_hold_on_any_own_model(spread: float) -> None:
    found = tallies(subject(spread))
    for id in THEOREMS:
        assert found[id].held == found[id].computed, (id, found[id].worst)
    for id in ("D1", "D6", "S0.1", "S4.47", "S4.130"):
        assert found[id].computed, id
    assert (found["D5"].computed > 0) == (spread < 1)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart"])
def test_theorems_hold_on_foreign_models(name: str, tmp_path: Path) -> None:
    found = tallies(open_subject(str(save_tiny(name, tmp_path / name))))
    for id in THEOREMS:
        assert found[id].held == found[id].computed, (id, found[id].worst)
    looked = {id for id in THEOREMS if found[id].computed}
    assert looked >= {"D1", "S0.1", "S4.130"} | ({"D6"} if name in ("bert", "bart") else set())


@pytest.mark.parametrize(
    ("mechanism", "no_weights"),
    [("window:window=2", False), ("linear", False), ("longformer:window=2", False), ("truncated:rank=2", True),
     ("linformer:length=29,rank=3", True), ("sketched:rank=3", True)],
)  # fmt: skip
def test_theorems_hold_with_other_mechanisms(mechanism: str, no_weights: bool) -> None:
    slots = {"enc.1": attention_config(mechanism=mechanism)}
    found = tallies(subject(0.4, slots=slots))
    for id in THEOREMS:
        assert (found[id].held == found[id].computed) != (id == "S1.5" and no_weights), (id, found[id].worst)
    assert ("its maps are no weights, but mixtures of any sign" in found["S4.130"].not_applicable) == no_weights
    assert bool(found["D1"].not_applicable) == (no_weights or mechanism.startswith("longformer"))
    json.dumps([tally.to_json() for tally in found.values()], allow_nan=False)


def test_recurrent_models_have_no_stacks() -> None:
    words = Vocabulary.train("word", [line.split() for line in LINES])
    config = recurrent_config(vocabulary=len(words), target_vocabulary=len(words), mechanism="bahdanau-additive")
    found = tallies(OwnSubject(filled(build(config).double()), "recurrent", words), LINES[:2])
    assert set(found["D1"].not_applicable) == {"the parts of its residual stream are not known"}
    assert found["S1.5"].computed == found["S1.5"].held == 2


def test_an_output_that_is_not_of_its_softmax_is_told() -> None:
    found = LAYER_LAWS["S0.1"].check(first_layer(subject(0.4), lambda trace: replace(trace, Y=trace.Y + 1e-3)))
    assert isinstance(found, Sides) and not found.holds


@pytest.mark.parametrize("id", ["S0.1", "S1.5", "S4.47"])
def test_a_sink_logit_is_the_reason_that_a_law_of_softmax_does_not_apply(id: str) -> None:
    """The weights of keys sum to less than one, whether they are computed from scores or given by the layer."""

    def with_sink(trace: LayerTrace) -> LayerTrace:
        return replace(trace, sink=torch.zeros(trace.heads, dtype=torch.float64))

    def given(trace: LayerTrace) -> LayerTrace:
        P = LawLayer(with_sink(trace)).P.unsqueeze(0)
        return replace(with_sink(trace), scale=None, weigh=lambda: P)

    scored = first_layer(subject(0.4), with_sink)
    assert float(scored.P.sum(-1).max()) < 1
    assert LAYER_LAWS[id].check(scored) == "its softmax has a sink logit"
    if id == "S1.5":
        assert LAYER_LAWS[id].check(first_layer(subject(0.4), given)) == "its softmax has a sink logit"


def test_weights_that_do_not_sum_to_one_are_told() -> None:
    layer = first_layer(
        subject(0.4), lambda trace: replace(trace, scale=None, weigh=lambda: 1.01 * LawLayer(trace).P.unsqueeze(0))
    )
    found = LAYER_LAWS["S1.5"].check(layer)
    assert isinstance(found, Sides) and not found.holds and layer.no_weights


def test_the_model_is_as_it_was() -> None:
    who = subject(0.4)
    model = who.model.float().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tallies(who, LINES[:1])
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("rows"), "KeyError: 'rows'"),
        (RuntimeError("expected Float\nbut found Double"), "RuntimeError: expected Float but found Double"),
    ],
)
def test_why_a_model_does_not_run(error: Exception, reason: str) -> None:
    who = subject(0.3)

    def fail(*_: object) -> None:
        raise error

    for module in who.model.modules():
        module.register_forward_pre_hook(fail)
    with pytest.raises(UsageError, match=re.escape(f"in float64, got one that raises {reason}; ")) as caught:
        tallies(who)
    assert caught.value.__cause__ is error


def test_only_what_is_wanted() -> None:
    assert set(tallies(subject(0.4), LINES[:1], wanted={"D6", "D1", "S4.2"})) == {"D6", "D1"}


def test_laws_that_say_nothing_give_the_reason() -> None:
    found = tallies(subject(0.4), LINES[:2])
    assert found["S0.17"].computed == 0
    assert set(found["S0.17"].not_applicable) == {"it is about layers of one head"}
    assert "its mask is not the same for all queries, as with causal attention" in found["D6"].not_applicable
    assert tallies(subject(0.4, attention=attention_config(heads=1)), LINES[:1])["S0.17"].computed


def test_a_bound_that_is_broken_is_told() -> None:
    """Outputs a thousand times what the layer gave: no theorem is about them."""
    found = LAYER_LAWS["D6"].check(first_layer(subject(0.4), lambda trace: replace(trace, Y=1e3 * trace.Y)))
    assert isinstance(found, Sides) and not found.holds


def test_a_tally_counts_and_keeps_the_worst() -> None:
    tally = LawTally(LAYER_LAWS["D6"])
    for sides, place in ((at_most(1.0, 4.0), "a"), (at_most(9.0, 8.0), "b"), (at_most(20.0, 19.0), "c")):
        tally.add(sides, place)
    tally.add("no reason", "d")
    assert (tally.computed, tally.held, dict(tally.not_applicable)) == (3, 1, {"no reason": 1})
    assert tally.tightness == [1 / 4, 9 / 8, 20 / 19]
    told = tally.to_json()
    assert told["worst"] == {**at_most(9.0, 8.0).to_json(), "place": "b"}
    assert told["tightness"] == {"median": 20 / 19, "largest": 9 / 8}


def test_what_is_no_number_is_worst_and_valid_json() -> None:
    tally = LawTally(LAYER_LAWS["D6"])
    for left in (1.0, math.nan, 3.0):
        tally.add(at_most(left, 2.0), str(left))
    assert tally.held == 1 and tally.worst is not None and tally.worst[1] == "nan"
    json.dumps(tally.to_json(), allow_nan=False)


def test_equalities_have_no_tightness() -> None:
    tally = LawTally(LAYER_LAWS["S1.5"])
    tally.add(same(1.0, 1.0), "a")
    assert tally.to_json()["tightness"] is None
