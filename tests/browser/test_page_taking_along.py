"""Figures leave the page as CSV, SVG and PNG; the grid of heads is sorted and filtered."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET

import pytest
from playwright.sync_api import Locator, expect

from attnworks.exam.examination import Examination
from tests.browser.browser_helpers import Shown
from tests.browser.conftest import Open

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("address", ["#story", "#head=enc.0.1", "#depth"])
@pytest.mark.parametrize("host", ["file_page", "notebook_page"])
def test_figures_as_files(visit: Open, request: pytest.FixtureRequest, host: str, address: str) -> None:
    shown = visit(request.getfixturevalue(host), address, framed=host == "notebook_page")
    name, data = shown.saved("Save data as CSV")
    rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
    assert name.endswith(".csv") and len(rows) > 1 and len({len(row) for row in rows}) == 1
    name, data = shown.saved("Save as SVG")
    assert name.endswith(".svg") and ET.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"
    name, data = shown.saved("Save as PNG")
    assert name.endswith(".png") and data.startswith(PNG) and len(data) > 300


@pytest.mark.parametrize("address", ["#story", "#head=enc.0.1", "#depth", "#reshape"])
def test_every_figure_of_a_view(visit: Open, file_page: str, address: str) -> None:
    """Chromium drops what is more than ten files in a second."""
    shown = visit(file_page, address)
    figures = shown.root.locator(".figure").count()
    assert figures > 0
    for place in range(figures):
        for entry in ("Save as SVG", "Save as PNG"):
            name, data = shown.saved(entry, place=place)
            if name.endswith(".svg"):
                ET.fromstring(data)
            else:
                assert name.endswith(".png") and data.startswith(PNG)
            shown.page.wait_for_timeout(110)


def test_a_saved_figure_says_what_it_is(visit: Open, file_page: str, exams: dict[str, Examination]) -> None:
    shown = visit(file_page, "#head=enc.0.1")
    name, data = shown.saved("Save as SVG", "#attention")
    sentence = " ".join(exams["bert"].pins[0].tokens)
    told = " ".join(text.text or "" for text in ET.fromstring(data).iter("{http://www.w3.org/2000/svg}text"))
    for words in ("Attention, head 0.1", sentence, "0 to 1, square-root scale", "Model: bert,", "Source: attnworks"):
        assert words in told
    assert name.startswith("bert_head-0.1_attention_s-the-very-tired") and name.endswith(".svg")


def test_a_copied_image_has_its_caption(look: Open, file_page: str) -> None:
    shown = look(file_page, "#head=enc.0.1")
    shown.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    read = """async () => {
        try {
            const [item] = await navigator.clipboard.read();
            const text = item.types.includes("text/plain") ? await (await item.getType("text/plain")).text() : "";
            return [text, (await createImageBitmap(await item.getType("image/png"))).height];
        } catch { return ["", 0] }
    }"""
    shown.choose("Copy image", "#attention")
    expect(shown.root.get_by_text("Image copied")).to_be_visible()
    words, bare = shown.root.evaluate(read)
    assert words == ""
    shown.choose("Copy image with caption", "#attention")
    expect(shown.root.get_by_text("Image copied")).to_be_visible()
    shown.until(lambda: shown.root.evaluate(read)[0] != "")
    words, captioned = shown.root.evaluate(read)
    assert words.startswith("Attention, head 0.1") and "Model: bert," in words and captioned > bare + 100


def test_copies_and_tables(look: Open, file_page: str) -> None:
    shown = look(file_page, "#depth")
    shown.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.choose("Copy data as CSV")
    expect(shown.root.get_by_text("CSV copied").first).to_be_visible()
    assert "," in shown.root.evaluate("() => navigator.clipboard.readText()")
    tables = shown.root.get_by_role("table").count()
    shown.choose("Show as a table")
    expect(shown.root.get_by_role("table")).to_have_count(tables + 1)
    shown.choose("Hide the table")
    expect(shown.root.get_by_role("table")).to_have_count(tables)


def test_a_menu_by_keyboard(look: Open, file_page: str) -> None:
    shown = look(file_page, "#head=enc.0.1")
    button = shown.root.locator("#attention").get_by_role("button", name="Menu of the figure")
    button.focus()
    shown.page.keyboard.press("Enter")
    expect(shown.root.locator(":focus")).to_have_text("Copy image")
    shown.page.keyboard.press("ArrowUp")
    expect(shown.root.locator(":focus")).to_have_text("Show as a table")
    shown.check_accessibility()
    shown.page.keyboard.press("Escape")
    expect(button).to_be_focused()
    expect(shown.root.get_by_role("menu")).to_have_count(0)
    expect(shown.root.get_by_role("heading", level=2, name="Head 0.1")).to_be_visible()


# --- the grid ---------------------------------------------------------------------------------------------------------


def tiles(shown: Shown) -> Locator:
    return shown.root.get_by_role("link", name=re.compile(r"^head \d"))


def open_filters(shown: Shown) -> None:
    shown.root.get_by_text("Measures and filters").click()


def values(shown: Shown) -> list[float]:
    """The numbers under the thumbnails, in order."""
    shown.settle()
    said = [tile.get_attribute("aria-label") or "" for tile in tiles(shown).all()]
    return [float(words.split()[-1]) for words in said]


def test_sorting(look: Open, file_page: str) -> None:
    shown = look(file_page)
    open_filters(shown)
    names = shown.root.get_by_role("combobox", name="Measure").locator("option").all_inner_texts()
    for words in names[:3]:
        shown.root.get_by_role("combobox", name="Measure").select_option(label=words)
        shown.root.get_by_text("highest first").click()
        falling = values(shown)
        assert len(falling) == 6 and falling == sorted(falling, reverse=True)
        shown.root.get_by_text("lowest first").click()
        assert values(shown) == falling[::-1] or values(shown) == sorted(falling)


def test_filtering(look: Open, file_page: str) -> None:
    shown = look(file_page)
    open_filters(shown)
    shown.root.get_by_role("combobox", name="Measure").select_option(label=distinct(shown))
    shown.root.get_by_text("highest first").click()
    all_values = values(shown)
    shown.root.get_by_role("textbox", name="At least").fill(str((all_values[2] + all_values[3]) / 2))
    expect(tiles(shown)).to_have_count(3)
    shown.root.get_by_role("textbox", name="At most").fill(str((all_values[0] + all_values[1]) / 2))
    expect(tiles(shown)).to_have_count(2)
    shown.button("Show all").click()
    expect(tiles(shown)).to_have_count(6)
    shown.root.get_by_role("textbox", name="Find").fill("1.2")
    expect(tiles(shown)).to_have_count(1)
    shown.root.get_by_role("textbox", name="Find").fill("<img src=x>")
    expect(tiles(shown)).to_have_count(0)
    shown.button("Show all").click()
    expect(tiles(shown)).to_have_count(6)


def distinct(shown: Shown) -> str:
    """A measure whose values are told apart by the digits that are shown."""
    for name in shown.root.get_by_role("combobox", name="Measure").locator("option").all_inner_texts():
        shown.root.get_by_role("combobox", name="Measure").select_option(label=name)
        if len({*values(shown)}) == 6:
            return name
    raise AssertionError("all measures have ties")


def test_tables_sort(look: Open, file_page: str) -> None:
    shown = look(file_page)
    open_filters(shown)
    shown.root.get_by_role("combobox", name="Measure").select_option(label=distinct(shown))
    shown.choose("Show as a table")
    table = shown.root.get_by_role("table").last
    head = table.get_by_role("columnheader").nth(3)
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    falling = table.locator("tbody tr").all_inner_texts()
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert table.locator("tbody tr").all_inner_texts() == falling[::-1]
