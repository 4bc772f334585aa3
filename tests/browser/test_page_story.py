"""The first screen and the story: linked views, filters, screens of all widths, paper."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from attnworks.exam.examination import Examination
from attnworks.exam.reading import ModelReadings
from attnworks.exam.work import work_of
from tests.browser.browser_helpers import Shown
from tests.browser.conftest import Open
from tests.browser.pages import page_file

DESK: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}}
MOST_PAGES = 8
WIDTHS = (320, 360, 720, 1440, 2560)
SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
# How much ink is in the part of the canvas that each link covers, from 0 to 1.
INK = """() => {
    const canvas = document.querySelector(".grid-canvas"), copied = document.createElement("canvas");
    [copied.width, copied.height] = [canvas.width, canvas.height];
    const pen = copied.getContext("2d", { willReadFrequently: true });
    pen.drawImage(canvas, 0, 0);
    const fine = canvas.width / canvas.clientWidth;
    return Object.fromEntries([...document.querySelectorAll("a.tile")].map((tile) => {
        const [x, y] = [tile.offsetLeft + 2, tile.offsetTop + 2];
        const [wide, tall] = [tile.offsetWidth - 4, tile.offsetHeight - 4];
        const { data } = pen.getImageData(x * fine, y * fine, wide * fine, tall * fine);
        let ink = 0;
        for (let i = 0; i < data.length; i += 4)
            ink += (data[i + 3] / 255) * (765 - data[i] - data[i + 1] - data[i + 2]);
        return [tile.dataset.head, ink / data.length];
    }));
}"""


def tiles(shown: Shown) -> Locator:
    return shown.root.locator("a.tile")


def names(shown: Shown) -> list[str]:
    return [str(tile.get_attribute("data-head")) for tile in tiles(shown).all()]


def ink(shown: Shown) -> dict[str, float]:
    shown.settle()
    return shown.root.evaluate(INK)


def test_the_first_screen(visit: Open, file_page: str, exams: dict[str, Examination]) -> None:
    """Headline, sentence, every head and three findings are seen without scrolling."""
    exam = exams["bert"]
    shown = visit(file_page, **DESK)
    expect(shown.root.locator(".headline")).to_have_text(exam.headline.text)
    assert shown.root.locator(".sentence-word").all_inner_texts() == list(exam.pins[0].tokens)
    places = [shown.root.locator(part).bounding_box() for part in (".headline", ".sentence", ".grid-stage", ".chief")]
    assert all(place is not None and place["y"] >= 0 and place["y"] + place["height"] <= 900 for place in places)
    assert tiles(shown).count() == 6 and shown.root.locator(".chief li").count() == min(3, len(exam.findings))
    assert shown.root.evaluate(SIDEWAYS) <= 0


def test_a_word_lights_its_row(look: Open, file_page: str) -> None:
    shown = look(file_page, **DESK)
    before = ink(shown)
    shown.root.locator(".sentence-word").nth(2).hover()
    lit = ink(shown)
    assert before.keys() == lit.keys() and all(lit[head] < before[head] for head in before)
    assert all(value > 0 for value in lit.values())
    shown.root.locator(".headline").hover()
    assert ink(shown) == before


def test_words_are_within_reach_of_the_keyboard(look: Open, file_page: str) -> None:
    shown = look(file_page, **DESK)
    before = ink(shown)
    shown.root.locator(".sentence-word").first.focus()
    shown.page.keyboard.press("ArrowRight")
    expect(shown.root.locator(".sentence-word").nth(1)).to_be_focused()
    assert ink(shown) != before


def test_a_finding_dims_all_other_heads(look: Open, file_page: str, exams: dict[str, Examination]) -> None:
    shown = look(file_page, **DESK)
    before = ink(shown)
    told = {finding.text: set(finding.heads) for finding in exams["bert"].findings}
    for line in shown.root.locator(".chief li").all():
        words = re.sub(r"\W", "", line.inner_text().lower())
        (about,) = (heads for text, heads in told.items() if re.sub(r"\W", "", text.lower()) == words)
        line.hover()
        dimmed = {head for head, value in ink(shown).items() if value < 0.5 * before[head]}
        assert dimmed == (set(before) - about if about else set())
    shown.root.locator(".headline").hover()
    assert ink(shown) == before


def test_filters_compact(look: Open, file_page: str) -> None:
    """What is left stands together, without empty places; "1." finds the layer, and a full name the head."""
    shown = look(file_page, **DESK)
    find = shown.root.get_by_role("textbox", name="Find")
    find.fill("1.")
    assert names(shown) == ["enc.1.0", "enc.1.1", "enc.1.2"]
    find.fill("enc.0.1")
    assert names(shown) == ["enc.0.1"]
    places = [tile.bounding_box() for tile in tiles(shown).all()]
    find.fill(".2")
    assert names(shown) == ["enc.0.2", "enc.1.2"]
    first, _ = (tile.bounding_box() for tile in tiles(shown).all())
    assert first is not None and places[0] is not None and abs(first["x"] - places[0]["x"]) < 1
    shown.button("Show all").click()
    assert len(names(shown)) == 6


def test_the_legend_counts_and_filters(look: Open, file_page: str) -> None:
    shown = look(file_page, **DESK)
    items = shown.root.get_by_role("group", name="Show only heads of these roles").get_by_role("button")
    for item in items.all():
        count = int(item.inner_text().split()[-1])
        item.click()
        expect(tiles(shown)).to_have_count(count)
        item.click()
    assert sum(int(i.inner_text().split()[-1]) for i in items.all() if "rests" not in i.inner_text()) == 6


def test_orders(look: Open, file_page: str, exams: dict[str, Examination]) -> None:
    shown = look(file_page, **DESK)
    frame = exams["bert"].to_frame()
    shown.root.get_by_text("most work first").click()
    work = dict(zip(frame["name"], frame["ablation.change"].clip(lower=0), strict=True))
    gradient = dict(zip(frame["name"], frame["importance.gradient"], strict=True))
    found = names(shown)
    assert any([by[head] for head in found] == sorted(by.values(), reverse=True) for by in (work, gradient))
    shown.root.get_by_text("similar together").click()
    assert sorted(names(shown)) == sorted(found)


def test_the_shares_of_layers_are_those_of_the_exam(look: Open, file_page: str, exams: dict[str, Examination]) -> None:
    work = work_of(ModelReadings(exams["bert"].readings))
    assert work is not None
    shown = look(file_page, **DESK)
    shown.choose("Show as a table", "#story-work-figure")
    rows = shown.root.locator("#story-work-figure tbody tr").all_inner_texts()
    shares = [float(row.split()[-1]) for row in rows]
    assert shares == pytest.approx(list(work.layers.values()), abs=2e-3) and sum(shares) == pytest.approx(1, abs=5e-3)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("host", ["file_page", "two_sided_page"])
@pytest.mark.parametrize("view", ["story", "depth", "reshape"])
def test_no_view_scrolls_sideways(
    visit: Open, request: pytest.FixtureRequest, host: str, view: str, width: int
) -> None:
    shown = visit(request.getfixturevalue(host), f"#{view}", viewport={"width": width, "height": 800})
    assert shown.root.evaluate(SIDEWAYS) <= 0


def test_the_header_of_a_phone_has_two_rows(visit: Open, two_sided_page: str) -> None:
    shown = visit(two_sided_page, viewport={"width": 360, "height": 800})
    box = shown.root.locator("header.top").bounding_box()
    assert box is not None and box["height"] < 100


def test_every_head_has_room_on_a_phone(visit: Open, two_sided_page: str) -> None:
    shown = visit(two_sided_page, viewport={"width": 320, "height": 800})
    boxes = [tile.bounding_box() for tile in tiles(shown).all()]
    assert boxes and all(box is not None and box["width"] >= 18 and box["x"] + box["width"] <= 320 for box in boxes)


def test_tabs_that_cannot_apply_are_hidden(visit: Open, file_page: str, two_sided_page: str) -> None:
    def tabs(address: str) -> list[str]:
        return visit(address).root.get_by_role("navigation", name="Views").get_by_role("link").all_inner_texts()

    assert tabs(file_page) == ["Story", "Head", "Depth", "Reshape", "Claims"]
    assert tabs(two_sided_page) == ["Story", "Head", "Depth", "Alignment", "Reshape", "Compare", "Claims"]


def test_the_theme_is_remembered(look: Open, file_page: str) -> None:
    shown = look(file_page, color_scheme="light")
    shown.button("Change to dark colours").click()
    shown.page.reload()
    expect(shown.root.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("host", ["file_page", "two_sided_page"])
def test_the_report_on_paper(look: Open, request: pytest.FixtureRequest, host: str) -> None:
    """At most eight pages of A4, without controls."""
    shown = look(request.getfixturevalue(host))
    shown.page.emulate_media(media="print")
    shown.settle()
    for control in ("nav", ".grid-controls", ".figure-tools", ".command button"):
        assert not any(found.is_visible() for found in shown.root.locator(control).all())
    paper = shown.page.pdf(format="A4")
    assert 1 <= len(re.findall(rb"/Type\s*/Page[^s]", paper)) <= MOST_PAGES


def test_folders_of_the_author_are_not_told(look: Open, exams: dict[str, Examination], tmp_path: Path) -> None:
    """Names of models and texts are shown without the folders above them."""
    exam = exams["bert"]
    about = {**exam.model, "name": "/home/somebody/secret/tiny"}
    file = tmp_path / "named.html"
    shown = look(page_file(file, [replace(exam, model=about, corpus={**exam.corpus, "file": "/home/somebody/a.txt"})]))
    assert "somebody" not in shown.root.locator("body").inner_text()
    expect(shown.root.locator(".story-about")).to_contain_text("tiny:")
