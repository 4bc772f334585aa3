"""Settings of every test: one thread, a seed of its own, a fixed width; the smoke tier; seconds per package.

Hypothesis runs without deadlines, and without chance where CI=true.
"""

from __future__ import annotations

import os
import random
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from tests import typechecking
from tests.covering import thorough

WITH_ENGINES = {
    *("conformance", "attention", "traces", "linalg", "structure", "objectives", "growth", "projection", "theory"),
}
"""Folders of tests under which memory that was never written reads as NaN."""

torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)

settings.register_profile("attnworks", deadline=None, max_examples=60 if thorough else 15)
settings.register_profile("ci", settings.get_profile("attnworks"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "attnworks")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--check-shapes", action="store_true", help="Check annotated shapes and types at every call.")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--check-shapes"):
        typechecking.install()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The smoke tier has the tests marked so, and of files without a mark the first test: it reaches every package."""
    files: defaultdict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.path.parent.name not in ("browser", "cli", "faults"):
            files[item.path].append(item)
    for tests in files.values():
        able = [test for test in tests if not (test.get_closest_marker("slow") or _compiles(test) or _forks(test))]
        if able and not any(test.get_closest_marker("smoke") for test in tests):
            able[0].add_marker("smoke")


def _compiles(test: pytest.Item) -> bool:
    """Whether torch.compile is tested: no graph can hold checks of shapes."""
    return "compiling" in getattr(test, "fixturenames", ())


def _forks(test: pytest.Item) -> bool:
    return any("fork" in mark.kwargs.get("reason", "") for mark in test.iter_markers("skipif"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds per folder of tests, summed over workers."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.removeprefix("tests/").split("/")[0].split("::")[0]] += report.duration
    longest_first = sorted(seconds.items(), key=lambda folder: -folder[1])
    parts = [f"{folder} {spent:.0f}" for folder, spent in longest_first if spent >= 0.5]
    terminalreporter.write_line(f"seconds per package ({sum(seconds.values()):.0f} in all): {', '.join(parts)}")


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Random numbers depend on the test's own name, never on which tests ran before it."""
    number = zlib.crc32(request.node.name.encode())
    random.seed(number)
    np.random.seed(number)
    torch.default_generator.manual_seed(number)  # torch.manual_seed also queues a call for CUDA, which takes longer
    return number


@pytest.fixture(autouse=True, scope="session")
def short_scores() -> Iterator[None]:
    """Receipts translate two sentences; times have as few rounds as give an interval: more would take too long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnworks.reshape.evaluate.BLEU_SENTENCES", 2)
        patch.setattr("attnworks.core.timing.MAX_ROUNDS", 1)
        yield


@pytest.fixture(autouse=True)
def unwritten_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Under engines, memory that was never written reads as NaN: using some fails every time, not now and then."""
    watched = request.path.parent.name in WITH_ENGINES
    torch.use_deterministic_algorithms(watched)
    yield
    torch.use_deterministic_algorithms(False)
