"""Sentences, small models with their vocabularies, and a bench, for the tests of reshaping."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch

from attnworks.models import AttentionConfig, Transformer, TransformerConfig, build
from attnworks.models.build import PRESETS
from attnworks.reshape.contract import Bench
from attnworks.reshape.history import Place, write_outcome
from attnworks.reshape.projection.project import Project
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.run import Care, carry_out
from attnworks.reshape.texts import Texts, from_corpus, from_texts
from attnworks.text.passages import Passage, Side
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.own import own_examinee
from attnworks.traces.subject import Examinee, open_examinee
from attnworks.traces.text import Judge, read_text
from attnworks.training.objectives.choice import choose
from tests.exam_helpers import NOUNS, train_run
from tests.model_helpers import filled
from tests.training.training_helpers import SMALL

D_E, D_K, D_V, D_FF = 14, 3, 5, 11
SENTENCES = [
    f"the {'very ' * (place % 4)}{'tired ' * (place % 3)}{who} {does} {'the red ' * (place % 2)}{what} ."
    for place, (who, does, what) in enumerate(product(NOUNS[:3], ("sees", "wants", "loves"), NOUNS[5:7]))
]
PASSAGES = [Passage(Side(text), Side(other)) for text, other in pairwise(SENTENCES)]
WORDS = Vocabulary.train("word", [sentence.split() for sentence in SENTENCES])


def texts(passages: list[Passage] = PASSAGES) -> Texts:
    return from_texts(passages)


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


def examinee_of(model: Transformer) -> Examinee:
    return own_examinee(model, WORDS, "small")


def bench_of(examinee: Examinee, given: Texts | None = None, objective: str | None = None, length: int = 9) -> Bench:
    given = texts() if given is None else given
    chosen = choose(objective, examinee.subject.abilities)
    return Bench(examinee, Judge(examinee.subject, chosen, read_text(examinee, given.learn, 200)), length)


def small_run(folder: Path) -> Path:
    """A run of three steps on hand-made pairs; the pairs are beside it."""
    PRESETS.setdefault("small", SMALL["small"])
    return train_run(folder)


def project_folder(
    source: Path, heads: str, out: Path, given: Texts | None = None, care: Care | None = None, **options: Any
) -> Receipt:
    """Heads of a run, with the pairs beside it, or of another folder, projected into a new folder."""
    if given is None:
        home = next(parent for parent in source.parents if (parent / "pairs.tsv").is_file())
        given = from_corpus(f"tsv:{home / 'pairs.tsv'}", pairs=50, held_out=5, seed=11)
    model, receipt = carry_out(Project(heads=heads, **options), open_examinee(str(source)), given, care)
    write_outcome(model, receipt, Place.of(str(source)), out)
    return receipt


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def without_time(receipt: Receipt) -> Receipt:
    """All that two runs of the same reshape have in common."""
    return replace(receipt, seconds=0.0, time=None, time_interval=None)
