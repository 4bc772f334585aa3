"""`attnworks.translate`: translate with a trained model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from attnworks.api.subjects import as_subject
from attnworks.core.checks import choice, integer, number
from attnworks.core.errors import UsageError
from attnworks.core.folders import with_sha256, write_file
from attnworks.models import decoding
from attnworks.models.ctranslate2 import CTranslate2Engine, import_ctranslate2, inexpressible_part
from attnworks.models.decoding import LENGTH_PENALTY, Hypothesis
from attnworks.models.decoding.translate import EMPTY_HYPOTHESIS, TRACE_FORMAT, decode_sentences, trace_translation
from attnworks.text.vocabulary import BOS, EOS, UNK, Vocabulary
from attnworks.text.words import words
from attnworks.traces.subject import Subject

AnyPath = str | os.PathLike[str]
ENGINES, PRECISIONS = ("auto", "own", "ctranslate2"), ("float32", "int8")
FEW_SENTENCES = 8
"""With engine="auto", fewer sentences than these are translated sooner than the model is converted."""


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
    length_penalty: float = LENGTH_PENALTY,
    num_return_sequences: int = 1,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    batch_size: int = 64,
    seed: int = 0,
    trace: AnyPath | None = None,
    engine: str = "auto",
    precision: str = "float32",
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
        engine: "own"; "ctranslate2", which is faster and gives the same translations, or refuses what it does not do;
            or "auto", CTranslate2 where it is installed and can do it, and there are 8 texts or more. Default: "auto".
        precision: Of the products of matrices in CTranslate2: "float32", or "int8", with which a few translations
            differ. Default: "float32".
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
        engine=engine,
        precision=precision,
    )
    return list(translator(texts))


class Translator:
    """Translates a stream of sentences, `batch_size` at a time. The arguments are those of `translate`."""

    def __init__(
        self,
        subject: Subject,
        *,
        num_beams: int = 1,
        length_penalty: float = LENGTH_PENALTY,
        num_return_sequences: int = 1,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        batch_size: int = 64,
        seed: int = 0,
        trace: AnyPath | None = None,
        engine: str = "auto",
        precision: str = "float32",
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
        self.precision = choice("precision", precision, PRECISIONS)
        self._few = 0 if engine == "ctranslate2" or precision != "float32" else FEW_SENTENCES
        self._may_use_ctranslate2 = self._choose(choice("engine", engine, ENGINES))
        self._seen = 0

    def _choose(self, engine: str) -> bool:
        """Whether CTranslate2 may translate; an error if it must and cannot."""
        required = engine == "ctranslate2" or self.precision != "float32"
        if required and engine != "own":
            import_ctranslate2("translate by CTranslate2")
        reason = "engine='own'" if engine == "own" else self._reason_for_own_engine()
        if reason is not None and required:
            asked = f"engine={engine!r}" if self.precision == "float32" else f"precision={self.precision!r}"
            raise UsageError(asked, "what CTranslate2 can do", reason, "leave it out: the own engine can, in float32")
        return reason is None

    def _reason_for_own_engine(self) -> str | None:
        """What CTranslate2 cannot do here, in words; None if it can do all."""
        subject, dtype = self.subject, next(self.subject.model.parameters()).dtype
        if find_spec("ctranslate2") is None:
            return "an environment without the package ctranslate2"
        if self.sampling is not None or self.trace is not None:
            return "do_sample" if self.trace is None else "trace"
        if subject.device.type != "cpu" or dtype != torch.float32:
            return f"a model in {str(dtype).removeprefix('torch.')} on {subject.device}"
        return inexpressible_part(subject.model, self.vocabularies)

    @cached_property
    def _ctranslate2(self) -> CTranslate2Engine:
        model: Any = self.subject.model
        return CTranslate2Engine(model, self.vocabularies, self.precision)

    def __call__(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Translations in the order of the lines. The file of traces is written at the end."""
        source, target = self.vocabularies
        traces: list[dict[str, Any]] = []
        iterator = iter(lines)
        while some := list(islice(iterator, self.batch_size)):
            sentences = [words(line) for line in some]
            self._seen += len(some)
            found = decode_sentences(
                self._decode, source, sentences, empty=[EMPTY_HYPOTHESIS], device=self.subject.device,
                batch=self.batch_size,
            )  # fmt: skip
            for line, sentence, hypotheses in zip(some, sentences, found, strict=True):
                unknown = tuple(word for word in sentence if UNK in source.encode([word]))
                texts = (target.text(hypothesis.tokens) for hypothesis in hypotheses)
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
        search: Any = {"beams": self.num_beams, "alpha": alpha, "n_best": self.num_return_sequences}
        if self._may_use_ctranslate2 and self._seen >= self._few:
            fast = self._ctranslate2
            if fast.takes(tokens, max_new_tokens, self.num_beams):
                return fast.beam(tokens, real, max_new_tokens=max_new_tokens, **search)
        return decoding.beam(model, tokens, real, **limits, **search)

    def _trace(self, sentence: Sequence[str], hypothesis: Hypothesis) -> dict[str, Any]:
        beams = None if self.sampling is not None else self.num_beams
        model: Any = self.subject.model
        source, target = self.vocabularies
        alpha = self.length_penalty
        return trace_translation(model, source, target, sentence, hypothesis, beams=beams, alpha=alpha)
