"""Figures leave the page as CSV, SVG and PNG; the grid of heads is sorted and filtered."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.browser_helpers import Shown
from tests.browser.conftest import Open

PNG = b"\x89PNG\r\n\x1a\n"


def saved(shown: Shown, kind: str, folder: Path, place: int = 0) -> Path:
    with shown.page.expect_download() as download:
        shown.root.get_by_role("button", name=re.compile(f"^Save .* as {kind}$")).nth(place).click()
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    assert file.suffix == f".{kind.lower()}"
    return file


@pytest.mark.parametrize("address", ["#overview", "#head=enc.0.1", "#depth"])
@pytest.mark.parametrize("host", ["file_page", "notebook_page"])
def test_figures_as_files(visit: Open, request: pytest.FixtureRequest, tmp_path: Path, host: str, address: str) -> None:
    shown = visit(request.getfixturevalue(host), address, framed=host == "notebook_page")
    with saved(shown, "CSV", tmp_path).open(newline="", encoding="utf-8") as lines:
        rows = list(csv.reader(lines))
    assert len(rows) > 1 and len({len(row) for row in rows}) == 1
    assert ET.parse(saved(shown, "SVG", tmp_path)).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    picture = saved(shown, "PNG", tmp_path).read_bytes()
    assert picture.startswith(PNG) and len(picture) > 300


@pytest.mark.parametrize("address", ["#overview", "#head=enc.0.1", "#depth", "#reshape"])
def test_every_figure_of_a_view(visit: Open, file_page: str, address: str) -> None:
    """Clicked by script, which is faster than the mouse. Chromium drops what is more than ten files in a second."""
    shown = visit(file_page, address)
    buttons = shown.root.get_by_role("button", name=re.compile("^Save .* as (SVG|PNG)$")).element_handles()
    assert len(buttons) > 1
    for button in buttons:
        with shown.page.expect_download() as download:
            button.evaluate("button => button.click()")
        file = download.value.path()
        if download.value.suggested_filename.endswith(".svg"):
            ET.parse(file)
        else:
            assert download.value.suggested_filename.endswith(".png") and file.read_bytes().startswith(PNG)
        shown.page.wait_for_timeout(110)


def test_copies_and_tables(look: Open, file_page: str) -> None:
    shown = look(file_page, "#depth")
    shown.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.button("Copy the data").first.click()
    expect(shown.root.get_by_text("copied").first).to_be_visible()
    assert "," in shown.root.evaluate("() => navigator.clipboard.readText()")
    tables = shown.root.get_by_role("table").count()
    shown.button("Table", exact=True).first.click()
    expect(shown.root.get_by_role("table")).to_have_count(tables + 1)


# --- the grid ---------------------------------------------------------------------------------------------------------


def tiles(shown: Shown) -> Locator:
    return shown.root.get_by_role("link", name=re.compile(r"^head \d"))


def values(shown: Shown) -> list[float]:
    """The numbers under the thumbnails, in order."""
    shown.settle()
    said = [tile.get_attribute("title") or "" for tile in tiles(shown).all()]
    return [float(words.split()[-1]) for words in said]


def test_sorting(look: Open, file_page: str) -> None:
    shown = look(file_page)
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
    shown.root.get_by_role("combobox", name="Measure").select_option(label=distinct(shown))
    shown.button("Table", exact=True).first.click()
    table = shown.root.get_by_role("table").last
    head = table.get_by_role("columnheader").nth(3)
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    falling = table.locator("tbody tr").all_inner_texts()
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert table.locator("tbody tr").all_inner_texts() == falling[::-1]
