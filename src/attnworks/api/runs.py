"""`attnworks.train` and `attnworks.translate`: train a model on pairs of texts, and translate with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch

from attnworks.api.subjects import as_subject
from attnworks.core.checks import integer, number
from attnworks.core.errors import UsageError
from attnworks.core.team import Team
from attnworks.models import decoding
from attnworks.models.decoding import Hypothesis
from attnworks.models.decoding.translate import EMPTY_HYPOTHESIS, decode_sentences
from attnworks.text.vocabulary import BOS, EOS, UNK
from attnworks.text.words import words
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import Subject, open_subject
from attnworks.training.events import Watcher
from attnworks.training.recipe import Recipe
from attnworks.training.run import Run

AnyPath = str | os.PathLike[str]
DEFAULT_EPOCHS = 20.0
_FIXED = {
    "preset",
    "corpus",
    "pairs",
    "mechanism",
    "vocabulary",
    "vocabulary_size",
    "batch_tokens",
    "accumulate",
    "seed",
}
"""Settings that a run cannot change when it is resumed: they decide which steps were made before."""


def train(
    preset: str | None = None,
    corpus: str | None = None,
    *,
    out: AnyPath | None = None,
    resume: AnyPath | None = None,
    watchers: Sequence[Watcher] = (),
    should_stop: Callable[[], bool] = lambda: False,
    team: Team | None = None,
    on_start: Callable[[Run], None] = lambda run: None,
    **settings: Any,
) -> Subject:
    """Train a model on pairs of texts, or continue training one.

    Args:
        preset: Name of the model: "tiny", "base", "conti-1h", "conti-8h", "lstm-plain", "lstm-dot",
            "lstm-multiplicative" or "lstm-additive". Default: None, with `resume`.
        corpus: Pairs to train on: "grammar", "tsv:FILE", "text:SRC,TGT", "gettext:DIR" or "opus_books".
            Default: None, "grammar".
        out: Folder of the new run; it must not exist yet. Default: None, with `resume`.
        resume: Folder of a run to continue, exactly where it stopped. Default: None, start a new one.
        watchers: Functions that are called with every event: a step, a validation, a growth. Default: none.
        should_stop: Asked before every step; True stops after a checkpoint. Default: never.
        team: Processes that train together under torchrun. Default: None, this process alone.
        on_start: Called with the run before its first step. Default: nothing.
        settings: Any field of `attnworks.training.recipe.Recipe` by name: `epochs` (default 20), `steps`, `minutes`,
            `pairs`, `mechanism`, `vocabulary`, `vocabulary_size`, `batch_tokens` (640), `accumulate`,
            `learning_rate` (7e-4), `schedule`, `warmup` (300), `smoothing` (0.1), `dropout` (0.1), `clip`,
            `validate_every` (500), `keep_every`, `patience`, `grow_until`, `grow_every`, `grow_by`, `seed` (0),
            `device` ("cpu"), `dtype` ("float32"), `threads`.

    Returns:
        The `Subject` with the best checkpoint; `subject.folder` is the folder of the run.

    >>> run = attnworks.train("tiny", steps=200, out="runs/quick")  # doctest: +SKIP
    >>> attnworks.translate(run, ["The chair is new ."])  # doctest: +SKIP
    """
    if (preset is None) == (resume is None) or (preset is None) != (out is None):
        got = ", ".join(name for name, value in (("preset", preset), ("out", out), ("resume", resume)) if value)
        remedy = 'for instance train("tiny", out="runs/quick", steps=200)'
        raise UsageError("train", "preset and out, or resume", got or "neither", remedy)
    if corpus is not None:
        settings["corpus"] = corpus
    if resume is not None:
        if fixed := sorted(_FIXED & settings.keys()):
            expected = "the settings of the steps made so far"
            raise UsageError(
                f"resume {resume} with another {fixed[0]}", expected, fixed[0], "leave it out, or start anew"
            )
        run = Run.resume(Path(resume), team, **settings)
        if run.recipe.threads is not None:
            torch.set_num_threads(run.recipe.threads)
    else:
        assert preset is not None and out is not None
        limits = {} if settings.keys() & {"epochs", "steps", "minutes"} else {"epochs": DEFAULT_EPOCHS}
        run = Run.create(_recipe(preset, **limits, **settings), Path(out), team)
    on_start(run)
    grow = None
    if run.recipe.grow_until is not None:
        from attnworks.reshape.growth.in_training import grow_in_training as grow
    run.train(watchers, should_stop, grow)
    return open_subject(str(run.folder), device=run.recipe.device)


def _recipe(preset: str, **settings: Any) -> Recipe:
    if unknown := sorted(settings.keys() - Recipe.__dataclass_fields__.keys()):
        from attnworks.core.registry import unknown_name

        raise unknown_name("setting of training", unknown[0], Recipe.__dataclass_fields__)
    return Recipe(preset=preset, **settings)


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

    @property
    def score(self) -> float:
        return self.hypothesis.score

    @property
    def logprob(self) -> float:
        return self.hypothesis.logprob

    @property
    def finished(self) -> bool:
        return self.hypothesis.finished


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
    )
    return list(translator(texts))


class Translator:
    """Translates a stream of sentences, some at a time. The arguments are those of `translate`."""

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
    ) -> None:
        if not isinstance(subject, OwnSubject) or subject.target is None:
            got = type(subject.model).__name__
            raise UsageError(f"translate with {subject.name}", "an encoder-decoder of attnworks", got, "train one")
        self.subject, self.num_beams, self.length_penalty = subject, integer("num_beams", num_beams, 1), length_penalty
        self.num_return_sequences = integer("num_return_sequences", num_return_sequences, 1)
        number("length_penalty", length_penalty, 0)
        self.batch_size = integer("batch_size", batch_size, 1)
        if num_return_sequences > num_beams:
            remedy = f"raise num_beams to {num_return_sequences}"
            raise UsageError(
                "num_return_sequences", f"at most num_beams={num_beams}", str(num_return_sequences), remedy
            )
        if do_sample and num_beams > 1:
            raise UsageError("do_sample", "no beam search", f"num_beams={num_beams}", "choose one of them")
        if not do_sample and (temperature != 1.0 or top_k is not None or top_p is not None):
            raise UsageError("temperature, top_k or top_p", "do_sample", "no do_sample", "add it, or leave them out")
        self.sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p} if do_sample else None
        self.generator = torch.Generator(subject.device).manual_seed(seed)

    def __call__(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Translations in the order of the lines, which are read `batch_size` at a time."""
        assert isinstance(self.subject, OwnSubject)
        source, target = self.subject.vocabularies
        iterator = iter(lines)
        while some := list(islice(iterator, self.batch_size)):
            sentences = [words(line) for line in some]
            found = decode_sentences(
                self._decode, source, sentences, empty=[EMPTY_HYPOTHESIS], device=self.subject.device,
                batch=self.batch_size,
            )  # fmt: skip
            for line, sentence, hypotheses in zip(some, sentences, found, strict=True):
                unknown = tuple(word for word in sentence if UNK in source.encode([word]))
                made: list[Translation] = []
                for hypothesis in reversed(hypotheses):
                    text = " ".join(target.decode(hypothesis.tokens))
                    others = reversed(made) if hypothesis is hypotheses[0] else ()
                    made.append(Translation(text, line, hypothesis, unknown, *others))
                yield made[-1]

    def _decode(self, tokens: Any, real: Any, max_new_tokens: int) -> list[list[Hypothesis]]:
        common: Any = {"bos": BOS, "eos": EOS, "max_new_tokens": max_new_tokens}
        model: Any = self.subject.model
        if self.sampling is not None:
            drawn = decoding.sample(model, tokens, real, **common, **self.sampling, generator=self.generator)
            return [[hypothesis] for hypothesis in drawn]
        alpha = self.length_penalty if self.num_beams > 1 else 0.0
        return decoding.beam(
            model, tokens, real, **common, beams=self.num_beams, alpha=alpha, n_best=self.num_return_sequences
        )
