"""One browser for all tests, the pages they look at, and three hosts: a file, a server, a notebook."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from attnworks.exam.examination import Examination
from attnworks.page.server.live import LiveModel
from attnworks.page.server.queue import Worker
from attnworks.traces.subject import open_subject
from tests.browser.browser_helpers import AXE, NAMES, Shown, browsing, chromium, show
from tests.browser.hostile import HOSTILE
from tests.browser.pages import live_model, notebook_file, page_file, tiny_exam
from tests.page.server.server_helpers import TOKEN, serving

REQUIRED = os.environ.get("BROWSER_TESTS") == "required"
HERE = Path(__file__).parent
Open = Callable[..., Shown]
Kept = dict[str, Shown]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a browser, or axe-core, these tests say so; where BROWSER_TESTS=required they fail."""
    reason = None
    if chromium() is None:
        reason = f"no browser on the PATH ({', '.join(NAMES)}); make browser installs Debian's"
    elif not AXE.exists():
        reason = "no web/node_modules; make page-check installs them"
    if reason is not None and not REQUIRED:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with browsing() as started:
        yield started


@pytest.fixture
def look(browser: Browser) -> Iterator[Open]:
    """Opens pages; at the end of the test all of them must have been silent."""
    opened: list[Shown] = []

    def open_page(address: str, hash: str = "", **options: Any) -> Shown:
        opened.append(show(browser, address, hash, **options))
        return opened[-1]

    yield open_page
    try:
        for shown in opened:
            shown.check_silence()
    finally:
        for shown in opened:
            shown.page.context.close()


@pytest.fixture(scope="session")
def kept(browser: Browser) -> Kept:
    """Pages that stay open, by address and options."""
    return {}


@pytest.fixture
def visit(browser: Browser, kept: Kept, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Goes to a view of a page that may be open already: for tests that leave nothing behind but the view they end in.

    At the end of the test the page must have been silent. After a failure it is opened again.
    """
    visited: dict[str, Shown] = {}
    failed = request.session.testsfailed

    def visit_page(address: str, hash: str = "", **options: Any) -> Shown:
        key = repr((address, options))
        if key in kept:
            visited[key] = kept[key]
            kept[key].come_again(hash)
        else:
            visited[key] = kept[key] = show(browser, address, hash, **options)
        return kept[key]

    yield visit_page
    silent = False
    try:
        for shown in visited.values():
            shown.check_silence()
        silent = True
    finally:
        if not silent or request.session.testsfailed > failed:
            for key in visited:
                kept.pop(key).page.context.close()


@pytest.fixture(scope="session")
def exams(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Examination]:
    """One side, two sides, and two sides with other weights."""
    folder = tmp_path_factory.mktemp("exams")
    return {
        "bert": tiny_exam(folder / "bert", "bert", measures=["all"]),
        "bart": tiny_exam(folder / "bart", "bart", measures=["default", "bounds"]),
        "changed": tiny_exam(folder / "changed", "bart", seed=1, measures=["default", "bounds"]),
    }


@pytest.fixture(scope="session")
def file_page(exams: dict[str, Examination], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a model with one side."""
    return page_file(tmp_path_factory.mktemp("file") / "report of bert.html", [exams["bert"]])


@pytest.fixture(scope="session")
def two_sided_page(exams: dict[str, Examination], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two examinations of models with two sides."""
    return page_file(tmp_path_factory.mktemp("file") / "report.html", [exams["bart"], exams["changed"]])


@pytest.fixture(scope="session")
def notebook_page(exams: dict[str, Examination], tmp_path_factory: pytest.TempPathFactory) -> str:
    return notebook_file(tmp_path_factory.mktemp("notebook") / "notebook.html", exams["bert"])


TYPED = [word for word in HOSTILE if word.isprintable() and word == " ".join(word.split()) != ""]
"""What can be typed into a sentence as it is."""


@pytest.fixture(scope="session")
def live_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a live page, whose server stops at the end. It refuses no question on a busy machine."""
    folder = live_model(tmp_path_factory.mktemp("live") / "bert", TYPED)
    model = LiveModel(open_subject(str(folder)), max_length=128, text="the cat sees a bird .")
    with serving(model.page(), model, Worker(patience=600.0)) as client:
        yield f"http://127.0.0.1:{client.port}/{TOKEN}/"
