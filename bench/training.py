"""Held-out loss and BLEU at equal seconds of the processor, of attnworks at its defaults and of its peers.

    PAIRS=pairs.tsv.gz python bench/training.py --seconds 180,600,1800       # `make bench-training`
    python bench/training.py --seconds 60                                    # the grammar

All learn from the same batches of the same vocabularies on one thread, one after the other. The peers have the recipe
that was best for Marian of Hugging Face in `training_study.py`. BLEU is that of greedy translations of validation
pairs, by sacrebleu with the signature that is printed. Seconds are those of training steps alone.
"""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec

import torch
from training_runs import Data, Setting, train

from attnworks.models import TransformerConfig, preset
from attnworks.training.recipe import Recipe

PACKAGES = {"marian": "transformers", "joeynmt": "joeynmt"}
PEER_RATE, PEER_WARMUP = 2e-3, 300


def settings(size: str) -> list[Setting]:
    """attnworks at the defaults of a preset, then the peers."""
    config, recipe = preset(size), Recipe.for_preset(size, steps=1)
    assert isinstance(config, TransformerConfig)
    ours = Setting(
        size=size,
        learning_rate=recipe.learning_rate,
        warmup=recipe.warmup,
        norm=config.norm,
        initialisation=config.initialisation,
        tie=config.tie,
    )
    return [ours, *(Setting(hand=peer, size=size, learning_rate=PEER_RATE, warmup=PEER_WARMUP) for peer in PACKAGES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", default="180,600,1800", help="Seconds of the processor to compare at.")
    parser.add_argument("--size", default="tiny", help="Preset whose sizes all have.")
    parser.add_argument("--pairs", type=int, default=40_000, help="Training pairs.")
    parser.add_argument("--sentences", type=int, default=500, help="Validation pairs to translate.")
    arguments = parser.parse_args()
    marks = sorted(float(part) for part in arguments.seconds.split(","))
    torch.set_num_threads(1)
    data = Data.open(os.environ.get("PAIRS") or None, arguments.pairs)
    signature = ""
    print(
        "| " + " | ".join(("by", *(f"loss at {mark:g} s (steps)" for mark in marks), f"BLEU at {marks[-1]:g} s")) + " |"
    )
    print("|---" * (len(marks) + 2) + "|")
    for setting in settings(arguments.size):
        if setting.hand in PACKAGES and find_spec(PACKAGES[setting.hand]) is None:
            print(f"| {setting.hand} | not installed; `make bench-training` installs it |", flush=True)
            continue
        found = train(setting, data, marks, arguments.sentences)
        losses = [f"{point['loss']:.3f} ({point['steps']:,})" for point in found["curve"]]
        scores = found["scores"]
        signature = "" if scores is None else scores["signature"]
        cells = (setting.hand, *losses, "" if scores is None else f"{scores['bleu']:.1f}")
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{data.name}, {len(data.corpus.train):,} pairs, sizes of {arguments.size}; {signature}")


if __name__ == "__main__":
    main()
