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

UNCHECKED = ("page", "theory")
"""Packages whose annotated shapes are not all checked. The page shows tensors that were checked before. Claims are read
by `inspect`, which the wrappers of checks mislead; the mathematics of the theory is checked module by module."""


def test_every_module_with_annotated_shapes_is_checked() -> None:
    root = Path(attnworks.__path__[0])
    modules = {".".join(path.relative_to(root.parent).with_suffix("").parts): path for path in root.rglob("*.py")}
    annotated = [name for name, path in modules.items() if "from jaxtyping import" in path.read_text(encoding="utf-8")]
    expected = [name for name in annotated if name.split(".")[1] not in UNCHECKED]
    checked = tuple(f"{package}." for package in CHECKED_PACKAGES)
    assert len(expected) > 50 and not [name for name in expected if not f"{name}.".startswith(checked)]
    assert all(importlib.util.find_spec(package) is not None for package in CHECKED_PACKAGES)


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
        Mask(real=torch.ones(3, 5))
