"""What several test files share: sizes that are distinct primes, inputs, comparison, typechecking switched off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jaxtyping
import torch
from torch import Tensor

from attnworks.attention import Geometry, Mechanism, MechanismSpec
from attnworks.core.notation import tolerance

B, H, QUERIES, KEYS, D_K, D_V = 3, 2, 5, 7, 11, 13


class QKV(NamedTuple):
    Q: Tensor
    K: Tensor
    V: Tensor


def qkv(
    b: int = B,
    h: int = H,
    i: int = QUERIES,
    j: int = KEYS,
    k: int = D_K,
    v: int = D_V,
    dtype: torch.dtype = torch.float64,
    *,
    seed: int = 17,
    spread: float = 1.0,
    grad: bool = False,
) -> QKV:
    """Standard normal Q, K, V (Q times `spread`), the same for the same arguments: drawn in float64, then rounded."""
    source = torch.Generator().manual_seed(seed)
    drawn = [
        torch.randn(shape, generator=source, dtype=torch.float64)
        for shape in ((b, h, i, k), (b, h, j, k), (b, h, j, v))
    ]
    drawn[0] = drawn[0] * spread
    return QKV(*(T.to(dtype).requires_grad_(grad) for T in drawn))


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
