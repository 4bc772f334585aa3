"""Training and beam search of one small translation model, ours against its peers, in one interleaved run.

    python bench/seq2seq.py training [--threads 2] [--rounds 15] [--dropout 0.1]
    python bench/seq2seq.py decoding [--threads 2] [--rounds 7]

Contestants take turns; figures are medians of the ratios of each round. `make bench` has all peers installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from contestants import BEAMS, LENGTH, SENTENCES, VOCABULARY, build_contestants
from torch import nn

from attnworks.core.timing import interleave
from attnworks.text.vocabulary import SPECIALS


def training_step(contestant: Any) -> Callable[[], None]:
    """Forward, backward and one step of torch's Adam."""
    optimizer = torch.optim.Adam(contestant.parameters(), lr=1e-4)
    source, read, write = torch.randint(len(SPECIALS), VOCABULARY, (3, SENTENCES, LENGTH)).unbind()
    contestant.train()

    def step() -> None:
        optimizer.zero_grad()
        contestant.loss(source, read, write).backward()
        optimizer.step()

    return step


def translation(contestant: Any) -> Callable[[], object]:
    source = torch.randint(len(SPECIALS), VOCABULARY, (SENTENCES, LENGTH))
    contestant.eval()
    return lambda: contestant.translate(source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["training", "decoding"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dropout", type=float, default=0.1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    contestants, absent = build_contestants(arguments.dropout)
    ready: Callable[[nn.Module], Callable[[], object]] = training_step if arguments.what == "training" else translation
    race = interleave({name: ready(contestant) for name, contestant in contestants.items()}, rounds=arguments.rounds)
    work = f"{SENTENCES} x {LENGTH} tokens" + ("" if arguments.what == "training" else f", {BEAMS} beams")
    print(f"{arguments.what}, {work}, {arguments.threads} threads, dropout {arguments.dropout}")
    for name in contestants:
        rate = SENTENCES * LENGTH / race.median(name)
        low, high = race.spread(name, over="torch.nn.Transformer")
        times = race.speedup(name, over="torch.nn.Transformer")
        ours = race.speedup("attnworks", over=name)
        print(
            f"{name:22} {rate:8,.0f} tokens/s   x{times:.2f} of torch.nn.Transformer ({low:.2f} to {high:.2f}), "
            f"attnworks is x{ours:.2f} of it"
        )
    for name in absent:
        print(f"{name:22} not installed; `make bench` installs it")


if __name__ == "__main__":
    main()
