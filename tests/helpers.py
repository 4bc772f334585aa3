"""What several test files share: sizes that are distinct primes, inputs, comparison, typechecking switched off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
import torch
from torch import Tensor

from attnworks.attention import Geometry, Mechanism, MechanismSpec
from attnworks.attention.check_cases import BATCH, HEADS, random_qkv
from attnworks.core.notation import tolerance

B, H, QUERIES, KEYS, D_K, D_V = BATCH, HEADS, 5, 7, 11, 13
qkv = random_qkv


def build(name: str, geometry: Geometry, dtype: torch.dtype = torch.float64, *, seed: int = 19) -> Mechanism:
    """A registered mechanism with its default options and reproducible parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        mechanism = MechanismSpec.parse(name).build(geometry)
    return mechanism.to(dtype)


def assert_close(
    actual: Tensor | None, expected: Tensor | None, dtype: torch.dtype | None = None, *, message: str = ""
) -> None:
    """Equal within the package's tolerance for `dtype` (by default the dtype of `actual`); NaN is never equal."""
    assert actual is not None and expected is not None
    rtol, atol = tolerance(dtype or actual.dtype)
    torch.testing.assert_close(
        actual.detach().double(),
        expected.detach().double(),
        rtol=rtol,
        atol=atol,
        msg=(lambda text: f"{message}: {text}") if message else None,
    )


@contextmanager
def unchecked() -> Iterator[None]:
    """Without jaxtyping's checks, as in a user's session: wrong shapes must meet our own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
