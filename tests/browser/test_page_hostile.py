"""Strings of a model, a corpus or a file are never more than text, whatever they are, in any view of any host."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from attnworks.exam.examination import Examination
from tests.browser.browser_helpers import Shown, views
from tests.browser.conftest import TYPED, Open
from tests.browser.hostile import HOSTILE, in_pages
from tests.browser.pages import hostile_exam, notebook_file, page_file

PAGES = 2
TYPED_AT_ONCE = 90
OPEN_TABLES = """async () => {
    const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    for (const details of document.querySelectorAll("main details")) details.open = true;
    await drawn();
    for (const button of document.querySelectorAll("main .figure-tools .menu > button")) {
        button.click();
        await drawn();
        const entries = [...document.querySelectorAll("[role=menuitem]")];
        entries.find((entry) => entry.textContent === "Show as a table")?.click();
        await drawn();
    }
}"""


def walk(shown: Shown, heads: tuple[str, ...]) -> None:
    """Every view with its tables opened, and heads as a matrix and as arcs, with the mouse over what can be hovered."""
    others = [view for view in views(shown) if view != "head"]
    for address in (*others, *(f"head={head}" for head in heads)):
        shown.go(f"#{address}")
        shown.root.evaluate(OPEN_TABLES)
        shown.settle()
        if address.startswith("head"):
            for choice in ("arcs", "matrix"):
                shown.root.get_by_text(choice, exact=True).first.click()
                shown.settle()
        for drawn in shown.root.locator("main svg.plot, main canvas").all()[:6]:
            if drawn.is_visible():
                drawn.hover(force=True)


def test_there_are_enough() -> None:
    assert len(HOSTILE) >= 200 and sorted(sum(in_pages(PAGES), ())) == sorted(HOSTILE)
    assert len(TYPED) >= 150


@pytest.mark.parametrize("words", in_pages(PAGES), ids=range(PAGES))
def test_in_a_file(look: Open, exams: dict[str, Examination], tmp_path: Path, words: tuple[str, ...]) -> None:
    pair = [hostile_exam(exams[name], words) for name in ("bart", "changed")]
    shown = look(page_file(tmp_path / "hostile.html", pair, words))
    walk(shown, ("enc.0.1", "dec.1.0", "cross.0.1"))


@pytest.mark.parametrize("words", in_pages(PAGES), ids=range(PAGES))
def test_in_a_notebook(look: Open, exams: dict[str, Examination], tmp_path: Path, words: tuple[str, ...]) -> None:
    shown = look(notebook_file(tmp_path / "hostile.html", hostile_exam(exams["bert"], words)), framed=True)
    walk(shown, ("enc.0.1",))


@pytest.mark.parametrize("first", range(0, len(TYPED), TYPED_AT_ONCE))
def test_on_a_live_page(look: Open, live_page: str, first: int) -> None:
    words = [word for word in TYPED[first : first + TYPED_AT_ONCE] if len(word) < 1000]
    shown = look(live_page)
    typed = " ".join(words)
    with shown.page.expect_response(
        lambda response: typed in (response.request.post_data_json or {}).values()
    ) as answer:
        shown.root.get_by_role("textbox", name="Sentence").fill(typed)
    tokens = answer.value.json()["exam"]["pins"][0]["tokens"]
    assert len(set(words) & set(tokens)) > len(words) / 2
    expect(shown.root.get_by_text("answered in").first).to_be_visible()
    walk(shown, ("enc.0.1",))


@pytest.mark.parametrize(
    "word", ["<script>__hit=1</script>", "</script><img src=x onerror=__hit=1>", "javascript:__hit=1"]
)
def test_in_the_address(visit: Open, file_page: str, word: str) -> None:
    shown = visit(file_page)
    for name in ("head", "claim", "sentence", "exam"):
        shown.root.evaluate("hash => { location.hash = hash }", f"#{name}={quote(word)}")
        shown.settle()
