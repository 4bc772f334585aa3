"""What is recorded: every verb of the command line, on small inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from golden_special import LINES, batches, make_inputs, served

CLAIMS = "attnworks.theory"
"""The module that writes docs/claims.md."""


@dataclass(frozen=True)
class Item:
    """A command to run in the work folder, or a function of that folder.

    needs      items that have to be done before
    files      files and folders to record afterwards
    module     what `python -m` runs
    stdout_to  file in the work folder that gets the output, for later items
    keys_only  whether numbers are left out of the output
    torchrun   whether two processes run it together
    """

    name: str
    run: str | Callable[[Path], Any]
    needs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    stdin: str = ""
    module: str = "attnworks"
    stdout_to: str | None = None
    keys_only: bool = False
    torchrun: bool = False


def keys_only(value: Any) -> Any:
    """The keys of JSON, and the types of what they hold."""
    if isinstance(value, dict):
        return {key: keys_only(part) for key, part in value.items()}
    if isinstance(value, list):
        return [keys_only(part) for part in value]
    return type(value).__name__


TRAIN = "train tiny --pairs 400 --validate-every 20 --threads 1 --seed 3"
SMALL = "--corpus tsv:pairs.tsv --batch-tokens 120 --validate-every 6 --threads 1 --seed 3"
ONE = "--threads 1 --json"
ON_RUN = f"--pairs 24 --sentences 8 {ONE}"
ON_BERT = f"--text more.txt --objective mlm {ONE}"
RESHAPED = {
    "project": 'project R --heads "enc.0.*,dec.1.2" --heal 5',
    "grow": "grow R --add 4 --kinds values --heal 5",
    "grow-compared": 'grow R --where "enc.0.1:keys=2,dec.0.*:values=1" --compare',
    "prune": "prune R --keep 0.75 --heal 5",
    "prune-by": "prune R --keep 0.5 --by role --evenly",
    "swap": 'swap R --to window:window=1 --layers "enc.*" --heal 5 --heal-by distil',
    "swap-auto": "swap R --to window:window=2 --to linear --max-error 0.5 --length 24",
    "twice": "prune project --heads enc.1.0,cross.0.3",
}
BERT_RESHAPED = {
    "project": "project bert --heads 0.2,1.* --form band --heal 5",
    "grow": "grow bert --add 2 --kinds keys,values --heal 5",
    "grow-by": "grow bert --where enc.1:heads=1 --by gradmax --heal 5 --heal-by distil",
    "prune": "prune bert --keep 0.5 --heal 5",
    "prune-compared": "prune bert --keep 0.5 --by gradient --compare",
    "swap": "swap bert --to window:window=1 --layers 1 --heal 5",
}
THEORY = {
    "collapse": "--layers 3 --heads 2 --width 6 --tokens 5 --seeds 2",
    "paths": "--layers 3 --heads 2 --width 6 --tokens 5 --seeds 2",
    "two-keys": "--betas 1,7,31 --keys 5 --values 3 --draws 50",
    "projection": "--tokens 7 --values 3 --draws 5",
    "gradient": "--widths 3,17 --tokens 7 --seeds 2",
    "context": "--sharpness 5",
}
STUDIES = {
    "conti": "--corpus tsv:pairs.tsv --epochs 1",
    "structure": "--corpus tsv:pairs.tsv --epochs 1 --heal 2 --sentences 3",
    "growth": "--seeds 1 --add 1 --train-steps 3 --steps 2 --every 2 --survey 32 --held-out 23 "
    "--ways fisher,whitened,random,zero,gradmax,document,none",
    "long-range": "--steps 2 --length 37 --batch 2 --held-out 5 --tasks recall,listops,bytes "
    "--mechanisms dense,luong-dot",
}
VERBS = (
    "", "advise", "bench", "bench attention", "claims", "compare", "completion", "count", "examine", "experiment",
    *(f"experiment {name}" for name in (*THEORY, *STUDIES)), "report",
    "grow", "history", "project", "prune", "replay", "swap", "undo",
    "serve", "train", "translate",
)  # fmt: skip
MISTAKES = (
    "examine nowhere", "train huge --out X", "train tiny --mechanism windov --out X", "prune R --out X",
    "grow R --add 2 --kinds minds --out X", "translate bert word", "examine bert --measures rang",
    "examine bert --text pairs.tsv --max-length 4 --objective seq2seq", "report bert --out r.html", "compare A bert",
    "count gpt-9", "claims S9.9", "experiment paths --heads 5", "history bert", "advise R --to nothing",
)  # fmt: skip


def _tables() -> list[Item]:
    """Items that have a table above."""
    items = [
        Item(
            f"reshape-{name}",
            f"{command} {ON_RUN} --out {name}",
            ("reshape-project" if name == "twice" else "run-small",),
            (name,),
        )
        for name, command in RESHAPED.items()
    ]
    items += [
        Item(f"bert-{name}", f"{command} {ON_BERT} --out bert-{name}", ("inputs",), (f"bert-{name}",))
        for name, command in BERT_RESHAPED.items()
    ]
    items += [
        Item(f"experiment-{name}", f"experiment {name} {options} {ONE} --out of-{name}", ("inputs",), (f"of-{name}",))
        for name, options in (THEORY | STUDIES).items()
    ]
    items += [Item(f"help-{verb.replace(' ', '-') or 'attnworks'}", f"{verb} --help") for verb in VERBS]
    items += [Item(f"mistake-{place:02}", command, ("run", "run-small")) for place, command in enumerate(MISTAKES)]
    return items


ITEMS = [
    Item("inputs", make_inputs, files=("bert", "gpt2", "t5", "llama")),
    # training
    Item("run-small", f"train tiny --steps 12 {SMALL} --json --out R", ("inputs",), ("R",)),
    Item("run", f"{TRAIN} --steps 40 --json --out A", (), ("A",)),
    Item("run-begun", f"{TRAIN} --steps 20 --out B", (), ("B",)),
    Item("run-resumed", "train --resume B --steps 40", ("run-begun",), ("B",)),
    Item("run-grown", f"train tiny --steps 8 {SMALL} --grow-until d_k=33 --grow-every 6 --out G", ("inputs",), ("G",)),
    Item("run-lstm", f"train lstm-additive --steps 4 {SMALL} --json --out L", ("inputs",), ("L",)),
    Item(
        "run-bpe",
        "train tiny --steps 4 --corpus text:english.txt,italian.txt --vocabulary bpe --vocabulary-size 90 "
        "--accumulate 2 --mechanism window:window=2 --schedule cosine --threads 1 --out P",
        ("inputs",),
        ("P",),
    ),
    Item("torchrun-train", f"train tiny --steps 6 {SMALL} --json --out T", ("inputs",), ("T",), torchrun=True),
    Item("torchrun-examine", f"examine bert --text lines.txt --out ET {ONE}", ("inputs",), ("ET",), torchrun=True),
    # translating
    Item(
        "translate-beam",
        f"translate A --num-beams 4 --num-return-sequences 2 {ONE} --trace t.json",
        ("run",),
        ("t.json",),
        stdin="Luca is studying in Spain .\nThe chair is new .\n\nThe zyx is red .\n",
        stdout_to="translations",
    ),
    Item("translate-sample", 'translate A --sample --seed 7 --top-k 40 --threads 1 "The chair is new ."', ("run",)),
    Item("translate-lstm", f'translate L --num-beams 3 {ONE} "the cat eats bread ."', ("run-lstm",)),
    # examining
    Item(
        "examine-all",
        f"examine R --measures all --sentences 4 --corpus tsv:pairs.tsv --out EA {ONE}",
        ("run-small",),
        ("EA",),
    ),
    Item("examine-text", "examine A --sentences 16 --threads 1 --out EB", ("run",), ("EB",)),
    Item("examine-small", f"examine R --sentences 8 --corpus tsv:pairs.tsv --out ER {ONE}", ("run-small",), ("ER",)),
    Item("examine-lstm", f"examine L --sentences 8 --corpus tsv:pairs.tsv {ONE}", ("run-lstm",)),
    *(
        Item(
            f"examine-{name}",
            f"examine {name} --measures all --text {text} --out E{name} {ONE}",
            ("inputs",),
            (f"E{name}",),
        )
        for name, text in (
            ("bert", "lines.txt"),
            ("gpt2", "lines.txt"),
            ("t5", "sides.txt --sentences 3"),
            ("llama", "lines.txt"),
        )
    ),
    Item("examine-without", f"examine bert --text lines.txt --without skip,mlp {ONE}", ("inputs",)),
    Item("examine-parses", f"examine bert --parses parses.conllu --dtype float64 {ONE}", ("inputs",)),
    Item(
        "examine-report",
        f'examine gpt2 --text lines.txt --measures rank,roles,paths --pin "{LINES[0]}" --report p.html --threads 1',
        ("inputs",),
        ("p.html",),
    ),
    Item("examine-list", "examine --list-measures"),
    Item(
        "examine-pruned",
        f"examine prune --sentences 8 --corpus tsv:pairs.tsv --out EP {ONE}",
        ("reshape-prune",),
        ("EP",),
    ),
    # comparing and reporting
    Item("compare", "compare EA ER --json", ("examine-all", "examine-small")),
    Item("compare-pruned", "compare ER EP", ("examine-small", "examine-pruned")),
    Item("report", "report EA EB --out two.html --json", ("examine-all", "examine-text"), ("two.html",)),
    Item(
        "report-trace",
        "report EA --trace t.json --advice advice.json --out one.html",
        ("examine-all", "translate-beam", "advise"),
        ("one.html",),
    ),
    Item(
        "report-pruned",
        "report ER EP --model prune --out pruned.html",
        ("examine-small", "examine-pruned"),
        ("pruned.html",),
    ),
    # reshaping
    Item("history", "history twice", ("reshape-twice",)),
    Item("history-json", "history twice --json", ("reshape-twice",)),
    Item("undo", "undo twice --out undone --json", ("reshape-twice",), ("undone",)),
    Item("undo-bert", "undo bert-prune --out bert-undone", ("bert-prune",), ("bert-undone",)),
    Item("replay", f"replay twice --on R --out again {ONE}", ("reshape-twice",), ("again",)),
    Item(
        "train-pruned",
        "train --resume prune --steps 14 --json",
        ("reshape-prune", "examine-pruned", "report-pruned"),
        ("prune",),
    ),
    Item(
        "advise", f"advise R --length 64 --sentences 8 --max-error 0.5 {ONE}", ("run-small",), stdout_to="advice.json"
    ),
    Item("advise-bert", "advise bert --text more.txt --to window:window=2 --to linear --threads 1", ("inputs",)),
    # claims
    Item("claims", "claims --json"),
    Item("claims-on-run", f"claims --on A --sentences 4 {ONE}", ("run",)),
    Item("claims-on-bert", f"claims --on bert --text lines.txt {ONE}", ("inputs",)),
    Item("claims-explained", "claims S0.17 S4.1* D6 --explain"),
    Item("claims-table", "", module=CLAIMS),
    Item("claims-data", "--data", module=CLAIMS),
    # counting and timing
    Item("count", "count"),
    Item("count-gpt-3", "count gpt-3 --json"),
    Item("count-run", "count A", ("run",)),
    Item("count-compare", "count --compare --n 512 --json"),
    Item("count-mechanism", "count --mechanism bigbird --n 4096 --causal --json"),
    Item("bench", f"bench attention --n 64 --mechanisms window:window=8 --rounds 1 {ONE}", keys_only=True),
    Item("batches", batches, ("inputs",)),
    # serving
    Item("serve-run", served("R"), ("run-small",)),
    Item("serve-bert", served("bert"), ("inputs",)),
    *_tables(),
]
