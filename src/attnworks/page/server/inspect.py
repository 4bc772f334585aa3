"""One sentence in one forward pass: its attention maps, cheap measures, and the output of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.places import Slot
from attnworks.exam.examination import Examination, KeepMapsHook, pin_of
from attnworks.exam.examiner import MeasureHook
from attnworks.exam.findings import find
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measures import choose_measures, layers_without_weights
from attnworks.exam.statistics import Accumulator
from attnworks.models.decoding import BeamStep, beam
from attnworks.models.decoding.translate import max_target_tokens, spelled_step
from attnworks.models.modes import inference_mode
from attnworks.page.sentences import PageSentence
from attnworks.text.passages import Passage
from attnworks.text.tokenizers import MIN_TEXT_TOKENS, HuggingFaceReader, VocabularyReader
from attnworks.text.tokens import Batch, TokenRow, collate, count_rarity
from attnworks.text.vocabulary import BOS, EOS, PAD
from attnworks.traces.layer import LayerTrace, StreamTrace
from attnworks.traces.subject import LayerHook, Subject
from attnworks.traces.text import TokenizedText
from attnworks.training.objectives.contract import Outputs

LIVE_MEASURES = ("rank", "saturation")
LIVE_BEAMS = 4

OUTPUTS_SHOWN = 5


@dataclass(frozen=True, eq=False)
class WrittenTarget:
    """The target that an encoder-decoder wrote for a sentence.

    row         the tokens that the decoder reads
    words       None for a model without output layer, whose decoder reads the sentence itself
    logprob     of the whole target, if known
    beam        steps of the beam search, if there was one
    """

    row: TokenRow
    words: tuple[str, ...] | None
    text: str = ""
    logprob: float | None = None
    beam: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, eq=False)
class SentenceInput:
    """The tokens of a sentence, and the target that an encoder-decoder wrote for it."""

    text: TokenizedText
    written: WrittenTarget | None

    @property
    def is_short(self) -> bool:
        """Whether it has fewer tokens than most measures need."""
        return any(len(row.text_ids) < MIN_TEXT_TOKENS for rows in self.text.sides for row in rows)

    def batch(self, subject: Subject) -> Batch:
        return self.text.batch(0)[0].to(subject.device)


@dataclass(frozen=True, eq=False)
class SentencePass:
    """The results of one forward pass."""

    exam: Examination
    sentence: PageSentence
    outputs: Outputs


def read_sentence(subject: Subject, passage: Passage) -> SentenceInput:
    """The tokens of a sentence; an encoder-decoder writes the target itself."""
    assert subject.source is not None
    source = subject.source.read(passage.source)
    written = None if subject.target is None else write_target(subject, source)
    rows = [source] if written is None else [source, written.row]
    subject.check_ids([[row] for row in rows])
    pads = [subject.source.pad_id, *([] if subject.target is None else [subject.target.pad_id])]
    rarities = tuple(count_rarity([row]) for row in rows)
    text = TokenizedText(tuple([row] for row in rows), tuple(pads), rarities, [[0]], [0], 1, len(rows) - 1)
    return SentenceInput(text, written)


def write_target(subject: Subject, source: TokenRow) -> WrittenTarget:
    """The target of a source: by beam search for models of attnworks, else by the model's own generation.

    A target of attnworks that is too short to measure is filled up with end tokens.
    """
    target, model = subject.target, subject.model
    if not isinstance(target, VocabularyReader):
        assert isinstance(target, HuggingFaceReader)
        with inference_mode(model):
            (row,) = subject.write_targets([source])
        if not subject.has_logits:
            return WrittenTarget(row, None)
        words = tuple(subject.token(token, "target") for token in row.ids[1:])
        return WrittenTarget(row, words, str(target.tokenizer.decode(list(row.ids[1:]), skip_special_tokens=True)))
    steps: list[BeamStep] = []
    read = collate([source], PAD).to(subject.device)
    longest = max_target_tokens(len(source))
    longest = longest if target.max_length is None else min(longest, target.max_length - 1)
    ((found,),) = beam(
        model,  # pyright: ignore[reportArgumentType]
        read.ids, read.real, bos=BOS, eos=EOS, max_new_tokens=longest, beams=LIVE_BEAMS, observe=steps.append,
    )  # fmt: skip
    words = tuple(target.vocabulary.decode(found.tokens))
    ids = [token for token in found.tokens if token != EOS]
    ids += [EOS] * (MIN_TEXT_TOKENS - len(ids))
    row = TokenRow((BOS, *ids), (True, *(False for _ in ids)), (-1, *range(len(ids))))
    tree = [spelled_step(step, target.vocabulary) for step in steps]
    return WrittenTarget(row, words, " ".join(words), found.logprob, tree)


def inspect_sentence(subject: Subject, read: SentenceInput, model: Mapping[str, Any]) -> SentencePass:
    """Run the model once; `model` is the description of the model in the examination."""
    names = LIVE_MEASURES[:1] if layers_without_weights(subject.model) else LIVE_MEASURES
    context = MeasureContext(read.text.longest)
    measures = [measure(context) for measure in choose_measures(names)]
    folds, keep = Accumulator(declared for measure in measures for declared in measure.declares()), KeepMapsHook()
    with inference_mode(subject.model):
        outputs = subject.run(
            read.batch(subject), _BothHooks(MeasureHook(measures, folds), keep), logits=subject.has_logits
        )
        readings = folds.readings({Slot.parse(name): number for name, number in model["heads"].items()})
        pin = pin_of(subject, read.text, keep)
    exam = Examination(model, {"name": "this sentence", **read.text.about()}, readings, find(readings))
    written = read.written
    sentence = PageSentence(pin) if written is None else PageSentence(pin, written.words, written.beam)
    return SentencePass(exam, sentence, outputs)


class _BothHooks(LayerHook):
    """Calls two hooks that change nothing."""

    def __init__(self, one: LayerHook, other: LayerHook) -> None:
        self.both = one, other

    def attention(self, trace: LayerTrace) -> Tensor | None:
        for hook in self.both:
            hook.attention(trace)

    def stream(self, stream: StreamTrace) -> None:
        for hook in self.both:
            hook.stream(stream)


class OutputToken(NamedTuple):
    text: str
    probability: float | None


class ModelOutput(NamedTuple):
    """A description of the outputs, and the outputs with the most probable first."""

    words: str
    outputs: list[OutputToken]


def describe_output(subject: Subject, read: SentenceInput, outputs: Outputs) -> ModelOutput:
    """The translation, the next token, the masked word or the class, by the kind of the model."""
    able, written = subject.abilities, read.written
    if written is not None:
        if written.words is None:
            return ModelOutput("the model gives no words, only vectors; its decoder reads the sentence itself", [])
        probability = None if written.logprob is None else math.exp(written.logprob)
        return ModelOutput("what the model writes for it", [OutputToken(written.text, probability)])
    if outputs.logits is None:
        return ModelOutput("the model gives no words, only vectors", [])
    if able.classes is not None:
        return _classes(getattr(subject.model, "config", None), outputs.logits[0])
    if able.kind == "decoder":
        return ModelOutput("the most probable next tokens", _spelled_id(subject, outputs.logits[0, -1]))
    ids = read.text.sides[0][0].ids
    if able.mask_id is None:
        return ModelOutput("the model has no token for a hidden word, which it could fill in", [])
    if able.mask_id not in ids:
        hidden = subject.token(able.mask_id)
        return ModelOutput(f"put {hidden} in place of a word to see what the model would fill in", [])
    return ModelOutput(
        "what the model would fill in for the first hidden word",
        _spelled_id(subject, outputs.logits[0, ids.index(able.mask_id)]),
    )


def _classes(config: Any, scores: Float[Tensor, " c"]) -> ModelOutput:
    """One class is a score (regression); classes of a multi-label problem have independent probabilities."""
    named = getattr(config, "id2label", None) or {}
    if len(scores) == 1:
        return ModelOutput("the score", [OutputToken(f"{named.get(0, 0)}: {float(scores[0]):.4g}", None)])
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    chances = scores.double().sigmoid() if several else scores.double().softmax(-1)
    return ModelOutput(
        "the most probable classes", [OutputToken(str(named.get(at, at)), p) for at, p in _largest(chances)]
    )


def relative_change(before: Float[Tensor, "b i e"], after: Float[Tensor, "b i e"]) -> float:
    """|X' - X| / |X| of the last residual stream."""
    wide = torch.promote_types(before.dtype, torch.float32)
    X = before.to(wide)
    return float((after.to(wide) - X).norm() / X.norm().clamp_min(torch.finfo(wide).tiny))


def _spelled_id(subject: Subject, scores: Float[Tensor, " w"]) -> list[OutputToken]:
    return [OutputToken(subject.token(token), p) for token, p in _largest(scores.double().softmax(-1))]


def _largest(chances: Float[Tensor, " w"]) -> list[tuple[int, float]]:
    p, places = chances.topk(min(OUTPUTS_SHOWN, len(chances)))
    return list(zip(places.tolist(), p.tolist(), strict=True))
