"""Sentences, small models with their vocabularies, and a bench, for the tests of reshaping."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch

from attnworks.core.folders import new_folder
from attnworks.hf.folder import is_hf_folder, save_hf
from attnworks.hf.open import open_model
from attnworks.models import AttentionConfig, Transformer, TransformerConfig, build
from attnworks.models.build import PRESETS
from attnworks.models.folder import load_model, save_model
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.history import ModelFolder, write_outcome
from attnworks.reshape.projection.project import Project
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.run import ReshapeSettings, run_reshape
from attnworks.reshape.texts import TextSplit, split_corpus, split_texts
from attnworks.text.passages import Passage, Text
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.loss import TextLoss
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import Subject, open_subject
from attnworks.training.objectives import choose_objective
from tests.exam_helpers import NOUNS, train_run
from tests.model_helpers import filled
from tests.training.training_helpers import SMALL

D_E, D_K, D_V, D_FF = 14, 3, 5, 11
SENTENCES = [
    f"the {'very ' * (place % 4)}{'tired ' * (place % 3)}{who} {does} {'the red ' * (place % 2)}{what} ."
    for place, (who, does, what) in enumerate(product(NOUNS[:3], ("sees", "wants", "loves"), NOUNS[5:7]))
]
PASSAGES = [Passage(Text(text), Text(other)) for text, other in pairwise(SENTENCES)]
WORDS = Vocabulary.train("word", [sentence.split() for sentence in SENTENCES])


def texts(passages: list[Passage] = PASSAGES) -> TextSplit:
    return split_texts(passages)


def model_of(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> Transformer:
    """Two layers of two heads on each side, unless told otherwise."""
    settings: dict[str, Any] = {
        "vocabulary": len(WORDS),
        "d_e": D_E,
        "d_ff": D_FF,
        "attention": AttentionConfig(heads=2, d_k=D_K, d_v=D_V),
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.1,
    }
    model = build(TransformerConfig(**(settings | changes)))
    assert isinstance(model, Transformer)
    return filled(model, seed).to(dtype).eval()


def heads_of(*by_head: str) -> AttentionConfig:
    return AttentionConfig(heads=len(by_head), d_k=D_K, d_v=D_V, mechanism=by_head)


def subject_of(model: Any) -> OwnSubject:
    return OwnSubject(model, "small", WORDS)


def context_of(
    subject: Subject, given: TextSplit | None = None, objective: str | None = None, length: int = 9
) -> ReshapeContext:
    given = texts() if given is None else given
    chosen = choose_objective(objective, subject.abilities)
    return ReshapeContext(subject, TextLoss(subject, chosen, subject.read(given.learn, batch_tokens=200)), length)


def small_run(folder: Path) -> Path:
    """A run of three steps on hand-made pairs; the pairs are beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "small", SMALL["small"])
        return train_run(folder)


def project_folder(
    source: Path,
    heads: str,
    out: Path,
    given: TextSplit | None = None,
    settings: ReshapeSettings | None = None,
    **options: Any,
) -> Receipt:
    """Heads of a run, with the pairs beside it, or of another folder, projected into a new folder."""
    if given is None:
        home = next(parent for parent in source.parents if (parent / "pairs.tsv").is_file())
        given = split_corpus(f"tsv:{home / 'pairs.tsv'}", pairs=50, held_out=5, seed=11)
    model, receipt = run_reshape(Project(heads=heads, **options), open_subject(str(source)), given, settings)
    write_outcome(model, receipt, ModelFolder.of(str(source)), out)
    return receipt


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def without_time(receipt: Receipt) -> Receipt:
    """All that two runs of the same reshape have in common."""
    return replace(receipt, seconds=0.0, time=None, time_interval=None)


def load(folder: Path) -> Any:
    """The model of a folder without its tokenizer, in the type that it is stored in."""
    return open_model(str(folder), dtype=None).model if is_hf_folder(folder) else load_model(folder)


def save(model: Any, folder: Path) -> Path:
    """Write a model without a tokenizer."""
    if isinstance(model, Transformer):
        return save_model(model, folder)
    with new_folder(folder) as scratch:
        save_hf(model, scratch)
    return folder
