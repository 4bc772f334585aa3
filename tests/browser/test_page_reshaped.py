"""Models that were reshaped: heads before and after a cut, and receipts on the live page."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from attnworks import examine
from attnworks.exam.examination import Examination
from attnworks.page.file import report
from attnworks.page.server.start import live_model
from attnworks.reshape.history import ModelFolder, write_outcome
from attnworks.reshape.pruning.prune import Prune
from attnworks.reshape.run import run_reshape
from attnworks.reshape.texts import split_texts as split
from attnworks.text.passages import from_texts
from attnworks.traces.subject import open_subject
from tests.browser.conftest import Open
from tests.browser.pages import tiny_exam
from tests.exam_helpers import LINES
from tests.page.server.server_helpers import TOKEN, serving


class Pruned:
    """A BERT of two layers of three heads, examined before and after heads 0.0, 1.0 and 1.1 were cut."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "pruned"
        self.before = tiny_exam(home / "bert", "bert")
        subject = open_subject(str(home / "bert"))
        model, receipt = run_reshape(Prune(heads="0.0,1.0,1.1"), subject, split(from_texts(LINES * 2)[0]))
        write_outcome(model, receipt, ModelFolder.of(str(home / "bert")), self.folder)
        self.after = examine(str(self.folder), texts=LINES, pin=[LINES[1]])

    def page(self, file: Path, *exams: Examination, **options: str) -> str:
        return report(exams, file, **options).path.as_uri()


@pytest.fixture(scope="session")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Pruned:
    return Pruned(tmp_path_factory.mktemp("pruned"))


def test_cut_heads_are_shown_as_cut(look: Open, pruned: Pruned, tmp_path: Path) -> None:
    shown = look(pruned.page(tmp_path / "both.html", pruned.before, pruned.after), "#compare")
    tiles = shown.root.locator(".compare-counts")
    expect(tiles).to_contain_text("3 heads compared")
    expect(tiles).to_contain_text("3 heads cut")
    expect(shown.root.locator(".compare-verdict")).to_contain_text("3 of 6 heads are gone")
    expect(tiles).to_contain_text("of 3 compared heads have a different role")
    expect(shown.root.locator("main")).to_contain_text("Cut from pruned: enc.0.0, enc.1.0, enc.1.1")
    shown.root.get_by_role("combobox", name="Measure").first.select_option(value="saturation.entropy")
    after = shown.root.locator("#compare-after .head-cells")
    expect(after.get_by_text("cut", exact=True)).to_have_count(3)
    kept = after.get_by_role("link", name="head enc.0.2 → enc.0.1:")
    expect(kept).to_have_attribute("href", "#head=enc.0.1&exam=1")
    expect(
        shown.root.locator("#compare-difference").get_by_role("link", name="head enc.0.2 → enc.0.1: 0")
    ).to_be_visible()
    shown.root.get_by_role("combobox", name="Head").select_option(value="enc.0.2")
    expect(shown.root.get_by_text("Head enc.0.1, after")).to_be_visible()
    expect(shown.root.get_by_text("0 % of the attention moved")).to_be_visible()


def test_slopes_measures_and_what_is_not_compared(look: Open, pruned: Pruned, tmp_path: Path) -> None:
    shown = look(pruned.page(tmp_path / "both.html", pruned.before, pruned.after), "#compare")
    slopes = shown.root.locator("#slopes")
    assert slopes.locator("path[stroke-width]").count() >= 3
    assert slopes.locator("circle title", has_text="enc.0.0, cut:").count() >= 1
    table = shown.root.get_by_role("region", name="Means over the heads")
    expect(table.get_by_role("columnheader", name="measure")).to_be_visible()
    rest = shown.root.locator(".compare-rest > summary")
    expect(rest).to_contain_text("What cannot be compared: 3 heads")
    rest.click()
    expect(shown.root.get_by_text("Cut from pruned: enc.0.0, enc.1.0, enc.1.1")).to_be_visible()
    shown.check_accessibility()


def test_receipts_as_a_line(look: Open, pruned: Pruned, tmp_path: Path) -> None:
    shown = look(pruned.page(tmp_path / "receipts.html", pruned.after, model=str(pruned.folder)), "#reshape")
    steps = shown.root.locator(".timeline li")
    expect(steps).to_have_count(1)
    expect(steps.first).to_contain_text("fewer parameters")
    steps.first.get_by_role("link").click()
    expect(shown.root.locator("#receipt-1")).to_be_in_viewport()


def test_heads_that_nothing_matches_are_named(look: Open, pruned: Pruned, tmp_path: Path) -> None:
    model = {key: value for key, value in pruned.after.model.items() if key != "lineage"}
    after = Examination(model, pruned.after.corpus, pruned.after.readings)
    shown = look(pruned.page(tmp_path / "untold.html", pruned.before, after), "#compare")
    expect(shown.root.locator(".compare-counts")).to_contain_text("0 heads compared")
    expect(shown.root.locator(".compare-counts")).to_contain_text("9 heads not compared")
    expect(shown.root.locator(".compare-counts")).not_to_contain_text("role")
    expect(shown.root.locator("main")).to_contain_text(
        "Heads of enc.0: 3 heads against 2, and no receipt says which head became which"
    )


def test_receipts_of_a_live_model(look: Open, pruned: Pruned) -> None:
    model = live_model(open_subject(str(pruned.folder)), max_length=23, text=LINES[0])
    with serving(model.page(), model) as client:
        shown = look(f"http://127.0.0.1:{client.port}/{TOKEN}/", "#reshape")
        expect(shown.root.get_by_text("1. Cut 3 of 6 heads (0.0,1.0,1.1)")).to_be_visible()
        expect(shown.root.get_by_text("was not reshaped")).to_have_count(0)


def test_an_examination_says_that_its_model_was_reshaped(look: Open, pruned: Pruned, tmp_path: Path) -> None:
    shown = look(pruned.page(tmp_path / "one.html", pruned.after), "#reshape")
    expect(shown.root.get_by_text("This model was reshaped: Cut 3 of 6 heads (0.0,1.0,1.1).")).to_be_visible()
    shown = look(pruned.page(tmp_path / "before.html", pruned.before), "#reshape")
    expect(shown.root.get_by_text("No receipts were given.")).to_be_visible()


def test_a_live_model_that_was_not_reshaped(look: Open, live_page: str) -> None:
    shown = look(live_page, "#reshape")
    expect(shown.root.get_by_text("This model was not reshaped: its folder holds no receipts.")).to_be_visible()
