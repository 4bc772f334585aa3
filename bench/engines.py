"""Translation of a run by the own engine and by CTranslate2, in one interleaved run, with the BLEU of each.

    python bench/engines.py RUN [--sentences 1000] [--threads 1] [--rounds 7]

RUN is a folder of `attnworks train`; its corpus gives the held-out sentences. Figures are medians of the ratios of each
round, of the time on the clock and of the processor. The conversion of the model is timed by itself.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch

import attnworks
from attnworks.api.translations import Translator
from attnworks.core.timing import Race, interleave
from attnworks.models.ctranslate2 import CTranslate2Engine
from attnworks.text.corpora import open_corpus
from attnworks.training.evaluate import translation_scores
from attnworks.training.run_folder import read_recipe

ENGINES: dict[str, dict[str, Any]] = {
    "own": {"engine": "own"},
    "ctranslate2": {"engine": "ctranslate2"},
    "ctranslate2 int8": {"engine": "ctranslate2", "precision": "int8"},
}
WARMUP = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    subject: Any = attnworks.open(arguments.run)
    recipe, _ = read_recipe(subject.folder)
    corpus = open_corpus(recipe.corpus, pairs=1, seed=recipe.seed)
    pairs = [*corpus.test, *corpus.valid][: arguments.sentences]
    began = time.perf_counter()
    CTranslate2Engine(subject.model, subject.vocabularies)
    converting = time.perf_counter() - began
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    size = sum(parameter.numel() for parameter in subject.model.parameters())
    print(f"{size:,} parameters, {len(pairs)} sentences, {arguments.threads} threads, converted in {converting:.2f} s")
    print(f"load of the machine at the beginning: {load}")
    for beams in (1, 5):
        compare_engines(subject, pairs, beams, arguments.rounds)


def compare_engines(subject: Any, pairs: list[Any], beams: int, rounds: int) -> None:
    texts = [pair.source.text for pair in pairs]
    written: dict[str, list[Any]] = {}
    processor: dict[str, list[float]] = {name: [] for name in ENGINES}

    def contestant(name: str) -> Callable[[], None]:
        translator = Translator(subject, num_beams=beams, **ENGINES[name])

        def translate() -> None:
            began = time.process_time()
            written[name] = [*translator(texts)]
            processor[name].append(time.process_time() - began)

        return translate

    clock = interleave({name: contestant(name) for name in ENGINES}, rounds=rounds, warmup=WARMUP)
    spent = Race({name: tuple(seconds[WARMUP:]) for name, seconds in processor.items()})
    for name, made in written.items():
        scores = translation_scores([one.split() for one in made], [pair.words[1] for pair in pairs])
        low, high = clock.spread(name, over="own")
        same = sum(one == other for one, other in zip(made, written["own"], strict=True))
        print(
            f"beams {beams}  {name:17} {clock.median(name):6.2f} s  x{clock.speedup(name, over='own'):.2f} "
            f"({low:.2f} to {high:.2f}), processor x{spent.speedup(name, over='own'):.2f}, "
            f"{same} of {len(made)} as by own, BLEU {'-' if scores is None else f'{scores.bleu:.2f}'}"
        )


if __name__ == "__main__":
    main()
