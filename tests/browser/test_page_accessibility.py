"""axe-core finds nothing serious, in any view, in light and dark."""

from __future__ import annotations

import pytest

from tests.browser.browser_helpers import VIEWS
from tests.browser.conftest import Open

colours = pytest.mark.parametrize("colours", ["light", "dark"])


DARK = [
    pytest.param(view, "dark", marks=[] if view in ("story", "head", "reshape") else pytest.mark.slow) for view in VIEWS
]


@pytest.mark.parametrize(("view", "colours"), [*((view, "light") for view in VIEWS), *DARK])
def test_in_a_file(visit: Open, two_sided_page: str, view: str, colours: str) -> None:
    visit(two_sided_page, f"#{view}", color_scheme=colours).check_accessibility()


@colours
@pytest.mark.parametrize("view", ["story", "reshape"])
def test_on_a_live_page(visit: Open, live_page: str, view: str, colours: str) -> None:
    visit(live_page, f"#{view}", color_scheme=colours).check_accessibility()


def test_in_a_notebook(visit: Open, notebook_page: str) -> None:
    visit(notebook_page, framed=True).check_accessibility()


def test_arcs_and_tables(look: Open, file_page: str) -> None:
    shown = look(file_page, "#head=enc.0.1")
    shown.root.get_by_text("arcs", exact=True).first.click()
    for place in range(shown.root.locator(".figure").count()):
        shown.choose("Show as a table", place=place)
    shown.settle()
    shown.check_accessibility()


def test_on_a_small_screen(visit: Open, two_sided_page: str) -> None:
    visit(two_sided_page, "#head=dec.0.1", viewport={"width": 420, "height": 800}).check_accessibility()
