"""Run an examination: forward passes, backward passes and ablations, each once for all measures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Kind, Slot
from attnworks.core.team import Team
from attnworks.exam.attended import AttendedSums
from attnworks.exam.examination import Examination, one_sentence, pin_maps, pinned_text
from attnworks.exam.findings import find
from attnworks.exam.headline import FIRST_TOKEN
from attnworks.exam.lineage import LINEAGE, ReshapeRecord, lineage_of
from attnworks.exam.measure import (
    MEASURES,
    Measure,
    MeasureContext,
    PlacedSample,
    absence_note,
    missing_notes,
    overrides,
)
from attnworks.exam.measure_hook import MeasureHook
from attnworks.exam.measures import applicable_measures, choose_measures, layers_without_weights, takes_default
from attnworks.exam.measures.cost import cost_of_sentence
from attnworks.exam.reading import Reading, Readings, sentences_are
from attnworks.exam.statistics import Accumulator
from attnworks.models.modes import eval_mode, in_float64
from attnworks.text.passages import Passage
from attnworks.text.tokens import Batch
from attnworks.traces.edits import CountHeadsHook, HeadsOffHook, gate_gradients, without_parts
from attnworks.traces.forward import ForwardTrace, record_forward
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import Subject
from attnworks.traces.text import EXAM_BATCH_TOKENS, TokenizedText
from attnworks.training.curves import TRAINING, read_curves
from attnworks.training.objectives import choose_objective
from attnworks.training.objectives.contract import Objective
from attnworks.training.objectives.sentences import LossFunction

MIN_SENTENCES_FOR_INTERVALS = 3
"""With fewer sentences, a note says that they are too few for intervals and comparisons."""

PLAIN_NAME = re.compile(r"[\[<]\|?\w{1,24}\|?[\]>]")
"""Names of special tokens that stand in sentences as they are."""

DEEP_PASS_TOKENS = 1024
"""Approximate number of tokens whose whole forward pass is in memory at a time."""


def _longest(batch: Batch) -> int:
    return max(side.ids.shape[1] for side in (batch.source, batch.target) if side is not None)


def _pieces(sentences: int, longest: int) -> list[slice]:
    """Slices of a batch with about `DEEP_PASS_TOKENS` tokens each."""
    step = max(1, DEEP_PASS_TOKENS // longest)
    return [slice(start, start + step) for start in range(0, sentences, step)]


@dataclass(frozen=True)
class ExamSettings:
    """The keyword arguments of `attnworks.examine`.

    With `pin=None` a sentence is chosen; with `probe=None` causal models are probed, unless only other than the
    default `measures` are named.
    """

    measures: Sequence[str] | None = None
    objective: str | LossFunction | None = None
    without: tuple[str, ...] = ()
    pin: tuple[str, ...] | None = ()
    batch_tokens: int = EXAM_BATCH_TOKENS
    seed: int = 0
    probe: bool | None = None

    def measures_for(self, subject: Subject) -> list[type[Measure]]:
        """The measures for a model: by default with probes if it is a causal language model."""
        chosen, probes = choose_measures(self.measures), MEASURES["probes"]
        is_causal = subject.abilities.kind == "decoder" and subject.source is not None
        if self.probe or (self.probe is None and takes_default(self.measures) and is_causal):
            return list(dict.fromkeys([*chosen, probes]))
        return [measure for measure in chosen if measure is not probes or self.probe is None]


class Examiner:
    """The part of an examination that one process runs."""

    def __init__(
        self,
        subject: Subject,
        text: TokenizedText,
        measures: Sequence[Measure],
        settings: ExamSettings,
        team: Team,
        advance: Callable[[int], None],
    ) -> None:
        self.subject, self.text, self.measures = subject, text, measures
        self.settings, self.team, self.advance = settings, team, advance
        self.accumulator = Accumulator(spec for measure in measures for spec in measure.declares())
        self.attended = AttendedSums(text)
        self.hook = MeasureHook(measures, self.accumulator, self.attended)
        self.notes: list[str] = [] if text.split_note is None else [text.split_note]
        self.unsound: dict[Kind, float] = {}
        self.refused: dict[tuple[str, Kind], str] = {}
        self.heads: dict[Slot, int] = {}
        self.own_readings: list[Reading] = []
        self.probe_measures = [measure for measure in measures if overrides(measure, "probe")]
        self.depth_measures, self.gradient_measures, self.ablation_measures, self.loss_measures = (
            [measure for measure in measures if overrides(measure, method)]
            for method in ("forward", "gradient", "ablated", "from_loss")
        )
        self.device = subject.device
        self.batches = team.share(range(len(text.batches)))
        self.needs_objective = bool(self.gradient_measures or self.ablation_measures or self.loss_measures)
        has_objective = self.needs_objective or settings.objective is not None
        self.objective = self._objective() if has_objective else None

    def work(self) -> int:
        """The number of sentences of this process, times how often the model runs on each."""
        ablations = 1 + sum(self._count_heads().values()) if self.ablation_measures else 0
        on_loss = sum(measure.passes for measure in self.loss_measures)
        passes = 1 + bool(self.depth_measures) + bool(self.gradient_measures) + on_loss + ablations
        probes = sum(measure.probe_sequences for measure in self.probe_measures) if self.team.leads else 0
        return passes * sum(len(self.text.batches[number]) for number in self.batches) + probes

    def run(self) -> None:
        objective = self.objective
        for number in self.batches:
            batch, rows = self.text.batch(number)
            batch = batch.to(self.device)
            with torch.inference_mode():
                self.subject.run(batch, self.hook)
            self.advance(len(batch))
            if self.depth_measures:
                self._run_deep(batch)
            if self.gradient_measures and objective is not None:
                self._gradients(batch, rows, objective)
            if self.ablation_measures and objective is not None:
                self._ablate(batch, rows, objective)
            self.accumulator.flush()
        if self.loss_measures and objective is not None:
            self.own_readings += self.team.gather(self._from_loss(objective) if self.team.leads else [])[0]
        if self.probe_measures:
            self.own_readings += self.team.gather(self._probe() if self.team.leads else [])[0]
        if self.settings.without:
            self.notes.append(f"run without {', '.join(self.settings.without)}, in float64")
        states = self.team.gather(self.accumulator.state())
        for rank, state in enumerate(states):
            if rank != self.team.rank:
                self.accumulator.merge(state)
        sums = self.team.gather(self.attended.state())
        for rank, state in enumerate(sums):
            if rank != self.team.rank:
                self.attended.merge(state)
        for measure, found in zip(self.measures, self._reasons(), strict=True):
            measure.reasons = found
        errors = [item for table in self.team.gather(self.unsound) for item in table.items()]
        self.unsound = {kind: max(error for other, error in errors if other == kind) for kind, _ in errors}
        for kind, worst in sorted(self.unsound.items()):
            why = f"its parts do not add up to its residual stream (relative error {worst:.1e})"
            self.notes.append(f"{_names(self.depth_measures)}: not reported for the {kind}, because {why}")
        refused = reversed(self.team.gather(self.refused))
        self.refused = dict(item for table in refused for item in table.items())
        self.notes.extend(f"{name}: not reported for the {kind}: {why}" for (name, kind), why in self.refused.items())
        self.notes = list(dict.fromkeys(self.notes))

    def _reasons(self) -> list[dict[Slot, str]]:
        """`reasons` of every measure; for each layer, that of the first process that has one."""
        gathered = self.team.gather([measure.reasons for measure in self.measures])
        by_measure = zip(*reversed(gathered), strict=True)
        return [dict(item for reasons in found for item in reasons.items()) for found in by_measure]

    def readings(self) -> Readings:
        """All readings, without those across depth of stacks that they are not known for."""
        readings = self.accumulator.readings(self._count_heads())
        names = {spec.name: measure.name for measure in self.depth_measures for spec in measure.declares()}
        refused = {*self.refused, *((name, kind) for name in names.values() for kind in self.unsound)}
        sound = [found for found in readings.values() if (names.get(found.name), found.kind) not in refused]
        readings = Readings([*sound, *self.own_readings])
        for measure in self.measures:
            for reading in measure.conclude(readings):
                readings.add(reading)
        chosen = self.settings.measures or ()
        for measure in self.measures:
            expected = measure not in self.depth_measures and not (measure.needs_pairs and measure.name not in chosen)
            if expected and not any(readings.of(spec.name) for spec in measure.declares()):
                self.notes.append(absence_note(measure))
            self.notes.extend(missing_notes(measure, readings, self._count_heads()))
            self.notes.extend(measure.remarks(readings))
        if len(self.text.kept) < MIN_SENTENCES_FOR_INTERVALS:
            self.notes.append(f"{sentences_are(len(self.text.kept))} too few for intervals and comparisons")
        return readings

    def _objective(self) -> Objective:
        labels = getattr(getattr(self.subject.model, "config", None), "id2label", None)
        chosen = choose_objective(
            self.settings.objective,
            self.subject.abilities,
            seed=self.settings.seed,
            sentences=self.text.passages,
            class_names=labels if self.subject.abilities.classes else None,
        )
        if chosen.of_whole_texts:
            self.text.check_whole(f"the objective {chosen.name!r}")
        used = f"the importance of heads is measured by the objective {chosen.name!r}: {chosen.description}"
        unused = f"the objective {chosen.name!r} was not used: only importance, ablation and bottleneck need one"
        self.notes.append(used if self.needs_objective else unused)
        return chosen

    def _run_deep(self, batch: Batch) -> None:
        """Measures across depth receive one stack at a time, if its parts add up to the residual stream."""
        if self.subject.blocks is None:
            self.notes.append(f"{_names(self.depth_measures)}: not applicable, {self.subject.no_blocks}")
            self.advance(len(batch))
            return
        with torch.inference_mode():
            for piece in _pieces(len(batch), _longest(batch)):
                traces, errors = record_forward(self.subject, batch.some(piece))
                sound: set[Kind] = {trace.kind for trace in traces}
                for (kind, _), error in errors.items():
                    if kind not in sound:
                        self.unsound[kind] = max(error, self.unsound.get(kind, 0.0))
                for trace in traces:
                    self._measure_depth(trace)
        self.advance(len(batch))

    def _measure_depth(self, trace: ForwardTrace) -> None:
        for measure in self.depth_measures:
            try:
                self._fold(measure.forward(trace))
            except UsageError as error:
                why = f"{error.asked} needs {error.expected}, got {error.got}"
                self.refused.setdefault((measure.name, trace.kind), why)

    def _gradients(self, batch: Batch, rows: Tensor, objective: Objective) -> None:
        """Some sentences at a time, since activations and logits stay in memory until the backward pass."""
        for piece in _pieces(len(batch), _longest(batch)):
            for slot, gradient in gate_gradients(self.subject, objective, batch.some(piece), rows[piece]).items():
                self._fold(
                    PlacedSample(name, slot, sample)
                    for measure in self.gradient_measures
                    for name, sample in measure.gradient(slot, gradient).items()
                )
        self.advance(len(batch))

    def _ablate(self, batch: Batch, rows: Tensor, objective: Objective) -> None:
        read = objective.prepare(batch)
        with torch.inference_mode():
            needs_logits = objective.reads_logits and self.subject.has_logits
            target = objective.target(self.subject.run(read, logits=needs_logits), batch, rows)
            self.advance(len(batch))
            for slot, heads in self._count_heads().items():
                changes: list[Tensor] = []
                for head in range(heads):
                    off = self.subject.run(read, HeadsOffHook([HeadId(slot, head)]), logits=needs_logits)
                    changes.append(objective.distance(off, target, batch, rows))
                    self.advance(len(batch))
                self._fold(
                    PlacedSample(name, slot, sample)
                    for measure in self.ablation_measures
                    if changes
                    for name, sample in measure.ablated(slot, torch.stack(changes, -1)).items()
                )

    def _from_loss(self, objective: Objective) -> list[Reading]:
        """Readings of measures that need the loss over the whole text."""
        loss, found = TextLoss(self.subject, objective, self.text), list[Reading]()
        for measure in self.loss_measures:
            readings, notes = measure.from_loss(loss, self.advance)
            found.extend(readings)
            self.notes.extend(notes)
        return found

    def _probe(self) -> list[Reading]:
        """Readings of measures with texts of their own."""
        found: list[Reading] = []
        for measure in self.probe_measures:
            readings, notes = measure.probe(self.subject, self.advance)
            found.extend(readings)
            self.notes.extend(notes)
        return found

    def _fold(self, placed: Iterable[PlacedSample]) -> None:
        for one in placed:
            self.accumulator.add(one)

    def _count_heads(self) -> dict[Slot, int]:
        """The number of heads of every attention layer, counted on the first sentence."""
        if not self.heads:
            counting = CountHeadsHook()
            with torch.inference_mode():
                self.subject.run(self._first_sentence(), counting)
            empty = {slot: 0 for slot, part in self.subject.layers.items() if not part.heads}
            self.heads = dict(sorted((empty | counting.heads).items())) if empty else counting.heads
        return self.heads

    def _first_sentence(self) -> Batch:
        return self.text.batch(0)[0].some(slice(0, 1)).to(self.device)

    def describe(self) -> dict[str, Any]:
        """The description of the model: the `model` of an examination."""
        model = self.subject.model
        heads = self._count_heads()
        kinds = list(dict.fromkeys(slot.kind for slot in heads))
        about: dict[str, Any] = {
            "name": self.subject.name,
            "class": type(model).__name__,
            "family": getattr(getattr(model, "config", None), "model_type", None) or "attnworks",
            "kinds": kinds,
            "layers": {kind: sum(slot.kind == kind for slot in heads) for kind in kinds},
            "heads": {str(slot): number for slot, number in heads.items()},
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        }
        if self.settings.without:
            about["without"] = list(self.settings.without)
        if self.subject.folder is not None and (curves := read_curves(self.subject.folder)):
            about[TRAINING] = curves
        if (first := self._first_token()) is not None:
            about["first_token"] = first
        if any(measure.name == "cost" for measure in self.measures):
            about["cost"] = cost_of_sentence(self.subject, self._first_sentence())
        return about

    def _first_token(self) -> str | None:
        """The name of the special token that begins every sentence of a model with one stack, such as [CLS] or <s>."""
        rows = self.text.sides[0]
        same = {row.ids[0] for row in rows if row.special and row.special[0]}
        if len(self.text.sides) > 1 or len(same) != 1 or not all(row.special and row.special[0] for row in rows):
            return None
        names = [self.subject.tokens_of(sentence)[0][0] for sentence in one_sentence(self.text)]
        return next((name for name in names if PLAIN_NAME.fullmatch(name)), None)


def _names(measures: Sequence[Measure]) -> str:
    return ", ".join(measure.name for measure in measures)


def run_examination(
    subject: Subject,
    passages: Sequence[Passage],
    settings: ExamSettings,
    *,
    about: dict[str, Any] | None = None,
    receipts: Sequence[ReshapeRecord] = (),
    team: Team | None = None,
    begin: Callable[[int, Mapping[str, str]], None] = lambda steps, costs: None,
    advance: Callable[[int], None] = lambda sentences: None,
) -> Examination:
    """Run every measure on the passages; each process takes its part of the batches, and results are merged.

    about       where the text comes from
    receipts    receipts of the reshapes that made the model, first to last
    begin       called with `Examiner.work()` and with the cost of each measure outside the default set
    advance     called with the number of sentences after each batch
    """
    team = Team() if team is None else team
    with eval_mode(subject.model):
        text = subject.read(passages, batch_tokens=settings.batch_tokens)
        pinned = (
            one_sentence(text)
            if settings.pin is None
            else [pinned_text(subject, line, settings.batch_tokens) for line in settings.pin]
        )
        context = MeasureContext(text.longest, settings.seed, len(text.kept), text.lengths)
        chosen = [measure(context) for measure in settings.measures_for(subject)]
        weightless = layers_without_weights(subject.model)
        measures = applicable_measures(chosen, settings.measures, weightless)
        exam = Examiner(subject, text, measures, settings, team, advance)
        if len(measures) < len(chosen):
            left_out = _names([measure for measure in chosen if measure not in measures])
            why = f"{weightless[0]} has no attention weights, but mixtures of any sign"
            exam.notes.append(f"left out: {left_out}; {why}")
        with in_float64(subject.model, bool(settings.without)), without_parts(subject, settings.without):
            begin(exam.work(), {measure.name: measure.cost_of_text() for measure in measures if not measure.default})
            exam.run()
            pins = tuple(pin_maps(subject, line) for line in pinned)
            about_model = exam.describe()
    if receipts and (lineage := lineage_of(receipts, about_model["heads"])) is not None:
        about_model[LINEAGE] = lineage.to_json()
    readings = exam.readings()
    first = about_model.get("first_token", FIRST_TOKEN)
    findings = tuple(replace(found, text=found.text.replace(FIRST_TOKEN, first)) for found in find(readings))
    return Examination(
        model=about_model, corpus={**(about or {}), **text.about()}, readings=readings,
        findings=findings, notes=(*subject.remarks, *subject.remarks_on_layers(), *exam.notes), pins=pins,
        attended=exam.attended.result(subject),
    )  # fmt: skip
