"""The examination itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnworks.data.passages import Passage, Side, embedded, from_texts
from attnworks.data.text_batch import Kind, TextBatch
from attnworks.decoding.evaluating import held_still
from attnworks.errors import UsageError
from attnworks.exam.examination import Examination, Pin
from attnworks.exam.examinee import Examinee, examinee_of
from attnworks.exam.findings import find
from attnworks.exam.folds import Folds
from attnworks.exam.plan import choose_measures
from attnworks.exam.text import ExamText, read_text
from attnworks.exam.walk import Walk, overrides
from attnworks.measures.contract import Measure, Placed, Setting
from attnworks.measures.cost import block_cost, measured_flops
from attnworks.measures.reading import Reading, Readings
from attnworks.objectives.choosing import choose
from attnworks.objectives.own_callable import OwnFunction
from attnworks.objectives.text import TextObjective
from attnworks.traces.forward import record_forward
from attnworks.traces.gates import CountHeads, HeadOff, OpenGates
from attnworks.traces.layer import LayerTrace, Slot
from attnworks.traces.maps import maps_of
from attnworks.traces.removing import without
from attnworks.traces.subject import Spectator
from attnworks.training.distributed import Team

SENTENCES = 256
TOKENS_PER_BATCH = 4096


def examine(
    model: Any,
    tokenizer: Any = None,
    texts: Sequence[str] | Sequence[Passage] | None = None,
    *,
    measures: Sequence[str] | str | None = None,
    objective: str | OwnFunction | None = None,
    without: Collection[str] = (),
    pin: Sequence[str] = (),
    max_tokens: int | None = None,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    seed: int = 0,
    name: str | None = None,
) -> Examination:
    """What every head of a model does, on texts (by default the embedded corpus).

    model      a path, a Hugging Face model, or one of attnworks; with its tokenizer, or vocabulary, beside it
    measures   names of measures; None for the default set, ["all"] for everything
    objective  "lm", "mlm", "seq2seq", "embedding", "labels:FILE", or a function of your own, for importance
    without    parts to run without: "skip", "mlp", "norm"
    pin        sentences whose attention maps are kept for display
    """
    examinee = examinee_of(model, tokenizer, name, max_tokens)
    if texts is None:
        passages, spec = embedded(SENTENCES), "grammar"
    else:
        passages, spec = _as_passages(texts), "texts"
    measures = measures.split(",") if isinstance(measures, str) else measures
    request = Request(measures, objective, tuple(without), tuple(pin), tokens_per_batch, seed)
    return run_examination(examinee, passages, request, about={"name": spec})


def _as_passages(texts: Sequence[str] | Sequence[Passage]) -> list[Passage]:
    if isinstance(texts, str):
        raise UsageError(
            asked="texts", expected="a list of them", got="a single string", remedy="put it into a list: [text]"
        )
    passages = [text if isinstance(text, Passage) else Passage(Side(text)) for text in texts if text != ""]
    return passages or from_texts([])[0]


@dataclass(frozen=True)
class Request:
    """What an examination is asked for; the arguments of `examine`."""

    measures: Sequence[str] | None = None
    objective: str | OwnFunction | None = None
    without: tuple[str, ...] = ()
    pin: tuple[str, ...] = ()
    tokens_per_batch: int = TOKENS_PER_BATCH
    seed: int = 0


def run_examination(
    examinee: Examinee,
    passages: Sequence[Passage],
    request: Request,
    *,
    about: dict[str, Any] | None = None,
    team: Team | None = None,
    begin: Callable[[int], None] = lambda steps: None,
    advance: Callable[[int], None] = lambda sentences: None,
) -> Examination:
    """Walk the model over every batch that is this process's, fold, merge with the others, and say what was found."""
    team = Team() if team is None else team
    with held_still(examinee.subject.model):
        text = read_text(examinee, passages, request.tokens_per_batch)
        pinned = [read_text(examinee, from_texts([line])[0], request.tokens_per_batch) for line in request.pin]
        measures = choose_measures(request.measures, Setting(text.longest, request.seed))
        exam = _Exam(examinee, text, measures, request, team, advance)
        with _InFloat64(examinee, bool(request.without)), without(examinee.subject, request.without):
            begin(exam.work())
            exam.run()
            pins = tuple(_pin(examinee, line) for line in pinned)
            about_model = exam.describe()
    readings = exam.readings()
    return Examination(
        model=about_model, corpus={**(about or {}), **text.about()}, readings=readings,
        findings=find(readings), notes=tuple(exam.notes), pins=pins,
    )  # fmt: skip


