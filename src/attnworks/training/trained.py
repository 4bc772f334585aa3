"""A run as its user meets it: the best model and the vocabularies to talk to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnworks.core.errors import FolderError
from attnworks.core.sealed import best_of
from attnworks.models import Observation, Recurrent, Transformer
from attnworks.models.decoding import BeamStep, Hypothesis, beam
from attnworks.models.decoding.translate import longest_target
from attnworks.models.folder import load
from attnworks.models.modes import evaluating
from attnworks.text.batches import Example, collate
from attnworks.text.vocabulary import BOS, EOS, Vocabulary
from attnworks.training.run_folder import load_vocabularies, read_recipe

TRACE_FORMAT = 2
"""Of files with what `Trained.trace` gives. Format 1 had no SHA-256 at first."""


@dataclass(frozen=True)
class Trained:
    """The best checkpoint of a run (the last one, if it was never validated)."""

    folder: Path
    model: Transformer | Recurrent
    source: Vocabulary
    target: Vocabulary
    device: str = "cpu"

    def trace(
        self, sentence: Sequence[str], hypothesis: Hypothesis, *, beams: int | None = 1, alpha: float = 0.6
    ) -> dict[str, Any]:
        """Everything to draw of one translation: tokens, attention of every layer and head, the beam tree.

        Without `beams`, for a hypothesis that no search found, the tree is empty.

        Rows of an attention map belong to `queries`, columns to `keys`: tokens that the decoder reads, tokens of the
        source.
        """
        example = Example((*self.source.encode(sentence), EOS), hypothesis.tokens)
        batch = collate([example]).to(self.device)
        maps: list[dict[str, Any]] = []
        steps: list[BeamStep] = []
        source = [self.source.token(token) for token in example.source]
        read = [self.target.token(token) for token in (BOS, *example.target)]

        def keep(layer: Observation) -> None:
            maps.append(_attention(layer, source, read))

        with evaluating(self.model):
            self.model(batch.source, batch.read, observe=keep)
            if beams is not None:
                beam(
                    self.model,
                    batch.source,
                    bos=BOS,
                    eos=EOS,
                    longest=longest_target(len(example.source)),
                    beams=beams,
                    alpha=alpha,
                    observe=steps.append,
                )
        return {
            "source": source,
            "read": read,
            "translation": self.target.decode(hypothesis.tokens),
            "attention": maps,
            "beam": [self._beam_step(step) for step in steps],
        }

    def _beam_step(self, step: BeamStep) -> dict[str, Any]:
        return {
            kind: [{"parent": c.parent, "token": self.target.token(c.token), "logprob": c.logprob} for c in candidates]
            for kind, candidates in (("kept", step.kept), ("ended", step.ended))
        }


def open_run(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> Trained:
    """The best model of a run folder, ready to use."""
    read_recipe(folder)
    checkpoint = best_of(folder)
    if checkpoint is None:
        raise FolderError(
            asked=f"open the run {folder}",
            expected="a checkpoint",
            got="a run that has not saved one yet",
            remedy=f"train it first: attnworks train --resume {folder}",
        )
    model = load(checkpoint)
    assert isinstance(model, Transformer | Recurrent)
    model = model.to(device=device, dtype=getattr(torch, dtype)).eval()
    return Trained(folder, model, *load_vocabularies(folder), device=device)


def _attention(layer: Observation, source: list[str], read: list[str]) -> dict[str, Any]:
    kind = layer.slot.partition(".")[0]
    return {
        "slot": layer.slot,
        "queries": source if kind == "enc" else read,
        "keys": read if kind == "dec" else source,
        "weights": layer.P[0].tolist(),
    }
