"""torch.compile in tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def compiling() -> Iterator[None]:
    """For tests that compile: nothing compiled comes from tests before, and nothing is left for those after."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """No graph can hold the checks of --check-shapes: a test that compiles then runs in a process without them."""
    if "compiling" not in pyfuncitem.fixturenames or not pyfuncitem.config.getoption("--check-shapes"):
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    done = subprocess.run(command, cwd=pyfuncitem.config.rootpath, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return True
