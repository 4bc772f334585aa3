"""Pages to look at: tiny models examined, with everything that a page can show, harmless or hostile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken

from attnworks import examine
from attnworks.exam.examination import Examination, Pin
from attnworks.exam.reading import Reading, Readings
from attnworks.page import PageExam, PageSentence, page_contents, page_html
from attnworks.reshape.losses import LossIntervals
from attnworks.reshape.receipt import BeforeAfter, Figures, HealReport, Losses, LossesAtLength, Receipt
from attnworks.text.passages import Passage, Text
from tests.exam_helpers import LINES, PAIRS, save_model, tiny_tokenizer
from tests.tiny_models import TINY

ADVICE: dict[str, Any] = {
    "model": "tiny",
    "max_error": 0.1,
    "length": 512,
    "tried_at": 128,
    "present": [{"slot": "enc.0", "spec": "dense", "seconds": 0.01, "flops": 1000.0}],
    "trials": [
        {
            "slot": "enc.0", "spec": "window:window=4", "error": 0.05, "seconds": 0.005, "flops": 300.0, "reason": None,
            "time_interval": [0.45, 0.55],
        },
        {
            "slot": "enc.0", "spec": "window:window=64", "error": 0.01, "seconds": 0.0099, "flops": 900.0,
            "reason": None, "time_interval": [0.96, 1.03],
        },
        {
            "slot": "enc.0", "spec": "linear", "error": None, "seconds": None, "flops": None,
            "reason": "it does not fit", "time_interval": None,
        },
    ],
    "chosen": {"enc.0": "window:window=4"},
    "error": 0.05,
    "loss": 2.5,
    "rise": 0.01,
    "sentence_loss": 2.25,
    "sentence_rise": 1e-8,
    "time_ratio": 0.7,
    "time_interval": [0.65, 0.75],
    "model_time_ratio": 0.9,
    "model_time_interval": [0.85, 1.05],
    "model_time_least": 0.8,
    "refused": None,
    "notes": ["times are those of this machine"],
    "command": "attnworks swap tiny --layers enc.0=window:window=4",
}  # fmt: skip


RECEIPT = Receipt(
    reshape="prune",
    objective="mlm",
    asked={"heads": "0.1"},
    done={"enc.0": "3 -> 2 heads (0, 2)"},
    text={},
    healing=HealReport(steps=10, learning_rate=1e-3, batch_tokens=64, seed=0),
    numbers=("float32", "float32"),
    fingerprint=("a", "b"),
    version="0",
    loss=Losses(before=2.0, predicted=2.1, after=2.2, healed=2.05),
    parameters=BeforeAfter(before=1000, after=900),
    flops=BeforeAfter(before=1000, after=800),
    facts={"heads_before": 6, "heads_cut": 1},
    scores={"BLEU": Figures(before=30.0, after=28.0, healed=29.0)},
    time=0.8,
    time_interval=(0.7, 0.9),
    loss_at_length=LossesAtLength(
        before=3.0, predicted=3.1, after=3.25, healed=3.05, tokens=87, intervals=LossIntervals(rise=(0.2, 0.3))
    ),
    warnings=("The held-out text is too small.",),
    seconds=3.0,
    length=9,
)


def passages() -> list[Passage]:
    return [Passage(Text(source), Text(target)) for source, target in (pair.split("\t") for pair in PAIRS)]


def tiny_exam(folder: Path, name: str, *, seed: int = 0, **options: Any) -> Examination:
    save_model(TINY[name].build(seed=seed, dtype=torch.float32), folder)
    texts = passages() if name == "bart" else LINES
    return examine(str(folder), texts=texts, pin=[LINES[1]], name=f"{name}-{seed}", **options)


def with_sentence(exam: Examination) -> PageExam:
    """The examination, with a translated sentence and its beam search beside the pins."""
    pin = exam.pins[0]
    words = pin.tokens if pin.target is None else pin.target
    beam = [
        {
            "kept": [
                {"parent": 0, "token": word, "logprob": -0.5 * (step + 1)},
                {"parent": 0, "token": words[0], "logprob": -0.9 * (step + 1)},
            ],
            "ended": [{"parent": 0, "token": words[-1], "logprob": -1.1 * (step + 1)}] if step else [],
        }
        for step, word in enumerate(words)
    ]
    return PageExam(exam, str(exam.model["name"]), (PageSentence(pin, tuple(words), beam),))


def page_file(
    file: Path,
    exams: Sequence[Examination],
    words: Sequence[str] = (),
    advice: dict[str, Any] = ADVICE,
    **options: Any,
) -> str:
    """Writes a page with all that there is to see, and gives its address. Words take the place of other texts."""
    contents = page_contents([with_sentence(exam) for exam in exams], receipts=[RECEIPT], **options)
    told = {"advice": advice, "receipts": contents.page["receipts"]}
    if words:
        told = _with_words(told, cycle(words))
    file.write_text(page_html(replace(contents, page={**contents.page, **told})), encoding="utf-8")
    return file.as_uri()


def _with_words(told: Any, words: Iterator[str]) -> Any:
    """Every text, and every name of a place, is one of the words."""
    if isinstance(told, str):
        return next(words)
    if isinstance(told, list):
        return [_with_words(item, words) for item in told]
    if isinstance(told, dict):
        places = {"done", "chosen", "facts", "scores"}
        return {
            key: {next(words): _with_words(item, words) for item in value.values()}
            if key in places and isinstance(value, dict)
            else _with_words(value, words)
            for key, value in told.items()
        }
    return told


def notebook_file(file: Path, exam: Examination) -> str:
    """A page like that of a notebook, with a cell whose value is the examination."""
    body = f'<main><h1>Notebook</h1><div class="output">{exam._repr_html_()}</div></main>'
    file.write_text(
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Notebook</title>{body}</html>', encoding="utf-8"
    )
    return file.as_uri()


# --- hostile ----------------------------------------------------------------------------------------------------------


def hostile_exam(exam: Examination, words: tuple[str, ...]) -> Examination:
    """The examination with these strings wherever a text may come from a model, a corpus or a file."""
    text = cycle(words)
    model = dict(exam.model) | {key: next(text) for key in ("name", "family", "class", "dtype", "more")}
    return Examination(
        model=model,
        corpus=dict(exam.corpus) | {"name": next(text), next(text): next(text)},
        readings=Readings([_hostile_reading(reading, text) for reading in exam.readings.values()]),
        findings=tuple(
            replace(
                finding,
                text=next(text),
                readings=(*finding.readings, next(text)),
                heads=(*finding.heads, next(text)),
                group=next(text),
            )
            for finding in exam.findings
        ),
        notes=words,
        pins=tuple(_hostile_pin(pin, words) for pin in exam.pins),
    )


def _hostile_reading(reading: Reading, text: Iterator[str]) -> Reading:
    value = tuple(tuple(next(text) for _ in row) if isinstance(row, tuple) else row for row in reading.value)
    return replace(reading, description=next(text), source=next(text), value=value)


def _hostile_pin(pin: Pin, words: tuple[str, ...]) -> Pin:
    n = len(words)
    maps = {slot: torch.randn(len(P), n, n).mul(3).softmax(-1) for slot, P in pin.maps.items()}
    return Pin.of(words, maps, None if pin.target is None else words[::-1])


def live_model(folder: Path, words: Sequence[str]) -> Path:
    """A small BERT with these words in its vocabulary, spaces and all."""
    tokenizer = tiny_tokenizer("bert")
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    size = len(tokenizer)
    model = TINY["bert"].build(dtype=torch.float32, vocab_size=size, max_position_embeddings=131)
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    return folder
