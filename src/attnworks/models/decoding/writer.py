"""What decoding needs of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from attnworks.models.stepping import State


@runtime_checkable
class Writer(Protocol):
    """A model that writes one token at a time and remembers what it wrote in a State."""

    def start(self, source: Int[Tensor, "s i"], padding: Bool[Tensor, "s i"] | None = None) -> State:
        """The state before the first target token, with one hypothesis for each sentence."""
        ...

    def step(self, tokens: Int[Tensor, "s beams"], state: Any) -> tuple[Float[Tensor, "s beams w"], State]:
        """Scores before softmax of the token after these, and the state that remembers these."""
        ...
