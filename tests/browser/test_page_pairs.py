"""A page of pairs of texts in one sequence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect

from attnworks import examine, wrap
from tests.browser.conftest import Open
from tests.browser.pages import page_file, passages
from tests.exam_helpers import PAIRS
from tests.hf.test_pairs import pair_tokenizer
from tests.tiny_models import TINY


@pytest.fixture(scope="module")
def pairs_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    subject = wrap(TINY["bert"].build(dtype=torch.float32), pair_tokenizer())
    exam = examine(subject, passages(), join_pairs=True, pin=[PAIRS[1]])
    assert "sides.aligned" in exam and len(exam.pins[0].tokens) > 12
    file: Path = tmp_path_factory.mktemp("pairs") / "page.html"
    return page_file(file, [exam])


def test_every_view_opens_and_says_what_was_found(look: Open, pairs_page: str) -> None:
    shown = look(pairs_page)
    for link in shown.root.get_by_role("navigation", name="Views").get_by_role("link").all():
        link.click()
        shown.drawn(link.inner_text().lower())
        assert len(shown.root.locator("main").inner_text()) > 80
    shown.go("#")
    expect(shown.root.get_by_text("the two texts token by token").first).to_be_visible()
