"""Five questions of a reader, answered from the page alone, with a picture of every answer.

    TASK_PICTURES=FOLDER python -m pytest tests/browser/test_page_tasks.py

Which head matters most, and what does it look at? Which heads can go? Does rank collapse? What changed after pruning?
What does this head do in my sentence?
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect

import attnworks
from attnworks.core.places import HeadId
from attnworks.exam.examination import Examination
from attnworks.exam.reading import ModelReadings
from attnworks.page import PageExam
from attnworks.page.server.live import LiveModel
from attnworks.page.server.queue import Worker
from attnworks.traces.subject import open_subject
from tests.browser.browser_helpers import Shown
from tests.browser.conftest import Open
from tests.exam_helpers import minilm
from tests.page.server.server_helpers import TOKEN, serving

pytestmark = pytest.mark.slow

KEPT = 0.75
SENTENCES = 24
MINE = "the trophy did not fit in the suitcase because it was too big ."
DESK = {"viewport": {"width": 1440, "height": 900}}


@pytest.fixture(scope="module")
def exams(tmp_path_factory: pytest.TempPathFactory) -> tuple[Examination, Examination, Path]:
    """MiniLM before and after pruning, and the page of both."""
    home = tmp_path_factory.mktemp("tasks")
    attnworks.prune(str(minilm()), keep=KEPT, by="gradient", sentences=SENTENCES, out=home / "pruned")
    measures = ["default", "importance", "ablation"]
    before, after = (
        attnworks.examine(str(model), sentences=SENTENCES, measures=measures) for model in (minilm(), home / "pruned")
    )
    exams = [PageExam(before, "MiniLM"), PageExam(after, "pruned")]
    return before, after, attnworks.report(exams, home / "page.html", model=home / "pruned").path


@pytest.fixture(scope="module")
def live() -> Iterator[str]:
    model = LiveModel(open_subject(str(minilm())), max_length=128, text="the cat sees a bird .")
    with serving(model.page(), model, Worker(patience=600.0)) as client:
        yield f"http://127.0.0.1:{client.port}/{TOKEN}/"


def answered(shown: Shown, name: str, tmp_path: Path) -> None:
    """A picture of the screen where the answer is read."""
    shown.settle()
    folder = Path(os.environ.get("TASK_PICTURES") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    shown.page.screenshot(path=folder / f"{name}.png")


def changes(exam: Examination) -> dict[HeadId, float]:
    return ModelReadings(exam.readings).at("ablation.change")


def part(shown: Shown, name: str) -> str:
    return shown.root.locator(f"section[aria-labelledby=story-{name}] .story-text").inner_text()


def test_which_head_matters_most_and_what_does_it_look_at(
    look: Open, exams: tuple[Examination, Examination, Path], tmp_path: Path
) -> None:
    before, _, page = exams
    found = changes(before)
    best = max(found, key=lambda head: found[head])
    name = str(best).removeprefix("enc.")
    shown = look(page.as_uri(), **DESK)
    assert f"head {name} alone" in part(shown, "work")
    shown.root.locator(f'a.tile[data-head="{best}"]').click()
    expect(shown.root.locator(".head-says")).to_contain_text(f"the most of {len(found)} heads")
    pin = before.pins[0]
    share = pin.maps[best.slot][best.head].to(torch.float32).mean(0)
    tokens = [pin.tokens[place] for place in share.argsort(descending=True)[:3].tolist()]
    assert shown.root.locator("#looks .plot-label").all_text_contents()[::2][:3] == tokens
    answered(shown, "1_matters_most", tmp_path)


def test_which_heads_can_go(look: Open, exams: tuple[Examination, Examination, Path], tmp_path: Path) -> None:
    before, _, page = exams
    shown = look(page.as_uri(), **DESK)
    can_go = int(re.match(r"(\d+) of 72 heads can go", part(shown, "removal")).group(1))  # pyright: ignore[reportOptionalMemberAccess]
    shown.go("#reshape")
    shown.root.get_by_role("slider", name="Heads to remove").fill(str(can_go))
    rows = [row.split() for row in shown.root.locator("#main table tbody tr").all_inner_texts()]
    removed = [row[0] for row in rows if row[-1:] == ["remove"]]
    expected = sorted(changes(before).items(), key=lambda entry: entry[1])[:can_go]
    assert removed == [str(head).removeprefix("enc.") for head, _ in expected][: len(removed)] and removed
    expect(shown.root.locator("code", has_text="attnworks prune").first).to_contain_text(",".join(removed))
    answered(shown, "2_can_go", tmp_path)


def test_does_rank_collapse(look: Open, exams: tuple[Examination, Examination, Path], tmp_path: Path) -> None:
    before, _, page = exams
    curve = ModelReadings(before.readings).curves("rank.residual")["encoder"]
    shown = look(page.as_uri(), **DESK)
    ends = [f"{100 * curve[depth]:.0f} %" for depth in (0, 6)]
    assert part(shown, "depth").startswith("Tokens stay distinct") and all(end in part(shown, "depth") for end in ends)
    expect(shown.root.locator("#story-depth-figure svg.plot")).to_be_visible()
    shown.root.locator("#story-depth-figure").scroll_into_view_if_needed()
    answered(shown, "3_rank", tmp_path)


def test_what_changed_after_pruning(look: Open, exams: tuple[Examination, Examination, Path], tmp_path: Path) -> None:
    before, after, page = exams
    gone = len(changes(before)) - len(changes(after))
    shown = look(page.as_uri(), "#compare", **DESK)
    verdict = shown.root.locator(".compare-verdict")
    expect(verdict).to_contain_text(f"{gone} of 72 heads are gone")
    expect(verdict).to_contain_text("fewer parameters")
    assert gone == 72 - round(KEPT * 72)
    answered(shown, "4_after_pruning", tmp_path)


def test_what_does_this_head_do_in_my_sentence(look: Open, live: str, tmp_path: Path) -> None:
    """Head 0.2 attends to the previous token: every word of the sentence but the last is seen by the next one."""
    shown = look(live, "#head=0.2", **DESK)
    idle = shown.root.get_by_role("status").filter(has_text=re.compile(r"^answered in"))
    expect(idle).to_be_visible()
    shown.root.get_by_role("textbox", name="Sentence").fill(MINE)
    expect(shown.root.get_by_text("16 of 128 tokens")).to_be_visible()
    expect(idle).to_be_visible()
    shown.settle()
    _, data = shown.saved("Save data as CSV", "#attention")
    cells = list(csv.DictReader(data.decode().splitlines()))
    words = ["[CLS]", *MINE.split(), "[SEP]"]
    weights = torch.tensor([float(cell["weight"]) for cell in cells]).reshape(len(words), len(words))
    assert [cell["key token"] for cell in cells[: len(words)]] == words
    assert weights.argmax(1).tolist()[1:] == list(range(len(words) - 1))
    answered(shown, "5_my_sentence", tmp_path)
