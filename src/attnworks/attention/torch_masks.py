"""Masks in the convention of torch.nn.MultiheadAttention, where True hides, as a Mask, where True may be seen."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attnworks.attention.mask import Mask, as_four_axes
from attnworks.core.errors import UsageError


def mask_of_torch(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool, b: int, h: int, i: int, j: int
) -> Mask:
    """The Mask with the same effect on queries [b h i k] and keys [b h j k].

    A float mask of zeros and -inf hides keys and adds nothing. If it hides whole keys it becomes `real`, if it hides
    the later keys it becomes `causal`, so that mechanisms that take no tables obey it.
    """
    _check(key_padding_mask, "key_padding_mask", [(b, j)])
    _check(attn_mask, "attn_mask", [(i, j), (b * h, i, j)])
    if is_causal and attn_mask is None and i != j:
        raise UsageError(
            "is_causal=True without attn_mask",
            "as many keys as queries",
            f"{i} queries and {j} keys",
            "pass attn_mask, which says which query attends to which key",
        )
    causal, dense, real = is_causal and attn_mask is None, None, None
    if attn_mask is not None:
        causal = _hides_later_keys(attn_mask, i, j)
        if not causal:
            dense = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask
            dense = dense.reshape(b, h, i, j) if dense.dim() == 3 else dense
    if key_padding_mask is not None:
        hides_alone = key_padding_mask.dtype == torch.bool or _zero_or_hidden(key_padding_mask)
        if hides_alone:
            real = ~key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask == 0
        else:
            dense = _plus(dense, key_padding_mask[:, None, None, :].expand(b, 1, i, j))
    return Mask(real, causal, dense)


def with_visible_keys(mask: Mask, i: int, j: int, more: int, device: torch.device) -> Mask:
    """The mask of i queries and j keys, with `more` keys after them that every query sees."""
    if not more:
        return mask
    real, dense = mask.real, mask.dense
    if mask.causal:  # the keys that are added have no position, so that the queries are no longer the last ones
        table = torch.ones(i, j, dtype=torch.bool, device=device).tril(j - i)
        if dense is None:
            dense = table
        else:
            dense = dense & table if dense.dtype == torch.bool else dense.masked_fill(~table, -torch.inf)
    if dense is not None:
        dense = F.pad(dense, (0, more), value=dense.dtype == torch.bool)
    return Mask(None if real is None else F.pad(real, (0, more), value=True), False, dense)


def _plus(dense: Tensor | None, added: Tensor) -> Tensor:
    """What is added to the scores on top of a dense mask."""
    if dense is None:
        return added
    if dense.dtype == torch.bool:
        return added.masked_fill(~as_four_axes(dense), -torch.inf)
    return dense + added


def _zero_or_hidden(mask: Tensor) -> bool:
    """Whether a float mask has no entry other than 0 and -inf, and nothing learns it."""
    return not mask.requires_grad and bool(((mask == 0) | (mask == -torch.inf)).all())


def _hides_later_keys(mask: Tensor, i: int, j: int) -> bool:
    if i != j or mask.dim() != 2 or mask.requires_grad:
        return False
    later = torch.ones(i, j, dtype=torch.bool, device=mask.device).triu(1)
    if mask.dtype != torch.bool:
        return _zero_or_hidden(mask) and torch.equal(mask == -torch.inf, later)
    return torch.equal(mask, later)


def _check(mask: Tensor | None, name: str, shapes: list[tuple[int, ...]]) -> None:
    if mask is None:
        return
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise UsageError(
            name,
            "booleans (True hides), or floats to add",
            str(mask.dtype).removeprefix("torch."),
            "call .bool() on it",
        )
    if tuple(mask.shape) not in shapes:
        axes = " or ".join(str(list(shape)) for shape in shapes)
        raise UsageError(name, f"shape {axes}", str(list(mask.shape)), "compare it with the shapes of query and key")
