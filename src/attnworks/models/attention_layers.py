"""The attention layers of any model whose parts are known, by name."""

from __future__ import annotations

from torch import nn

from attnworks.models.anatomy import Part, anatomy_of

SHORT = {"encoder": "enc", "decoder": "dec"}


def attention_layers(model: nn.Module) -> dict[str, Part]:
    """Every attention layer whose module and weights are known and its own: enc.0, dec.1, cross.1."""
    parts = every_layer(model)
    modules = [part.attention for part in parts.values()]
    return {slot: part for slot, part in parts.items() if modules.count(part.attention) == 1}


def every_layer(model: nn.Module) -> dict[str, Part]:
    """The same, with those that share their module."""
    return {
        f"{'cross' if part.role == 'cross' else SHORT[block.kind]}.{block.layer}": part
        for block in anatomy_of(model) or ()
        for part in block.parts
        if part.role != "mlp" and part.weights is not None
    }
