"""The study behind the defaults of training: screening, then three seeds of the best.

    PAIRS=pairs.tsv.gz python bench/training_study.py --out study --cpu-minutes 720 --seconds 600
    python bench/training_study.py --out study-grammar --cpu-minutes 30 --seconds 60    # the grammar
    python bench/training_study.py --out study --table                                  # what is there so far

Learning rates are screened first, for both orders of norms; then, at the best of them, initialisations and warm-ups;
then three seeds of the best of each order. Marian of Hugging Face gets the same screening of learning rates and
warm-ups. Every finished run is one JSON file in the folder, so that the same command continues where it stopped. A run
that would exceed the cap on seconds of the processor is not begun.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from training_runs import Data, Setting, train

RATES = {"pre": (2e-3, 4e-3, 8e-3), "post": (7e-4, 2e-3, 4e-3), "marian": (7e-4, 2e-3, 4e-3)}
INITIALISATIONS, WARMUPS, SEEDS = ("normal", "scaled"), (100, 1000), (1, 2)
PARTS = 4
"""Validations of a run, at equal distances."""


class Study:
    """The finished runs of a folder, and the making of new ones."""

    def __init__(self, folder: Path, data: Data, seconds: float, cap: float) -> None:
        self.folder, self.data, self.seconds, self.cap = folder, data, seconds, cap
        self.marks = [seconds * part / PARTS for part in range(1, PARTS + 1)]
        self.done = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}

    def loss(self, setting: Setting) -> float:
        """The held-out loss at the end of a run, which is made if it is not there; infinite if it diverged."""
        if setting.name not in self.done:
            spent = sum(each["curve"][-1]["seconds"] for each in self.done.values())
            if spent + self.seconds > self.cap:
                raise SystemExit(f"The next run would exceed the cap of {self.cap / 60:g} minutes of the processor.")
            found = train(setting, self.data, self.marks)
            partial = self.folder / f".{setting.name}.partial"
            partial.write_text(json.dumps(found, indent=1))
            partial.rename(self.folder / f"{setting.name}.json")
            self.done[setting.name] = found
            print(row(found), flush=True)
        loss = self.done[setting.name]["curve"][-1]["loss"]
        return math.inf if loss is None else loss

    def best(self, settings: Iterator[Setting]) -> Setting:
        return min(settings, key=self.loss)

    def run(self, size: str) -> None:
        """Screen one thing after the other, then repeat the best with other seeds."""
        found: list[Setting] = []
        for norm in ("pre", "post", "marian"):
            base = Setting(size=size, hand="marian") if norm == "marian" else Setting(size=size, norm=norm)
            best = self.best(replace(base, learning_rate=rate) for rate in RATES[norm])
            if norm != "marian":
                best = self.best(replace(best, initialisation=kind) for kind in (best.initialisation, *INITIALISATIONS))
            found.append(best)
        found = [self.best(replace(best, warmup=steps) for steps in (best.warmup, *WARMUPS)) for best in found]
        for seed in SEEDS:
            for best in found:
                self.loss(replace(best, seed=seed))


def row(found: dict[str, Any]) -> str:
    """A run as a row of a Markdown table."""
    setting, last, scores = found["setting"], found["curve"][-1], found["scores"]
    loss = "diverged" if last["loss"] is None else f"{last['loss']:.3f}"
    bleu = "" if scores is None else f"{scores['bleu']:.1f}"
    ours = setting["hand"] == "attnworks"
    how = (setting["norm"], setting["initialisation"], setting["tie"]) if ours else ("post", "its own", "none")
    cells = (
        found["data"], setting["hand"], setting["size"], *how, f"{setting['learning_rate']:g}", setting["warmup"],
        setting["seed"], last["steps"], loss, bleu,
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def table(done: dict[str, Any]) -> str:
    """All finished runs, the best first."""
    heads = "corpus|by|preset|norm|weights|tied|learning rate|warm-up|seed|steps|held-out loss|BLEU"
    order = sorted(done.values(), key=lambda found: found["curve"][-1]["loss"] or math.inf)
    return "\n".join([f"| {' | '.join(heads.split('|'))} |", "|---" * 12 + "|", *map(row, order)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Folder for one JSON file per finished run.")
    parser.add_argument("--size", default="tiny", help="Preset whose sizes all runs have.")
    parser.add_argument("--seconds", type=float, default=600, help="Seconds of the processor of each run.")
    parser.add_argument("--cpu-minutes", type=float, default=720, help="Cap on minutes of the processor in all.")
    parser.add_argument("--pairs", type=int, default=40_000, help="Training pairs.")
    parser.add_argument("--table", action="store_true", help="Print the table of the finished runs, and train none.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.table:
        data = Data.open(os.environ.get("PAIRS") or None, arguments.pairs)
        Study(arguments.out, data, arguments.seconds, 60 * arguments.cpu_minutes).run(arguments.size)
    print(table({file.stem: json.loads(file.read_text()) for file in sorted(arguments.out.glob("*.json"))}))


if __name__ == "__main__":
    main()
