"""An objective that is a Python function of the user."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.text.tokens import TextBatch
from attnworks.training.objectives.contract import Outputs, TextObjective

OwnFunction = Callable[[Outputs, TextBatch], Tensor]


class OwnCallable(TextObjective):
    """What function(outputs, batch) gives: one finite loss per sentence, to be small; all else is refused."""

    name = "own"
    words = "a function of your own"

    def __init__(self, function: OwnFunction) -> None:
        self.function = function
        self.asked = f"losses of {getattr(function, '__name__', type(function).__name__)}"

    def losses(self, outputs: Outputs, batch: TextBatch, rows: Tensor) -> Float[Tensor, " b"]:
        losses = self.function(outputs, batch)
        self._check_shape(losses, len(batch))
        differentiable = outputs.hidden.requires_grad and torch.is_grad_enabled()
        if differentiable and not losses.requires_grad:
            raise self._refusal("losses that follow from the outputs", "a tensor without gradient", "do not detach it")
        if not bool(losses.isfinite().all()):
            first = int((~losses.isfinite()).long().argmax())
            got = f"{losses[first].item()} for sentence {int(rows[first])}"
            raise self._refusal("finite numbers", got, "see that padding and logarithms of zero are left out")
        return losses.to(torch.promote_types(losses.dtype, torch.float32))

    def _check_shape(self, losses: object, number: int) -> None:
        expected = f"a tensor of {number} floats, one per sentence"
        remedy = "average over the tokens of each sentence, not over sentences"
        if not isinstance(losses, Tensor):
            raise self._refusal(expected, type(losses).__name__, remedy)
        if losses.shape != (number,) or not losses.is_floating_point():
            got = f"shape {list(losses.shape)} of {str(losses.dtype).removeprefix('torch.')}"
            raise self._refusal(expected, got, remedy)

    def _refusal(self, expected: str, got: str, remedy: str) -> UsageError:
        return UsageError(asked=self.asked, expected=expected, got=got, remedy=remedy)
