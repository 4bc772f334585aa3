"""That annotations of shapes are more than words while tests run."""

import jaxtyping
import pytest
import torch

from attnworks.linalg.residual import residual
from attnworks.mechanisms import Mask
from typechecking import CHECKED, at_first


def test_shapes_that_do_not_fit_one_another() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        residual(torch.ones(3, 5), torch.ones(7, dtype=torch.bool))


def test_dataclasses() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        Mask(padding=torch.ones(3, 5))


def test_the_first_calls_of_every_function_are_checked() -> None:
    checked: list[int] = []

    @at_first(lambda plain: lambda x: (checked.append(x), plain(x))[1])
    def double(x: int) -> int:
        return 2 * x

    assert [double(x) for x in range(3 * CHECKED)] == [2 * x for x in range(3 * CHECKED)]
    assert checked == [*range(CHECKED)]
