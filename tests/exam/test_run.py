"""The examination from Python: models in memory, passages, batches and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from attnworks import examine
from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.core.team import Team
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.exam.reading import Reading
from attnworks.hf.tiny import tiny_model
from attnworks.hf.tiny_text import TEXTS
from attnworks.hf.tiny_text import tiny_tokenizer as tokenizer_of_its_ids
from attnworks.models.build import PRESETS
from attnworks.text.grammar import grammar_passages
from attnworks.text.passages import Passage, Text
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import wrap
from tests.exam_helpers import LINES, TINY, tiny_run, tiny_tokenizer
from tests.helpers import unchecked
from tests.training.training_helpers import SMALL

T = TypeVar("T")
MEASURED = ("rank", "roles", "saturation")


def tiny(name: str) -> tuple[Any, Any]:
    model = TINY[name].build()
    return model, tiny_tokenizer(model.config.model_type)


def assert_same(one: Reading, other: Reading, rtol: float) -> None:
    for left, right in zip(one.value, other.value, strict=True):
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            torch.testing.assert_close(left, right, rtol=rtol, atol=rtol, equal_nan=True, msg=one.name)
        else:
            assert left == right, one.name


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart"])
def test_batches_of_any_size_give_the_same_readings(name: str) -> None:
    model, tokenizer = tiny(name)
    small, large = (
        examine(model, LINES, tokenizer=tokenizer, measures=MEASURED, batch_tokens=size) for size in (1, 4096)
    )
    assert list(small.readings) == list(large.readings)
    for reading in small.readings:
        assert_same(small[reading], large[reading], 1e-9)
        assert (small[reading].count is None) == (large[reading].count is None)


def test_a_run_of_attnworks_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "small", SMALL["small"])
    trained = OwnSubject.open(str(tiny_run()))
    exam = examine(trained.model, grammar_passages(3), tokenizer=trained.vocabularies, measures=["rank"], name="mine")
    assert exam.model["name"] == "mine" and exam.model["family"] == "attnworks"
    assert exam.corpus["sentences"] == 3 and exam.corpus["written_by_the_model"] == 0
    with unchecked(), pytest.raises(UsageError, match="vocabulary"):
        examine(trained.model, grammar_passages(3))


def test_the_embedded_corpus_by_default() -> None:
    model, tokenizer = tiny("bert")
    exam = examine(model, tokenizer=tokenizer, measures=["rank"])
    assert exam.corpus["name"] == "grammar" and exam.corpus["sentences"] == 256


def test_passages_with_syntax() -> None:
    model, tokenizer = tiny("bert")
    passages = [Passage(Text("the cat sees it", ("the", "cat", "sees", "it"), (1, 2, -1, 2)))] * 2
    exam = examine(model, passages, tokenizer=tokenizer, measures=["roles"])
    syntactic = exam["roles.syntactic"]
    assert syntactic.count is not None and bool((syntactic.count[0] == 2).all())
    without = examine(model, ["the cat sees it"] * 2, tokenizer=tokenizer, measures=["roles"])
    if "roles.syntactic" in without:
        count = without["roles.syntactic"].count
        assert count is not None and not count[0].any()


def test_the_model_is_left_as_it_was() -> None:
    model, tokenizer = tiny("bert")
    model = model.float()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    implementation = model.config._attn_implementation
    examine(model, LINES, tokenizer=tokenizer, measures=["rank", "importance"], without=["skip"])
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    assert model.config._attn_implementation == implementation
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_is_said_and_gone_afterwards() -> None:
    model, tokenizer = tiny("bert")
    bare = examine(model, LINES, tokenizer=tokenizer, measures=["rank"], without=["skip", "mlp", "norm"])
    assert bare.model["without"] == ["skip", "mlp", "norm"] and "in float64" in bare.notes[-1]
    whole, again = (examine(model, LINES, tokenizer=tokenizer, measures=["rank"]) for _ in range(2))
    assert whole.to_json() == again.to_json()
    assert whole.to_json() != bare.to_json()


def test_an_objective_of_ones_own() -> None:
    model, tokenizer = tiny("bert")
    exam = examine(
        model,
        LINES,
        tokenizer=tokenizer,
        measures=["importance"],
        objective=lambda outputs, batch: outputs.hidden[:, 0].sum(-1),
    )
    assert "importance.gradient" in exam and any("objective" in note for note in exam.notes)


def test_pins_show_the_maps() -> None:
    model, tokenizer = tiny("marian")
    exam = examine(model, LINES, tokenizer=tokenizer, measures=["rank"], pin=["the cat sees it ."])
    (pin,) = exam.pins
    assert pin.tokens == ("the", "cat", "sees", "it", ".", "</s>") and pin.target is not None
    for slot, P in pin.maps.items():
        queries, keys = pin.sides(slot.kind)
        assert P.shape[1:] == (len(queries), len(keys))


def test_a_team_shares_the_batches() -> None:
    """Without the others nothing can be gathered, but each batch is somebody's."""
    model, tokenizer = tiny("bert")
    subject = wrap(model, tokenizer)
    passages = [Passage(Text(line)) for line in LINES]
    begun: list[int] = []
    done: list[int] = []

    def begin(sentences: int, costs: Mapping[str, str]) -> None:
        begun.append(sentences)

    class Alone(Team):
        def gather(self, thing: T) -> list[T]:
            return [thing]

    for rank in range(3):
        request = ExamSettings(measures=["rank"], batch_tokens=30)
        run_examination(
            subject,
            passages,
            request,
            team=Alone(rank, 3),
            begin=begin,
            advance=done.append,
        )
    assert sum(begun) == sum(done) == len(LINES)


def test_the_work_is_known_beforehand() -> None:
    model, tokenizer = tiny("gpt2")
    begun: list[int] = []
    done: list[int] = []

    def begin(sentences: int, costs: Mapping[str, str]) -> None:
        begun.append(sentences)

    run_examination(
        wrap(model, tokenizer), [Passage(Text(line)) for line in LINES],
        ExamSettings(measures=["rank", "paths", "importance", "ablation"]), begin=begin, advance=done.append,
    )  # fmt: skip
    heads = 2 * 3
    assert begun == [len(LINES) * (1 + 1 + 1 + 1 + heads)] and sum(done) == begun[0]


@pytest.mark.parametrize("measures", [["none"], [], ["rank", "ranked"]])
def test_measures_that_are_none(measures: list[str]) -> None:
    model, tokenizer = tiny("bert")
    with pytest.raises((UnknownNameError, UsageError)):
        examine(model, LINES, tokenizer=tokenizer, measures=measures)


def test_things_that_are_no_model() -> None:
    for thing in (nn.Linear(2, 3), 7):
        with pytest.raises(UsageError, match=r"attnworks\.traces\.adapted"):
            examine(thing, LINES)
    with pytest.raises(UsageError, match="tokenizer"):
        examine(TINY["bert"].build(), LINES)


def test_measures_across_depth_that_refuse_a_stack_are_noted() -> None:
    """Latent values are no linear map of the stream, so that there are no paths; rollout needs none."""
    tiny_one = tiny_model("deepseek_v3")
    assert tiny_one.model is not None
    tokenizer = tokenizer_of_its_ids(tiny_one.model)
    exam = examine(tiny_one.model, list(TEXTS[:3]), tokenizer=tokenizer, measures=["paths", "rollout"])
    assert "rollout.effective" in exam.readings and not any(name.startswith("paths") for name in exam.readings)
    (note,) = [note for note in exam.notes if note.startswith("paths")]
    assert note.startswith("paths: not reported for the decoder: paths through dec.0 needs values")
