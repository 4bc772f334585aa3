"""Everything is within reach of the keyboard."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import VIEWS, Shown, views
from tests.browser.conftest import Open

# All that takes part in the order of the tab key; of a group of radio buttons, only one does.
STOPS = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")].filter(
    (one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility({ visibilityProperty: true })
        && !one.closest("dialog:not([open]), details:not([open]) > :not(summary)")
        && !(one.type === "radio" && !one.checked)).length"""
MARK = "() => { window.__reached = new Set(); addEventListener('focusin', (event) => __reached.add(event.target)) }"
MOST = 120


@pytest.mark.parametrize(
    ("key", "heading"),
    [
        ("ArrowRight", "Head 0.2"),
        ("j", "Head 0.2"),
        ("ArrowLeft", "Head 0.0"),
        ("k", "Head 0.0"),
        ("ArrowDown", "Head 1.1"),
        ("ArrowUp", "Head 0.1"),
        ("Control+ArrowRight", "Head 0.1"),
    ],
)
def test_heads_by_keys(visit: Open, file_page: str, key: str, heading: str) -> None:
    shown = visit(file_page, "#head=enc.0.1")
    shown.page.keyboard.press(key)
    expect(shown.root.get_by_role("heading", level=2, name=heading, exact=True)).to_be_visible()


def test_the_last_head_has_none_after_it(visit: Open, file_page: str) -> None:
    shown = visit(file_page, "#head=enc.1.2")
    shown.page.keyboard.press("ArrowRight")
    expect(shown.root.get_by_role("heading", level=2, name="Head 1.2", exact=True)).to_be_visible()
    expect(shown.button("next head", exact=True)).to_be_disabled()


def test_views_by_number(visit: Open, file_page: str) -> None:
    shown = visit(file_page)
    for number, view in enumerate(views(shown), 1):
        shown.page.keyboard.press(str(number))
        shown.drawn(view)


def test_the_list_of_keys(visit: Open, file_page: str) -> None:
    shown = visit(file_page, "#head=enc.0.1")
    dialog = shown.root.get_by_role("dialog")
    shown.page.keyboard.press("?")
    expect(dialog).to_be_visible()
    shown.page.keyboard.press("ArrowRight")
    shown.page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(shown.root.get_by_role("heading", level=2, name="Head 0.1")).to_be_visible()


def test_the_list_of_keys_is_closed_in_a_notebook(look: Open, notebook_page: str) -> None:
    shown = look(notebook_page, framed=True)
    shown.button("Keyboard shortcuts", exact=True).click()
    shown.button("Close", exact=True).click()
    expect(shown.root.get_by_role("dialog")).not_to_be_visible()


def test_letters_belong_to_what_is_typed_in(look: Open, file_page: str) -> None:
    shown = look(file_page)
    find = shown.root.get_by_role("textbox", name="Find")
    find.focus()
    shown.page.keyboard.type("j1?")
    expect(find).to_have_value("j1?")
    shown.drawn("story")


def test_arrows_walk_over_the_grid(visit: Open, file_page: str) -> None:
    shown = visit(file_page)
    shown.root.get_by_role("link", name="head 0.0").first.focus()
    shown.page.keyboard.press("ArrowRight")
    shown.page.keyboard.press("ArrowDown")
    expect(shown.root.locator(":focus")).to_have_attribute("aria-label", re.compile(r"^head 1\.1"))
    shown.page.keyboard.press("Enter")
    expect(shown.root.get_by_role("heading", level=2, name="Head 1.1")).to_be_visible()


def test_keys_go_on_after_a_choice(look: Open, file_page: str) -> None:
    """Arrows belong to the choice that was clicked; all other keys to the page."""
    shown = look(file_page, "#head=enc.0.1")
    shown.root.get_by_text("arcs", exact=True).click()
    shown.page.keyboard.press("j")
    expect(shown.root.get_by_role("heading", level=2, name="Head 0.2", exact=True)).to_be_visible()
    shown.page.keyboard.press("1")
    shown.drawn("story")


def reached(shown: Shown) -> tuple[int, int]:
    """How many stops the tab key makes, and how many it should."""
    shown.root.evaluate(MARK)
    stops = shown.root.evaluate(STOPS)
    for _ in range(min(stops, MOST)):
        shown.page.keyboard.press("Tab")
    return shown.root.evaluate("() => __reached.size"), stops


@pytest.mark.parametrize("view", VIEWS)
def test_the_tab_key_reaches_everything(visit: Open, two_sided_page: str, view: str) -> None:
    shown = visit(two_sided_page, f"#{view}")
    found, stops = reached(shown)
    assert found >= min(stops, MOST) - 1 and stops > len(VIEWS)


def test_the_content_is_one_key_away(look: Open, file_page: str) -> None:
    shown = look(file_page)
    shown.page.keyboard.press("Tab")
    shown.page.keyboard.press("Enter")
    expect(shown.root.locator("#main")).to_be_focused()
    shown.drawn("story")
