"""How the weights of a new Transformer are drawn; biases are zero, and gains of norms are one."""

from __future__ import annotations

from torch import nn

from attnworks.models.config import TransformerConfig
from attnworks.models.layers import Embedding, FeedForward, OutputLayer
from attnworks.models.multihead import MultiHead

STANDARD_DEVIATION = 0.02


def draw_initial_weights(model: nn.Module, config: TransformerConfig) -> None:
    """Draw the matrices of attention, feed-forward, embeddings and output anew, if the config asks for it.

    glorot    stay as the layers drew them: uniform by Glorot and Bengio 2010, embeddings and output N(0, 1/d)
    normal    N(0, 0.02^2), as in BERT and Marian of Hugging Face
    scaled    the same, and the matrices that write into the residual stream, W_O and W_2, divided by the square root of
              the number of residual sums in their stack, as in GPT-2
    Parameters of mechanisms stay as they are.
    """
    if config.initialisation == "glorot":
        return
    drawn: set[nn.Parameter] = set()
    for name, module in model.named_modules():
        for weight, writes in _matrices(module):
            if weight in drawn:
                continue
            scaled = writes and config.initialisation == "scaled"
            nn.init.normal_(weight, std=STANDARD_DEVIATION / (_sums(name, config) ** 0.5 if scaled else 1.0))
            drawn.add(weight)


def _matrices(module: nn.Module) -> list[tuple[nn.Parameter, bool]]:
    """The matrices of a layer, and whether each writes into the residual stream."""
    match module:
        case MultiHead():
            of_globals = [module.W_Qg, module.W_Kg, module.W_Vg] if module.has_global_projections else []
            return [(W, False) for W in (module.W_Q, module.W_K, module.W_V, *of_globals)] + [(module.W_O, True)]
        case FeedForward():
            return [(module.W_1, False), (module.W_2, True)]
        case Embedding() | OutputLayer():
            return [(module.weight, False)]
        case _:
            return []


def _sums(name: str, config: TransformerConfig) -> int:
    """The residual sums of the stack of this layer: two to a block, three with cross-attention."""
    if name.startswith("encoder"):
        return 2 * config.encoder_layers
    return (3 if config.encoder_layers else 2) * config.decoder_layers
