"""Live models to ask, each made once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from attnworks.page.server.live import LiveModel
from attnworks.traces.subject import open_subject
from tests.exam_helpers import LINES, tiny_run
from tests.page.server.server_helpers import Client, live, serving


@pytest.fixture(scope="session")
def bert() -> LiveModel:
    return live("bert")


@pytest.fixture(scope="session")
def translator() -> LiveModel:
    return LiveModel(open_subject(str(tiny_run())), max_length=23, text=LINES[0])


@pytest.fixture(scope="session")
def client(bert: LiveModel) -> Iterator[Client]:
    with serving(bert.page(), bert) as client:
        yield client