class _Exam:
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
        self.deep, self.graded, self.probing = (
            [measure for measure in measures if overrides(measure, look)] for look in ("forward", "gradient", "ablated")
        )
        self.device = next(self.subject.model.parameters()).device
        self.batches = team.share(range(len(text.batches)))
        wanted = self.graded or self.probing or request.objective is not None
        self.objective = self._objective() if wanted else None

    def work(self) -> int:
        """Sentences to go through, each as often as the model runs on it."""
        sentences = sum(len(self.text.batches[number]) for number in self.batches)
        return sentences * self._passes()

    def _passes(self) -> int:
        heads = sum(self._count_heads().values()) if self.probing else 0
        return 1 + bool(self.deep) + bool(self.graded) + (heads + 1 if self.probing else 0)

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
        if self.request.without:
            self.notes.append(f"run without {', '.join(self.request.without)}, in float64")
        states = self.team.gather(self.folds.state())
        for rank, state in enumerate(states):
            if rank != self.team.rank:
                self.folds.merge(state)
        self.unsound = _largest(self.team.gather(self.unsound))
        for kind, worst in sorted(self.unsound.items()):
            self.notes.append(
                f"{_names(self.deep)}: not reported for the {kind}, whose residual stream does not add up "
                f"(relative error {worst:.1e})"
            )
        self.notes = list(dict.fromkeys(self.notes))

    def readings(self) -> Readings:
        """All that was folded and what follows from it, without what must not be reported."""
        readings = self.folds.readings()
        deep = {declared.name for measure in self.deep for declared in measure.declares()}
        readings = Readings([
            reading for reading in readings.values() if reading.name not in deep or reading.kind not in self.unsound
        ])  # fmt: skip
        for measure in self.measures:
            for reading in measure.conclude(readings):
                readings.add(reading)
        for measure in self.measures:
            if not any(readings.of(declared.name) for declared in measure.declares()) and measure not in self.deep:
                self.notes.append(f"{measure.name}: not applicable to this model")
            silent = [
                declared.name
                for declared in measure.declares()
                if readings.of(declared.name) and all(_nobody(reading) for reading in readings.of(declared.name))
            ]
            if silent:
                self.notes.append(f"{', '.join(silent)}: no sentence had a say{_remedy(silent)}")
        if len(self.text.kept) < FEW:
            self.notes.append(f"{len(self.text.kept)} sentences are too few for roles, intervals and comparisons")
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
        self.notes.append(judged if self.graded or self.probing else unused)
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
        gates = OpenGates()
        with torch.enable_grad():
            outputs = self.subject.run(objective.prepare(batch), gates, scores=self._scores(objective))
            loss = objective.losses(outputs, batch, rows).sum()
            found = torch.autograd.grad(loss, list(gates.gates.values()), allow_unused=True)
        for (slot, gate), grad in zip(gates.gates.items(), found, strict=True):
            value = torch.zeros_like(gate) if grad is None else grad
            self._fold(
                Placed(name, slot, sample)
                for measure in self.graded
                for name, sample in measure.gradient(slot, value.detach()).items()
            )
        self.advance(len(batch))

    def _probe(self, batch: TextBatch, rows: Tensor, objective: TextObjective) -> None:
        read = objective.prepare(batch)
        with torch.inference_mode():
            whole = self.subject.run(read, scores=self._scores(objective))
            self.advance(len(batch))
            for slot, heads in self._count_heads().items():
                changes: list[Tensor] = []
                for head in range(heads):
                    off = self.subject.run(read, HeadOff(slot, head), scores=self._scores(objective))
                    changes.append(objective.distance(off, whole, batch, rows))
                    self.advance(len(batch))
                self._fold(
                    Placed(name, slot, sample)
                    for measure in self.probing
                    for name, sample in measure.ablated(slot, torch.stack(changes, -1)).items()
                )

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
            first = _rows(batch, slice(0, 1)).to(self.device)
            with torch.inference_mode():
                self.subject.run(first, counting)
            self.heads = counting.heads
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
            **self.examinee.about,
        }

    def _cost(self) -> dict[str, Any]:
        """Parameters, FLOPs and bytes of every part for the first sentence, and the FLOPs that torch counts."""
        batch, _ = self.text.batch(0)
        first = _rows(batch, slice(0, 1)).to(self.device)
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


