"""Heads of two models matched through receipts: cut, new, renumbered, and heads that cannot be matched."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import attnworks
from attnworks.cli.examine import examine
from attnworks.core.errors import FolderError
from attnworks.core.folders import read_sealed, seal, sha256
from attnworks.exam.compare import Comparison, NumberChange, compare_exams
from attnworks.exam.examination import Examination
from attnworks.exam.folder import EXAM_FILE, EXAM_MANIFEST_FILE, read_exam, write_exam
from attnworks.exam.head_matches import Match
from attnworks.reshape.contract import Reshape
from attnworks.reshape.growth.grow import Grow
from attnworks.reshape.history import ModelFolder, undo, write_outcome
from attnworks.reshape.pruning.prune import Prune
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.run import ReshapeSettings, run_reshape
from attnworks.reshape.swapping.swap import Swap
from attnworks.text.passages import from_texts
from attnworks.traces.subject import open_subject
from tests.exam.test_compare import holding
from tests.exam.test_examination import stated
from tests.exam_helpers import LINES, tiny_folder
from tests.page.page_helpers import Seen
from tests.reshape.growth.growth_helpers import growing_model, growing_texts
from tests.reshape.reshape_helpers import SENTENCES, WORDS, subject_of, texts

MEASURES = ["saturation", "sinks", "roles"]


@pytest.fixture(autouse=True, scope="module")
def short_translations() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnworks.traces.own.max_target_tokens", lambda _: 5)
        yield


def exam_of(layers: list[list[float]], lineage: dict[str, Any] | None = None) -> Examination:
    """An examination of one number for every head."""
    heads = {f"enc.{layer}": len(row) for layer, row in enumerate(layers)}
    told = {} if lineage is None else {"lineage": {"original": "f", "reshapes": ["prune"], **lineage}}
    return holding(stated("sinks.first", ("layer", "head"), layers), heads=heads, **told)


def pruned(layers: list[list[float]], counts: dict[str, int], **kept: list[int]) -> Examination:
    heads = {slot.replace("_", "."): [f"{slot.replace('_', '.')}.{head}" for head in of] for slot, of in kept.items()}
    return exam_of(layers, {"counts": counts, "heads": heads})


def states(found: Comparison) -> dict[str, int]:
    return dict(Counter(match.state for match in found.heads))


def changed(found: Comparison) -> list[tuple[str, str, float]]:
    changes = sorted(found.changes, key=lambda change: change.where)
    return [(change.where, change.where_after, round(change.difference, 6)) for change in changes]


# Numbers -------------------------------------------------------------------------------------------------------------


FULL = exam_of([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6]])
CUT = pruned([[0.2, 0.9], [0.5, 0.6]], {"enc.0": 4}, enc_0=[1, 3])


def test_heads_are_compared_with_what_they_were() -> None:
    found = compare_exams(FULL, CUT)
    assert states(found) == {"compared": 4, "cut": 2} and found.compared == 4
    assert changed(found) == [("enc.0.3", "enc.0.1", 0.5)]
    assert [match.before for match in found.heads_that_are("cut")] == ["enc.0.0", "enc.0.2"]
    assert all(match.after is None for match in found.heads_that_are("cut"))
    assert "the second model was reshaped: prune" in found.notes and not found.nothing_changed


def test_the_other_way_around() -> None:
    found = compare_exams(CUT, FULL)
    assert changed(found) == [("enc.0.1", "enc.0.3", -0.5)]
    assert [(match.before, match.after) for match in found.heads_that_are("cut")] == [
        (None, "enc.0.0"),
        (None, "enc.0.2"),
    ]


def test_two_models_pruned_from_one() -> None:
    other = pruned([[0.1, 0.25], [0.5, 0.6]], {"enc.0": 4}, enc_0=[0, 1])
    found = compare_exams(CUT, other)
    assert changed(found) == [("enc.0.0", "enc.0.1", 0.05)]
    assert [tuple(match) for match in found.heads if match.state == "cut"] == [
        ("enc.0.3", "enc.0.1", None, "cut", None),
        ("enc.0.0", None, "enc.0.0", "cut", None),
    ]
    assert not any("different weights" in note for note in found.notes)


def test_other_originals_are_named() -> None:
    lineage = {**CUT.model["lineage"], "original": "another"}
    found = compare_exams(CUT, exam_of([[0.2, 0.9], [0.5, 0.6]], lineage))
    assert states(found) == {"compared": 4} and any("from different weights" in note for note in found.notes)


def test_as_many_heads_that_are_others_are_not_compared_by_number() -> None:
    found = compare_exams(exam_of([[0.2, 0.9], [0.5, 0.6]]), CUT)
    assert states(found) == {"compared": 2, "not compared": 4} and found.compared == 2
    (why,) = {match.why for match in found.heads_that_are("not compared")}
    assert why == "2 heads against 4 before any were cut or added: the models differ"


def test_new_heads() -> None:
    grown = exam_of([[0.1, 0.2, 0.7], [0.5, 0.6]], {"counts": {"enc.0": 2}, "heads": {
        "enc.0": ["enc.0.0", "enc.0.1", "enc.0.2+aa"]}})  # fmt: skip
    before = exam_of([[0.1, 0.2], [0.5, 0.6]])
    assert compare_exams(before, grown).heads[2] == Match("enc.0.2+aa", None, "enc.0.2", "new")
    assert compare_exams(grown, before).heads[2] == Match("enc.0.2+aa", "enc.0.2", None, "new")
    less = exam_of([[0.2, 0.8], [0.5, 0.6]], {"counts": {"enc.0": 2}, "heads": {"enc.0": ["enc.0.1", "enc.0.2+aa"]}})
    assert changed(compare_exams(grown, less)) == [("enc.0.2", "enc.0.1", 0.1)]


def test_one_model_on_two_texts() -> None:
    """Heads that changed without a receipt can be compared where both examinations are of the same model."""
    exam = exam_of([[0.1, 0.2]], {"unrecorded": ["enc.0"]})
    assert compare_exams(exam, exam).nothing_changed and compare_exams(CUT, CUT).nothing_changed
    assert [match.head for match in compare_exams(exam, exam).heads] == ["enc.0.0", "enc.0.1"]
    assert [match.head for match in compare_exams(CUT, CUT).heads[:2]] == ["enc.0.1", "enc.0.3"], "their first names"
    found = compare_exams(exam, exam_of([[0.1, 0.2]]))
    assert states(found) == {"not compared": 4}
    assert {match.why for match in found.heads} == {
        "in the first model heads also changed without a receipt, for instance by growth during training"
    }


def test_roles_are_counted_where_they_were_compared() -> None:
    def labelled(exam: Examination, labels: list[list[str]]) -> Examination:
        exam.readings.add(stated("roles.label", ("layer", "head"), labels))
        return exam

    before = labelled(exam_of([[0.1, 0.2, 0.3]]), [["first", "rare", "next"]])
    after = labelled(pruned([[0.3]], {"enc.0": 3}, enc_0=[2]), [["self"]])
    found = compare_exams(before, after)
    assert found.roles_compared == 1 and [tuple(role) for role in found.roles] == [
        ("enc.0.2", "enc.0.0", "next", "self")
    ]
    unmatched = compare_exams(before, labelled(exam_of([[0.3]]), [["self"]]))
    assert unmatched.roles_compared == 0 and not unmatched.roles
    assert unmatched.to_json()["heads"]["not_compared"] == 4


# Models --------------------------------------------------------------------------------------------------------------


def reshape_folder(reshape: Reshape, source: Path, out: Path) -> Receipt:
    model, receipt = run_reshape(reshape, open_subject(str(source)), texts(from_texts(LINES * 2)[0]))
    write_outcome(model, receipt, ModelFolder.of(str(source)), out)
    return receipt


class Family:
    """A BERT of two layers of three heads, and what was made of it: a head cut, a layer swapped, more heads cut."""

    def __init__(self, home: Path) -> None:
        self.full, self.once, self.swapped, self.twice = tiny_folder("bert"), home / "a", home / "b", home / "c"
        reshape_folder(Prune(heads="0.0"), self.full, self.once)
        reshape_folder(Swap(to=("window:window=2",), layers="enc.1"), self.once, self.swapped)
        reshape_folder(Prune(heads="0.1,1.*"), self.swapped, self.twice)
        self.exams = {
            name: attnworks.examine(str(folder), texts=LINES, measures=MEASURES, pin=())
            for name, folder in vars(self).items()
        }


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(tmp_path_factory.mktemp("family"))


def test_an_examination_knows_where_heads_come_from(family: Family) -> None:
    assert "lineage" not in family.exams["full"].model
    once, twice = (family.exams[name].model["lineage"] for name in ("once", "twice"))
    assert once["heads"] == {"enc.0": ["enc.0.1", "enc.0.2"]} and once["counts"] == {"enc.0": 3}
    assert twice["heads"] == {"enc.0": ["enc.0.1"], "enc.1": []} and twice["counts"] == {"enc.0": 3, "enc.1": 3}
    assert [done.split()[0] for done in twice["reshapes"]] == ["Cut", "Swapped", "Cut"]


def all_rounding(changes: Iterable[NumberChange], tolerance: float) -> bool:
    """Whether these are last bits: another number of heads may take another matrix kernel."""
    return all(
        math.isclose(change.before, change.after, rel_tol=tolerance, abs_tol=tolerance / 10) for change in changes
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("full", "once", {"compared": 5, "cut": 1}),
        ("once", "swapped", {"compared": 5}),
        ("once", "twice", {"compared": 1, "cut": 4}),
        ("full", "twice", {"compared": 1, "cut": 5}),
        ("twice", "full", {"compared": 1, "cut": 5}),
    ],
)
def test_a_layer_that_reads_the_same_attends_as_before(
    family: Family, before: str, after: str, expected: dict[str, int]
) -> None:
    """The first layer reads the embeddings, which no cut changes: what is left of it has the numbers it had."""
    found = compare_exams(family.exams[before], family.exams[after])
    assert states(found) == expected and found.compared > 0
    same = [change for change in found.changes if change.where.startswith("enc.0")]
    assert all_rounding(same, 1e-5)
    renumbered = {match.before: match.after for match in found.heads if match.head == "enc.0.1"}
    assert renumbered == {"enc.0.1" if before == "full" else "enc.0.0": "enc.0.1" if after == "full" else "enc.0.0"}


def test_the_command_keeps_lineage_and_shows_receipts(family: Family, tmp_path: Path) -> None:
    text, page = tmp_path / "text.txt", tmp_path / "page.html"
    text.write_text("\n".join(LINES), encoding="utf-8")
    arguments = [str(family.once), "--text", text, "--measures", "sinks", "--out", tmp_path / "exam", "--report", page]
    assert CliRunner().invoke(examine, [str(argument) for argument in arguments]).exit_code == 0
    assert read_exam(tmp_path / "exam").model["lineage"] == family.exams["once"].model["lineage"]
    assert Seen(page.read_text(encoding="utf-8")).page()["receipts"][0]["title"] == "Cut 1 of 6 heads (0.0)"


def test_undoing_brings_names_back(family: Family, tmp_path: Path) -> None:
    undo(str(family.twice), tmp_path / "back")
    exam = attnworks.examine(str(tmp_path / "back"), texts=LINES, measures=MEASURES, pin=())
    assert exam.model["lineage"] == family.exams["swapped"].model["lineage"]


def test_a_lineage_is_kept_in_the_folder_and_checked(family: Family, tmp_path: Path) -> None:
    folder = write_exam(family.exams["twice"], tmp_path / "exam")
    assert read_exam(folder).model == family.exams["twice"].model
    outline = read_sealed(folder / EXAM_FILE)
    outline["model"]["lineage"]["heads"]["enc.0"] = ["enc.0.1", "enc.0.2"]
    text = seal({key: value for key, value in outline.items() if key != "sha256"})
    (folder / EXAM_FILE).write_bytes(text)
    manifest = {key: value for key, value in read_sealed(folder / EXAM_MANIFEST_FILE).items() if key != "sha256"}
    (folder / EXAM_MANIFEST_FILE).write_bytes(seal({**manifest, "exam_sha256": sha256(text)}))
    with pytest.raises(FolderError, match="the lineage of heads"):
        read_exam(folder)


def test_models_in_memory_are_matched_by_their_receipts() -> None:
    """Grown by a head, then cut; without receipts it is said that nothing tells which head became which."""
    model = growing_model(torch.float64)
    grown, first = run_reshape(
        Grow(where="enc.0:heads=1", by="zero"), subject_of(model), growing_texts(), ReshapeSettings()
    )
    assert first.heads["enc.0"].after == (0, 1, None)
    cut, second = run_reshape(Prune(heads="enc.0.0"), subject_of(grown), texts())

    def exam(of: Any, *receipts: Receipt) -> Examination:
        return attnworks.examine(of, SENTENCES[:5], tokenizer=WORDS, measures=MEASURES, pin=(), receipts=receipts)

    whole, wider, last = exam(model), exam(grown, first), exam(cut, first, second)
    own = [match for match in compare_exams(whole, wider).heads if match.head.startswith("enc.0")]
    assert [(match.before, match.after, match.state) for match in own] == [
        ("enc.0.0", "enc.0.0", "compared"), ("enc.0.1", "enc.0.1", "compared"), (None, "enc.0.2", "new"),
    ]  # fmt: skip
    own = [match for match in compare_exams(wider, last).heads if match.head.startswith("enc.0")]
    assert [(match.before, match.after) for match in own] == [
        ("enc.0.0", None), ("enc.0.1", "enc.0.0"), ("enc.0.2", "enc.0.1"),
    ]  # fmt: skip
    same = [change for change in compare_exams(wider, last).changes if change.where.startswith("enc.0.")]
    assert all_rounding(same, 1e-12)
    (why,) = {match.why for match in compare_exams(whole, exam(grown)).heads if match.state == "not compared"}
    assert why == "2 heads against 3, and no receipt says which head became which"
