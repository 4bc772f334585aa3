"""Short training runs of one translation model on the same batches, by several hands, timed by the processor.

`Setting` says everything about a run. `train` gives its held-out loss after some seconds of the processor, and its BLEU
and chrF at the end, as plain data for a JSON file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnworks.models import TransformerConfig, build, preset
from attnworks.models.decoding.translate import decode_sentences, translations
from attnworks.text.corpora import Corpus, open_corpus
from attnworks.text.tokenizers import read_pairs
from attnworks.text.tokens import Batch, BatchOrder
from attnworks.text.vocabulary import BOS, EOS, PAD, Vocabulary
from attnworks.training.evaluate import mean_loss, translation_scores
from attnworks.training.fit import CorpusFit, schedule
from attnworks.training.objectives.contract import Loss
from attnworks.training.objectives.language import NextTargetToken

BATCH_TOKENS, SMOOTHING, DROPOUT, CLIP = 640, 0.1, 0.1, 1.0
HELD_OUT = 500


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


class Marian(nn.Module):
    """Hugging Face's MarianMTModel of the sizes of a preset, and its own loss."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        heads = config.attention.heads
        self.model: Any = MarianMTModel(
            MarianConfig(
                vocab_size=config.vocabulary,
                decoder_vocab_size=config.target_size,
                d_model=config.d_e,
                encoder_layers=config.encoder_layers,
                decoder_layers=config.decoder_layers,
                encoder_attention_heads=heads,
                decoder_attention_heads=heads,
                encoder_ffn_dim=config.d_ff,
                decoder_ffn_dim=config.d_ff,
                activation_function="relu",
                dropout=DROPOUT,
                activation_dropout=DROPOUT,
                attention_dropout=0.0,
                scale_embedding=True,
                share_encoder_decoder_embeddings=False,
                tie_word_embeddings=False,
                max_position_embeddings=1024,
                pad_token_id=PAD,
                bos_token_id=BOS,
                eos_token_id=EOS,
                decoder_start_token_id=BOS,
                forced_eos_token_id=None,
            )
        )
        self.model.generation_config.forced_eos_token_id = None

    def total(self, batch: Batch, smoothing: float) -> Loss:
        source, target = batch.source, batch.target
        assert target is not None
        gold, counted = batch.labels(EOS)
        scores = self.model(
            input_ids=source.ids,
            attention_mask=source.real.long(),
            decoder_input_ids=target.ids,
            decoder_attention_mask=target.real.long(),
            use_cache=False,
        ).logits
        loss = F.cross_entropy(scores[counted], gold[counted], reduction="sum", label_smoothing=smoothing)
        return Loss(loss, int(counted.sum()))

    @torch.inference_mode()
    def translate(self, sentences: Sequence[Sequence[str]], data: Data) -> list[list[str]]:
        def decode(tokens: Tensor, real: Tensor | None, longest: int) -> list[list[int]]:
            mask = torch.ones_like(tokens) if real is None else real.long()
            written = self.model.generate(tokens, attention_mask=mask, num_beams=1, max_new_tokens=longest)
            return written.tolist()

        ids = decode_sentences(decode, data.source, sentences, empty=[])
        return [data.target.decode(each) for each in ids]


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
    return {"marian": Marian}[setting.hand](config)


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
        pairs = [pair.words for pair in data.corpus.valid[:score]]
        model.eval()
        sources = [pair[0] for pair in pairs]
        written = translations(model, data.source, data.target, sources) if ours else model.translate(sources, data)  # pyright: ignore
        scores = translation_scores(written, [pair[1] for pair in pairs])
    found = None if scores is None else scores._asdict()
    return {"setting": asdict(setting), "data": data.name, "curve": curve, "scores": found}
