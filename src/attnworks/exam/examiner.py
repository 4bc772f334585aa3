"""One process's part of an examination: every forward pass, backward pass and ablation, once for all measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnworks.core.team import Team
from attnworks.exam.measure import Measure, Placed
from attnworks.exam.measure_hook import Walk, overrides
from attnworks.exam.measures.cost import block_cost, measured_flops
from attnworks.exam.missing_notes import missing_notes
from attnworks.exam.reading import Reading, Readings, are
from attnworks.exam.statistics import Folds
from attnworks.text.tokens import Kind, TextBatch
from attnworks.traces.edits import CountHeads, HeadsOff, gate_gradients
from attnworks.traces.forward import record_forward
from attnworks.traces.layer import Slot
from attnworks.traces.subject import Examinee
from attnworks.traces.text import TOKENS_PER_BATCH, ExamText, Judge
from attnworks.training.objectives.choice import choose
from attnworks.training.objectives.contract import TextObjective
from attnworks.training.objectives.sentences import OwnFunction

FEW = 3
"""Sentences without which intervals and comparisons say nothing."""

TOKENS_IN_DEPTH = 1024
"""About the number of tokens whose whole forward passes are kept at a time."""


@dataclass(frozen=True)
class Request:
    """What an examination is asked for; the arguments of `examine`. Where `pin` is None, a sentence is chosen."""

    measures: Sequence[str] | None = None
    objective: str | OwnFunction | None = None
    without: tuple[str, ...] = ()
    pin: tuple[str, ...] | None = ()
    tokens_per_batch: int = TOKENS_PER_BATCH
    seed: int = 0


class Examiner:
    """One process's part of an examination while it runs."""

    def __init__(
        self,
        examinee: Examinee,
        text: ExamText,
        measures: Sequence[Measure],
        request: Request,
        team: Team,
        advance: Callable[[int], None],
    ) -> None:
        self.examinee, self.subject, self.text, self.measures = examinee, examinee.subject, text, measures
        self.request, self.team, self.advance = request, team, advance
        self.folds = Folds(declared for measure in measures for declared in measure.declares())
        self.walk = Walk(measures, self.folds)
        self.notes: list[str] = []
        self.unsound: dict[Kind, float] = {}
        self.heads: dict[Slot, int] = {}
        self.loss_readings: list[Reading] = []
        self.deep, self.graded, self.probing, self.on_loss = (
            [measure for measure in measures if overrides(measure, look)]
            for look in ("forward", "gradient", "ablated", "from_loss")
        )
        self.device = next(self.subject.model.parameters()).device
        self.batches = team.share(range(len(text.batches)))
        wanted = self.graded or self.probing or self.on_loss or request.objective is not None
        self.objective = self._objective() if wanted else None

    def work(self) -> int:
        """Sentences to go through, each as often as the model runs on it."""
        sentences = sum(len(self.text.batches[number]) for number in self.batches)
        return sentences * self._passes()

    def _passes(self) -> int:
        heads = sum(self._count_heads().values()) if self.probing else 0
        on_loss = sum(measure.passes for measure in self.on_loss)
        return 1 + bool(self.deep) + bool(self.graded) + on_loss + (heads + 1 if self.probing else 0)

    def run(self) -> None:
        objective = self.objective
        for number in self.batches:
            batch, rows = self.text.batch(number)
            batch = batch.to(self.device)
            with torch.inference_mode():
                self.subject.run(batch, self.walk)
            self.advance(len(batch))
            if self.deep:
                self._look_deep(batch)
            if self.graded and objective is not None:
                self._grade(batch, rows, objective)
            if self.probing and objective is not None:
                self._probe(batch, rows, objective)
            self.folds.settle()
        if self.on_loss and objective is not None:
            self.loss_readings = self.team.gather(self._from_loss(objective) if self.team.leads else [])[0]
        if self.request.without:
            self.notes.append(f"run without {', '.join(self.request.without)}, in float64")
        states = self.team.gather(self.folds.state())
        for rank, state in enumerate(states):
            if rank != self.team.rank:
                self.folds.merge(state)
        for measure, found in zip(self.measures, self._reasons(), strict=True):
            measure.reasons = found
        self.unsound = _largest(self.team.gather(self.unsound))
        for kind, worst in sorted(self.unsound.items()):
            self.notes.append(
                f"{_names(self.deep)}: not reported for the {kind}, whose residual stream does not add up "
                f"(relative error {worst:.1e})"
            )
        self.notes = list(dict.fromkeys(self.notes))

    def _reasons(self) -> list[dict[Slot, str]]:
        """`reasons` of every measure, from the first process that has one for a layer."""
        gathered = self.team.gather([measure.reasons for measure in self.measures])
        by_measure = zip(*reversed(gathered), strict=True)
        return [dict(item for reasons in found for item in reasons.items()) for found in by_measure]

    def readings(self) -> Readings:
        """All that was folded and what follows from it, without what must not be reported."""
        readings = self.folds.readings(self._count_heads())
        deep = {declared.name for measure in self.deep for declared in measure.declares()}
        readings = Readings([
            reading for reading in readings.values() if reading.name not in deep or reading.kind not in self.unsound
        ])  # fmt: skip
        for reading in self.loss_readings:
            readings.add(reading)
        for measure in self.measures:
            for reading in measure.conclude(readings):
                readings.add(reading)
        for measure in self.measures:
            if not any(readings.of(declared.name) for declared in measure.declares()) and measure not in self.deep:
                self.notes.append(f"{measure.name}: not applicable to this model")
            self.notes.extend(missing_notes(measure, readings))
            self.notes.extend(measure.remarks(readings))
        if len(self.text.kept) < FEW:
            self.notes.append(f"{are(len(self.text.kept))} too few for intervals and comparisons")
        return readings

    def _objective(self) -> TextObjective:
        labels = getattr(getattr(self.subject.model, "config", None), "id2label", None)
        chosen = choose(
            self.request.objective,
            self.subject.abilities,
            seed=self.request.seed,
            sentences=self.text.passages,
            class_names=labels if self.subject.abilities.classes else None,
        )
        judged = f"heads are judged by the objective {chosen.name!r}: {chosen.words}"
        unused = f"the objective {chosen.name!r} fits, but only importance and ablation judge heads by it"
        self.notes.append(judged if self.graded or self.probing or self.on_loss else unused)
        return chosen

    def _look_deep(self, batch: TextBatch) -> None:
        """Measures across depth see one stack at a time, and only where its stream adds up."""
        if self.subject.blocks is None:
            self.notes.append(f"{_names(self.deep)}: not applicable, the blocks of this model are not known")
            self.advance(len(batch))
            return
        with torch.inference_mode():
            for piece in _small(batch):
                traces, errors = record_forward(self.subject, piece)
                sound: set[Kind] = {trace.kind for trace in traces}
                for (kind, _), error in errors.items():
                    if kind not in sound:
                        self.unsound[kind] = max(error, self.unsound.get(kind, 0.0))
                self._fold(placed for trace in traces for measure in self.deep for placed in measure.forward(trace))
        self.advance(len(batch))

    def _grade(self, batch: TextBatch, rows: Tensor, objective: TextObjective) -> None:
        for slot, gradient in gate_gradients(self.subject, objective, batch, rows).items():
            self._fold(
                Placed(name, slot, sample)
                for measure in self.graded
                for name, sample in measure.gradient(slot, gradient).items()
            )
        self.advance(len(batch))

    def _probe(self, batch: TextBatch, rows: Tensor, objective: TextObjective) -> None:
        read = objective.prepare(batch)
        with torch.inference_mode():
            whole = self.subject.run(read, scores=self._scores(objective))
            self.advance(len(batch))
            for slot, heads in ((slot, heads) for slot, heads in self._count_heads().items() if heads):
                changes: list[Tensor] = []
                for head in range(heads):
                    off = self.subject.run(read, HeadsOff([(slot, head)]), scores=self._scores(objective))
                    changes.append(objective.distance(off, whole, batch, rows))
                    self.advance(len(batch))
                self._fold(
                    Placed(name, slot, sample)
                    for measure in self.probing
                    for name, sample in measure.ablated(slot, torch.stack(changes, -1)).items()
                )

    def _from_loss(self, objective: TextObjective) -> list[Reading]:
        """What measures read off the loss over the whole text."""
        loss, found = Judge(self.subject, objective, self.text), list[Reading]()
        for measure in self.on_loss:
            readings, notes = measure.from_loss(loss, self.advance)
            found.extend(readings)
            self.notes.extend(notes)
        return found

    def _scores(self, objective: TextObjective) -> bool:
        able = self.subject.abilities
        return objective.reads_scores and (able.vocabulary or able.classes is not None)

    def _fold(self, placed: Iterable[Placed]) -> None:
        for one in placed:
            self.folds.add(one)

    def _count_heads(self) -> dict[Slot, int]:
        """Heads of every attention layer, seen on the first sentence."""
        if not self.heads:
            counting = CountHeads()
            batch, _ = self.text.batch(0)
            first = batch.some(slice(0, 1)).to(self.device)
            with torch.inference_mode():
                self.subject.run(first, counting)
            empty = {
                Slot("cross" if part.role == "cross" else block.kind, block.layer): 0
                for block in self.subject.blocks or ()
                for part in block.parts
                if part.weights is not None and not len(part.weights().W_O)
            }
            self.heads = dict(sorted((empty | counting.heads).items())) if empty else counting.heads
        return self.heads

    def describe(self) -> dict[str, Any]:
        model = self.subject.model
        heads = self._count_heads()
        kinds = list(dict.fromkeys(slot.kind for slot in heads))
        return {
            "name": self.subject.name,
            "class": type(model).__name__,
            "family": getattr(getattr(model, "config", None), "model_type", None) or "attnworks",
            "kinds": kinds,
            "layers": {kind: sum(slot.kind == kind for slot in heads) for kind in kinds},
            "heads": {str(slot): number for slot, number in heads.items()},
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
            **({"without": list(self.request.without)} if self.request.without else {}),
            **({"cost": self._cost()} if any(measure.name == "cost" for measure in self.measures) else {}),
        }

    def _cost(self) -> dict[str, Any]:
        """Parameters, FLOPs and bytes of every part for the first sentence, and the FLOPs that torch counts."""
        batch, _ = self.text.batch(0)
        first = batch.some(slice(0, 1)).to(self.device)
        lengths = {"encoder": first.source.ids.shape[1], "decoder": first.sides("decoder")[0].ids.shape[1]}
        parts = {
            f"{block.kind} {block.layer} {part}": cost._asdict()
            for block in self.subject.blocks or ()
            for part, cost in block_cost(block, lengths[block.kind], lengths["encoder"]).items()
        }
        return {
            "tokens": lengths,
            "parts": parts,
            "predicted_flops": sum(cost["flops"] for cost in parts.values()),
            "counted_flops": measured_flops(self.subject.model, lambda: self.subject.run(first)).total,
        }


def _small(batch: TextBatch) -> Iterable[TextBatch]:
    longest = max(side.ids.shape[1] for side in batch if side is not None)
    step = max(1, TOKENS_IN_DEPTH // longest)
    for start in range(0, len(batch), step):
        yield batch.some(slice(start, start + step))


def _largest(tables: Iterable[dict[Kind, float]]) -> dict[Kind, float]:
    found: dict[Kind, float] = {}
    for table in tables:
        found |= {kind: max(number, found.get(kind, 0.0)) for kind, number in table.items()}
    return found


def _names(measures: Sequence[Measure]) -> str:
    return ", ".join(measure.name for measure in measures)
