"""Another attention implementation of transformers for single layers of a model, whose other layers keep theirs.

Attention modules choose their function by the name in `config._attn_implementation`. The layer gets a copy of the
config, in which this name is another. What else reads the name, such as the code that makes masks, reads the config of
the model, and so gives the layer the masks of the model's own implementation.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

INTERNAL = "_attn_implementation_internal"


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
    names = dict.fromkeys((INTERNAL, "_attn_implementation"), implementation)  # configs of transformers read the first
    vars(config).update(names, sub_configs={})
    attention.config = config


def reset_implementation(attention: Any) -> None:
    """Let this layer compute attention as it did before the last `set_implementation`."""
    attention.config = _without(attention.config)


def _without(config: Any) -> Any:
    """The config without the implementation of the layer. A config around it, with other values, is kept."""
    name = config._attn_implementation
    if not isinstance(name, LayerImplementation):
        return config
    if vars(config).get(INTERNAL) is name:
        return name.config
    around = copy.copy(config)
    vars(around)["of_model"] = _without(config.of_model)
    return around


def can_set_implementation(attention: nn.Module) -> bool:
    """Whether a layer has a config that names an implementation."""
    return isinstance(getattr(getattr(attention, "config", None), "_attn_implementation", None), str)
