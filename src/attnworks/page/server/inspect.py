"""One sentence in one forward pass: its maps, what is cheap to measure, and what the model predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.exam.choice import choose_measures, without_weights
from attnworks.exam.examination import Examination, KeepMaps, pin_of
from attnworks.exam.findings import find
from attnworks.exam.measure import Setting
from attnworks.exam.measure_hook import Walk
from attnworks.exam.statistics import Folds
from attnworks.models.decoding import BeamStep, beam
from attnworks.models.decoding.translate import longest_target
from attnworks.models.modes import evaluating
from attnworks.page.sentences import Sentence
from attnworks.text.passages import Passage
from attnworks.text.tokenizers import FEWEST, HuggingFaceReader, VocabularyReader
from attnworks.text.tokens import TextBatch, TokenRow, collate_tokens, count_rarity
from attnworks.text.vocabulary import BOS, EOS, PAD
from attnworks.traces.layer import LayerTrace, Slot, StreamTrace
from attnworks.traces.subject import Examinee, Spectator, Subject
from attnworks.traces.text import ExamText, check_ids
from attnworks.training.objectives.contract import Outputs

MEASURES = ("rank", "saturation")
BEAMS = 4

SHOWN = 5


@dataclass(frozen=True, eq=False)
class Written:
    """What a model with two sides wrote: the row that its decoder reads, the words, and how they were found.

    words       None for a model that cannot write, whose decoder reads the sentence itself
    logprob     of the whole, where it is known
    beam        steps of the beam search, if there was one
    """

    row: TokenRow
    words: tuple[str, ...] | None
    text: str = ""
    logprob: float | None = None
    beam: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, eq=False)
class Read:
    """A sentence as the model reads it, and what it wrote for it, where there are two sides."""

    text: ExamText
    written: Written | None

    @property
    def is_short(self) -> bool:
        """Whether it has too few tokens for readings that need several."""
        return any(len(row.text_ids) < FEWEST for rows in self.text.sides for row in rows)

    def batch(self, subject: Subject) -> TextBatch:
        return self.text.batch(0)[0].to(next(subject.model.parameters()).device)


@dataclass(frozen=True, eq=False)
class Looked:
    """What one pass showed."""

    exam: Examination
    sentence: Sentence
    outputs: Outputs


def read_sentence(examinee: Examinee, passage: Passage) -> Read:
    """The tokens of a sentence; where there are two sides, the model itself writes the other."""
    source = examinee.source.read(passage.source)
    written = None if examinee.target is None else write(examinee, source)
    rows = [source] if written is None else [source, written.row]
    for row, words in zip(rows, examinee.words, strict=False):
        check_ids([row], words, examinee.subject.name)
    pads = [examinee.source.pad_id, *([] if examinee.target is None else [examinee.target.pad_id])]
    rarities = tuple(count_rarity([row]) for row in rows)
    text = ExamText(tuple([row] for row in rows), tuple(pads), rarities, [[0]], [0], 1, len(rows) - 1)
    return Read(text, written)


def write(examinee: Examinee, source: TokenRow) -> Written:
    """By beam search, where the model is ours; else as the model itself writes.

    A model of ours that writes hardly anything is looked at as it reads the end of the sentence.
    """
    target, model = examinee.target, examinee.subject.model
    if not isinstance(target, VocabularyReader):
        assert examinee.write is not None and isinstance(target, HuggingFaceReader)
        with evaluating(model):
            (row,) = examinee.write(model, [source])
        if not has_scores(examinee.subject):
            return Written(row, None)
        words = tuple(examinee.spell[1](token) for token in row.ids[1:])
        return Written(row, words, str(target.tokenizer.decode(list(row.ids[1:]), skip_special_tokens=True)))
    steps: list[BeamStep] = []
    read = collate_tokens([source], PAD).to(next(model.parameters()).device)
    longest = longest_target(len(source))
    longest = longest if target.longest is None else min(longest, target.longest - 1)
    ((found,),) = beam(
        model,  # pyright: ignore[reportArgumentType]
        read.ids, read.real, bos=BOS, eos=EOS, longest=longest, beams=BEAMS, observe=steps.append,
    )  # fmt: skip
    words = tuple(target.vocabulary.decode(found.tokens))
    ids = [token for token in found.tokens if token != EOS]
    ids += [EOS] * (FEWEST - len(ids))
    row = TokenRow((BOS, *ids), (True, *(False for _ in ids)), (-1, *range(len(ids))))
    return Written(row, words, " ".join(words), found.logprob, [_spelled(step, target) for step in steps])


def _spelled(step: BeamStep, target: VocabularyReader) -> dict[str, Any]:
    """A step of the search as a page has it."""
    return {
        kind: [
            {"parent": found.parent, "token": target.vocabulary.token(found.token), "logprob": found.logprob}
            for found in candidates
        ]
        for kind, candidates in (("kept", step.kept), ("ended", step.ended))
    }


def as_written(examinee: Examinee, read: Read) -> Examinee:
    """The same, which writes what it has written already."""
    written = read.written
    return examinee if written is None else replace(examinee, write=lambda model, sources: [written.row])


def look(examinee: Examinee, read: Read, model: Mapping[str, Any]) -> Looked:
    """`model` is what the examination says about the model."""
    subject = examinee.subject
    names = MEASURES[:1] if without_weights(subject.model) else MEASURES
    measures = choose_measures(names, Setting(read.text.longest, sentences=1))
    folds, keep = Folds(declared for measure in measures for declared in measure.declares()), KeepMaps()
    with evaluating(subject.model):
        outputs = subject.run(read.batch(subject), _Together(Walk(measures, folds), keep), scores=has_scores(subject))
        readings = folds.readings({Slot.parse(name): number for name, number in model["heads"].items()})
        pin = pin_of(examinee, read.text, keep)
    exam = Examination(model, {"name": "this sentence", **read.text.about()}, readings, find(readings))
    written = read.written
    sentence = Sentence(pin) if written is None else Sentence(pin, written.words, written.beam)
    return Looked(exam, sentence, outputs)


def has_scores(subject: Subject) -> bool:
    """Whether the model says something beyond its last stream."""
    return subject.abilities.vocabulary or subject.abilities.classes is not None


class _Together(Spectator):
    """Shows everything to two that only look."""

    def __init__(self, one: Spectator, other: Spectator) -> None:
        self.both = one, other

    def attention(self, trace: LayerTrace) -> Tensor | None:
        for spectator in self.both:
            spectator.attention(trace)

    def stream(self, stream: StreamTrace) -> None:
        for spectator in self.both:
            spectator.stream(stream)


class Output(NamedTuple):
    text: str
    probability: float | None


class Said(NamedTuple):
    """What the outputs are, in words, and the outputs, the most probable first."""

    words: str
    outputs: list[Output]


def say(examinee: Examinee, read: Read, outputs: Outputs) -> Said:
    """The translation, the next token, the hidden word or the class: what the model is made to say."""
    able, written = examinee.subject.abilities, read.written
    if written is not None:
        if written.words is None:
            return Said("the model gives no words, only vectors; its decoder reads the sentence itself", [])
        probability = None if written.logprob is None else math.exp(written.logprob)
        return Said("what the model writes for it", [Output(written.text, probability)])
    if outputs.scores is None:
        return Said("the model gives no words, only vectors", [])
    if able.classes is not None:
        return _classes(getattr(examinee.subject.model, "config", None), outputs.scores[0])
    if able.kind == "decoder":
        return Said("the most probable next tokens", _spelled_id(examinee, outputs.scores[0, -1]))
    ids = read.text.sides[0][0].ids
    if able.mask_id is None:
        return Said("the model has no token for a hidden word, which it could fill in", [])
    if able.mask_id not in ids:
        hidden = examinee.spell[0](able.mask_id)
        return Said(f"put {hidden} in place of a word to see what the model would fill in", [])
    return Said(
        "what the model would fill in for the first hidden word",
        _spelled_id(examinee, outputs.scores[0, ids.index(able.mask_id)]),
    )


def _classes(config: Any, scores: Float[Tensor, " c"]) -> Said:
    """A single class is a score, not a choice; classes that do not exclude one another have chances of their own."""
    named = getattr(config, "id2label", None) or {}
    if len(scores) == 1:
        return Said("the score", [Output(f"{named.get(0, 0)}: {float(scores[0]):.4g}", None)])
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    chances = scores.double().sigmoid() if several else scores.double().softmax(-1)
    return Said("the most probable classes", [Output(str(named.get(at, at)), p) for at, p in _largest(chances)])


def moved(before: Float[Tensor, "b i e"], after: Float[Tensor, "b i e"]) -> float:
    """|X' - X| / |X| of the last stream."""
    wide = torch.promote_types(before.dtype, torch.float32)
    X = before.to(wide)
    return float((after.to(wide) - X).norm() / X.norm().clamp_min(torch.finfo(wide).tiny))


def _spelled_id(examinee: Examinee, scores: Float[Tensor, " w"]) -> list[Output]:
    spell: Any = examinee.spell[0]
    return [Output(spell(token), p) for token, p in _largest(scores.double().softmax(-1))]


def _largest(chances: Float[Tensor, " w"]) -> list[tuple[int, float]]:
    p, places = chances.topk(min(SHOWN, len(chances)))
    return list(zip(places.tolist(), p.tolist(), strict=True))
