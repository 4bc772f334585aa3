"""The option --check-shapes: annotated shapes and types are checked at every call."""

import jaxtyping
import pytest
import torch

from attnworks.attention import Mask
from attnworks.exam.linalg.residual import residual


@pytest.fixture(autouse=True)
def with_checks(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--check-shapes"):
        pytest.skip("run pytest with --check-shapes")


@pytest.mark.smoke
def test_shapes_that_do_not_fit_one_another() -> None:
    for _ in range(20):
        residual(torch.ones(3, 5), torch.ones(3, dtype=torch.bool))
    with pytest.raises(jaxtyping.TypeCheckError):
        residual(torch.ones(3, 5), torch.ones(7, dtype=torch.bool))


@pytest.mark.smoke
def test_dataclasses() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        Mask(padding=torch.ones(3, 5))
