"""Attention maps: the value under the pointer, the scale of colours, other weighings, long sentences, far distances."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Locator, expect
from torch import Tensor

from attnworks.core.places import Slot
from attnworks.exam.examination import Examination
from attnworks.exam.reading import Readings
from tests.browser.browser_helpers import Shown
from tests.browser.conftest import Open
from tests.browser.pages import page_file
from tests.browser.test_page_data import draw, with_maps

LABEL = 84
"""Pixels for the tokens above and beside a matrix."""


def canvas(shown: Shown) -> Locator:
    return shown.root.locator("#attention canvas").first


def side(shown: Shown, tokens: int) -> float:
    """The pixels of a cell."""
    box = canvas(shown).bounding_box()
    assert box is not None
    return min((box["width"] - LABEL - 2) / tokens, (560 - LABEL) / tokens, 44)


def point_at(shown: Shown, tokens: int, row: int, column: int) -> None:
    canvas(shown).scroll_into_view_if_needed()
    box, cell = canvas(shown).bounding_box(), side(shown, tokens)
    assert box is not None
    shown.page.mouse.move(box["x"] + LABEL + (column + 0.5) * cell, box["y"] + LABEL + (row + 0.5) * cell)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (2, 5), (10, 10), (0, 10), (10, 0)])
def test_the_value_stands_at_the_pointer(
    visit: Open, file_page: str, exams: dict[str, Examination], row: int, column: int
) -> None:
    pin = exams["bert"].pins[0]
    weight = float(pin.maps[Slot("encoder", 0)][1][row, column])
    shown = visit(file_page, "#head=enc.0.1", viewport={"width": 1000, "height": 500})
    point_at(shown, len(pin.tokens), row, column)
    tip = shown.root.locator(".heatmap-tip")
    expect(tip).to_contain_text(f"{pin.tokens[row]} → {pin.tokens[column]}")
    assert float(tip.inner_text().split()[0]) == pytest.approx(weight, abs=5e-3)
    box = tip.bounding_box()
    assert box is not None and box["x"] >= 0 and box["y"] >= 0
    assert box["x"] + box["width"] <= 1000 and box["y"] + box["height"] <= 500
    shown.page.mouse.move(1, 1)
    expect(tip).to_have_count(0)


PIXEL = """(canvas, [x, y]) => {
    const fine = canvas.width / canvas.getBoundingClientRect().width;
    const copy = document.createElement("canvas");
    const pen = copy.getContext("2d", { willReadFrequently: true });
    pen.drawImage(canvas, -Math.round(x * fine), -Math.round(y * fine));
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
}"""


def test_row_and_column_of_the_pointer_are_shaded(visit: Open, file_page: str, exams: dict[str, Examination]) -> None:
    tokens = len(exams["bert"].pins[0].tokens)
    shown = visit(file_page, "#head=enc.0.1")
    shown.page.mouse.move(1, 1)
    shown.settle()
    cell = side(shown, tokens)

    def colour(row: int, column: int) -> list[int]:
        return canvas(shown).evaluate(PIXEL, [LABEL + (column + 0.5) * cell, LABEL + (row + 0.5) * cell])

    places = [(3, 7), (7, 4), (9, 9)]
    before = [colour(*place) for place in places]
    point_at(shown, tokens, 3, 4)
    shown.settle()
    in_row, in_column, elsewhere = [colour(*place) != old for place, old in zip(places, before, strict=True)]
    assert in_row and in_column and not elsewhere


def test_every_map_has_a_scale(visit: Open, file_page: str, exams: dict[str, Examination]) -> None:
    shown = visit(file_page, "#head=enc.0.1")
    shown.root.get_by_text("Structured forms").click()
    shown.settle()
    drawn = shown.root.locator(".heatmap")
    assert drawn.count() == 4
    told = [one.get_attribute("data-scale") or "" for one in drawn.all()]
    assert told[0] == "0 to 1, square-root scale" and told[3].endswith("linear scale") and told[3].startswith("-")
    tokens = len(exams["bert"].pins[0].tokens)
    y = LABEL + tokens * side(shown, tokens) + 18
    ends = [canvas(shown).evaluate(PIXEL, [x, y]) for x in (LABEL + 2, LABEL + 216)]
    assert sum(ends[0]) > 700 and sum(ends[1]) < 250


def rows_of(shown: Shown) -> Tensor:
    """The weights of the attention figure, from its CSV file: [query key]."""
    _, data = shown.saved("Save data as CSV", "#attention")
    cells = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    tokens = 1 + max(int(cell["row"]) for cell in cells)
    return torch.tensor([float(cell["weight"]) for cell in cells]).reshape(tokens, -1)


def test_other_weighings(look: Open, file_page: str, exams: dict[str, Examination]) -> None:
    pin, slot = exams["bert"].pins[0], Slot("encoder", 0)
    P, sizes = pin.maps[slot][1].float(), pin.sizes[slot][1].float()
    shown = look(file_page, "#head=enc.0.1")
    assert (rows_of(shown) - P).abs().max() < 5e-3
    shown.root.get_by_text("without sinks", exact=True).click()
    behind = P.clone()
    behind[:, list(pin.sinks[slot])] = 0.0
    assert pin.sinks[slot] == (0, len(pin.tokens) - 1)
    assert (rows_of(shown) - behind / behind.sum(-1, keepdim=True)).abs().max() < 2e-2
    shown.root.get_by_text("norm-weighted", exact=True).click()
    effect = P * sizes
    assert (rows_of(shown) - effect / effect.sum(-1, keepdim=True)).abs().max() < 2e-2


def test_maps_of_long_sentences_are_means(look: Open, exams: dict[str, Examination], tmp_path: Path) -> None:
    shown = look(page_file(tmp_path / "long.html", [with_maps(exams["bert"], 400, draw)]), "#head=enc.0.1")
    told = shown.root.locator("#attention .heatmap").get_attribute("data-scale") or ""
    assert "means of 2 × 2 tokens" in told and float(told.split()[2].rstrip(",")) < 1
    canvas(shown).focus()
    shown.page.keyboard.press("ArrowRight")
    expect(shown.root.locator("#attention output")).to_contain_text("mean of the block")
    for _ in range(8):
        shown.page.keyboard.press("+")
    shown.settle()
    assert "means" not in (shown.root.locator("#attention .heatmap").get_attribute("data-scale") or "")


def test_far_distances_stand_together(look: Open, exams: dict[str, Examination], tmp_path: Path) -> None:
    far = tuple(float(offset) for offset in range(-40, 41))

    def longer(make: Callable[[tuple[int, ...]], Tensor]) -> list[Tensor]:
        return [make((len(row), len(far))) for row in offsets.value]

    offsets = exams["bert"]["roles.offset"]
    made = replace(offsets, value=tuple(longer(torch.rand)), interval=None, ticks={"offset": far})
    readings = [made if one.name == "roles.offset" else one for one in exams["bert"].readings.values()]
    exam = replace(exams["bert"], readings=Readings(readings))
    shown = look(page_file(tmp_path / "far.html", [exam]), "#head=enc.0.1")
    figure = shown.root.locator("#offsets")
    expect(figure.locator("svg").get_by_text("9…16", exact=True)).to_have_count(1)
    expect(figure.locator("svg").get_by_text("33…40", exact=True)).to_have_count(1)
    _, data = shown.saved("Save data as CSV", "#offsets")
    assert len(data.decode().splitlines()) == 1 + len(far)
