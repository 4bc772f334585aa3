"""The arguments that a model of Hugging Face takes, and its last residual stream."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from attnworks.core.errors import UsageError


def accepted(model: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments among these that `forward` of a model takes."""
    takes = inspect.signature(model.forward).parameters
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in takes.values()):
        return given
    return {name: value for name, value in given.items() if name in takes}


class LastStream:
    """The last residual stream [b i e] of a forward pass, for this shape [b, i].

    It is the `last_hidden_state` of the last model inside the model that has one of this shape, or else a first output.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self.named: Tensor | None = None
        self.first: Tensor | None = None

    def record(self, _: nn.Module, __: Any, output: Any) -> None:
        """A forward hook."""
        named = getattr(output, "last_hidden_state", None)
        if self._fits(named):
            self.named = named
        elif isinstance(output, tuple) and output and self._fits(output[0]):
            self.first = output[0]

    def _fits(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == self.shape

    def tensor(self, name: str) -> Tensor:
        found = self.first if self.named is None else self.named
        if found is None:
            expected, remedy = "a model that returns one vector for each token", "use attnworks.traces.adapted"
            raise UsageError(f"the last residual stream of {name}", expected, "one that does not", remedy)
        return found


@contextmanager
def last_stream(model: nn.Module, shape: Sequence[int]) -> Iterator[LastStream]:
    """Record the last residual stream of one forward pass of this model."""
    from transformers import PreTrainedModel

    found = LastStream(shape)
    with ExitStack() as hooks:
        for part in model.modules():
            if part is model or isinstance(part, PreTrainedModel):
                hooks.enter_context(part.register_forward_hook(found.record))
        yield found
