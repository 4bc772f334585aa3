"""The task and the model of the study of growth: pairs of key and value, then keys whose values are asked for.

One attention layer with d_k = 1 cannot tell 32 keys apart, however long it is trained; d_k = 4 learns the task in a few
hundred steps. The width of the keys is what is missing, and it is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnworks.models import AttentionConfig, Transformer, TransformerConfig, build
from attnworks.models.layers import Embedding, Output
from attnworks.text.tokens import TextBatch, TokenRow, count_rarity
from attnworks.traces.own import OwnSubject
from attnworks.traces.text import ExamText, Judge
from attnworks.training.objectives.contract import Outputs
from attnworks.training.objectives.sentences import OwnCallable

KEYS, VALUES, PAIRS, QUERIES = 32, 16, 16, 8
D_E, D_FF, D_V = 48, 64, 16
BATCH, JUDGED_AT_ONCE = 64, 512
SPREAD = 0.7
"""Of the entries of the embeddings at the start."""


def draw(size: int, generator: torch.Generator) -> Int[Tensor, "b t"]:
    """Pairs (token key * VALUES + value) of different keys, then queries (token KEYS * VALUES + key) for some of them.

    Source: the task of `studies.tasks.recall`, with many queries and without noise.
    """
    keys = torch.rand(size, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = torch.randint(0, VALUES, (size, PAIRS), generator=generator)
    asked = torch.randint(0, PAIRS, (size, QUERIES), generator=generator)
    return torch.cat([keys * VALUES + values, KEYS * VALUES + keys.gather(1, asked)], 1)


def answers(ids: Int[Tensor, "b t"]) -> Int[Tensor, "b q"]:
    """The value that goes with the key of each query."""
    pairs, asked = ids[:, :PAIRS], ids[:, PAIRS:] - KEYS * VALUES
    place = (pairs.unsqueeze(1) // VALUES == asked.unsqueeze(2)).long().argmax(2)
    return (pairs % VALUES).gather(1, place)


class PairEmbedding(Embedding):
    """A pair is the sum of a vector of its key and one of its value; queries have vectors of their own."""

    def __init__(self) -> None:
        nn.Module.__init__(self)  # without the one table of all tokens
        self.keys, self.values, self.queries = (
            nn.Parameter(SPREAD * torch.randn(number, D_E)) for number in (KEYS, VALUES, KEYS)
        )

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t e"]:
        pairs = (self.keys.unsqueeze(1) + self.values).flatten(0, 1)
        return F.embedding(tokens, torch.cat([pairs, self.queries]))


def new_model(d_k: int, seed: int) -> Transformer:
    """One layer with one head of d_k keys, which answers with one of the values at every position."""
    config = TransformerConfig(
        vocabulary=KEYS * VALUES + KEYS,
        d_e=D_E,
        d_ff=D_FF,
        attention=AttentionConfig(heads=1, d_k=d_k, d_v=D_V),
        encoder_layers=1,
        decoder_layers=0,
        norm="pre",
        positions="none",
        dropout=0.0,
    )
    model = build(config, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.source_embedding = PairEmbedding()
        model.output = Output(VALUES, D_E)
    return model


def losses(outputs: Outputs, batch: TextBatch) -> Float[Tensor, " b"]:
    """The mean cross-entropy of every sequence at its queries."""
    assert outputs.scores is not None
    return _losses(outputs.scores, batch.source.ids)


def _losses(scores: Float[Tensor, "b t w"], ids: Int[Tensor, "b t"]) -> Float[Tensor, " b"]:
    flat = F.cross_entropy(scores[:, PAIRS:].flatten(0, 1), answers(ids).flatten(), reduction="none")
    return flat.view(len(ids), QUERIES).mean(1)


@torch.no_grad()
def mean_loss(model: Transformer, ids: Int[Tensor, "b t"]) -> float:
    total = sum(float(_losses(model(part), part).double().sum()) for part in ids.split(JUDGED_AT_ONCE))
    return total / len(ids)


def judge(model: Transformer, ids: Int[Tensor, "b t"]) -> Judge:
    """Judges models by their answers to these sequences."""
    rows = [TokenRow(tuple(row), (False,) * len(row), tuple(range(len(row)))) for row in ids.tolist()]
    batches = torch.arange(len(rows)).split(2 * BATCH)
    text = ExamText(
        (rows,), (0,), (count_rarity(rows),), [part.tolist() for part in batches], range(len(rows)), len(rows), 0
    )
    return Judge(OwnSubject(model), OwnCallable(losses), text)


def new_optimiser(model: Transformer) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)


def train(
    model: Transformer,
    optimiser: torch.optim.Optimizer,
    batches: torch.Generator,
    rates: Sequence[float],
    tell: Callable[[int], None] = lambda step: None,
) -> float:
    """One step at each of the rates; the seconds they took."""
    began = time.perf_counter()
    for step, rate in enumerate(rates):
        for group in optimiser.param_groups:
            group["lr"] = rate
        ids = draw(BATCH, batches)
        optimiser.zero_grad()
        _losses(model(ids), ids).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        tell(step + 1)
    return time.perf_counter() - began
