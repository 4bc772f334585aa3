"""Softmax attention in steps: one block of queries over the few keys that it sees, for a group of heads at a time.

The scores of one step fit into the processor's cache. No scores are stored: the backward pass computes them again.
Blocks and groups are Python loops over large matrix products; torch's fused kernel on the same keys is no faster here,
and its backward pass is private.

Shapes: g heads of a step, over sentences and heads flattened; r queries of its block; c keys that it sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnworks.core.tensors import Scratch

CACHE_BYTES = 2_621_440
"""Bytes of scores in one step: about the cache of two cores."""


@dataclass(frozen=True)
class BlockStep:
    """Some heads (of some sentences) at one block of queries.

    heads       rows of the flattened axis [b*h]
    sentences   the rows of [b] that these heads belong to
    queries     rows of Q
    position    of the first query, counted in the keys' sequence
    block       number of the block
    """

    heads: slice
    sentences: slice
    queries: slice
    position: int
    block: int

    @property
    def count(self) -> int:
        return self.heads.stop - self.heads.start


class BlockWalk(ABC):
    """All steps of one pass. Subclasses say which keys a step sees, and where their gradients go.

    Queries [b h i k] are the last i positions of the keys [b h j k]; blocks begin at multiples of `block`.
    """

    def __init__(self, Q: Tensor, K: Tensor, V: Tensor, hidden: Tensor | None, block: int, scale: float) -> None:
        self.b, self.h, self.i, self.j = *Q.shape[:3], K.shape[2]
        self.Q, self.K, self.V = (T.flatten(0, 1) for T in (Q, K, V))
        self.block, self.scale = block, scale
        self.shade = None if hidden is None else _minus_infinity(hidden, Q.dtype)
        self._scratch = Scratch()

    @abstractmethod
    def most_keys(self) -> int:
        """The largest number of keys that a step sees."""

    @abstractmethod
    def fetch(self, step: BlockStep) -> tuple[Tensor, Tensor]:
        """Keys [g c k] and values [g c v] of a step."""

    @abstractmethod
    def hide(self, S: Tensor, step: BlockStep) -> None:
        """Write -inf into the scores [g r c] of keys that are not seen."""

    @abstractmethod
    def add_gradients(self, step: BlockStep, dS: Tensor, Q: Tensor, P: Tensor, dY: Tensor) -> None:
        """Add dS^T Q and P^T dY to the gradients of the step's keys and values."""

    @abstractmethod
    def gradients(self) -> list[Tensor]:
        """The gradients that `add_gradients` has summed."""

    def buffer(self, name: str, *shape: int) -> Tensor:
        return self._scratch.empty(name, shape, self.Q.dtype, self.Q.device)

    def forward(self) -> Tensor:
        """Y [b h i v]; zeros where no key is seen."""
        Y = self.Q.new_empty(self.b * self.h, self.i, self.V.shape[-1])
        for step in self._steps():
            K, V = self.fetch(step)
            P = self._weights(step, K)
            Y[step.heads, step.queries] = torch.bmm(P, V, out=self.buffer("Y", *P.shape[:2], V.shape[-1]))
        return Y.unflatten(0, (self.b, self.h))

    def backward(self, dY: Tensor, Y: Tensor) -> list[Tensor]:
        """dQ, dK, dV and the gradients of further inputs of the subclass."""
        dY, Y = dY.flatten(0, 1), Y.flatten(0, 1)
        dQ = self.Q.new_empty(self.Q.shape)
        for step in self._steps():
            at = step.heads, step.queries
            K, V = self.fetch(step)
            P = self._weights(step, K)
            dP = torch.bmm(dY[at], V.mT, out=self.buffer("dP", *P.shape))  # [g r c]
            # softmax backward: dS = P (dP - sum_c P dP), and sum_c P dP = dY . Y
            dS = dP.sub_((dY[at] * Y[at]).sum(-1, keepdim=True)).mul_(P)
            Q = self.buffer("Q", *P.shape[:2], K.shape[-1])  # [g r k], still scaled from the scores
            self.add_gradients(step, dS, Q, P, dY[at])
            torch.mul(torch.bmm(dS, K, out=self.buffer("dQ", *Q.shape)), self.scale, out=dQ[at])
        return [T.unflatten(0, (self.b, self.h)) for T in (dQ, *self.gradients())]

    def _weights(self, step: BlockStep, K: Tensor) -> Tensor:
        """P [g r c], zero where no key is seen. A second softmax, in the backward pass, is cheaper than stored sums."""
        Q = self.Q[step.heads, step.queries]
        Q = torch.mul(Q, self.scale, out=self.buffer("Q", *Q.shape))
        S = torch.bmm(Q, K.mT, out=self.buffer("S", *Q.shape[:2], K.shape[1]))
        self.hide(S, step)
        if self.shade is None:
            return torch.softmax(S, -1, out=S)
        blind = S.amax(-1, keepdim=True) == -torch.inf
        if not blind.any():
            return torch.softmax(S, -1, out=S)
        return torch.softmax(S.masked_fill_(blind, 0.0), -1, out=S).masked_fill_(blind, 0.0)

    def _steps(self) -> Iterator[BlockStep]:
        """All blocks of queries for one group of heads, then the next group: the keys of a group stay in the cache."""
        offset = self.j - self.i
        for heads, sentences in self._groups():
            for block in range(offset // self.block, -(-self.j // self.block)):
                first, last = max(block * self.block, offset), min((block + 1) * self.block, self.j)
                yield BlockStep(heads, sentences, slice(first - offset, last - offset), first, block)

    def _groups(self) -> Iterator[tuple[slice, slice]]:
        """Heads of one sentence, or of several sentences, whose scores fit the cache; an even number if possible."""
        h, rows = self.h, min(self.i, self.block)
        fitting = max(1, CACHE_BYTES // (rows * self.most_keys() * self.Q.element_size()))
        if fitting >= h:
            for start in range(0, self.b, fitting // h):
                stop = min(self.b, start + fitting // h)
                yield slice(start * h, stop * h), slice(start, stop)
            return
        size = fitting - fitting % 2 if fitting > 1 else 1
        for sentence in range(self.b):
            for start in range(0, h, size):
                yield slice(sentence * h + start, sentence * h + min(h, start + size)), slice(sentence, sentence + 1)


def _minus_infinity(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def operator(name: str, walk: Callable[..., BlockWalk], arguments: str, differentiable: int) -> Callable[..., Tensor]:
    """A BlockWalk as one torch operator with its gradient, which torch.compile does not trace into.

    arguments        of the walk, as a schema
    differentiable   the first arguments, tensors or None, that have gradients
    """
    total, tensors = arguments.count(",") + 1, arguments.count("Tensor")

    @torch.library.custom_op(f"attnworks::{name}", mutates_args=(), schema=f"({arguments}) -> Tensor")
    def forward(*given):
        return walk(*given).forward()

    @torch.library.custom_op(
        f"attnworks::{name}_backward", mutates_args=(), schema=f"(Tensor dY, Tensor Y, {arguments}) -> Tensor[]"
    )
    def backward(dY, Y, *given):
        return [T.contiguous() for T in walk(*given).backward(dY, Y)]

    forward.register_fake(lambda Q, K, V, *rest: Q.new_empty(*Q.shape[:3], V.shape[3]))
    backward.register_fake(
        lambda dY, Y, *given: [T.new_empty(T.shape) for T in given[:differentiable] if T is not None]
    )

    def keep(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs[:tensors], output)
        ctx.rest = inputs[tensors:]

    def differentiate(ctx, dY):
        *given, Y = ctx.saved_tensors
        found = iter(backward(dY.contiguous(), Y, *given, *ctx.rest))
        return tuple(next(found) if T is not None else None for T in given[:differentiable]) + (None,) * (
            total - differentiable
        )

    forward.register_autograd(differentiate, setup_context=keep)
    return forward
