"""The task and the model of the study of growth: pairs of a key and a value, then keys; the answers are their values.

One attention layer with d_k = 1 cannot distinguish 32 keys, however long it is trained, while one with d_k = 4 learns
the task in a few hundred steps. So the width of the keys is known to be the bottleneck.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnworks.models import AttentionConfig, Transformer, TransformerConfig, build
from attnworks.models.layers import Embedding, OutputLayer
from attnworks.text.tokens import Batch, TokenRow, count_rarity
from attnworks.traces.loss import TextLoss
from attnworks.traces.own import OwnSubject
from attnworks.traces.text import TokenizedText
from attnworks.training.fit import Fit
from attnworks.training.objectives.contract import Outputs
from attnworks.training.objectives.sentences import FunctionObjective

RECALL_KEYS, RECALL_VALUES, PAIRS, QUERIES = 32, 16, 16, 8
D_E, D_FF, D_V = 48, 64, 16
BATCH_SEQUENCES, TEST_SEQUENCES_AT_ONCE = 64, 512
EMBEDDING_DEVIATION = 0.7
"""The standard deviation of the entries of new embeddings."""


def draw_recall(size: int, generator: torch.Generator) -> Int[Tensor, "b t"]:
    """Pairs (token key * VALUES + value) of different keys, then queries (token KEYS * VALUES + key) for some of them.

    Source: the task of `studies.tasks.recall`, with many queries and without noise.
    """
    keys = torch.rand(size, RECALL_KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = torch.randint(0, RECALL_VALUES, (size, PAIRS), generator=generator)
    queried = keys.gather(1, torch.randint(0, PAIRS, (size, QUERIES), generator=generator))  # [b, q]
    return torch.cat([keys * RECALL_VALUES + values, RECALL_KEYS * RECALL_VALUES + queried], 1)


def recall_answers(ids: Int[Tensor, "b t"]) -> Int[Tensor, "b q"]:
    """The value that belongs to the key of each query."""
    pairs, queried = ids[:, :PAIRS], ids[:, PAIRS:] - RECALL_KEYS * RECALL_VALUES
    place = (pairs.unsqueeze(1) // RECALL_VALUES == queried.unsqueeze(2)).long().argmax(2)  # of [b, q, pairs]
    return (pairs % RECALL_VALUES).gather(1, place)


class PairEmbedding(Embedding):
    """Embeds a pair as the sum of a vector of its key and one of its value; queries have vectors of their own."""

    def __init__(self) -> None:
        nn.Module.__init__(self)  # not Embedding.__init__, which makes one table of all tokens
        self.keys, self.values, self.queries = (
            nn.Parameter(EMBEDDING_DEVIATION * torch.randn(number, D_E))
            for number in (RECALL_KEYS, RECALL_VALUES, RECALL_KEYS)
        )

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t e"]:
        pairs = (self.keys.unsqueeze(1) + self.values).flatten(0, 1)
        return F.embedding(tokens, torch.cat([pairs, self.queries]))


def new_recall_model(d_k: int, seed: int) -> Transformer:
    """One layer with one head whose keys have width d_k. Its logits are over the values, at every position."""
    config = TransformerConfig(
        vocabulary=RECALL_KEYS * RECALL_VALUES + RECALL_KEYS,
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
        model.output = OutputLayer(RECALL_VALUES, D_E)
    return model


def recall_losses(outputs: Outputs, batch: Batch) -> Float[Tensor, " b"]:
    """The mean cross-entropy of every sequence at its queries."""
    assert outputs.logits is not None
    return _losses(outputs.logits, batch.source.ids)


def _losses(logits: Float[Tensor, "b t w"], ids: Int[Tensor, "b t"]) -> Float[Tensor, " b"]:
    flat = F.cross_entropy(logits[:, PAIRS:].flatten(0, 1), recall_answers(ids).flatten(), reduction="none")
    return flat.view(len(ids), QUERIES).mean(1)


@torch.no_grad()
def recall_loss(model: Transformer, ids: Int[Tensor, "b t"]) -> float:
    total = sum(float(_losses(model(part), part).double().sum()) for part in ids.split(TEST_SEQUENCES_AT_ONCE))
    return total / len(ids)


def recall_text_loss(model: Transformer, ids: Int[Tensor, "b t"]) -> TextLoss:
    """The loss of models on these sequences."""
    rows = [TokenRow(tuple(row), (False,) * len(row), tuple(range(len(row)))) for row in ids.tolist()]
    batches = torch.arange(len(rows)).split(2 * BATCH_SEQUENCES)
    text = TokenizedText(
        sides=(rows,), pads=(0,), rarities=(count_rarity(rows),), batches=[part.tolist() for part in batches],
        kept=range(len(rows)), passages=len(rows), written=0,
    )  # fmt: skip
    return TextLoss(OwnSubject(model), FunctionObjective(recall_losses), text)


def new_optimizer(model: Transformer) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)


def train_recall(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    batches: torch.Generator,
    rates: Sequence[float],
    tell: Callable[[int], None] = lambda step: None,
) -> float:
    """Take one step at each of the learning rates; return the seconds they took."""
    fit = Fit(model=model, optimizer=optimizer, learning_rate=rates.__getitem__)

    def loss() -> Tensor:
        ids = draw_recall(BATCH_SEQUENCES, batches)
        return _losses(model(ids), ids).mean()

    began = time.perf_counter()
    for step in range(len(rates)):
        fit.step(step, [loss], name=f"step {step + 1} of the recall task")
        tell(step + 1)
    return time.perf_counter() - began
