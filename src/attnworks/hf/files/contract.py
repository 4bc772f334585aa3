"""What a reader of weights offers: which tensors there are, before any memory is taken, and then the tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

FLOAT_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class StoredTensor(NamedTuple):
    """A tensor as a header describes it.

    dtype          in which it is read
    quantisation   name of the type of its blocks; None for plain numbers
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    quantisation: str | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class WeightFiles(ABC):
    """The weights of a model in files of one format. Opening reads and checks headers alone.

    path      the file, or the index of several files, that error messages name
    tensors   name in the files -> description
    """

    path: Path
    tensors: Mapping[str, StoredTensor]

    @abstractmethod
    def read(self, model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        """All tensors, in memory of their own, by names that `from_pretrained` takes for this model.

        model    the model that they are for, on torch's device meta
        dtype    of its weights
        """

    @property
    def numel(self) -> int:
        return sum(tensor.numel for tensor in self.tensors.values())

    @property
    def stored_dtype(self) -> torch.dtype:
        """The type of most floating-point numbers; float32 if there are none."""
        counts = Counter(dict.fromkeys(FLOAT_DTYPES, 0))
        for tensor in self.tensors.values():
            if tensor.dtype in FLOAT_DTYPES:
                counts[tensor.dtype] += tensor.numel
        return counts.most_common(1)[0][0]

    @property
    def quantisations(self) -> list[str]:
        """The types of quantised tensors, that of most numbers first."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors.values():
            if tensor.quantisation is not None:
                counts[tensor.quantisation] += tensor.numel
        return [name for name, _ in counts.most_common()]


def own_copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in memory of its own, in the wanted type if that holds all its numbers: then no other copy is made."""
    wider = tensor.is_floating_point() and torch.promote_types(tensor.dtype, dtype) == dtype
    return tensor.detach().to(dtype if wider else tensor.dtype, copy=True, memory_format=torch.contiguous_format)
