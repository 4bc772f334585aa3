"""Every view opens in every host, by link and by address, and is to be read in light, in dark and on paper."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from attnworks.exam.examination import Examination
from tests.browser.browser_helpers import VIEWS, Shown, show, views
from tests.browser.conftest import Open
from tests.browser.pages import ADVICE, page_file
from tests.page.page_helpers import made_exam

every_view = pytest.mark.parametrize("view", VIEWS)


@pytest.mark.parametrize("host", ["file_page", "two_sided_page", "live_page", "notebook_page"])
def test_every_view_opens(look: Open, request: pytest.FixtureRequest, host: str) -> None:
    shown = look(request.getfixturevalue(host), framed=host == "notebook_page")
    for link in shown.root.get_by_role("navigation", name="Views").get_by_role("link").all():
        link.click()
        shown.drawn(link.inner_text().lower())
        assert len(shown.root.locator("main").inner_text()) > 80
    assert shown.root.get_by_role("navigation", name="Views").get_by_role("link").count() == len(views(shown))
    assert shown.root.locator("h1").count() == 1


@pytest.mark.parametrize(
    ("address", "heading"),
    [
        ("", "Story"),
        ("#head=enc.1.2", "Head 1.2"),
        ("#head=1.0", "Head 1.0"),
        ("#head=9.9", "Head 0.0"),
        ("#head=", "Head 0.0"),
        ("#depth", "Depth"),
        ("#claims", "Claims"),
        ("#nowhere", "Story"),
        ("#%", "Story"),
        ("#head=enc.1.2&sentence=99&exam=-1", "Head 1.2"),
    ],
)
def test_addresses(visit: Open, file_page: str, address: str, heading: str) -> None:
    shown = visit(file_page)
    shown.root.evaluate("hash => { location.hash = hash }", address)
    expect(shown.root.locator("nav a[aria-current=page]")).to_have_text(heading.split()[0])
    if heading.startswith("Head"):
        expect(shown.root.get_by_role("heading", level=2, name=heading, exact=True)).to_be_visible()


def test_a_number_is_that_of_the_first_stack(visit: Open, two_sided_page: str) -> None:
    shown = visit(two_sided_page, "#head=1.0")
    expect(shown.root.get_by_role("heading", level=2, name="Head enc.1.0", exact=True)).to_be_visible()


def test_an_address_is_opened_by_itself(look: Open, file_page: str) -> None:
    shown = look(file_page, "#head=enc.1.2")
    expect(shown.root.get_by_role("heading", level=2, name="Head 1.2")).to_be_visible()
    shown.page.reload()
    expect(shown.root.get_by_role("heading", level=2, name="Head 1.2")).to_be_visible()


def test_back_is_the_view_before(look: Open, file_page: str) -> None:
    shown = look(file_page)
    shown.go("#head=enc.0.1")
    shown.go("#depth")
    shown.page.go_back()
    expect(shown.root.get_by_role("heading", level=2, name="Head 0.1")).to_be_visible()
    expect(shown.page).to_have_title(re.compile("Head enc.0.1"))
    shown.go("#depth")
    shown.root.get_by_role("link", name="Head", exact=True).click()
    expect(shown.root.get_by_role("heading", level=2, name="Head 0.1")).to_be_visible()


def test_coming_back_is_coming_to_the_same_place(look: Open, file_page: str) -> None:
    """A view that is new begins at its top, and keys go on in it."""
    shown = look(file_page, viewport={"width": 1280, "height": 400})
    tile = shown.root.get_by_role("group", name="All heads").get_by_role("link").last
    tile.focus()
    shown.settle()
    assert shown.root.evaluate("scrollY") > 0
    shown.page.keyboard.press("Enter")
    shown.drawn("head")
    expect(shown.root.locator("#main")).to_be_focused()
    assert shown.root.evaluate("scrollY") == 0
    shown.page.go_back()
    shown.drawn()
    expect(tile).to_be_in_viewport()


def sentence(shown: Shown) -> Locator:
    return shown.root.get_by_role("combobox", name="Sentence")


def test_a_sentence_is_chosen(look: Open, file_page: str) -> None:
    shown = look(file_page)
    sentence(shown).select_option(index=1)
    expect(shown.page).to_have_url(re.compile("sentence=1"))
    shown.page.reload()
    expect(sentence(shown)).to_have_value("1")


def test_another_examination_is_chosen(visit: Open, two_sided_page: str) -> None:
    shown = visit(two_sided_page, "#head=enc.0.1")
    examination = shown.root.get_by_role("combobox", name="Examination")
    for place in ("1", "0", "1"):
        examination.select_option(place)
        expect(examination).to_have_value(place)
    expect(shown.page).to_have_url(re.compile("head=enc.0.1&exam=1"))
    shown.root.get_by_role("link", name="Story").click()
    shown.drawn("story")
    expect(examination).to_have_value("1")


@pytest.mark.parametrize(("figure", "exam"), [("compare-before", None), ("compare-after", "1")])
def test_heads_of_both_examinations_are_opened_where_they_are(
    visit: Open, two_sided_page: str, figure: str, exam: str | None
) -> None:
    shown = visit(two_sided_page, "#compare")
    shown.root.locator(f"#{figure} a").first.click()
    shown.drawn("head")
    found = re.search(r"exam=(\d)", shown.page.url)
    assert (found and found[1]) == exam


# --- light, dark, paper -----------------------------------------------------------------------------------------------


def paper(shown: Locator) -> float:
    """How light the background is, from 0 to 1."""
    colour = shown.evaluate("element => getComputedStyle(element).backgroundColor")
    red, green, blue = (float(part) for part in re.findall(r"[\d.]+", colour)[:3])
    return (red + green + blue) / 765


@pytest.mark.parametrize("preferred", ["light", "dark"])
def test_colours_follow_the_reader_and_the_button(look: Open, file_page: str, preferred: str) -> None:
    shown = look(file_page, color_scheme=preferred)
    body = shown.root.locator("body")
    assert (paper(body) > 0.5) == (preferred == "light")
    shown.button(f"Change to {'dark' if preferred == 'light' else 'light'} colours").click()
    shown.settle()
    assert (paper(body) > 0.5) != (preferred == "light")
    shown.button(f"Change to {preferred} colours").click()
    shown.settle()
    assert (paper(body) > 0.5) == (preferred == "light")


def lightness(canvas: Locator) -> float:
    """The mean of all pixels that are drawn, from 0 to 1."""
    return canvas.evaluate("""canvas => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let [sum, count] = [0, 0];
        for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] === 255) { sum += data[i] + data[i + 1] + data[i + 2]; count += 765 }
        return count === 0 ? 1 : sum / count;
    }""")


@every_view
def test_on_paper(visit: Open, two_sided_page: str, view: str) -> None:
    shown = visit(two_sided_page, f"#{view}", color_scheme="dark")
    shown.page.emulate_media(media="print")
    shown.settle()
    assert len(shown.root.locator("main").inner_text()) > 80
    expect(shown.root.locator("main h2").first).to_be_visible()
    assert not shown.root.locator(".figure-tools").first.is_visible()
    assert paper(shown.root.locator("body")) > 0.9
    assert all(lightness(canvas) > 0.5 for canvas in shown.root.locator("main canvas").all())
    shown.page.emulate_media(media="screen")


@every_view
@pytest.mark.parametrize("width", [420, 1280])
def test_nothing_sticks_out(visit: Open, two_sided_page: str, view: str, width: int) -> None:
    shown = visit(two_sided_page, f"#{view}", viewport={"width": width, "height": 900})
    across = shown.root.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert across <= 1


# --- the watch itself -------------------------------------------------------------------------------------------------


def complaint(shown: Shown) -> str:
    """What is said of a page that was not silent."""
    try:
        shown.check_silence()
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("careless", "told"),
    [
        ("document.body.innerHTML += '<img src=x onerror=__hit=1>'", "was run"),
        ("new Image().src = 'https://away.example/x.png'", "asked others"),
        ("alert(1)", "dialog"),
        ("console.error('ouch')", "ouch"),
        ("setTimeout(() => { throw new Error('late') })", "late"),
    ],
)
def test_a_careless_page_is_noticed(browser: Browser, tmp_path, careless: str, told: str) -> None:
    file = tmp_path / "careless.html"
    page = '<nav><a aria-current="page">Story</a></nav><main><h2>x</h2></main>'
    file.write_text(f"<body data-ready>{page}<script>{careless}</script>")
    shown = show(browser, file.as_uri())
    shown.until(lambda: told in complaint(shown))
    assert told in complaint(shown)
    shown.page.context.close()
    strict = "<meta http-equiv=Content-Security-Policy content=\"script-src 'none'\">"
    file.write_text(f"{strict}<body data-ready>{page}<script>{careless}</script>")
    shown = show(browser, file.as_uri())
    shown.until(lambda: "policy: script-src" in complaint(shown))
    assert "policy: script-src" in complaint(shown)
    shown.page.context.close()


def test_advice_and_receipts_tell_intervals_and_the_loss_at_length(look: Open, file_page: str) -> None:
    shown = look(file_page, "#reshape")
    main = shown.root.locator("main")
    for told in (
        "Nothing makes the whole model measurably faster: leave it as it is, or ask for longer texts. One layer can be "
        "swapped: attention takes 70 % of its time (65 % to 75 %); the whole model has no measurable gain",
        "On texts of up to 128 tokens the loss goes from 2.50 to 2.51 (+0.010); on single sentences from 2.25 to 2.25",
        "The loss (mlm) on texts of up to 87 tokens was predicted to rise by 0.100 and rose by 0.250 "
        "(95 % interval of the change +0.200 to +0.300)",
        "The held-out text is too small.",
        "-20 % (95 % interval 0.700 to 0.900)",
    ):
        expect(main).to_contain_text(told)
    shown.choose("Show as a table", "#reshape-advice-plot")
    expect(main.get_by_role("row", name="window:window=64").first).to_contain_text("no measurable gain")


def test_a_mix_that_was_rejected_is_shown_with_the_reason(look: Open, tmp_path: Path) -> None:
    def told(**changes: Any) -> Locator:
        advice = {**ADVICE, "chosen": {}, "command": None, **changes}
        return look(page_file(tmp_path / "page.html", [made_exam()], advice=advice), "#reshape").root.locator("main")

    expect(told()).to_contain_text("Leave tiny as it is. No mix of these mechanisms is measurably faster")
    refused = {"tokens": 1234, "before": 2.5, "after": 3.25}
    words = "The fastest mix within an error of 10 % would raise the loss on texts of up to 1,234 tokens from 2.50 to"
    expect(told(refused=refused)).to_contain_text(f"{words} 3.25, by more than that share.")
    expect(told(refused={**refused, "after": None})).to_contain_text(f"{words} a value that is not a finite number")


def test_a_plan_by_budget(look: Open, file_page: str, exams: dict[str, Examination]) -> None:
    changes = sorted(float(value) for row in exams["bert"]["ablation.change"].value for value in row)
    shown = look(file_page, "#reshape")
    shown.root.get_by_role("slider", name="Heads to remove").fill("4")
    says = shown.root.locator(".plan-says")
    expect(says).to_contain_text("Without these 4 of 6 heads")
    assert float(says.locator("b").nth(1).inner_text()) == pytest.approx(sum(changes[:4]), rel=0.1)
    expect(shown.root.locator("#plan code")).to_contain_text("attnworks prune MODEL --heads")
    rows = shown.root.get_by_role("region", name="The plan, head by head").locator("tbody tr")
    assert [row.split("\t")[-1] for row in rows.all_inner_texts()[:4]] == ["remove"] * 4


def test_curves_of_a_run(look: Open, exams: dict[str, Examination], tmp_path: Path) -> None:
    curves = {"training loss": {"step": [1, 2, 3], "value": [3.0, 2.0, 1.5]}, "odd": {"step": "x"}, "none": None}
    exam = replace(exams["bert"], model={**exams["bert"].model, "training": curves})
    shown = look(page_file(tmp_path / "run.html", [exam]), "#reshape")
    _, data = shown.saved("Save data as CSV", "#training-loss")
    assert data.decode().splitlines() == ["curve,step,loss", "training,1,3", "training,2,2", "training,3,1.5"]


def test_what_holds_on_the_model(look: Open, file_page: str) -> None:
    main = look(file_page, "#claims").root.locator("main")
    expect(main).to_contain_text("The proved bound on the diameter holds in all 2 layers")
    expect(main.locator("#claims-diameter")).to_be_visible()
