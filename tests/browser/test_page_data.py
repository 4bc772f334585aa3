"""Pages of data that are out of the ordinary: long sentences, weights below zero, blobs that are damaged."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import expect
from torch import Tensor

from attnworks.exam.examination import Examination, Pin
from attnworks.exam.reading import Readings
from tests.browser.browser_helpers import Shown
from tests.browser.conftest import Open
from tests.browser.pages import page_file


def with_maps(exam: Examination, tokens: int, make: Callable[[tuple[int, ...]], Tensor]) -> Examination:
    """The examination with one sentence of so many tokens, whose maps are made."""
    (pin, *_) = exam.pins
    words = tuple(f"word{place}" for place in range(tokens))
    maps = {slot: make((len(P), tokens, tokens)) for slot, P in pin.maps.items()}
    return replace(exam, pins=(Pin.of(words, maps, None if pin.target is None else words),))


def draw(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(3).softmax(-1)


def test_long_sentences(look: Open, exams: dict[str, Examination], tmp_path: Path) -> None:
    shown = look(page_file(tmp_path / "long.html", [with_maps(exams["bart"], 400, draw)]))
    for view in ("#alignment", "#head=cross.1.0", "#story"):
        shown.go(view)
        assert shown.root.get_by_role("alert").count() == 0
    shown.go("#head=cross.1.0")
    assert "40 levels" in shown.root.locator("#attention").inner_text()


def test_weights_below_zero_are_seen(look: Open, exams: dict[str, Examination], tmp_path: Path) -> None:
    """A column of -0.8 is orange, as a loss is in all differences."""

    def negative(shape: tuple[int, ...]) -> Tensor:
        P = torch.zeros(shape)
        P[..., 3] = -0.8
        return P

    shown = look(page_file(tmp_path / "negative.html", [with_maps(exams["bert"], 11, negative)]), "#head=enc.0.1")
    orange = """canvas => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let count = 0;
        for (let i = 0; i < data.length; i += 4) count += data[i + 3] === 255 && data[i] > data[i + 2] + 90;
        return count / (canvas.width * canvas.height);
    }"""
    assert shown.root.locator("#attention canvas").evaluate(orange) > 0.02
    shown.root.get_by_text("arcs", exact=True).click()
    expect(shown.root.locator("#attention path[stroke='var(--c1)']")).to_have_count(11)


def said(shown: Shown) -> str:
    shown.settle()
    return shown.root.locator("#attention output").inner_text()


def test_the_cursor_does_not_outlive_its_matrix(look: Open, exams: dict[str, Examination], tmp_path: Path) -> None:
    long, short = (with_maps(exams["bert"], tokens, draw) for tokens in (23, 7))
    both = replace(long, pins=(*long.pins, *short.pins))
    shown = look(page_file(tmp_path / "two.html", [both]), "#head=enc.0.1")
    shown.root.locator("#attention canvas").focus()
    for _ in range(12):
        shown.page.keyboard.press("ArrowRight")
    assert said(shown).startswith("word0 → word12")
    shown.go("#head=enc.0.1&sentence=1")
    assert said(shown).startswith("Rows are queries, columns are keys")


def test_a_damaged_map_is_told_of(look: Open, exams: dict[str, Examination], tmp_path: Path) -> None:
    address = page_file(tmp_path / "damaged.html", [exams["bert"]])
    file = tmp_path / "damaged.html"
    text = file.read_text(encoding="utf-8")
    file.write_text(re.sub(r'(id="blob-exam0-0-enc\.1-maps">)[^<]{40}', r"\1" + "A" * 40, text), encoding="utf-8")
    shown = look(address, "#head=enc.0.1")
    shown.root.evaluate("() => { location.hash = '#head=enc.1.0' }")
    expect(shown.root.get_by_role("alert")).to_contain_text("This cannot be shown")
    shown.go("#head=enc.0.1")
    expect(shown.root.locator("#attention canvas")).to_be_visible()


def test_large_differences_keep_their_digits(look: Open, exams: dict[str, Examination], tmp_path: Path) -> None:
    before = exams["bart"]
    after = replace(
        before,
        readings=Readings(
            [
                replace(reading, value=higher(reading.value, 10.2)) if reading.name == "saturation.entropy" else reading
                for reading in before.readings.values()
            ]
        ),
    )
    shown = look(page_file(tmp_path / "higher.html", [before, after]), "#compare")
    shown.root.get_by_role("combobox", name="Measure").first.select_option(value="saturation.entropy")
    shown.settle()
    cells = shown.root.locator(".head-cells a").all_text_contents()
    assert any("+10.2" in cell for cell in cells) and not any("+1.2" in cell for cell in cells)


def higher(value: Any, by: float) -> Any:
    return tuple(higher(part, by) for part in value) if isinstance(value, tuple) else value + by


def test_whole_numbers_have_no_decimals(look: Open, file_page: str) -> None:
    shown = look(file_page, "#depth")
    shown.choose("Show as a table")
    shown.settle()
    rows = shown.root.get_by_role("table").first.locator("tbody tr")
    assert rows.locator("th").all_inner_texts() == [str(depth) for depth in range(rows.count())]


def test_means_of_some_heads_say_of_how_many(look: Open, exams: dict[str, Examination], tmp_path: Path) -> None:
    exam = with_maps(exams["bart"], 90, draw)
    shown = look(page_file(tmp_path / "some.html", [exam], largest=200_000), "#alignment")
    expect(shown.root.get_by_text(re.compile(r"of the \d+ of \d+ heads whose full maps were kept"))).to_be_visible()


def test_rank_curves_are_drawn_with_and_without_outlying_tokens(
    look: Open, exams: dict[str, Examination], tmp_path: Path
) -> None:
    usual = exams["bert"]
    readings = usual.readings.values()
    more = [replace(one, value=higher(one.value, 1.0)) if one.name == "rank.outliers" else one for one in readings]
    shown = look(page_file(tmp_path / "outlying.html", [replace(usual, readings=Readings(more))]), "#depth")
    for figure in ("residual", "cosine", "diameter", "rank"):
        expect(shown.root.locator(f"#depth-{figure}")).to_contain_text("without outlying tokens")
    expect(shown.root.locator("#depth-largest")).to_contain_text("Norm of the largest token")
    shown = look(page_file(tmp_path / "usual.html", [usual]), "#depth")
    expect(shown.root.locator("#depth-residual")).to_contain_text("residual")
    expect(shown.root.locator("#depth-residual")).not_to_contain_text("without outlying tokens")


def test_even_attention_is_drawn_beside_a_head_and_among_its_forms(look: Open, file_page: str) -> None:
    shown = look(file_page, "#head=enc.0.1")
    shown.root.locator("summary", has_text="Structured forms").click()
    for figure in ("offsets", "forms"):
        shown.choose("Show as a table", f"#{figure}")
    shown.settle()
    table = shown.root.locator("#offsets").get_by_role("table")
    assert table.locator("th").all_inner_texts()[:3] == ["distance", "attention", "even attention"]
    numbers = table.locator("tbody tr td:last-child").all_inner_texts()
    assert numbers and all(0 <= float(number) <= 1 for number in numbers)
    expect(shown.root.locator("#forms")).to_contain_text("even attention")
    expect(shown.root.locator("#forms")).to_contain_text("all tokens that may be seen, with the same weight")
