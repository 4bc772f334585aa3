"""The work behind `attnworks translate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnworks.cli.console import echo, print_json_line
from attnworks.core.display import counted
from attnworks.core.errors import UsageError
from attnworks.core.folders import with_sha256, write_file
from attnworks.models import decoding
from attnworks.models.decoding import Hypothesis
from attnworks.models.decoding.translate import EMPTY_HYPOTHESIS, TRACE_FORMAT, decode_sentences, trace_translation
from attnworks.text.vocabulary import BOS, EOS, UNK, Vocabulary
from attnworks.text.words import words
from attnworks.traces.own import OwnSubject

T = TypeVar("T")
UNKNOWN_WORDS = 10
"""Most words that are listed as unknown to the model."""


def translate_lines(
    run: Path,
    lines: Iterable[str],
    *,
    beams: int,
    alpha: float,
    n_best: int,
    sample: bool,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    batch: int,
    trace: Path | None,
    as_json: bool,
    device: str,
    dtype: str,
    threads: int | None,
    seed: int,
) -> None:
    del threads
    _check(beams, n_best, sample, drawn=temperature != 1.0 or bool(top_k or top_p), trace=trace)
    subject = OwnSubject.open(str(run), device=device, dtype=dtype)
    model, (source, target) = subject.model, subject.vocabularies
    generator = torch.Generator(device).manual_seed(seed) if sample else None

    def decode(tokens: Tensor, padding: Tensor | None, longest: int) -> list[list[Hypothesis]]:
        if generator is not None:
            drawn = decoding.sample(
                model,
                tokens,
                padding,
                bos=BOS,
                eos=EOS,
                max_new_tokens=longest,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                generator=generator,
            )
            return [[hypothesis] for hypothesis in drawn]
        return decoding.beam(
            model,
            tokens,
            padding,
            bos=BOS,
            eos=EOS,
            max_new_tokens=longest,
            beams=beams,
            alpha=alpha if beams > 1 else 0.0,
            n_best=n_best,
        )

    traces: list[dict[str, Any]] = []
    unknown: dict[str, None] = {}  # each word once, in the order of the text
    for some in _batches(lines, batch):
        sentences = [words(line) for line in some]
        results = decode_sentences(decode, source, sentences, empty=[EMPTY_HYPOTHESIS], device=device, batch=batch)
        for line, sentence, hypotheses in zip(some, sentences, results, strict=True):
            strange = [word for word in sentence if UNK in source.encode([word])]
            unknown |= dict.fromkeys(strange)
            _write(target, line, strange, hypotheses, n_best, as_json)
            if trace is not None and sentence:
                searched = None if sample else beams
                traces.append(
                    trace_translation(model, source, target, sentence, hypotheses[0], beams=searched, alpha=alpha)
                )
    if trace is not None:
        made = with_sha256({"format": TRACE_FORMAT, "run": str(run), "sentences": traces})
        write_file(trace, json.dumps(made).encode())
    if unknown and not as_json:
        echo(_about_unknown(unknown, source.token(UNK)), err=True)


def _about_unknown(unknown: Collection[str], read_as: str) -> str:
    """Which words the model does not know, and what it read instead; in quotes, with control characters escaped."""
    named = ", ".join(repr(word) for word in islice(unknown, UNKNOWN_WORDS))
    more = f" and {len(unknown) - UNKNOWN_WORDS} others" if len(unknown) > UNKNOWN_WORDS else ""
    return f"{counted(len(unknown), 'word')} not in the vocabulary of this run, read as {read_as}: {named}{more}"


def _check(beams: int, n_best: int, sample: bool, *, drawn: bool, trace: Path | None) -> None:
    if n_best > beams:
        raise UsageError(f"--n-best {n_best}", f"at most --beam {beams}", str(n_best), f"raise --beam to {n_best}")
    if sample and beams > 1:
        raise UsageError("--sample", "no beam", f"--beam {beams}", "choose one of --sample and --beam")
    if drawn and not sample:
        raise UsageError(
            "--temperature, --top-k or --top-p", "--sample with it", "no --sample", "add --sample, or leave it out"
        )
    if trace is not None and not trace.parent.is_dir():
        raise UsageError(f"--trace {trace}", "a folder that exists", str(trace.parent), "make it first")


def _write(
    target: Vocabulary,
    line: str,
    unknown: list[str],
    hypotheses: list[Hypothesis],
    n_best: int,
    as_json: bool,
) -> None:
    texts = [" ".join(target.decode(hypothesis.tokens)) for hypothesis in hypotheses]
    if as_json:
        shown = [
            {"text": text, "score": h.score, "logprob": h.logprob, "finished": h.finished}
            for text, h in zip(texts, hypotheses, strict=True)
        ]
        print_json_line({"source": line, "unknown": unknown, "hypotheses": shown})
    else:
        echo("\n".join([*texts, *[""] * (n_best - len(texts))]))
    sys.stdout.flush()


def _batches(lines: Iterable[T], size: int) -> Iterator[list[T]]:
    """`size` at a time, so that a long file streams."""
    iterator = iter(lines)
    while some := list(islice(iterator, size)):
        yield some
