"""One thread, one seed per test, one width; hypothesis without deadlines (and without chance under CI=true)."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import settings

from typechecking import calls

torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)

thorough = os.environ.get("THOROUGH") == "1"
settings.register_profile("attnworks", deadline=None, max_examples=60 if thorough else 15)
settings.register_profile("ci", settings.get_profile("attnworks"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "attnworks")


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Random numbers depend on the test's own name, never on which tests ran before it."""
    number = zlib.crc32(request.node.nodeid.encode())
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
    return number


@pytest.fixture(autouse=True)
def first_calls() -> None:
    """Shapes are checked in the first calls of each function in each test."""
    calls.clear()


@pytest.fixture(autouse=True, scope="session")
def short_scores() -> Iterator[None]:
    """Receipts translate two sentences and time one round: with all shapes checked, more would take too long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnworks.reshape.scoring.TRANSLATED", 2)
        patch.setattr("attnworks.reshape.scoring.ROUNDS", 1)
        yield


@pytest.fixture(autouse=True)
def unwritten_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Under engines, memory that was never written reads as NaN: using some fails every time, not now and then."""
    watched = request.path.parent.name in ("conformance", "linalg", "mechanisms")
    torch.use_deterministic_algorithms(watched)
    yield
    torch.use_deterministic_algorithms(False)
