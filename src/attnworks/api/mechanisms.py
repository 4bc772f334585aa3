"""`attnworks.swap` and `attnworks.advise`: cheaper mechanisms, and what they would cost."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnworks.api.reshapes import apply, read_split
from attnworks.api.subjects import as_subject
from attnworks.core.display import Progress, silent
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.run import ReshapeSettings, reshape_context
from attnworks.reshape.swapping.advice import Advice, find_advice
from attnworks.reshape.swapping.swap import Swap, pairs_of
from attnworks.reshape.texts import CALIBRATION_PAIRS
from attnworks.text.sources import Texts, is_corpus
from attnworks.traces.subject import Subject

if TYPE_CHECKING:
    from attnworks.training.objectives.sentences import LossFunction

AnyPath = str | os.PathLike[str]


def swap(
    subject: Any,
    texts: Texts = None,
    *,
    tokenizer: Any = None,
    to: str | Sequence[str] = (),
    layers: str = "auto",
    max_error: float = 0.02,
    length: int | None = None,
    heal: int = 0,
    heal_by: str = "objective",
    learning_rate: float | None = None,
    objective: str | LossFunction | None = None,
    pairs: int = CALIBRATION_PAIRS,
    sentences: int | None = None,
    batch_tokens: int = 2048,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    out: AnyPath | None = None,
    progress: Progress = silent,
) -> tuple[Subject, Receipt]:
    """Swap attention for cheaper mechanisms where the error allows it.

    Args:
        subject: A path, a `Subject`, a Hugging Face model, or a Transformer of attnworks. It stays as it is.
        texts: A list of texts, a text file (of both, every fourth text is held out for evaluation), or a corpus such
            as "grammar". Default: None, the corpus that a run was trained on, or "grammar", or "pydoc" for a language
            model, which reads texts joined into passages.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        to: Mechanisms to try, for example "window:window=64". Default: all that could be faster.
        layers: Which layers change: "auto"; layers or heads that get the one mechanism ("enc.0,enc.1" or "enc.0.3");
            or pairs, "enc.0=linear enc.1=window:window=8". Default: "auto".
        max_error: With `layers="auto"`, the largest RMS error of attention over the layers, and the largest relative
            rise of the loss. Default: 0.02.
        length: Sequence length to optimise for. Default: None, the mean length of the text.
        heal: Training steps after the change, to recover quality. Default: 0.
        heal_by: What healing minimises: "objective", or "distil", the distance to the activations of the old model
            after every block. Default: "objective".
        learning_rate: Learning rate while healing. Default: None, 3e-4, and 5e-5 for Hugging Face models.
        objective: Loss to evaluate by: "lm", "mlm", "seq2seq", "embedding", "labels:FILE", or a function.
            Default: None, the one that fits the model.
        pairs: Read at most this number of texts for calibration and healing. Default: 10,000.
        sentences: Evaluate on at most this number of held-out sentences; for a language model, of passages of up to 512
            tokens. Default: None, 256 sentences, or passages of about 6,144 tokens in all.
        batch_tokens: Tokens per batch, padding included. Default: 2048.
        seed: Random seed. The same seed gives the same model and receipt. Default: 0.
        device: Device of a model that is opened from a path. Default: "cpu".
        dtype: Type of weights and activations of a model that is opened from a path. Default: "float32".
        out: Folder to write the new model to, with its receipt and the model before. It must not exist yet, and
            `subject` must have been opened from a path. If nothing was changed, it is not written.
            Default: None, do not write it.
        progress: Called with (stage, steps done, steps in all). A total of 0 marks a message. Default: silent.

    Returns:
        The new `Subject` and the `Receipt`: the loss predicted, measured on held-out text, and measured after healing.

    >>> new, receipt = attnworks.swap("runs/first", to="window:window=8")  # doctest: +SKIP
    """
    return apply(
        subject, Swap(to=_names(to), layers=layers, max_error=max_error, length=length), texts, tokenizer=tokenizer,
        heal=heal, heal_by=heal_by, learning_rate=learning_rate, objective=objective, pairs=pairs, sentences=sentences,
        batch_tokens=batch_tokens, seed=seed, device=device, dtype=dtype, out=out, progress=progress,
    )  # fmt: skip


def advise(
    subject: Any,
    texts: Texts = None,
    *,
    tokenizer: Any = None,
    to: str | Sequence[str] = (),
    max_error: float = 0.02,
    length: int | None = None,
    objective: str | LossFunction | None = None,
    sentences: int = 1024,
    batch_tokens: int = 2048,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress = silent,
) -> Advice:
    """Say what a cheaper attention would cost: error, time and FLOPs of every mechanism in every layer.

    Args:
        subject: A path, a `Subject`, a Hugging Face model, or a Transformer of attnworks. It stays as it is.
        texts: A list of texts, a text file, or a corpus such as "grammar". Default: None, the corpus that a run was
            trained on, or "grammar", or "pydoc" for a language model, which reads texts joined into passages.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        to: Mechanisms to try, for example "window:window=64". Default: all that could be faster.
        max_error: Largest RMS error of attention over the layers, and largest relative rise of the loss of the mix
            that is advised. Default: 0.02.
        length: Sequence length to measure time at. Default: None, the mean length of the text.
        objective: Loss to evaluate by: "lm", "mlm", "seq2seq", "embedding", or a function. Default: None, the one
            that fits the model.
        sentences: Measure errors on at most this number of sentences. Default: 1024.
        batch_tokens: Tokens per batch, padding included. Default: 2048.
        seed: Random seed. Default: 0.
        device: Device of a model that is opened from a path. Default: "cpu".
        dtype: Type of weights and activations of a model that is opened from a path. Default: "float32".
        progress: Called with (stage, steps done, steps in all). A total of 0 marks a message. Default: silent.

    Returns:
        An `Advice`: every trial, and the mix of mechanisms that `swap` would make.

    >>> attnworks.advise("runs/first", length=1024)  # doctest: +SKIP
    """
    asked = Swap(to=_names(to), max_error=max_error, length=length)
    opened = as_subject(subject, tokenizer, device=device, dtype=dtype, progress=progress)
    asked.check(opened.model)
    split = read_split(opened, texts, pairs=CALIBRATION_PAIRS, sentences=None, seed=seed, objective=objective)
    split = replace(split, learn=split.learn[:sentences])
    settings = ReshapeSettings(objective, batch_tokens=batch_tokens, seed=seed)
    context = reshape_context(asked, opened, split, settings, progress)
    advice = find_advice(context, asked.to, max_error=max_error, length=length)
    name = str(subject) if isinstance(subject, str | os.PathLike) else str(opened.folder or opened.name)
    known = advice.chosen and opened.folder is not None  # a model in memory has no name for the command line
    return replace(advice, model=name, command=_swap_command(name, advice, texts, objective) if known else None)


def _swap_command(model: str, advice: Advice, texts: Texts, objective: object) -> str:
    """The command that makes a model with the mix of an advice."""
    words = ["attnworks", "swap", model, "--layers", pairs_of(advice.chosen), "--length", str(advice.length)]
    if isinstance(texts, str | os.PathLike):
        words += ["--corpus" if isinstance(texts, str) and is_corpus(texts) else "--text", str(texts)]
    if isinstance(objective, str):
        words += ["--objective", objective]
    return f"{shlex.join(words)} --out FOLDER"


def _names(to: str | Sequence[str]) -> tuple[str, ...]:
    return (to,) if isinstance(to, str) else tuple(to)
