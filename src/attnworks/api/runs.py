"""`attnworks.train` and `attnworks.translate`: train a model on pairs of texts, and translate with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from attnworks.api.subjects import as_subject
from attnworks.core.checks import integer, number
from attnworks.core.errors import UsageError
from attnworks.core.folders import with_sha256, write_file
from attnworks.core.team import Team
from attnworks.models import decoding
from attnworks.models.decoding import Hypothesis
from attnworks.models.decoding.translate import EMPTY_HYPOTHESIS, TRACE_FORMAT, decode_sentences, trace_translation
from attnworks.text.vocabulary import BOS, EOS, UNK, Vocabulary, VocabularyKind
from attnworks.text.words import words
from attnworks.traces.subject import Subject, open_subject
from attnworks.training.events import Watcher
from attnworks.training.fit import ScheduleKind
from attnworks.training.recipe import Recipe
from attnworks.training.run import STOP_FIELDS, Run

AnyPath = str | os.PathLike[str]
DEFAULT_EPOCHS = 20.0
_SETTINGS = tuple(name for name in Recipe.__dataclass_fields__ if name != "preset")
_FIXED = {"corpus", "pairs", "mechanism", "vocabulary", "vocabulary_size", "batch_tokens", "accumulate", "seed"}
"""Settings that a run cannot change when it is resumed: they decide which steps were made before."""


def train(
    preset: str | None = None,
    corpus: str | None = None,
    *,
    out: AnyPath | None = None,
    resume: AnyPath | None = None,
    pairs: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    mechanism: str | None = None,
    vocabulary: VocabularyKind | None = None,
    vocabulary_size: int | None = None,
    batch_tokens: int | None = None,
    accumulate: int | None = None,
    learning_rate: float | None = None,
    schedule: ScheduleKind | None = None,
    warmup: int | None = None,
    smoothing: float | None = None,
    dropout: float | None = None,
    clip: float | None = None,
    validate_every: int | None = None,
    score_sentences: int | None = None,
    keep_every: int | None = None,
    patience: int | None = None,
    grow_until: str | None = None,
    grow_every: int | None = None,
    grow_by: int | None = None,
    device: str | None = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    threads: int | None = None,
    seed: int | None = None,
    watchers: Sequence[Watcher] = (),
    should_stop: Callable[[], bool] = lambda: False,
    on_start: Callable[[Run], None] = lambda run: None,
    team: Team | None = None,
) -> Subject:
    """Train a model on pairs of texts, or continue training one.

    Every setting is None by default: a new run takes the value named below, and a resumed run keeps its own. A resumed
    run takes new settings too, except those that decide which steps were made before: `corpus`, `pairs`, `mechanism`,
    `vocabulary`, `vocabulary_size`, `batch_tokens`, `accumulate` and `seed`.

    Args:
        preset: Name of the model: "tiny", "base", "conti-1h", "conti-8h", "lstm-plain", "lstm-dot",
            "lstm-multiplicative" or "lstm-additive". Default: None, with `resume`.
        corpus: Pairs to train on: "grammar", "tsv:FILE", "text:SRC,TGT", "gettext:DIR" or "opus_books".
            Default: "grammar".
        out: Folder of the new run; it must not exist yet. Default: None, with `resume`.
        resume: Folder of a run to continue, exactly where it stopped. Default: None, start a new one.
        pairs: Train on at most this number of pairs. Default: all.
        epochs: Stop after this number of passes over the corpus. Default: 20, unless `steps` or `minutes` is given.
        steps: Stop after this number of optimizer steps. Default: no limit.
        minutes: Stop after this number of minutes of training in total, with those before `resume`. Default: no limit.
        mechanism: Attention of every layer that supports it, for example "window:window=16". Default: the preset's.
        vocabulary: Split text into whole words ("word") or byte pairs ("bpe"). Default: "word".
        vocabulary_size: Largest number of different tokens on each side. Default: 32,000.
        batch_tokens: Tokens on the larger padded side of a batch. Default: 640.
        accumulate: Batches per optimizer step. Default: 1.
        learning_rate: Peak learning rate. Default: 7e-4.
        schedule: Schedule of the learning rate: "warmup", "cosine" or "constant". Default: "warmup".
        warmup: Steps until the peak learning rate. Default: 300.
        smoothing: Label smoothing. Default: 0.1.
        dropout: Dropout probability. Default: 0.1.
        clip: Clip gradients to this norm. Default: 1.0.
        validate_every: Steps between validations, each of which saves a checkpoint. Default: 500.
        score_sentences: Held-out sentences to translate at each validation, for BLEU and chrF. Default: 200.
        keep_every: Steps between checkpoints that are never deleted. Default: keep the best and the last.
        patience: Stop after this number of validations without a better loss. Default: do not.
        grow_until: Grow heads up to these sizes where it lowers the loss: "d_k=64,d_v=32,heads=8". Default: do not.
        grow_every: Steps between attempts to grow. Default: 500.
        grow_by: Columns to add each time, in total. Default: an eighth of what is missing.
        device: Device to compute on: "cpu", "cuda", "cuda:1" or "mps". Default: "cpu".
        dtype: Number type of the activations: "float32" or "bfloat16". Default: "float32".
        threads: Number of CPU threads. Default: torch's choice. The same number gives the same weights.
        seed: Random seed of weights, order and dropout. Default: 0.
        watchers: Functions that are called with every event (`attnworks.training.events`): a step, a validation, a
            growth. Default: none.
        should_stop: Called before every step; True stops training after a checkpoint. Default: never.
        on_start: Called with the `Run` before its first step. Default: nothing.
        team: Processes that train together under torchrun. Default: None, this process alone.

    Returns:
        The `Subject` with the best checkpoint; `subject.folder` is the folder of the run.

    >>> run = attnworks.train("tiny", steps=200, out="runs/quick")  # doctest: +SKIP
    >>> attnworks.translate(run, ["The chair is new ."])  # doctest: +SKIP
    """
    arguments = locals()
    settings = {name: arguments[name] for name in _SETTINGS if arguments[name] is not None}
    if resume is not None and preset is None and out is None:
        run = _resumed(Path(resume), settings, team)
    elif resume is None and preset is not None and out is not None:
        limits = {} if settings.keys() & set(STOP_FIELDS) else {"epochs": DEFAULT_EPOCHS}
        recipe = Recipe(preset=preset, **limits, **settings)
        if threads is not None:
            torch.set_num_threads(threads)
        run = Run.create(recipe, Path(out), team)
    else:
        got = ", ".join(name for name in ("preset", "out", "resume") if arguments[name] is not None)
        remedy = 'for instance train("tiny", out="runs/quick", steps=200)'
        raise UsageError("train", "preset and out, or resume", got or "neither", remedy)
    grow = None
    if run.recipe.grow_until is not None:
        from attnworks.reshape.growth.in_training import grow_in_training as grow
    on_start(run)
    run.train(watchers, should_stop, grow)
    return open_subject(str(run.folder), device=run.recipe.device)


def _resumed(folder: Path, settings: dict[str, Any], team: Team | None) -> Run:
    if fixed := sorted(_FIXED & settings.keys()):
        asked, expected = f"resume {folder} with another {fixed[0]}", "the settings of the steps made so far"
        raise UsageError(asked, expected, repr(settings[fixed[0]]), "leave it out, or start a new run")
    run = Run.resume(folder, team, **settings)
    if run.recipe.threads is not None:
        torch.set_num_threads(run.recipe.threads)
    return run


class Translation(str):
    """The text of a translation, with how it was found.

    source          the text that was translated
    score           what beam search ranks by: the log-probability divided by a penalty of length
    logprob         the log-probability of the tokens
    finished        whether the model ended the sentence by itself
    unknown         words of the source that are not in the vocabulary
    alternatives    further translations, the best first, if more than one was asked for
    hypothesis      the tokens
    """

    __slots__ = ("alternatives", "hypothesis", "source", "unknown")
    source: str
    unknown: tuple[str, ...]
    alternatives: tuple[Translation, ...]
    hypothesis: Hypothesis

    def __new__(
        cls, text: str, source: str, hypothesis: Hypothesis, unknown: tuple[str, ...], *others: Translation
    ) -> Self:
        made = super().__new__(cls, text)
        made.source, made.hypothesis, made.unknown, made.alternatives = source, hypothesis, unknown, others
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        """What pickling and copying keep."""
        return str(self), self.source, self.hypothesis, self.unknown, *self.alternatives

    @property
    def score(self) -> float:
        return self.hypothesis.score

    @property
    def logprob(self) -> float:
        return self.hypothesis.logprob

    @property
    def finished(self) -> bool:
        return self.hypothesis.finished

    def to_json(self) -> dict[str, Any]:
        """Source, unknown words, and the text and scores of every translation, the best first."""
        hypotheses = [
            {"text": str(each), "score": each.score, "logprob": each.logprob, "finished": each.finished}
            for each in (self, *self.alternatives)
        ]
        return {"source": self.source, "unknown": list(self.unknown), "hypotheses": hypotheses}


def translate(
    subject: Any,
    texts: Sequence[str],
    *,
    tokenizer: Any = None,
    num_beams: int = 1,
    length_penalty: float = 0.6,
    num_return_sequences: int = 1,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    batch_size: int = 64,
    seed: int = 0,
    trace: AnyPath | None = None,
    device: str = "cpu",
    dtype: str = "float32",
) -> list[Translation]:
    """Translate texts with a trained model.

    Args:
        subject: A run, a model folder, or a `Subject` of an encoder-decoder of attnworks.
        texts: Sentences to translate. An empty one stays empty.
        tokenizer: The vocabularies of source and target of a model in memory. Default: None.
        num_beams: Beam width; 1 is greedy decoding. Default: 1.
        length_penalty: Length penalty of beam search: 0 for none, 0.6 to 1 is usual. Default: 0.6.
        num_return_sequences: Translations of each sentence; at most `num_beams`. Default: 1.
        do_sample: Sample words by probability instead of searching. Default: False.
        temperature: With `do_sample`, temperature of the distribution. Default: 1.0.
        top_k: With `do_sample`, sample from the k most probable words. Default: None, all words.
        top_p: With `do_sample`, sample from the smallest set of words with total probability p. Default: None.
        batch_size: Sentences to translate at once. Default: 64.
        seed: Random seed of `do_sample`. Default: 0.
        trace: JSON file to write attention maps and beam tree of every sentence to, for `attnworks.report`.
            Default: None, do not write it.
        device: Device of a model that is opened from a path. Default: "cpu".
        dtype: Type of weights and activations of a model that is opened from a path. Default: "float32".

    Returns:
        One `Translation` per sentence: a string with `score`, `unknown` words and `alternatives`.
    """
    if isinstance(texts, str):
        raise UsageError("texts to translate", "a list of them", "a single string", "put it into a list: [text]")
    translator = Translator(
        as_subject(subject, tokenizer, device=device, dtype=dtype),
        num_beams=num_beams,
        length_penalty=length_penalty,
        num_return_sequences=num_return_sequences,
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        batch_size=batch_size,
        seed=seed,
        trace=trace,
    )
    return list(translator(texts))


class Translator:
    """Translates a stream of sentences, `batch_size` at a time. The arguments are those of `translate`."""

    def __init__(
        self,
        subject: Subject,
        *,
        num_beams: int = 1,
        length_penalty: float = 0.6,
        num_return_sequences: int = 1,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        batch_size: int = 64,
        seed: int = 0,
        trace: AnyPath | None = None,
    ) -> None:
        if subject.vocabularies is None or subject.target is None:
            got, remedy = type(subject.model).__name__, "train one with attnworks train"
            raise UsageError(f"translate with {subject.name}", "an encoder-decoder of attnworks", got, remedy)
        if subject._edits:
            expected, remedy = "a model as it is", "leave the `with subject.edit(...)` block first"
            raise UsageError(f"translate with {subject.name}", expected, "one with edited heads", remedy)
        self.subject = subject
        self.vocabularies: tuple[Vocabulary, Vocabulary] = subject.vocabularies
        self.num_beams = integer("num_beams", num_beams, 1)
        self.length_penalty = number("length_penalty", length_penalty, 0)
        self.num_return_sequences = integer("num_return_sequences", num_return_sequences, 1)
        self.batch_size = integer("batch_size", batch_size, 1)
        if num_return_sequences > num_beams:
            asked, expected = f"num_return_sequences={num_return_sequences}", f"at most num_beams={num_beams}"
            raise UsageError(asked, expected, str(num_return_sequences), f"set num_beams to {num_return_sequences}")
        if do_sample and num_beams > 1:
            raise UsageError("do_sample", "num_beams=1", f"num_beams={num_beams}", "choose sampling or beam search")
        if not do_sample and (temperature != 1.0 or top_k is not None or top_p is not None):
            raise UsageError("temperature, top_k or top_p", "do_sample", "no do_sample", "add it, or leave them out")
        self.sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p} if do_sample else None
        self.generator = torch.Generator(subject.device).manual_seed(seed)
        self.trace = None if trace is None else Path(trace)
        if self.trace is not None and not self.trace.parent.is_dir():
            raise UsageError(f"trace {trace}", "a folder that exists", str(self.trace.parent), "make it first")

    def __call__(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Translations in the order of the lines. The file of traces is written at the end."""
        source, target = self.vocabularies
        traces: list[dict[str, Any]] = []
        iterator = iter(lines)
        while some := list(islice(iterator, self.batch_size)):
            sentences = [words(line) for line in some]
            found = decode_sentences(
                self._decode, source, sentences, empty=[EMPTY_HYPOTHESIS], device=self.subject.device,
                batch=self.batch_size,
            )  # fmt: skip
            for line, sentence, hypotheses in zip(some, sentences, found, strict=True):
                unknown = tuple(word for word in sentence if UNK in source.encode([word]))
                texts = (" ".join(target.decode(hypothesis.tokens)) for hypothesis in hypotheses)
                pairs = zip(texts, hypotheses, strict=True)
                best, *others = ((text, line, hypothesis, unknown) for text, hypothesis in pairs)
                yield Translation(*best, *(Translation(*other) for other in others))
                if self.trace is not None and sentence:
                    traces.append(self._trace(sentence, hypotheses[0]))
        if self.trace is not None:
            about = {"format": TRACE_FORMAT, "run": str(self.subject.folder or self.subject.name)}
            write_file(self.trace, json.dumps(with_sha256({**about, "sentences": traces})).encode())

    def _decode(self, tokens: Tensor, real: Tensor | None, max_new_tokens: int) -> list[list[Hypothesis]]:
        model: Any = self.subject.model
        limits: Any = {"bos": BOS, "eos": EOS, "max_new_tokens": max_new_tokens}
        if self.sampling is not None:
            drawn = decoding.sample(model, tokens, real, **limits, **self.sampling, generator=self.generator)
            return [[hypothesis] for hypothesis in drawn]
        alpha = self.length_penalty if self.num_beams > 1 else 0.0
        return decoding.beam(
            model, tokens, real, **limits, beams=self.num_beams, alpha=alpha, n_best=self.num_return_sequences
        )

    def _trace(self, sentence: Sequence[str], hypothesis: Hypothesis) -> dict[str, Any]:
        beams = None if self.sampling is not None else self.num_beams
        model: Any = self.subject.model
        source, target = self.vocabularies
        alpha = self.length_penalty
        return trace_translation(model, source, target, sentence, hypothesis, beams=beams, alpha=alpha)
