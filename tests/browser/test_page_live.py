"""The live page: a sentence typed, a head cut and given back, a busy server."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.browser.browser_helpers import Shown
from tests.browser.conftest import Open

IDLE = re.compile(r"^answered in \d+ ms$")


def field(shown: Shown) -> Locator:
    return shown.root.get_by_role("textbox", name="Sentence")


def wait(shown: Shown) -> None:
    expect(shown.root.get_by_role("status").filter(has_text=IDLE)).to_be_visible()


def picture(shown: Shown) -> str:
    """The first thumbnail, as it is drawn."""
    shown.settle()
    return shown.root.locator("main canvas").first.evaluate("canvas => canvas.toDataURL()")


def test_typing_changes_the_maps(look: Open, live_page: str) -> None:
    shown = look(live_page, "#head=enc.0.1")
    wait(shown)
    before = picture(shown)
    field(shown).fill("the very tired child reads a book in the garden .")
    expect(shown.root.get_by_text("13 of 128 tokens")).to_be_visible()
    wait(shown)
    assert picture(shown) != before
    field(shown).fill("the cat sees a bird .")
    expect(shown.root.get_by_text("8 of 128 tokens")).to_be_visible()
    wait(shown)
    assert picture(shown) == before


def said(shown: Shown) -> list[str]:
    return shown.root.get_by_role("region", name="Live").get_by_role("listitem").all_inner_texts()


def test_a_head_is_cut_and_given_back(look: Open, live_page: str) -> None:
    shown = look(live_page, "#reshape")
    field(shown).fill("the <mask> sees a bird .")
    wait(shown)
    before = said(shown)
    assert before
    shown.root.get_by_role("button", name="head 0.1", exact=True).click()
    undo = shown.button("Undo all")
    expect(undo).to_be_visible()
    expect(shown.root.get_by_text("The output of the last layer changed by")).to_be_visible()
    wait(shown)
    assert said(shown) != before
    assert "0.0 %" not in shown.root.locator(".outputs-moved").inner_text()
    shown.go("#compare")
    assert "changed" in shown.root.locator("main").inner_text()
    undo.click()
    expect(undo).not_to_be_visible()
    wait(shown)
    assert said(shown) == before


def test_a_second_click_at_the_same_place_gives_the_head_back(look: Open, live_page: str) -> None:
    """What a cut says stands at the lower edge of the window, and moves nothing."""
    shown = look(live_page, "#reshape")
    wait(shown)
    box = shown.root.get_by_role("button", name="head 1.1", exact=True).bounding_box()
    assert box is not None
    at = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    shown.page.mouse.click(*at)
    expect(chips(shown)).to_have_text(re.compile("enc.1.1 cut"))
    wait(shown)
    outcome = shown.root.locator(".live-outcome").bounding_box()
    assert outcome is not None and outcome["y"] + outcome["height"] == pytest.approx(900, abs=1)
    shown.page.mouse.click(*at)
    expect(chips(shown)).to_have_count(0)
    wait(shown)


def test_an_encoder_tells_the_cosine_of_its_embeddings(look: Open, live_page: str) -> None:
    shown = look(live_page, "#reshape")
    wait(shown)
    cut_a_head(shown)
    told = shown.root.locator(".outputs-moved")
    expect(told).to_contain_text("The new sentence embedding has a cosine of")
    cosine = float(told.locator("strong").first.inner_text())
    assert -1 <= cosine < 1


def test_words_that_the_vocabulary_lacks_are_named(look: Open, live_page: str) -> None:
    shown = look(live_page)
    field(shown).fill("the cat overheats a flibbertigibbet .")
    told = "2 of 6 words are not in the vocabulary of this model: overheats, flibbertigibbet."
    expect(shown.root.locator("#live-error")).to_have_text(told)
    field(shown).fill("the cat sees a bird .")
    expect(shown.root.locator("#live-error")).to_be_empty()


def test_a_budget_is_cut_at_once(look: Open, live_page: str) -> None:
    shown = look(live_page, "#reshape")
    wait(shown)
    slider = shown.root.get_by_role("slider", name="Heads to remove")
    slider.fill("3")
    expect(shown.root.locator(".plan-says")).to_contain_text("Without these 3 of 6 heads: estimated change of the loss")
    shown.button("Cut these 3 heads").click()
    expect(chips(shown)).to_have_count(3)
    expect(shown.root.get_by_text("The output of the last layer changed by")).to_be_visible()
    shown.button("Undo all").click()
    wait(shown)


def chips(shown: Shown) -> Locator:
    return shown.root.get_by_role("list", name="Changes to the model").get_by_role("listitem")


def cut_a_head(shown: Shown) -> None:
    shown.root.get_by_role("button", name="head 0.1", exact=True).click()


def test_changes_are_not_told_of_before_they_are_answered(look: Open, live_page: str) -> None:
    shown = look(live_page, "#reshape")
    wait(shown)
    held: list[Route] = []
    shown.page.route("**/api/look", lambda route: held.append(route))
    cut_a_head(shown)
    expect(chips(shown)).to_have_count(1)
    expect(shown.root.get_by_text("running the model …")).to_be_visible()
    assert shown.root.get_by_text("The output of the last layer changed by").count() == 0
    assert shown.root.get_by_text("Dashed: the original model.").count() == 0
    held[0].continue_()
    shown.page.unroute("**/api/look")
    expect(shown.root.get_by_text("The output of the last layer changed by")).to_be_visible()
    wait(shown)
    shown.button("Undo all").click()
    wait(shown)


@pytest.mark.parametrize("answer", [{"body": '{"exam": '}, {"body": "{}"}, {"status": 422, "json": {"error": "no"}}])
def test_changes_that_were_not_made_are_taken_back(look: Open, live_page: str, answer: dict[str, Any]) -> None:
    shown = look(live_page, "#reshape")
    wait(shown)
    shown.page.route("**/api/look", lambda route: route.fulfill(content_type="application/json", **answer))
    cut_a_head(shown)
    expect(shown.root.locator("#live-error")).not_to_be_empty()
    expect(chips(shown)).to_have_count(0)
    shown.noticed = [line for line in shown.noticed if "422" not in line]


def test_nothing_is_changed_without_a_sentence(look: Open, live_page: str) -> None:
    shown = look(live_page, "#reshape")
    wait(shown)
    field(shown).fill(" ")
    cut_a_head(shown)
    expect(chips(shown)).to_have_count(0)
    expect(shown.root.locator("#live-error")).to_contain_text("Type a sentence first")


def test_a_reload_keeps_the_sentence_and_the_changes(look: Open, live_page: str) -> None:
    shown = look(live_page, "#reshape")
    wait(shown)
    field(shown).fill("the child reads a book .")
    cut_a_head(shown)
    wait(shown)
    shown.page.reload()
    shown.root.locator("body[data-ready]").wait_for(state="attached")
    wait(shown)
    expect(field(shown)).to_have_value("the child reads a book .")
    expect(chips(shown)).to_have_text([re.compile("enc.0.1 cut")])
    expect(shown.root.get_by_text("The output of the last layer changed by")).to_be_visible()
    chips(shown).get_by_role("button").click()
    expect(field(shown)).to_be_focused()
    wait(shown)


def test_what_could_not_be_measured_stays_told(look: Open, live_page: str) -> None:
    """The first answer has maps and cheap readings alone; the notes of the examination come after."""
    shown = look(live_page)
    wait(shown)
    field(shown).fill("a bird sees the cat .")
    expect(shown.root.get_by_text("running the model …")).not_to_be_visible()
    wait(shown)
    shown.settle()
    expect(shown.root.get_by_text("too few").first).to_be_attached()


def test_one_sentence_has_no_list_of_roles(look: Open, live_page: str) -> None:
    """Only the statement that there are none."""
    shown = look(live_page)
    wait(shown)
    expect(shown.root.locator(".grid-legend").get_by_text("no role labels: 1 sentence is too few")).to_be_visible()
    expect(shown.root.get_by_role("group", name="Show only heads of these roles")).to_have_count(0)


def test_readings_of_the_sentence_before_are_gone(look: Open, live_page: str) -> None:
    """What is cheap comes with the maps; the rest is not there until it is measured."""
    shown = look(live_page)
    wait(shown)
    shown.root.get_by_text("Measures and filters").click()
    options = shown.root.get_by_role("combobox", name="Measure").locator(
        "option", has_text=re.compile("^sinks: first$")
    )
    assert options.count() == 1
    held: list[Route] = []
    shown.page.route("**/api/examine", lambda route: held.append(route))
    field(shown).fill("the very tired child reads a book in the garden .")
    expect(shown.root.get_by_text("13 of 128 tokens")).to_be_visible()
    expect(options).to_have_count(0)
    held[0].continue_()
    expect(options).to_have_count(1)


def test_a_busy_server_is_asked_again(look: Open, live_page: str) -> None:
    shown = look(live_page)
    wait(shown)
    refused: list[str] = []

    def refuse_twice(route: Route) -> None:
        refused.append(route.request.url)
        if len(refused) <= 2:
            route.fulfill(status=503, headers={"Retry-After": "0.3"}, json={"error": "busy"})
        else:
            route.continue_()

    shown.page.route("**/api/look", refuse_twice)
    field(shown).fill("it is very red .")
    expect(shown.root.get_by_text("the server is busy")).to_be_visible()
    expect(shown.root.get_by_text("7 of 128 tokens")).to_be_visible()
    wait(shown)
    assert len(refused) == 3
    shown.noticed = [line for line in shown.noticed if "503" not in line]


@pytest.mark.parametrize("status", [422, 500])
def test_a_refusal_is_told(look: Open, live_page: str, status: int) -> None:
    shown = look(live_page)
    wait(shown)
    told = "<b>one line</b> about it"
    shown.page.route("**/api/look", lambda route: route.fulfill(status=status, json={"error": told}))
    field(shown).fill("it is very red .")
    expect(shown.root.get_by_text(told)).to_be_visible()
    shown.page.unroute("**/api/look")
    field(shown).fill("it is very tired .")
    expect(shown.root.get_by_text(told)).not_to_be_visible()
    wait(shown)
    shown.noticed = [line for line in shown.noticed if str(status) not in line]


def test_too_long_a_sentence(look: Open, live_page: str) -> None:
    shown = look(live_page)
    wait(shown)
    field(shown).fill("the cat " * 100)
    expect(shown.root.get_by_text("at most 128 tokens")).to_be_visible()
    shown.noticed = [line for line in shown.noticed if "422" not in line]


def test_a_server_that_is_gone(look: Open, live_page: str) -> None:
    shown = look(live_page)
    wait(shown)
    shown.page.route("**/api/*", lambda route: route.abort("connectionrefused"))
    field(shown).fill("it is very red .")
    expect(shown.root.get_by_text("The server has stopped")).to_be_visible()
    shown.noticed = [line for line in shown.noticed if "ERR_CONNECTION_REFUSED" not in line]
