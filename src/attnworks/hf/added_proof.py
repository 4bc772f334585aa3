"""Proof, on a model and some inputs, that columns added to a layer are where they should be.

Columns without any effect yet must leave the outputs as they are, and so must a value channel that is moved out of the
layer into an added column. What fails is the reason for a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attnworks.attention.heads import HeadMatrices
from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance
from attnworks.core.places import Slot
from attnworks.hf.added_columns import add_columns, added_to, input_sizes, refusal_to_add, remove_columns
from attnworks.hf.layout import AttentionLayout
from attnworks.hf.linear import LinearMap, matrix_of

WIDTH = 2
"""Columns of keys and of values that are added to each head; a new head has as many."""
ROUNDING = 1e-3
"""How much of the effect of taking a channel away may be left when it is added again."""


def failed_proof(model: nn.Module, layout: AttentionLayout, slot: Slot, read: Callable[[], Tensor]) -> str | None:
    """Why no columns can be added to a layer, in words; None if they can, or were added before.

    read    runs the model on some inputs, without gradients and a cache, and returns its outputs
    """
    attention = model.get_submodule(layout.path)
    if added_to(attention) is not None:
        return None
    if reason := refusal_to_add(model, layout):
        return reason
    before = read()
    rounding = max(tolerance(dtype).rtol for dtype in (before.dtype, torch.float32))  # some types compute in single
    close = rounding * float(before.abs().max())
    try:
        with _with_columns(model, layout, slot, _without_effect(model, layout)):
            if not _error(read(), before) <= close:
                return "outputs that change when columns of zeros are added"
        found = None if "gate" in layout.problems else _moved_channel(model, layout, slot, read)
    except UsageError as error:
        return f"a layer with {error.got}, where added columns need {error.expected}"
    if found is not None and not _error(found[0], before) <= close + ROUNDING * _error(found[1], before):
        return "a layer in which added values do not act like its own"
    return None


@contextmanager
def _with_columns(
    model: nn.Module, layout: AttentionLayout, slot: Slot, heads: Sequence[HeadMatrices]
) -> Iterator[None]:
    """Within this context a layer has these columns besides its own."""
    own = [_cut_off(head) for head in heads[: layout.heads]]
    try:
        add_columns(model, layout, slot, heads, own)
        yield
    finally:
        remove_columns(model, model.get_submodule(layout.path))


def _cut_off(head: HeadMatrices) -> HeadMatrices:
    """The head without any columns."""
    b_V = None if head.b_V is None else head.b_V[:0]
    return HeadMatrices(head.W_Q[:, :0], head.W_K[:, :0], head.W_V[:, :0], head.W_O[:0], b_V=b_V)


def _without_effect(model: nn.Module, layout: AttentionLayout) -> list[HeadMatrices]:
    """Random columns for each head, and for a new one, with W_K = 0 and W_O = 0."""
    (e, f, g, d), like = input_sizes(model, layout), _output(model, layout).weight
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(like)

    head = HeadMatrices(draw(e, WIDTH), like.new_zeros(f, WIDTH), draw(g, WIDTH), like.new_zeros(WIDTH, d))
    return [head] * (layout.heads + 1)


def _output(model: nn.Module, layout: AttentionLayout) -> LinearMap:
    linear = matrix_of(model.get_submodule(layout.output_path or ""))
    assert linear is not None
    return linear


@torch.no_grad()
def _moved_channel(
    model: nn.Module, layout: AttentionLayout, slot: Slot, read: Callable[[], Tensor]
) -> tuple[Tensor, Tensor] | None:
    """Outputs with one column of values moved from the layer into added columns, and without it.

    None where the columns of the layer are not known.
    """
    values = None if layout.value is None else matrix_of(model.get_submodule(layout.value.path))
    if values is None or layout.value is None or layout.output is None or not layout.value.index.numel():
        return None
    column = int(layout.value.index[0, 0])
    heads = _moved_heads(model, layout, values, column)
    parts = [values.weight[:, column], *([] if values.bias is None else [values.bias[column]])]
    saved = [part.clone() for part in parts]
    try:
        for part in parts:
            part.zero_()
        without = read()
        with _with_columns(model, layout, slot, heads):
            return read(), without
    finally:
        for part, old in zip(parts, saved, strict=True):
            part.copy_(old)


def _moved_heads(model: nn.Module, layout: AttentionLayout, values: LinearMap, column: int) -> list[HeadMatrices]:
    """For each head that has this column of values, the same column and its row of W_O; for the others none."""
    assert layout.value is not None and layout.output is not None
    (e, f, _, _), output = input_sizes(model, layout), _output(model, layout)
    heads: list[HeadMatrices] = []
    for own, rows in zip(layout.value.index.tolist(), layout.output.index.tolist(), strict=True):
        at = [column] if column in own else []
        W_O = output.weight[[rows[own.index(column)] for _ in at]]
        b_V = None if values.bias is None else values.bias[at].clone()
        W_V = values.weight[:, at].clone()
        heads.append(HeadMatrices(W_O.new_zeros(e, 0), W_O.new_zeros(f, 0), W_V, W_O.clone(), b_V=b_V))
    return heads


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max())
