"""The same sequence-to-sequence Transformer by several hands: d=256, 3+3 layers, 4 heads, ff 1024, vocabulary 8k.

Each contestant has a `loss(source, read, write)` for training and a `translate(source)` for beam search with 5 beams
and exactly LENGTH tokens. None drops attention weights; all drop embeddings, sublayers and feed-forward alike. A `Peer`
also learns from padded batches of attnworks, in sizes of choice.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnworks
from attnworks.models import AttentionConfig, TransformerConfig
from attnworks.models.decoding import beam
from attnworks.models.layers import sinusoid
from attnworks.text.tokens import Batch, Tokens
from attnworks.text.vocabulary import BOS, EOS, PAD
from attnworks.training.objectives.contract import Loss
from attnworks.training.objectives.language import NextTargetToken

VOCABULARY, WIDTH, LAYERS, HEADS, HIDDEN = 8000, 256, 3, 4, 1024
SENTENCES, LENGTH, BEAMS = 32, 24, 5


@dataclass(frozen=True)
class Sizes:
    """Of a Transformer, by default the one of speed comparisons."""

    source_vocabulary: int = VOCABULARY
    target_vocabulary: int = VOCABULARY
    width: int = WIDTH
    layers: int = LAYERS
    heads: int = HEADS
    hidden: int = HIDDEN
    longest: int = 64


class Peer(nn.Module):
    """A model of another project, which gives scores for padded batches and is trained by the loss of torch."""

    def scores(self, source: Tensor, source_real: Tensor, read: Tensor, read_real: Tensor) -> Tensor:
        """Logits [b t w] of the token after each token that the decoder reads; masks are True at real tokens."""
        raise NotImplementedError

    def ids(self, tokens: Tensor) -> Tensor:
        """The tokens of attnworks as its own; the same function leads back."""
        return tokens

    def total(self, batch: Batch, smoothing: float) -> Loss:
        """The sum of the cross-entropies of a batch, with smoothed labels."""
        source, target = batch.source, batch.target
        assert target is not None
        gold, counted = batch.labels(EOS)
        logits = self.scores(self.ids(source.ids), source.real, self.ids(target.ids), target.real)
        total = F.cross_entropy(logits[counted], self.ids(gold)[counted], reduction="sum", label_smoothing=smoothing)
        return Loss(total, int(counted.sum()))

    @torch.inference_mode()
    def greedy(self, source: Tensor, real: Tensor | None, longest: int) -> list[list[int]]:
        """The most probable next token again and again, until <eos> or the longest length."""
        real = torch.ones_like(source, dtype=torch.bool) if real is None else real
        written = torch.full((len(source), 1), BOS)
        for _ in range(longest):
            logits = self.scores(self.ids(source), real, written, torch.ones_like(written, dtype=torch.bool))
            written = torch.cat([written, logits[:, -1:].argmax(-1)], 1)
            if bool((written == EOS).any(1).all()):
                break
        rows = self.ids(written[:, 1:]).tolist()
        return [row[: row.index(EOS)] if EOS in row else row for row in rows]


class Ours(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        attention = AttentionConfig(heads=HEADS, d_k=WIDTH // HEADS, d_v=WIDTH // HEADS)
        config = TransformerConfig(
            vocabulary=VOCABULARY,
            d_e=WIDTH,
            d_ff=HIDDEN,
            attention=attention,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            final_norm=True,
            dropout=dropout,
        )
        self.model = attnworks.build(config)
        with torch.no_grad():
            self.model.output.weight[EOS] = 0.0  # among 8,000 random scores never one of the best

    def loss(self, source: Tensor, read: Tensor, write: Tensor) -> Tensor:
        del write  # the labels are what follows in `read`
        X, Y = (Tokens(ids, torch.ones_like(ids, dtype=torch.bool), padded=False) for ids in (source, read))
        loss = NextTargetToken(EOS).total(self.model, Batch(X, Y))
        return loss.total / loss.terms

    def translate(self, source: Tensor) -> object:
        return beam(self.model, source, bos=BOS, eos=EOS, beams=BEAMS, max_new_tokens=LENGTH, alpha=1.0)


class PlainTorch(nn.Module):
    """torch.nn.Transformer with the embeddings and the output that it leaves to its user; no cache, so no contest."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, HIDDEN, dropout, batch_first=True)
        for module in self.body.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.positions = sinusoid(torch.arange(LENGTH + 1), WIDTH).float()

    def embed(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        return self.dropout(table(tokens) * math.sqrt(WIDTH) + self.positions[: tokens.shape[1]])

    def loss(self, source: Tensor, read: Tensor, write: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(read.shape[1])
        states = self.body(
            self.embed(self.source, source), self.embed(self.target, read), tgt_mask=causal, tgt_is_causal=True
        )
        return F.cross_entropy(self.output(states).flatten(0, 1), write.flatten())

    @torch.inference_mode()
    def translate(self, source: Tensor) -> object:
        """A textbook beam search that runs the whole decoder again for every token."""
        memory = self.body.encoder(self.embed(self.source, source)).repeat_interleave(BEAMS, 0)
        written = torch.full((SENTENCES * BEAMS, 1), BOS)
        totals = torch.full((SENTENCES, BEAMS), -torch.inf)
        totals[:, 0] = 0.0
        for _ in range(LENGTH):
            causal = nn.Transformer.generate_square_subsequent_mask(written.shape[1])
            states = self.body.decoder(self.embed(self.target, written), memory, tgt_mask=causal, tgt_is_causal=True)
            logs = self.output(states[:, -1]).log_softmax(-1)
            logs[:, EOS] = -torch.inf
            totals, best = (totals[:, :, None] + logs.view(SENTENCES, BEAMS, -1)).flatten(1).topk(BEAMS)
            rows = (best // VOCABULARY + torch.arange(SENTENCES)[:, None] * BEAMS).flatten()
            written = torch.cat([written[rows], (best % VOCABULARY).view(-1, 1)], 1)
        return written


class Marian(Peer):
    """Hugging Face's MarianMTModel and its generate with cache."""

    def __init__(self, dropout: float, sizes: Sizes | None = None) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        sizes = sizes or Sizes()
        config = MarianConfig(
            vocab_size=sizes.source_vocabulary,
            d_model=sizes.width,
            encoder_layers=sizes.layers,
            decoder_layers=sizes.layers,
            encoder_attention_heads=sizes.heads,
            decoder_attention_heads=sizes.heads,
            encoder_ffn_dim=sizes.hidden,
            decoder_ffn_dim=sizes.hidden,
            activation_function="relu",
            dropout=dropout,
            activation_dropout=dropout,
            attention_dropout=0.0,
            scale_embedding=True,
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=False,
            decoder_vocab_size=sizes.target_vocabulary,
            max_position_embeddings=sizes.longest,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
        model: Any = MarianMTModel(config)
        model.generation_config.forced_eos_token_id = None
        self.model = model

    def scores(self, source: Tensor, source_real: Tensor, read: Tensor, read_real: Tensor) -> Tensor:
        masks = {"attention_mask": source_real.long(), "decoder_attention_mask": read_real.long()}
        return self.model(input_ids=source, decoder_input_ids=read, use_cache=False, **masks).logits

    def loss(self, source: Tensor, read: Tensor, write: Tensor) -> Tensor:
        scores = self.model(input_ids=source, decoder_input_ids=read, use_cache=False).logits
        return F.cross_entropy(scores.flatten(0, 1), write.flatten())

    def translate(self, source: Tensor) -> object:
        return self.model.generate(
            source, num_beams=BEAMS, min_new_tokens=LENGTH, max_new_tokens=LENGTH, do_sample=False, use_cache=True
        )


class JoeyNMT(Peer):
    """joeynmt's model and its beam search, which has no cache. Its <unk> is 0 and its padding 1."""

    def __init__(self, dropout: float, sizes: Sizes | None = None) -> None:
        super().__init__()
        from joeynmt.model import build_model  # pyright: ignore[reportMissingImports]
        from joeynmt.vocabulary import Vocabulary  # pyright: ignore[reportMissingImports]

        symbols = SimpleNamespace(
            **{f"{name}_token": f"<{name}>" for name in ("unk", "pad", "bos", "eos")},
            **{f"{name}_id": identity for identity, name in enumerate(("unk", "pad", "bos", "eos"))},
            sep_token=None,
            lang_tags=[],
        )
        sizes = sizes or Sizes()
        source, target = (
            Vocabulary([f"w{number}" for number in range(size - 4)], symbols)
            for size in (sizes.source_vocabulary, sizes.target_vocabulary)
        )
        side = {
            "type": "transformer",
            "num_layers": sizes.layers,
            "num_heads": sizes.heads,
            "hidden_size": sizes.width,
            "ff_size": sizes.hidden,
            "dropout": dropout,
            "embeddings": {"embedding_dim": sizes.width, "scale": True},
        }
        self.model = build_model({"encoder": dict(side), "decoder": dict(side)}, source, target)
        for module in self.model.modules():
            if type(module).__name__ == "MultiHeadedAttention":
                module.dropout = nn.Identity()

    def ids(self, tokens: Tensor) -> Tensor:
        return torch.where(tokens < 2, 1 - tokens, tokens)

    def scores(self, source: Tensor, source_real: Tensor, read: Tensor, read_real: Tensor) -> Tensor:
        scores, *_ = self.model._encode_decode(
            src=source,
            trg_input=read,
            src_mask=source_real[:, None],
            src_length=source_real.sum(1),
            trg_mask=read_real[:, None],
        )
        return scores

    def loss(self, source: Tensor, read: Tensor, write: Tensor) -> Tensor:
        scores, *_ = self.model._encode_decode(
            src=source,
            trg_input=read,
            src_mask=torch.ones(SENTENCES, 1, source.shape[1], dtype=torch.bool),
            src_length=torch.full((SENTENCES,), source.shape[1]),
            trg_mask=torch.ones(SENTENCES, 1, read.shape[1], dtype=torch.bool),
        )
        return F.cross_entropy(scores.flatten(0, 1), write.flatten())

    @torch.inference_mode()
    def translate(self, source: Tensor) -> object:
        from joeynmt.search import beam_search  # pyright: ignore[reportMissingImports]

        mask = torch.ones(SENTENCES, 1, source.shape[1], dtype=torch.bool)
        encoded, hidden = self.model._encode(source, torch.full((SENTENCES,), source.shape[1]), mask)
        return beam_search(
            self.model, BEAMS, encoded, hidden, mask, LENGTH, alpha=1.0, min_output_length=LENGTH, generate_unk=True
        )


CONTESTANTS: dict[str, tuple[str, Callable[[float], nn.Module]]] = {
    "attnworks": ("torch", Ours),
    "torch.nn.Transformer": ("torch", PlainTorch),
    "Hugging Face Marian": ("transformers", Marian),
    "joeynmt": ("joeynmt", JoeyNMT),
}


def build_contestants(dropout: float) -> tuple[dict[str, nn.Module], list[str]]:
    """Those whose packages are installed, and the names of those that are not."""
    present: dict[str, nn.Module] = {}
    absent: list[str] = []
    for name, (package, build) in CONTESTANTS.items():
        if importlib.util.find_spec(package) is None:
            absent.append(name)
        else:
            present[name] = build(dropout)
    return present, absent
