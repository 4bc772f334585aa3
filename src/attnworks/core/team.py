"""Training in several processes: each takes a share of the batch, and gradients are summed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

_T = TypeVar("_T")


@dataclass(frozen=True)
class Team:
    """The processes of a training run. In a team of one, every method returns its input at once."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def leads(self) -> bool:
        """Whether this is the first process, which writes files and prints."""
        return self.rank == 0

    def share(self, rows: Sequence[int]) -> list[int]:
        """The rows of this process: every size-th, so that lengths are spread evenly."""
        return list(rows[self.rank :: self.size])

    def add_gradients(self, model: nn.Module) -> None:
        """Sum every gradient over the team, in one message."""
        if self.size == 1:
            return
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        flat = torch.cat([_gradient(parameter).reshape(-1) for parameter in parameters])
        dist.all_reduce(flat)
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            # a fused optimizer needs gradients with the memory layout of their parameters
            parameter.grad = torch.empty_like(parameter, requires_grad=False).copy_(part.view(parameter.shape))

    def add(self, values: Iterable[float]) -> list[float]:
        """Sum a few numbers over the team."""
        values = list(values)
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def gather(self, thing: _T) -> list[_T]:
        """The objects of all processes, in the order of ranks."""
        if self.size == 1:
            return [thing]
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, thing)
        return everyone

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return self.add([float(flag)])[0] > 0

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextmanager
def join_team(device: str) -> Iterator[Team]:
    """The team of processes that torchrun started, or a team of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Team()
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Team(dist.get_rank(), size, "cuda" if device.startswith("cuda") else "cpu")
    finally:
        dist.destroy_process_group()


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
