"""Models: frozen configs in, torch modules out."""

from attnworks.models.build import PRESETS, Model, build, preset
from attnworks.models.config import AttentionConfig, ModelConfig, PureConfig, RecurrentConfig, TransformerConfig
from attnworks.models.folder import load, save
from attnworks.models.multihead import MultiHead, Observation, Observer
from attnworks.models.pure import PureAttention
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
    "load",
    "preset",
    "save",
]