FEW = 3


def _nobody(reading: Reading) -> bool:
    return reading.count is not None and not any(bool(row.any()) for row in reading.count)


def _remedy(silent: Sequence[str]) -> str:
    if "roles.syntactic" in silent:
        return "; syntax comes from --parses or from the embedded corpus"
    return "; the bounds do not apply to this attention" if silent[0].startswith("bounds.") else ""


class _KeepMaps(Spectator):
    def __init__(self) -> None:
        self.maps: dict[Slot, Tensor] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        self.maps[trace.slot] = torch.cat([piece.P for piece in maps_of(trace)], 1)[0]
        return None


def _pin(examinee: Examinee, text: ExamText) -> Pin:
    """The attention maps of one sentence, all of them."""
    batch, _ = text.batch(0)
    keep = _KeepMaps()
    with torch.inference_mode():
        examinee.subject.run(batch.to(next(examinee.subject.model.parameters()).device), keep)
    spelled = [
        tuple(spell(token) for token in rows[0].ids) for spell, rows in zip(examinee.spell, text.sides, strict=False)
    ]
    return Pin.of(spelled[0], keep.maps, spelled[1] if len(spelled) > 1 else None)


class _InFloat64:
    """The model in float64 for a while, where differences between tokens may become tiny; then each part as it was."""

    def __init__(self, examinee: Examinee, wanted: bool) -> None:
        self.model = examinee.subject.model
        self.before: list[tuple[Tensor, torch.dtype]] = []
        if wanted:
            everything = (*self.model.parameters(), *self.model.buffers())
            self.before = [(tensor, tensor.dtype) for tensor in everything if tensor.is_floating_point()]

    def __enter__(self) -> None:
        for tensor, _ in self.before:
            tensor.data = tensor.data.double()

    def __exit__(self, *_: object) -> None:
        for tensor, dtype in self.before:
            tensor.data = tensor.data.to(dtype)


TOKENS_IN_DEPTH = 1024
"""Whole forward passes are kept for about so many tokens at a time."""


def _small(batch: TextBatch) -> Iterable[TextBatch]:
    longest = max(side.ids.shape[1] for side in batch if side is not None)
    step = max(1, TOKENS_IN_DEPTH // longest)
    for start in range(0, len(batch), step):
        yield _rows(batch, slice(start, start + step))


def _rows(batch: TextBatch, rows: slice) -> TextBatch:
    def some(tokens):
        if tokens is None:
            return None
        width = int(tokens.real[rows].sum(-1).max())
        fields = {name: None if value is None else value[rows, :width] for name, value in vars(tokens).items()}
        return replace(tokens, **fields)

    source, target = batch
    return TextBatch(some(source), some(target))  # pyright: ignore[reportArgumentType]


def _largest(tables: Iterable[dict[Kind, float]]) -> dict[Kind, float]:
    found: dict[Kind, float] = {}
    for table in tables:
        found |= {kind: max(number, found.get(kind, 0.0)) for kind, number in table.items()}
    return found


def _names(measures: Sequence[Measure]) -> str:
    return ", ".join(measure.name for measure in measures)
