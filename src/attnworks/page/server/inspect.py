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
from attnworks.exam.findings import find
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measure_hook import MeasureHook
from attnworks.exam.measures import choose_measures, layers_without_weights
from attnworks.exam.statistics import Accumulator
from attnworks.models.decoding import BeamStep, beam
from attnworks.models.decoding.translate import max_target_tokens, spelled_step
from attnworks.models.modes import inference_mode
from attnworks.page.sentences import PageSentence
from attnworks.text.passages import Passage, Text
from attnworks.text.tokenizers import MIN_TEXT_TOKENS, HuggingFaceReader, VocabularyReader
from attnworks.text.tokens import Batch, TokenRow, collate, count_rarity
from attnworks.text.vocabulary import BOS, EOS, PAD, UNK
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
    sides, pads, written = [[source]], [subject.source.pad_id], None
    if subject.target is not None:
        written = write_target(subject, source)
        sides, pads = [*sides, [written.row]], [*pads, subject.target.pad_id]
    subject.check_ids(sides)
    text = TokenizedText(
        tuple(sides), tuple(pads), tuple(map(count_rarity, sides)), batches=[[0]], kept=[0], passages=1,
        written=len(sides) - 1,
    )  # fmt: skip
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
    max_new_tokens = max_target_tokens(len(source))
    if target.max_length is not None:
        max_new_tokens = min(max_new_tokens, target.max_length - 1)
    ((found,),) = beam(
        model,  # pyright: ignore[reportArgumentType]
        read.ids, read.real, bos=BOS, eos=EOS, max_new_tokens=max_new_tokens, beams=LIVE_BEAMS,
        observe=steps.append,
    )  # fmt: skip
    text = target.vocabulary.text(found.tokens)
    ids = [token for token in found.tokens if token != EOS]
    ids += [EOS] * (MIN_TEXT_TOKENS - len(ids))
    row = TokenRow((BOS, *ids), (True, *(False for _ in ids)), (-1, *range(len(ids))))
    beam_steps = [spelled_step(step, target.vocabulary) for step in steps]
    return WrittenTarget(row, tuple(text.split()), text, found.logprob, beam_steps)


def inspect_sentence(subject: Subject, read: SentenceInput, model: Mapping[str, Any]) -> SentencePass:
    """Run the model once; `model` is the description of the model in the examination."""
    names = LIVE_MEASURES[:1] if layers_without_weights(subject.model) else LIVE_MEASURES
    context = MeasureContext(read.text.longest)
    measures = [measure(context) for measure in choose_measures(names)]
    sums, maps = Accumulator(spec for measure in measures for spec in measure.declares()), KeepMapsHook()
    with inference_mode(subject.model):
        hook = _BothHooks(MeasureHook(measures, sums), maps)
        outputs = subject.run(read.batch(subject), hook, logits=subject.has_logits)
        readings = sums.readings({Slot.parse(name): number for name, number in model["heads"].items()})
        pin = pin_of(subject, read.text, maps)
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
    abilities, written = subject.abilities, read.written
    if written is not None:
        if written.words is None:
            return ModelOutput("the model gives no words, only vectors; its decoder reads the sentence itself", [])
        probability = None if written.logprob is None else math.exp(written.logprob)
        return ModelOutput("what the model writes for it", [OutputToken(written.text, probability)])
    if outputs.logits is None:
        return ModelOutput("the model gives no words, only vectors", [])
    if abilities.classes is not None:
        return _classes(getattr(subject.model, "config", None), outputs.logits[0])
    if abilities.kind == "decoder":
        return ModelOutput("the most probable next tokens", _top_tokens(subject, outputs.logits[0, -1]))
    ids = read.text.sides[0][0].ids
    if abilities.mask_id is None:
        return ModelOutput("the model has no mask token, so it fills in no words", [])
    if abilities.mask_id not in ids:
        hidden = subject.token(abilities.mask_id)
        return ModelOutput(f"put {hidden} in place of a word to see what the model would fill in", [])
    logits = outputs.logits[0, ids.index(abilities.mask_id)]
    return ModelOutput("what the model would fill in for the first hidden word", _top_tokens(subject, logits))


def _classes(config: Any, logits: Float[Tensor, " c"]) -> ModelOutput:
    """One class is a score (regression); classes of a multi-label problem have independent probabilities."""
    names = getattr(config, "id2label", None) or {}
    if len(logits) == 1:
        return ModelOutput("the score", [OutputToken(f"{names.get(0, 0)}: {float(logits[0]):.4g}", None)])
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    P = logits.double().sigmoid() if several else logits.double().softmax(-1)
    return ModelOutput("the most probable classes", [OutputToken(str(names.get(id, id)), p) for id, p in _largest(P)])


def _top_tokens(subject: Subject, logits: Float[Tensor, " w"]) -> list[OutputToken]:
    return [OutputToken(subject.token(id), p) for id, p in _largest(logits.double().softmax(-1))]


def _largest(P: Float[Tensor, " w"]) -> list[tuple[int, float]]:
    """The largest probabilities with their places, the largest first."""
    p, places = P.topk(min(OUTPUTS_SHOWN, len(P)))
    return list(zip(places.tolist(), p.tolist(), strict=True))


def unknown_words(subject: Subject, passage: Passage) -> list[str]:
    """The words between blanks that the vocabulary of a model lacks, in their order, each once."""
    reader = subject.source
    if isinstance(reader, VocabularyReader):
        unknown: int | None = UNK
    else:
        assert isinstance(reader, HuggingFaceReader)
        unknown = reader.tokenizer.unk_token_id if isinstance(reader.tokenizer.unk_token_id, int) else None
    words = dict.fromkeys(passage.source.text.split())
    return [word for word in words if unknown is not None and unknown in reader.read(Text(word)).text_ids]


def embedding_cosine(before: Float[Tensor, "1 i e"], after: Float[Tensor, "1 i e"]) -> float:
    """cos(m, m') of the mean token vectors of one sentence, by which sentence embeddings are compared.

    Source: mean pooling and cosine of Reimers and Gurevych 2019.
    """
    wide = torch.promote_types(before.dtype, torch.float32)
    return float(torch.cosine_similarity(before.to(wide).mean(1), after.to(wide).mean(1)))


def relative_change(before: Float[Tensor, "b i e"], after: Float[Tensor, "b i e"]) -> float:
    """|X' - X| / |X| of the last residual stream."""
    wide = torch.promote_types(before.dtype, torch.float32)
    X = before.to(wide)
    return float((after.to(wide) - X).norm() / X.norm().clamp_min(torch.finfo(wide).tiny))
