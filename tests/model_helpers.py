"""What several tests of the models share: small configs with telling sizes, filled weights, torch's layout of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnworks.core.folders import canonical_json, seal, sha256
from attnworks.core.notation import tolerance
from attnworks.core.places import Slot
from attnworks.models import (
    AttentionConfig,
    MultiHead,
    Observation,
    PureConfig,
    RecurrentConfig,
    Transformer,
    TransformerConfig,
    build,
)
from attnworks.models.anatomy import BlockAnatomy
from attnworks.models.block import Block
from attnworks.models.folder import CONFIG_FILE, MANIFEST_FILE
from attnworks.models.layers import FeedForward, LayerNorm
from attnworks.traces.forward import record_blocks, stream_identity_error

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)

FLOATS = (torch.float64, torch.float32)
VOCABULARY, TARGET_VOCABULARY, D_E, D_FF, BATCH, SOURCE, TARGET = 17, 19, 14, 11, 3, 7, 5


def stream_errors(blocks: Sequence[BlockAnatomy], run: Callable[[], object]) -> dict[tuple[str, int], float]:
    """The `stream_identity_error` of every block that takes part in `run()`, one forward pass of the model."""
    return {
        (block.kind, block.layer): stream_identity_error(
            block, passage.entry, passage.exit, [passage.output(part.branch) for part in block.parts]
        )
        for block, passage in record_blocks(blocks, run)
    }


def close(got: Tensor, expected: Tensor, *, scale: float = 1.0) -> None:
    """Equal to 1e-12 in float64, and to 1e-5 (relative 1e-4) in float32; `scale` is the size of what went into it."""
    rtol, atol = (1e-12, 1e-12) if expected.dtype == torch.float64 else tolerance(expected.dtype)
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol * scale)


def the(value: T | None) -> T:
    """What is there, for sure."""
    assert value is not None
    return value


def filled(module: M, seed: int = 0, spread: float = 0.4) -> M:
    """The module with every parameter random, so that a forgotten bias or gain shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * spread
            parameter.copy_(noise.to(parameter.dtype))
    return module


def randn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tokens(vocabulary: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def attention_config(**changes: Any) -> AttentionConfig:
    settings: dict[str, Any] = {"heads": 3, "d_k": 5, "d_v": 2}
    return AttentionConfig(**(settings | changes))


def transformer_config(**changes: Any) -> TransformerConfig:
    settings: dict[str, Any] = {
        "vocabulary": VOCABULARY,
        "target_vocabulary": TARGET_VOCABULARY,
        "d_e": D_E,
        "d_ff": D_FF,
        "attention": attention_config(),
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.0,
    }
    return TransformerConfig(**(settings | changes))


def recurrent_config(**changes: Any) -> RecurrentConfig:
    settings = {"vocabulary": VOCABULARY, "target_vocabulary": TARGET_VOCABULARY, "d_e": 7, "d_h": 5, "dropout": 0.0}
    return RecurrentConfig(**(settings | changes))


def pure_config(**changes: Any) -> PureConfig:
    return PureConfig(**({"d_e": 7, "layers": 2, "attention": attention_config(), "d_ff": 11} | changes))


def transformer(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> Transformer:
    """A small one with random weights everywhere."""
    model = build(transformer_config(**changes))
    assert isinstance(model, Transformer)
    return filled(model, seed).to(dtype)


class Recorder:
    """An observer that keeps all it is shown."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def __call__(self, observation: Observation) -> None:
        self.seen.append(observation)

    def __getitem__(self, slot: str | Slot) -> Observation:
        (found,) = [observation for observation in self.seen if str(observation.slot) == str(slot)]
        return found

    def P(self, slot: str | Slot) -> Tensor:
        return self[slot].P


# Our parameters under the names and in the layout of torch's own modules. `read` says what to take of a parameter:
# itself, for copying, or its gradient, for comparing.

Read = Callable[[nn.Parameter], Tensor]


def gradient(parameter: nn.Parameter) -> Tensor:
    return the(parameter.grad)


def value(parameter: nn.Parameter) -> Tensor:
    return parameter.detach()


def multihead_in_torch_layout(ours: MultiHead, read: Read) -> dict[str, Tensor]:
    """torch stacks W_Q, W_K, W_V as rows of one [3 d_e, d_e] matrix, heads one after the other."""
    W_Q, W_K, W_V = (read(W).mT.flatten(0, 1) for W in (ours.W_Q, ours.W_K, ours.W_V))
    layout = {"in_proj_weight": torch.cat([W_Q, W_K, W_V]), "out_proj.weight": read(ours.W_O).flatten(0, 1).T}
    if ours.b_O is not None:
        biases = (read(the(b)).flatten() for b in (ours.b_Q, ours.b_K, ours.b_V))
        layout |= {"in_proj_bias": torch.cat([*biases]), "out_proj.bias": read(ours.b_O)}
    return layout


def transformer_in_torch_layout(ours: Transformer, read: Read) -> dict[str, Tensor]:
    layout: dict[str, Tensor] = {}
    for side, blocks in (("encoder", ours.encoder), ("decoder", ours.decoder)):
        for layer, block in enumerate(blocks):
            assert isinstance(block, Block)
            layout |= _under(f"{side}.layers.{layer}", _block(block, read))
    layout |= _under("encoder.norm", _norm(ours.encoder_norm, read))
    return layout | _under("decoder.norm", _norm(ours.decoder_norm, read))


def _block(block: Block, read: Read) -> dict[str, Tensor]:
    mlp = the(block.mlp)
    assert isinstance(mlp, FeedForward)
    layout = _under("self_attn", multihead_in_torch_layout(block.attention, read))
    norms = [block.attention_residual.norm]
    if block.cross is not None:
        layout |= _under("multihead_attn", multihead_in_torch_layout(block.cross, read))
        norms.append(the(block.cross_residual).norm)
    norms.append(the(block.mlp_residual).norm)
    for number, norm in enumerate(norms, 1):
        layout |= _under(f"norm{number}", _norm(norm, read))
    return layout | {
        "linear1.weight": read(mlp.W_1).T,
        "linear1.bias": read(mlp.b_1),
        "linear2.weight": read(mlp.W_2).T,
        "linear2.bias": read(mlp.b_2),
    }


def _norm(norm: LayerNorm | None, read: Read) -> dict[str, Tensor]:
    return {"weight": read(the(norm).gamma), "bias": read(the(norm).beta)}


def _under(prefix: str, layout: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in layout.items()}


def change_config(folder: Path, **changes: object) -> None:
    """Write other settings into the config of a saved model, with all hashes right: nothing but reading tells."""
    config = json.loads((folder / CONFIG_FILE).read_bytes()) | changes
    (folder / CONFIG_FILE).write_bytes(canonical_json(config))
    manifest = json.loads((folder / MANIFEST_FILE).read_bytes()) | {"config_sha256": sha256(canonical_json(config))}
    del manifest["sha256"]
    (folder / MANIFEST_FILE).write_bytes(seal(manifest))
