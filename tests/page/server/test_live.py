"""What is answered: pins that are the model's own maps, outputs before and after, changes that can be undone."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.models.decoding import beam
from attnworks.page.blobs import Coding
from attnworks.page.contents import page_contents
from attnworks.page.server import inspect
from attnworks.page.server.edits import EDITED_MODELS_KEPT, EditedModels
from attnworks.page.server.inspect import OutputToken, _classes
from attnworks.page.server.live import LiveModel
from attnworks.page.server.questions import Changes, Question
from attnworks.reshape.projection.project import Project
from attnworks.reshape.surgery import silence_heads
from attnworks.text.passages import from_texts
from attnworks.traces.edits import HeadsOffHook
from attnworks.traces.subject import open_subject
from tests.exam_helpers import LINES, save_model, tiny_folder, tiny_run
from tests.helpers import assert_close
from tests.page.page_helpers import decode_map, unpack
from tests.page.server.server_helpers import live
from tests.tiny_models import TINY

TEXT, SHORT = LINES[1], LINES[3]


def without_time(answer: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in answer.items() if key != "seconds"})


def maps_of(answer: dict[str, Any], slot: int) -> torch.Tensor:
    found = answer["exam"]["pins"][0]["slots"][slot]
    data = decode_map(unpack(answer["blobs"][found["blob"]]), Coding(**found["coding"]))
    return data.unflatten(0, (len(found["held"]), found["rows"], found["columns"]))


def test_look_shows_the_maps_and_readings_of_an_examination(bert: LiveModel) -> None:
    """weight = (q / 255)^2 with q rounded: |sqrt(p') - sqrt(p)| <= 1/2 / 255, and so |p' - p| <= 1 / 255 + tiny."""
    answer = bert.inspect(Question(TEXT))
    passages = from_texts([TEXT])[0]
    exam = run_examination(bert.base, passages, ExamSettings(("rank", "saturation"), pin=(TEXT,)))
    for number, P in enumerate(exam.pins[0].maps.values()):
        assert (maps_of(answer, number) - P.float()).abs().max() <= 1 / 255 + 1e-3
    assert answer["exam"]["pins"][0]["tokens"] == list(exam.pins[0].tokens)
    for name in ("rank.cosine", "saturation.entropy"):
        told, reading = answer["exam"]["readings"][f"{name}@encoder"], exam[name]
        values = torch.cat([torch.as_tensor(row).flatten() for row in told["value"]])
        assert_close(values.double(), torch.cat([row.flatten() for row in reading.value]).double(), torch.float32)  # pyright: ignore[reportAttributeAccessIssue]
    assert answer["outputs"]["moved"] == 0.0 and answer["outputs"]["before"] == answer["outputs"]["after"]


def test_examine_has_default_readings_and_no_pin(bert: LiveModel) -> None:
    answer = bert.examine(Question(TEXT, Changes(cut=("enc.0.1",))))
    assert answer["exam"]["pins"] == [] and answer["blobs"] == {} and answer["outputs"] is None
    assert {"rank.cosine@encoder", "sinks.first@encoder"} <= {*answer["exam"]["readings"]}
    json.dumps(answer, allow_nan=False)


def test_one_sentence_gives_no_role_labels_and_says_so(bert: LiveModel) -> None:
    for changes in (Changes(), Changes(project=(("enc.1.1", "previous"),))):
        exam = bert.examine(Question(TEXT, changes))["exam"]
        shown = {**exam["readings"], **bert.inspect(Question(TEXT, changes))["exam"]["readings"]}
        assert not [name for name in shown if name.startswith(("roles.label", "roles.score", "roles.baseline"))]
        assert not [finding for finding in exam["findings"] if "roles.label" in finding["readings"]]
        assert "no role labels: 1 sentence is too few, because labels need 3 or more" in exam["notes"]
        assert not [note for note in exam["notes"] if note.startswith("roles.")], "which are no news of one sentence"


@pytest.mark.parametrize(
    "changes",
    [
        Changes(cut=("enc.0.1", "enc.1.2")),
        Changes(project=(("enc.0.0", "previous"), ("enc.1.1", "auto"))),
        Changes(swap=(("enc.1", "window:window=1"),)),
        Changes(("enc.0.0",), (("enc.1.0", "first"),), (("enc.1", "linear"),)),
    ],
)
def test_changes_move_outputs_and_undoing_them_gives_the_same_bits(bert: LiveModel, changes: Changes) -> None:
    weights = {name: tensor.clone() for name, tensor in bert.base.model.state_dict().items()}
    before = bert.inspect(Question(TEXT))
    after = bert.inspect(Question(TEXT, changes))
    assert after["outputs"]["moved"] > 1e-4
    assert without_time(bert.inspect(Question(TEXT))) == without_time(before)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in bert.base.model.state_dict().items())


def test_outputs_tell_the_cosine_of_sentence_embeddings(bert: LiveModel) -> None:
    def embedding(changes: Changes) -> torch.Tensor:
        subject = bert.models.subject(changes)
        with torch.inference_mode():
            hidden = subject.run(bert._read(bert._passage(TEXT), changes).batch(subject)).hidden[0]
        return hidden.double().mean(0)

    cut = Changes(cut=("enc.0.1", "enc.1.2"))
    one, other = embedding(Changes()), embedding(cut)
    expected = float(one @ other / (one.norm() * other.norm()))
    assert bert.inspect(Question(TEXT, cut))["outputs"]["cosine"] == pytest.approx(expected, abs=1e-5)
    assert expected < 1 and bert.inspect(Question(TEXT))["outputs"]["cosine"] == 1.0


def test_words_that_the_vocabulary_lacks(bert: LiveModel) -> None:
    answer = bert.inspect(Question("the cat overheats a flibbertigibbet overheats ."))
    assert answer["outputs"]["unknown"] == ["overheats", "flibbertigibbet"]
    assert bert.inspect(Question(TEXT))["outputs"]["unknown"] == []


def test_sensitivities_are_those_of_the_model_as_it_is(bert: LiveModel) -> None:
    name = "importance.gradient@encoder"
    assert name in bert.examine(Question(TEXT))["exam"]["readings"]
    assert name not in bert.examine(Question(TEXT, Changes(cut=("enc.0.1",))))["exam"]["readings"]


def test_projected_head_attends_by_its_form(bert: LiveModel) -> None:
    answer = bert.inspect(Question(TEXT, Changes(project=(("enc.1.1", "first"),))))
    P = maps_of(answer, 1)[1]
    assert_close(P, torch.nn.functional.one_hot(torch.zeros(len(P), dtype=torch.long), len(P)).to(P))


def test_swapped_layer_sees_its_window(bert: LiveModel) -> None:
    P = maps_of(bert.inspect(Question(TEXT, Changes(swap=(("enc.0", "window:window=1"),)))), 0)
    i = torch.arange(P.shape[-1])
    far = (i[:, None] - i).abs() > 1
    assert not P[:, far].any() and P[:, ~far].any()


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart", "t5"])
def test_cut_heads_are_as_closed_gates(name: str) -> None:
    """u = sum_h Y_h W_O,h + b: with W_O,h = 0 the layer gives what it gives with Y_h = 0."""
    subject = live(name).base
    text = subject.read(from_texts([TEXT])[0], batch_tokens=999)
    batch, _ = text.batch(0)
    slot = "dec.1" if name in ("gpt2", "llama") else "enc.1"
    with torch.inference_mode():
        whole = subject.run(batch).hidden
        gated = subject.run(batch, HeadsOffHook([HeadId(Slot.parse(slot), 0), HeadId(Slot.parse(slot), 2)])).hidden
    cut = EditedModels(subject).subject(Changes(cut=(f"{slot}.0", f"{slot}.2")))
    with torch.inference_mode():
        assert_close(cut.run(batch).hidden, gated)
        assert torch.equal(subject.run(batch).hidden, whole)
    assert (gated - whole).abs().max() > 1e-4


def test_cut_heads_of_unequal_widths(translator: LiveModel) -> None:
    """Heads of several widths lie one above the other in W_O."""
    import copy

    from attnworks.models.anatomy import heads_of
    from attnworks.reshape.surgery import attention_parts, put_heads

    model = copy.deepcopy(translator.base.model)
    heads = heads_of(attention_parts(model)[Slot.parse("enc.0")])
    narrow = heads[0]._replace(
        W_V=heads[0].W_V[:, :-1], W_O=heads[0].W_O[:-1], b_V=None if heads[0].b_V is None else heads[0].b_V[:-1]
    )
    put_heads(model, Slot.parse("enc.0"), [narrow.each(torch.clone), *(head.each(torch.clone) for head in heads[1:])])
    silence_heads(model, Slot.parse("enc.0"), [0])
    left = heads_of(attention_parts(model)[Slot.parse("enc.0")])
    assert not left[0].W_O.any() and all(head.W_O.any() for head in left[1:])


def test_only_some_changed_models_are_kept(bert: LiveModel) -> None:
    models = EditedModels(bert.base)
    every = [Changes(cut=(f"enc.{layer}.{head}",)) for layer in range(2) for head in range(3)]
    first = models.subject(every[0])
    assert models.subject(every[0]) is first
    for changes in every[1:]:
        models.subject(changes)
    assert len(models._edited) == EDITED_MODELS_KEPT and models.subject(every[0]) is not first
    assert models.subject(Changes()) is bert.base


def test_forms_are_those_of_the_sentence_and_the_model_that_are_shown(bert: LiveModel) -> None:
    """A head that looks at the first token alone is one column, whatever it was before."""
    answer = bert.inspect(Question(LINES[2], Changes(project=(("enc.0.0", "first"),))))
    fits = answer["exam"]["pins"][0]["slots"][0]["fits"]
    assert fits["forms"][0] == "column" and fits["errors"][0] < 1e-6


def test_first_sentence_is_as_long_as_may_be_shown() -> None:
    model = LiveModel(open_subject(str(tiny_folder("bert"))), max_length=5)
    assert len(model.first.exam.pins or model.first.sentences) == 1
    assert len(model.first.sentences[0].pin.tokens) == 5


@pytest.mark.parametrize("text", ["caf\udce9", "\ud800"])
def test_what_is_no_text_is_refused(bert: LiveModel, text: str) -> None:
    with pytest.raises(UsageError, match="expected text in UTF-8"):
        bert.inspect(Question(text))


def test_chances_of_classes() -> None:
    scores = torch.tensor([2.0, 0.0, -1.0])
    one, several = SimpleNamespace(), SimpleNamespace(problem_type="multi_label_classification", id2label={0: "a"})
    assert sum(output.probability or 0 for output in _classes(one, scores).outputs) == pytest.approx(1)
    assert [output.probability for output in _classes(several, scores).outputs] == pytest.approx(
        [0.8808, 0.5, 0.2689], abs=1e-4
    )
    assert _classes(several, scores[:1]).outputs == [OutputToken("a: 2", None)]


def test_translation_and_its_beam(translator: LiveModel) -> None:
    answer = translator.inspect(Question(TEXT, Changes(cut=("enc.0.0",))))
    pin = answer["exam"]["pins"][0]
    assert {slot["kind"] for slot in pin["slots"]} == {"encoder", "decoder", "cross"}
    assert pin["beam"] and {*pin["beam"][0]} == {"kept", "ended"}
    assert [" ".join(pin["translation"])] == [output["text"] for output in answer["outputs"]["after"]]
    assert 0 < answer["outputs"]["after"][0]["probability"] <= 1
    assert answer["outputs"]["moved"] > 0
    assert translator.examine(Question(TEXT))["exam"]["readings"]


@pytest.mark.parametrize(("name", "words"), [("gpt2", "next tokens"), ("bert", "hidden word"), ("bart", "writes")])
def test_what_models_say(name: str, words: str) -> None:
    model = live(name)
    outputs = model.inspect(Question("the cat sees <mask> ." if name == "bert" else TEXT))["outputs"]
    assert words in outputs["words"]
    chances = [output["probability"] for output in outputs["before"]]
    assert len(chances) == (1 if name == "bart" else 5)
    assert name == "bart" or (chances == sorted(chances, reverse=True) and 0 < sum(chances) <= 1)


def test_mechanisms_that_are_offered_can_be_had() -> None:
    """T5 adds positions to scores, which some mechanisms have none of."""
    model = live("t5")
    offered = model.page().page["live"]["mechanisms"]
    assert "linear" not in offered["enc.0"] and "linear" in offered["cross.0"]
    slots = ("enc.0", "dec.0", "cross.0")
    for specs in zip_longest(*(offered[slot] for slot in slots)):
        swap = tuple((slot, spec) for slot, spec in zip(slots, specs, strict=True) if spec is not None)
        assert model.inspect(Question(SHORT, Changes(swap=swap)))["exam"]["pins"]


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_forms_that_are_offered_can_be_had(name: str) -> None:
    """No key comes after a query in a decoder, and positions across two texts have nothing in common."""
    model = live(name)
    offered = model.page().page["live"]["forms"]
    assert "next" not in offered["dec.0"] and "previous" in offered["dec.0"]
    assert offered.get("cross.0", []) == [] and "next" in offered.get("enc.0", ["next"])
    assert offered["dec.1"] == offered["dec.0"]
    heads = [f"dec.{layer}.{head}" for layer in range(2) for head in range(3)]
    for first in range(0, len(offered["dec.0"]), len(heads)):
        project = tuple(zip(heads, offered["dec.0"][first:], strict=False))
        assert model.inspect(Question(SHORT, Changes(project=project)))["exam"]["pins"]
    with pytest.raises(UsageError, match=r"'next' for head dec\.0\.1: expected one of auto, mix"):
        model.inspect(Question(TEXT, Changes(project=(("dec.0.1", "next"),))))


def test_forms_are_fitted_once(bert: LiveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[str] = []
    fit = Project.fit
    monkeypatch.setattr(Project, "fit", lambda self, *args: (fitted.append(self.heads), fit(self, *args))[1])
    for heads in (("enc.0.0",), ("enc.0.0", "enc.1.2"), ("enc.0.0", "enc.1.2", "enc.1.0")):
        bert.inspect(Question(LINES[1], Changes(project=tuple((head, "band") for head in heads))))
    assert fitted == ["enc.0.0", "enc.1.2", "enc.1.0"]


def test_a_single_word(bert: LiveModel, translator: LiveModel) -> None:
    """It can be looked at, and what needs several is left out."""
    for model in (bert, translator):
        look, more = (ask(Question("bird"))["exam"] for ask in (model.inspect, model.examine))
        assert look["pins"] and {*more["readings"]} == {*look["readings"]} and "too short" in more["notes"][0]


def test_the_error_of_a_form_is_the_one_that_was_measured(bert: LiveModel) -> None:
    """Of one sentence the closest form in its picture and in the reading are the same, with the same error."""
    slots = bert.inspect(Question(TEXT))["exam"]["pins"][0]["slots"]
    readings = bert.examine(Question(TEXT))["exam"]["readings"]
    forms, measured = (readings[f"structure.{name}@encoder"]["value"] for name in ("closest", "distance"))
    assert [slot["fits"]["forms"] for slot in slots] == forms
    for slot, errors in zip(slots, measured, strict=True):
        assert slot["fits"]["errors"] == pytest.approx(errors, abs=1e-4)


def test_a_sentence_is_translated_once(translator: LiveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    monkeypatch.setattr(inspect, "beam", lambda *args, **more: (written.append(0), beam(*args, **more))[1])
    question = Question("the small bird sees a very small cat .", Changes(cut=("dec.0.0",)))
    for ask in (translator.inspect, translator.examine, translator.inspect):
        ask(question)
    assert len(written) == 2


def test_a_changed_model_has_its_own_number_of_parameters(bert: LiveModel) -> None:
    question = Question(LINES[0], Changes(project=(("enc.0.0", "previous"),)))
    counts = [ask(question)["exam"]["model"]["parameters"] for ask in (bert.inspect, bert.examine)]
    assert counts[0] == counts[1] < bert.inspect(Question(LINES[0]))["exam"]["model"]["parameters"]


def test_models_that_cannot_write(tmp_path: Path) -> None:
    """The decoder of a body without a head reads the sentence itself; that is no translation."""
    save_model(TINY["bart"].build(dtype=torch.float32).model, tmp_path / "body")
    answer = LiveModel(open_subject(str(tmp_path / "body")), max_length=23, text=LINES[0]).inspect(Question(TEXT))
    assert answer["outputs"]["after"] == [] and "reads the sentence itself" in answer["outputs"]["words"]
    assert answer["exam"]["pins"][0]["translation"] is None


def test_long_sentences_are_there_whole(bert: LiveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is served need not fit into a file."""
    monkeypatch.setattr(page_contents, "__kwdefaults__", {**(page_contents.__kwdefaults__ or {}), "largest": 1})
    made = bert.page()
    assert made.heads == (6, 6) and made.page["remarks"] == []


def test_models_without_heads_to_change() -> None:
    model = LiveModel(open_subject(str(tiny_run("small-lstm"))), text=LINES[0])
    live = model.page().page["live"]
    assert "recurrent" in live["reshape"] and live["forms"] == {} and live["mechanisms"] == {}
    with pytest.raises(UsageError, match="recurrent"):
        model.inspect(Question(TEXT, Changes(cut=("cross.0.0",))))
    assert model.inspect(Question(TEXT))["exam"]["pins"]


def test_page_says_what_may_be_asked(bert: LiveModel) -> None:
    page = bert.page().page
    live = page["live"]
    assert (page["host"], live["kind"], live["reshape"], live["tokens"]) == ("live", "encoder", True, 23)
    assert live["text"] == LINES[0] and "auto" in live["forms"]["enc.1"]
    assert "window:window=4" in live["mechanisms"]["enc.1"] and "dense" not in live["mechanisms"]["enc.1"]
    assert page["exams"][0]["pins"] and page["exams"][0]["findings"]
