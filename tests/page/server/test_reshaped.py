"""A reshaped model, served: the page has the receipts of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import attnworks
from attnworks.page.server.start import live_model
from attnworks.reshape.history import ModelFolder, write_outcome
from attnworks.reshape.pruning.prune import Prune
from attnworks.reshape.run import run_reshape
from attnworks.reshape.texts import split_texts as split
from attnworks.text.passages import from_texts
from attnworks.traces.subject import open_subject
from tests.exam_helpers import LINES, save_tiny, tiny_folder
from tests.reshape.reshape_helpers import project_folder, small_run


@pytest.fixture
def reshaped(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose heads were projected, or a Hugging Face model of which a head was cut."""
    monkeypatch.setattr("attnworks.traces.own.max_target_tokens", lambda _: 5)
    out = tmp_path / "new"
    if request.param == "run":
        project_folder(small_run(tmp_path / "home"), "enc.0.1", out)
    else:
        source = save_tiny("bert", tmp_path / "bert")
        model, receipt = run_reshape(Prune(heads="0.1"), open_subject(str(source)), split(from_texts(LINES * 2)[0]))
        write_outcome(model, receipt, ModelFolder.of(str(source)), out)
    return out


@pytest.mark.parametrize(
    ("reshaped", "title"),
    [("run", "Replaced 1 head by fixed forms (enc.0.1)"), ("bert", "Cut 1 of 6 heads (0.1)")],
    indirect=["reshaped"],
)
def test_receipts_are_on_the_page(reshaped: Path, title: str) -> None:
    contents = live_model(attnworks.open(reshaped), max_length=23, text=LINES[0]).page()
    assert [receipt["title"] for receipt in contents.page["receipts"]] == [title]
    (exam,) = contents.page["exams"]
    assert exam["model"]["lineage"]["reshapes"] == [title]


def test_a_model_that_was_not_reshaped() -> None:
    contents = live_model(attnworks.open(tiny_folder("bert")), max_length=23, text=LINES[0]).page()
    assert contents.page["receipts"] == [] and "lineage" not in contents.page["exams"][0]["model"]
