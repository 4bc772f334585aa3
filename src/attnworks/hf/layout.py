"""Where the parts of a Hugging Face model sit, as data: names of modules and numbers of columns, never modules.

A layout is what `evidence/` finds by watching one forward pass. It stays valid in a copy of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jaxtyping import Bool, Int
from torch import Tensor

from attnworks.core.places import Kind, Slot
from attnworks.models.anatomy import Role, StackKind

ProjectionRole = Literal["query", "key", "value", "gate"]
"""What a column does for a head: it makes queries, keys or values, or is multiplied into the output of the head."""


@dataclass(frozen=True, eq=False)
class HeadColumns:
    """Channel c of head h is column index[h, c] of the output of a linear map, or of the input of an output projection.

    path    the module, seen from the model
    index   -1 for a channel of queries or keys that is zero, as its column is not stored (`cut/unused.py`)
    """

    path: str
    index: Int[Tensor, "h c"]


@dataclass(frozen=True, eq=False)
class ColumnSource:
    """A projection, or a parameter of another module, that attention is computed from.

    path        of the module; of the parameter itself, if `is_parameter`
    reach       which columns of the output (or entries of the parameter) change which heads, by whatever way
    roles       the same by way of queries, keys, values or gates alone, for the heads that these have
    """

    path: str
    is_parameter: bool
    reach: Bool[Tensor, "h ..."]
    roles: dict[ProjectionRole, Bool[Tensor, "g ..."]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AttentionLayout:
    """One attention layer.

    path            the module that calls attention
    slots           the layers that it serves: one, or several where layers share their weights (ALBERT)
    heads           how many heads its output has
    shares          heads that share keys and values, group by group; groups of one head where none do
    key_of          for each head, the number of its head of keys and values as attention is given them
    widths          of queries (and keys), and of values
    query, key, value   the linear maps that queries, keys and values come from, up to a factor and a rotation by
                    position; None where they are no plain linear map of the layer's input, as with latent projections
    turned          whether queries and keys are rotated by position
    output          the projection that reads the heads, exact up to a factor; None where heads are mixed before it
    output_path     the same projection, also where heads are mixed before it; None if there is none
    output_reach    the columns of its input that each head reaches
    factor          attention is softmax(factor (X W_Q + b_Q) (Z W_K + b_K)^T + ...); None if it is no such softmax
    sources         all that the layer is computed from
    interface       whether attention is computed through the attention interface of transformers; if not, it is
                    observed at its softmax
    problems        what is not known, and why: "queries" -> "they pass a norm over all heads"
    """

    path: str
    slots: tuple[Slot, ...]
    heads: int
    shares: tuple[tuple[int, ...], ...]
    key_of: tuple[int, ...]
    widths: tuple[int, int]
    query: HeadColumns | None
    key: HeadColumns | None
    value: HeadColumns | None
    turned: bool
    output: HeadColumns | None
    output_path: str | None
    output_reach: Bool[Tensor, "h c"] | None
    factor: float | None
    sources: tuple[ColumnSource, ...]
    interface: bool = True
    problems: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PartLayout:
    """One summand of the residual stream.

    role        of the part
    branch      the module whose output is added to the stream
    norm        the norm of what the part reads ("pre") or of the sum ("post"); None if it has none
    attention   the module that calls attention, for a part that is an attention layer
    factor      the branch is multiplied by this before it is added
    bias        the path of a parameter that the block adds with it
    step        attention reads the sum of all parts of earlier steps; other parts may read less than that
    """

    role: Role
    branch: str
    norm: str | None = None
    attention: str | None = None
    factor: float = 1.0
    bias: str | None = None
    step: int = 0


@dataclass(frozen=True)
class BlockLayout:
    """One block, whose first input and first output are the residual stream.

    kind        of the stack; "decoder" if its self-attention is causal
    layer       number in its stack
    order       "pre", "post", or None where there are no norms
    mixer       the class of what takes the place of attention in a block without any, such as a state-space layer
    problem     why its parts do not add up to the stream; None if they do
    """

    kind: StackKind
    layer: int
    path: str
    parts: tuple[PartLayout, ...]
    order: Literal["pre", "post"] | None
    mixer: str | None = None
    problem: str | None = None

    @property
    def parallel(self) -> bool:
        """Whether all parts read the same stream."""
        return len(self.parts) > 1 and all(part.step == self.parts[0].step for part in self.parts)


@dataclass(frozen=True, eq=False)
class ModelLayout:
    """All attention layers of a model, in the order in which they run, and its blocks.

    problem    why no layer could be found, in words
    """

    layers: tuple[AttentionLayout, ...]
    blocks: tuple[BlockLayout, ...]
    problem: str | None = None

    def __deepcopy__(self, memo: object) -> ModelLayout:
        """A layout never changes, so that copies of a model share it."""
        return self

    def layer(self, slot: Slot) -> AttentionLayout | None:
        """The layer with this name, if there is one."""
        return next((layer for layer in self.layers if slot in layer.slots), None)

    def slots(self) -> dict[str, tuple[Slot, ...]]:
        """The module of every attention layer -> the layers that it serves, in the order of its calls."""
        return {layer.path: layer.slots for layer in self.layers}

    def kinds(self) -> dict[str, Kind]:
        """The module of every attention layer -> its kind."""
        return {layer.path: layer.slots[0].kind for layer in self.layers}
