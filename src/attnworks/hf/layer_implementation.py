"""Another attention implementation of transformers for single layers of a model, whose other layers keep theirs.

Attention modules choose their function by the name in `config._attn_implementation`. The layer gets a copy of the
config, in which this name is another. What else reads the name, such as the code that makes masks, reads the config of
the model, and so gives the layer the masks of the model's own implementation.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn


class LayerImplementation(str):
    """The name of the implementation of a layer. It is looked up as itself, and equals that of the model as well.

    Code inside attention modules that asks for "sdpa" or "eager" (GLM's choice of keys goes into the mask for these
    alone) then does what it does in the other layers.

    config    of the model
    """

    config: Any

    @property
    def of_model(self) -> str:
        """The implementation of the layer without its own."""
        return self.config._attn_implementation

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or self.of_model == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def set_implementation(attention: Any, name: str) -> None:
    """Let this layer compute attention by the function that is registered under this name."""
    if str(attention.config._attn_implementation) == name:
        return
    implementation = LayerImplementation(name)
    implementation.config = attention.config
    config = copy.copy(attention.config)
    vars(config).update(_attn_implementation_internal=implementation, sub_configs={})
    attention.config = config


def reset_implementation(attention: Any) -> None:
    """Let this layer compute attention as the rest of the model does."""
    name = attention.config._attn_implementation
    if isinstance(name, LayerImplementation):
        attention.config = name.config


def can_set_implementation(attention: nn.Module) -> bool:
    """Whether a layer has a config that names an implementation."""
    return isinstance(getattr(getattr(attention, "config", None), "_attn_implementation", None), str)
