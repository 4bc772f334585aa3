"""Short training runs of one translation model on the same batches, by several hands, timed by the processor.

`Setting` says everything about a run. `train` gives its held-out loss after some seconds of the processor, and its BLEU
and chrF at the end, as plain data for a JSON file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch
from contestants import JoeyNMT, Marian, Peer, Sizes
from torch import nn

from attnworks.models import Transformer, TransformerConfig, build, preset
from attnworks.models.decoding.translate import decode_sentences, translations
from attnworks.text.corpora import Corpus, open_corpus
from attnworks.text.tokenizers import read_pairs
from attnworks.text.tokens import Batch, BatchOrder
from attnworks.text.vocabulary import EOS, Vocabulary
from attnworks.training.evaluate import mean_loss, references, translation_scores
from attnworks.training.fit import CorpusFit, schedule
from attnworks.training.objectives.contract import Loss
from attnworks.training.objectives.language import NextTargetToken

BATCH_TOKENS, SMOOTHING, DROPOUT, CLIP = 640, 0.1, 0.1, 1.0
HELD_OUT = 500
PEERS = {"marian": Marian, "joeynmt": JoeyNMT}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run. `hand` is attnworks, marian or joeynmt, which have their own initialisation and order of norms."""

    hand: str = "attnworks"
    size: str = "tiny"
    learning_rate: float = 7e-4
    warmup: int = 300
    norm: str = "post"
    initialisation: str = "glorot"
    tie: str = "none"
    seed: int = 0

    @property
    def name(self) -> str:
        """A name for a file."""
        return "-".join(f"{value:g}" if isinstance(value, float) else str(value) for value in asdict(self).values())


@dataclass(frozen=True)
class Data:
    """A corpus with its vocabularies, which all runs share."""

    name: str
    corpus: Corpus
    source: Vocabulary
    target: Vocabulary

    @classmethod
    def open(cls, pairs_file: str | None, pairs: int = 40_000, byte_pairs: int = 8_000) -> Data:
        """Pairs of a TSV file in byte pairs, or without a file the grammar in words."""
        corpus = open_corpus("grammar" if pairs_file is None else f"tsv:{pairs_file}", pairs=pairs)
        kind = "word" if pairs_file is None else "bpe"
        sides = zip(*(pair.words for pair in corpus.train), strict=True)
        return cls(
            "grammar" if pairs_file is None else "tsv",
            corpus,
            *(Vocabulary.train(kind, side, byte_pairs) for side in sides),
        )


class TheirLoss:
    """An objective that asks the model of another hand for its loss."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing

    def total(self, model: Any, batch: Batch) -> Loss:
        return model.total(batch, self.smoothing)


def config_of(setting: Setting, data: Data) -> TransformerConfig:
    """The sizes of a run, and for attnworks its norms and weights."""
    config = preset(setting.size)
    assert isinstance(config, TransformerConfig)
    changed: dict[str, Any] = {name: getattr(setting, name) for name in ("norm", "initialisation", "tie")}
    return replace(config, **changed, dropout=DROPOUT).with_vocabulary(len(data.source), len(data.target))


def make_model(setting: Setting, data: Data) -> nn.Module:
    config = config_of(setting, data)
    if setting.hand == "attnworks":
        return build(config, seed=setting.seed)
    torch.manual_seed(setting.seed)
    heads, sides = config.attention.heads, (config.vocabulary, config.target_size)
    return PEERS[setting.hand](DROPOUT, Sizes(*sides, config.d_e, config.encoder_layers, heads, config.d_ff, 1024))


def train(setting: Setting, data: Data, marks: Sequence[float], score: int = 300) -> dict[str, Any]:
    """Train until the last of the marks, which are seconds of the processor; validation is not counted."""
    model = make_model(setting, data)
    ours = setting.hand == "attnworks"
    objectives: Any = [NextTargetToken(EOS, share) if ours else TheirLoss(share) for share in (SMOOTHING, 0.0)]
    parts = data.corpus.train, data.corpus.valid[:HELD_OUT]
    rows, held_out = (read_pairs(part, data.source, data.target) for part in parts)
    fit = CorpusFit(
        model=model,
        objective=objectives[0],
        pairs=rows,
        order=BatchOrder(rows, BATCH_TOKENS, setting.seed),
        optimizer=torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True),
        learning_rate=schedule("warmup", setting.learning_rate, setting.warmup),
        clip=CLIP,
        seed=setting.seed,
    )
    step, spent, curve = 0, 0.0, []
    for mark in marks:
        while spent < mark:
            began = time.process_time()
            fit.train_step(step)
            spent, step = spent + time.process_time() - began, step + 1
        loss = mean_loss(model, objectives[1], held_out, batch_tokens=2048)
        curve.append({"seconds": mark, "steps": step, "loss": loss if math.isfinite(loss) else None})
    scores = None
    if score:
        pairs = data.corpus.valid[:score]
        sources = [pair.words[0] for pair in pairs]
        if isinstance(model, Peer):
            rows = decode_sentences(model.eval().greedy, data.source, sources, empty=[])
            made = [data.target.text(row) for row in rows]
        else:
            made = translations(cast(Transformer, model), data.source, data.target, sources)
        scores = translation_scores(made, references(pairs, data.target))
    found = None if scores is None else scores._asdict()
    return {"setting": asdict(setting), "data": data.name, "curve": curve, "scores": found}
