"""Live models to ask, each made once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.exam_helpers import LINES, save_tiny, train_run
from tests.serve.serving import Client, serving

from attnworks.serve.live import LiveModel
from attnworks.traces.examinee import open_examinee


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LiveModel:
    folder = save_tiny("bert", tmp_path_factory.mktemp("live") / "bert")
    return LiveModel(open_examinee(str(folder)), longest=23, text=LINES[0])


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> LiveModel:
    run = train_run(tmp_path_factory.mktemp("live") / "own")
    return LiveModel(open_examinee(str(run)), longest=23, text=LINES[0])


@pytest.fixture(scope="session")
def client(bert: LiveModel) -> Iterator[Client]:
    with serving(bert.page(), bert) as client:
        yield client
