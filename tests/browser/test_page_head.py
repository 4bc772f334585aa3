"""The view of a head: where it opens, what it looks at, what is folded, and a view as a file of its own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, expect

from attnworks.core.places import HeadId, Slot
from attnworks.exam.examination import ExamFinding, Examination
from tests.browser.browser_helpers import Shown
from tests.browser.conftest import Open
from tests.browser.pages import page_file


def test_it_opens_on_the_head_of_the_largest_finding(look: Open, exams: dict[str, Examination], tmp_path: Path) -> None:
    findings = (
        ExamFinding("many", 0.9, (), ("enc.0.0", "enc.0.1")),
        ExamFinding("one", 0.5, (), ("enc.1.2",)),
        ExamFinding("less", 0.3, (), ("enc.1.0",)),
    )
    shown = look(page_file(tmp_path / "found.html", [replace(exams["bert"], findings=findings)]), "#head")
    expect(shown.root.get_by_role("heading", level=2)).to_have_text("Head 1.2")


def test_what_it_looks_at(visit: Open, file_page: str, exams: dict[str, Examination]) -> None:
    shown = visit(file_page, "#head=enc.1.2")
    exam = exams["bert"]
    (pin,), attended = exam.pins, exam.attended
    assert attended is not None
    received = pin.maps[Slot("encoder", 1)][2].float().mean(0)
    _, data = shown.saved("Save data as CSV", "#looks")
    first = data.decode().splitlines()[1].split(",")
    assert first[:2] == [str(int(received.argmax())), pin.tokens[int(received.argmax())]]
    assert abs(float(first[2]) - float(received.max())) < 5e-3
    head = HeadId(Slot("encoder", 1), 2)
    overall = shown.root.locator("#looks-overall")
    for token in attended.tokens[head]:
        expect(overall).to_contain_text(token.text)
    examples = overall.locator(".examples li")
    expect(examples).to_have_count(len(attended.examples[head]))
    number, percent = attended.examples[head][0]
    most = max(range(len(percent)), key=lambda place: percent[place])
    expect(examples.first.locator("span[title]").nth(most)).to_have_text(attended.sentences[number][most])


def test_theory_is_folded(look: Open, file_page: str) -> None:
    shown = look(file_page, "#head=enc.0.1")
    for title, figure in (
        ("Compared with all heads", "#standing"),
        ("Structured forms", "#forms"),
        ("Singular values", "#spectrum"),
    ):
        expect(shown.root.locator(figure)).to_have_count(0)
        shown.root.locator("summary", has_text=title).click()
        expect(shown.root.locator(figure)).to_be_visible()
    shown.page.keyboard.press("Escape")
    shown.go("#head=enc.0.2")
    expect(shown.root.locator("#forms")).to_be_visible()


def test_attention_is_on_the_first_screen(look: Open, file_page: str) -> None:
    shown = look(file_page, "#head=enc.0.1", viewport={"width": 1440, "height": 900})
    box = shown.root.locator("#attention").bounding_box()
    assert box is not None and box["y"] < 400


def test_a_sentence_beside_another(look: Open, file_page: str) -> None:
    shown = look(file_page, "#head=enc.0.1")
    expect(shown.root.locator("#attention canvas")).to_have_count(1)
    shown.root.get_by_role("combobox", name="Beside").select_option(value="1")
    expect(shown.root.locator("#attention canvas")).to_have_count(2)
    shown.root.get_by_text("without sinks", exact=True).click()
    told = shown.saved("Save as SVG", "#attention")[1].decode()
    assert "Attention, without sinks, head 0.1" in told and " | " in told
    shown.check_accessibility()


def test_a_saved_view_stands_alone(look: Open, browser: Browser, file_page: str, tmp_path: Path) -> None:
    shown = look(file_page, "#head=enc.1.2&sentence=1")
    with shown.page.expect_download() as download:
        shown.button("Save this view").click()
    name = download.value.suggested_filename
    assert re.fullmatch(r"bert_head-1\.2_head\.html", name)
    file = tmp_path / name
    download.value.save_as(file)
    assert file.stat().st_size < Path(file_page.removeprefix("file://").replace("%20", " ")).stat().st_size
    context = browser.new_context()
    again = Shown(context.new_page(), file.as_uri())
    again.page.goto(file.as_uri())
    expect(again.root.get_by_role("heading", level=2)).to_have_text("Head 1.2")
    expect(again.root.locator("#attention canvas")).to_be_visible()
    expect(again.root.locator("#looks-overall .examples li")).to_have_count(3)
    again.check_silence()
    context.close()


def test_a_state_has_an_address(look: Open, file_page: str) -> None:
    shown = look(file_page, "#head=enc.0.1")
    shown.root.get_by_text("norm-weighted", exact=True).click()
    shown.root.get_by_text("linear", exact=True).click()
    shown.root.get_by_role("combobox", name="Beside").select_option(value="1")
    expect(shown.page).to_have_url(re.compile("#head=enc.0.1&scale=even&weigh=effect&beside=1$"))
    again = look(file_page, "#head=enc.0.2&weigh=effect&map=arcs&scale=nonsense&beside=1")
    expect(again.root.get_by_role("radio", name="norm-weighted")).to_be_checked()
    expect(again.root.get_by_role("radio", name="arcs")).to_be_checked()
    expect(again.root.locator("#attention .arcs")).to_have_count(2)
    expect(again.page).to_have_url(re.compile("#head=enc.0.2&map=arcs&weigh=effect&beside=1$"))
    again.page.keyboard.press("ArrowRight")
    expect(again.root.get_by_role("heading", level=2)).to_have_text("Head 1.0")
    expect(again.page).to_have_url(re.compile("#head=enc.1.0&map=arcs&weigh=effect&beside=1$"))
    again.go("#depth")
    expect(again.page).to_have_url(re.compile("#depth$"))
