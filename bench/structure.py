"""Seconds of one core for the two goals of attnworks.exam.structure, on random heads.

OMP_NUM_THREADS=1 python bench/structure.py
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import torch

from attnworks.exam.structure.fits import fit
from attnworks.theory.structured_sets import project_to_band


def heads(count: int, n: int) -> torch.Tensor:
    """Rows from even to sharp, as they are in models."""
    source = torch.Generator().manual_seed(20240)
    spread = torch.linspace(0.5, 8.0, count)[:, None, None]
    return (spread * torch.randn(count, n, n, generator=source)).softmax(-1)


def seconds(run: Callable[[], object]) -> float:
    start = process_time()
    run()
    return process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    H, few = heads(144, 512), heads(72, 64)
    fit(few[:1])
    projected = seconds(lambda: project_to_band(H, 2, 2, 0.02, 13107))
    print(f"projection of 144 heads, n = 512, budget 5%: {projected:.2f} s (goal: 1)")
    print(f"all families for 72 heads, n = 64: {seconds(lambda: fit(few)):.2f} s (goal: 5)")


if __name__ == "__main__":
    main()
