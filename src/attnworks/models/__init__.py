"""Models: frozen configs in, torch modules out."""

from attnworks.models.block import PureAttention
from attnworks.models.build import PRESETS, Model, build, preset
from attnworks.models.config import AttentionConfig, ModelConfig, PureConfig, RecurrentConfig, TransformerConfig
from attnworks.models.folder import load_model, save_model
from attnworks.models.multihead import MultiHead, Observation, Observer
from attnworks.models.recurrent import Recurrent
from attnworks.models.transformer import Transformer

__all__ = [
    "PRESETS",
    "AttentionConfig",
    "Model",
    "ModelConfig",
    "MultiHead",
    "Observation",
    "Observer",
    "PureAttention",
    "PureConfig",
    "Recurrent",
    "RecurrentConfig",
    "Transformer",
    "TransformerConfig",
    "build",
    "load_model",
    "preset",
    "save_model",
]
