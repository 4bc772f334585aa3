"""What the tests of training, runs and their commands share: small models, a corpus of hand-made pairs, hashes."""

from __future__ import annotations

import hashlib
import json
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.models import AttentionConfig, RecurrentConfig, TransformerConfig
from attnworks.text.tokens import RowPair, TokenRow
from attnworks.training.recipe import Recipe
from attnworks.training.run import Run
from attnworks.training.run_folder import optimizer_tensors

SMALL = {
    "small": TransformerConfig(
        vocabulary=100,
        d_e=8,
        d_ff=12,
        attention=AttentionConfig(heads=2, d_k=3, d_v=5),
        encoder_layers=1,
        decoder_layers=1,
    ),
    "small-lstm": RecurrentConfig(vocabulary=100, d_e=6, d_h=7, mechanism="bahdanau-additive"),
    "small-tied": TransformerConfig(
        vocabulary=100,
        d_e=8,
        d_ff=12,
        attention=AttentionConfig(heads=2, d_k=4, d_v=4),
        encoder_layers=1,
        decoder_layers=1,
        tie="all",
    ),
}
"""Presets for tests; put them among the real ones with monkeypatch."""

_WHO = {"Luca": "Luca", "Maria": "Maria", "the cat": "il gatto", "my friend": "il mio amico", "she": "lei"}
_DOES = {"sees": "vede", "eats": "mangia", "wants": "vuole"}
_WHAT = {"bread": "pane", "the red apple": "la mela rossa", "a house in Spain": "una casa in Spagna"}


def write_pairs(path: Path, pairs: int = 45) -> str:
    """A file of short English-Italian pairs, up to 45 of them; its corpus spec."""
    lines = [
        f"{who} {does} {what} .\t{_WHO[who]} {_DOES[does]} {_WHAT[what]} ."
        for who, does, what in product(_WHO, _DOES, _WHAT)
    ]
    path.write_text("\n".join(lines[:pairs]) + "\n", encoding="utf-8")
    return f"tsv:{path}"


def recipe(corpus: str, **changes: Any) -> Recipe:
    """Twelve steps of two small batches with dropout, validated at steps 5, 10 and 12."""
    settings: dict[str, Any] = {
        "preset": "small",
        "corpus": corpus,
        "steps": 12,
        "batch_tokens": 60,
        "accumulate": 2,
        "learning_rate": 0.02,
        "warmup": 4,
        "dropout": 0.2,
        "validate_every": 5,
        "score_sentences": 2,
        "seed": 11,
    }
    return Recipe(**(settings | changes))


def tensor_sha256(tensors: dict[str, Tensor]) -> str:
    """One hash of names, shapes, types and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def state_of(run: Run) -> tuple[int, str, str]:
    """Step, weights and optimizer tensors of a run."""
    weights = {name: parameter.detach() for name, parameter in run.model.named_parameters()}
    optimizer = optimizer_tensors(run.model, run.optimizer)
    assert optimizer or run.progress.step == 0
    return run.progress.step, tensor_sha256(weights), tensor_sha256(optimizer)


def metrics_of(folder: Path, *fields: str) -> list[tuple[Any, ...]]:
    """Lines of metrics.jsonl, but only what does not depend on the clock."""
    wanted = fields or ("kind", "step", "epoch", "loss", "learning_rate", "gradient_norm", "tokens", "bleu", "best")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [tuple(line.get(field) for field in wanted) for line in lines]


class StopAfter:
    """A `should_stop` that says yes once so many steps of this call were made."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def examples(*lengths: tuple[int, int], vocabulary: int = 17, seed: int = 3) -> list[RowPair]:
    """Random pairs with this number of source (<eos> not counted) and target (<bos> not counted) tokens."""
    generator = torch.Generator().manual_seed(seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(4, vocabulary, (length,), generator=generator).tolist())

    return [(TokenRow((*ids(source), 3)), TokenRow((2, *ids(target)))) for source, target in lengths]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
