"""Seconds and memory of the statistics and the solver of growth, on an untrained encoder with d_e = 512.

python bench/growth.py [SEQUENCES]    10,000 by default; the time for others can be scaled
"""

from __future__ import annotations

import resource
import sys
from time import perf_counter

import torch

from attnworks.core.places import Slot
from attnworks.models import AttentionConfig, TransformerConfig, build
from attnworks.models.anatomy import heads_of
from attnworks.reshape.growth.score import key_scores, value_scores
from attnworks.reshape.growth.statistics import gather_sample, gather_sums
from attnworks.reshape.surgery import layers_of
from attnworks.text.tokens import TokenRow, count_rarity
from attnworks.traces.loss import TextLoss
from attnworks.traces.own import OwnSubject
from attnworks.traces.text import TokenizedText
from attnworks.training.objectives.language import logits_of, mean_cross_entropy
from attnworks.training.objectives.sentences import FunctionObjective

LAYERS, HEADS, D_E, TOKENS, WORDS, AT_ONCE = 6, 8, 512, 32, 2000, 64
SLOT = Slot.parse("enc.0")


def text(sequences: int) -> TokenizedText:
    ids = torch.randint(WORDS, (sequences, TOKENS), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [TokenRow(tuple(row), (False,) * TOKENS, tuple(range(TOKENS))) for row in ids]
    batches = [list(range(start, min(start + AT_ONCE, sequences))) for start in range(0, sequences, AT_ONCE)]
    return TokenizedText((rows,), (0,), (count_rarity(rows),), batches, list(range(sequences)), sequences, 0)


def main() -> None:
    sequences = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    heads = AttentionConfig(heads=HEADS, d_k=D_E // HEADS, d_v=D_E // HEADS)
    config = TransformerConfig(
        vocabulary=WORDS, d_e=D_E, d_ff=4 * D_E, attention=heads, encoder_layers=LAYERS, decoder_layers=0, dropout=0.0
    )
    model = build(config, seed=0).eval()
    own = FunctionObjective(lambda out, batch: mean_cross_entropy(logits_of(out), batch.source.ids, batch.source.real))
    text_loss = TextLoss(OwnSubject(model), own, text(sequences))
    began = perf_counter()
    layers = layers_of(model)
    branches = {slot: part.branch for slot, part in layers.items()}
    sums = gather_sums(text_loss, branches, lambda done, total: None)
    took = perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{LAYERS} layers, {HEADS} heads, d_e = {D_E}, {sequences} x {TOKENS} tokens")
    print(f"statistics: {took:.0f} s, {peak:.1f} GiB")
    began = perf_counter()
    sample = gather_sample(text_loss, SLOT)
    print(f"sample of one layer: {perf_counter() - began:.1f} s")
    for p in (1, 8):
        began = perf_counter()
        worst = max(
            score.residual for score in key_scores(SLOT, sums[SLOT].means()[0], sample, heads_of(layers[SLOT])[0], p)
        )
        print(f"{p} columns of keys for all heads of a layer: {perf_counter() - began:.1f} s, residual {worst:.3f}")
    began = perf_counter()
    value_scores(SLOT, sums[SLOT], True, 8)
    print(f"8 columns of values: {perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
