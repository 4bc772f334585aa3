"""One training step (forward, backward, optimiser) of our Transformer against torch.nn.Transformer's.

    python bench/train_step.py [--threads 2] [--rounds 15] [--dropout 0.1]

Both have the same parameters, loss, optimiser, batch and dropout: d=256, 3+3 layers, 4 heads, ff 1024, vocabulary 8k,
32 x 24 tokens. torch's own dropout of attention weights, which we do not have, is switched off for the comparison and
on ("as it comes") for a third contestant. They take turns; the figure is the median ratio of tokens per second.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnworks
from attnworks.models import AttentionConfig, TransformerConfig
from attnworks.models.positions import sinusoid
from attnworks.timing import interleave

VOCABULARY, WIDTH, LAYERS, HEADS, HIDDEN, SENTENCES, TOKENS = 8000, 256, 3, 4, 1024, 32, 24


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with the embeddings and the output that it leaves to its user."""

    def __init__(self, dropout: float, *, drop_weights: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, HIDDEN, dropout, batch_first=True)
        for module in self.body.modules():
            if isinstance(module, nn.MultiheadAttention) and not drop_weights:
                module.dropout = 0.0
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.positions = sinusoid(torch.arange(TOKENS), WIDTH).float()
        self.causal = nn.Transformer.generate_square_subsequent_mask(TOKENS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        X = self.dropout(self.source(source) * math.sqrt(WIDTH) + self.positions)
        Y = self.dropout(self.target(target) * math.sqrt(WIDTH) + self.positions)
        return self.output(self.body(X, Y, tgt_mask=self.causal, tgt_is_causal=True))


def ours(dropout: float) -> nn.Module:
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
    return attnworks.build(config)


def training_step(model: nn.Module) -> Callable[[], None]:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
    source, target, gold = torch.randint(VOCABULARY, (3, SENTENCES, TOKENS)).unbind()

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model(source, target).flatten(0, 1), gold.flatten()).backward()
        optimiser.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dropout", type=float, default=0.1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    models = {
        "torch.nn.Transformer": TorchTransformer(arguments.dropout, drop_weights=False),
        "  as it comes": TorchTransformer(arguments.dropout, drop_weights=True),
        "attnworks": ours(arguments.dropout),
    }
    assert len({sum(p.numel() for p in model.parameters()) for model in models.values()}) == 1
    race = interleave({name: training_step(model) for name, model in models.items()}, rounds=arguments.rounds)
    for name in models:
        rate = SENTENCES * TOKENS / race.median(name)
        low, high = race.spread(name, over="torch.nn.Transformer")
        times = race.speedup(name, over="torch.nn.Transformer")
        print(f"{name:22} {rate:8,.0f} tokens/s   x{times:.2f}  (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
