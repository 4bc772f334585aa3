"""One browser for all tests, the pages they look at, and three hosts: a file, a server, a notebook."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from tests.browser.hostile import HOSTILE
from tests.browser.pages import live_model, notebook_file, page_file, tiny_exam
from tests.browser.watching import AXE, NAMES, Shown, browsing, chromium, show

from attnworks.exam.examination import Examination

REQUIRED = os.environ.get("BROWSER_TESTS") == "required"
HERE = Path(__file__).parent
Open = Callable[..., Shown]


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
def exams(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Examination]:
    """One side, two sides, and two sides with other weights."""
    folder = tmp_path_factory.mktemp("exams")
    return {
        "bert": tiny_exam(folder / "bert", "bert", measures=["all"]),
        "bart": tiny_exam(folder / "bart", "bart"),
        "changed": tiny_exam(folder / "changed", "bart", seed=1),
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
    """The address of a live page, whose server stops at the end."""
    model = live_model(tmp_path_factory.mktemp("live") / "bert", TYPED)
    command = [
        sys.executable,
        "-m",
        "attnworks",
        "serve",
        str(model),
        "--threads",
        "1",
        "--text",
        "the cat sees a bird .",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        found = (re.search(r"http://\S+", line) for line in server.stdout)
        yield next(address.group() for address in found if address is not None)
    finally:
        server.terminate()
        server.wait(timeout=20)
