"""The option --check-shapes: annotated shapes and types are checked at every call."""

import importlib.util
from pathlib import Path

import jaxtyping
import pytest
import torch

import attnworks
from attnworks.attention import Mask
from attnworks.exam.linalg.residual import residual
from tests.typechecking import CHECKED_PACKAGES

IN_PARTS = {"core", "text", "studies", "theory"}
"""Packages of which only the modules with tensors are checked. Claims are read by `inspect`, which wrappers mislead."""
WITHOUT_TENSORS = {"page", "cli"}


def test_every_numeric_package_is_checked() -> None:
    packages = {path.parent.name for path in Path(attnworks.__path__[0]).glob("*/__init__.py")}
    checked = {name.removeprefix("attnworks.") for name in CHECKED_PACKAGES}
    assert {name for name in checked if "." not in name} == packages - IN_PARTS - WITHOUT_TENSORS
    assert {name.split(".")[0] for name in checked if "." in name} == IN_PARTS
    assert all(importlib.util.find_spec(name) is not None for name in CHECKED_PACKAGES)


@pytest.fixture
def with_checks(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--check-shapes"):
        pytest.skip("run pytest with --check-shapes")


@pytest.mark.smoke
@pytest.mark.usefixtures("with_checks")
def test_shapes_that_do_not_fit_one_another() -> None:
    for _ in range(20):
        residual(torch.ones(3, 5), torch.ones(3, dtype=torch.bool))
    with pytest.raises(jaxtyping.TypeCheckError):
        residual(torch.ones(3, 5), torch.ones(7, dtype=torch.bool))


@pytest.mark.smoke
@pytest.mark.usefixtures("with_checks")
def test_dataclasses() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        Mask(padding=torch.ones(3, 5))
