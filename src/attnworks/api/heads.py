"""`attnworks.prune`, `attnworks.grow` and `attnworks.project`: cut, add and replace heads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnworks.api.reshapes import apply
from attnworks.core.checks import one_of_options
from attnworks.core.display import Progress, silent
from attnworks.reshape.growth.grow import GROWTH_KINDS, Grow
from attnworks.reshape.projection.project import Project
from attnworks.reshape.pruning.prune import Prune
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.texts import CALIBRATION_PAIRS
from attnworks.text.sources import Texts
from attnworks.traces.subject import Subject

if TYPE_CHECKING:
    from attnworks.training.objectives.sentences import LossFunction

AnyPath = str | os.PathLike[str]


def prune(
    subject: Any,
    texts: Texts = None,
    *,
    tokenizer: Any = None,
    keep: float | None = None,
    budget: float | str | None = None,
    heads: str = "auto",
    by: str = "curvature",
    evenly: bool = False,
    compare: bool = False,
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
    """Cut the heads that are needed least. Matrices become smaller, and the forward pass faster.

    Args:
        subject: A path, a `Subject`, a Hugging Face model, or a Transformer of attnworks. It stays as it is.
        texts: A list of texts, a text file (of both, every fourth text is held out for evaluation), or a corpus such
            as "grammar". Default: None, the corpus that a run was trained on, or "grammar", or "pydoc" for a language
            model, which reads texts joined into passages.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        keep: How many heads to keep, as a share of all heads, for example 0.5. Default: None; give `keep`, `budget` or
            `heads`.
        budget: How much of the model to keep instead: cut heads until it has at most this share of its parameters
            (0.9 or "parameters:0.9") or of the measured time of a forward pass ("time:0.8"). Default: None.
        heads: Heads to cut by name instead: "3.2,4.*" or "enc.0.*,cross.1.3". Default: "auto", chosen by `keep` or
            `budget`.
        by: How to rank heads: "curvature" (by how much the outputs are estimated to change, again after every few
            heads; for a language model also on random tokens that are repeated), "ablation" (the measured loss
            without each head), "gradient", "gates", "redundancy", "role", "norm" (of the output weights)
            or "random". Default: "curvature".
        evenly: Cut the same share of heads in every layer. Default: False.
        compare: Also measure the loss of every ranking at 90 %, 80 %, ... of the heads. Default: False.
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

    >>> new, receipt = attnworks.prune("runs/first", keep=0.5, heal=300)  # doctest: +SKIP
    """
    return apply(
        subject, _prune(keep, budget, heads, by, evenly, compare), texts, tokenizer=tokenizer,
        heal=heal, heal_by=heal_by, learning_rate=learning_rate, objective=objective, pairs=pairs, sentences=sentences,
        batch_tokens=batch_tokens, seed=seed, device=device, dtype=dtype, out=out, progress=progress,
    )  # fmt: skip


def _prune(keep: float | None, budget: float | str | None, heads: str, by: str, evenly: bool, compare: bool) -> Prune:
    named = None if heads == "auto" else heads
    one_of_options("to prune", {"keep": keep, "budget": budget, "heads": named}, "for instance keep=0.5")
    return Prune(keep=keep, budget=budget, heads=heads, by=by, evenly=evenly, compare=compare)


def grow(
    subject: Any,
    texts: Texts = None,
    *,
    tokenizer: Any = None,
    add: int = 0,
    where: str = "auto",
    kinds: Sequence[str] = GROWTH_KINDS,
    by: str = "fisher",
    compare: bool = False,
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
    """Add keys, values or heads where capacity is missing.

    Args:
        subject: A path, a `Subject`, a Hugging Face model, or a Transformer of attnworks. It stays as it is.
        texts: A list of texts, a text file (of both, every fourth text is held out for evaluation), or a corpus such
            as "grammar". Default: None, the corpus that a run was trained on, or "grammar", or "pydoc" for a language
            model, which reads texts joined into passages.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        add: Columns to add in total, placed where they lower the loss most. Default: 0; give `add` or `where`.
        where: Where to grow: a list such as "enc.0.3:keys=8,dec.0.*:values=2,enc.1:heads=1". Default: "auto".
        kinds: With `where="auto"`, what may grow. Default: ("keys", "values", "heads").
        by: How to fill new columns: "fisher", or a baseline: "whitened", "random", "zero", "gradmax", "document".
            Default: "fisher".
        compare: Also measure every baseline at the same places. Default: False.
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
        NoBottleneckError is raised where growing would not lower the loss.

    >>> new, receipt = attnworks.grow("runs/first", add=16)  # doctest: +SKIP
    """
    return apply(
        subject, _grow(add, where, kinds, by, compare), texts, tokenizer=tokenizer,
        heal=heal, heal_by=heal_by, learning_rate=learning_rate, objective=objective, pairs=pairs, sentences=sentences,
        batch_tokens=batch_tokens, seed=seed, device=device, dtype=dtype, out=out, progress=progress,
    )  # fmt: skip


def _grow(add: int, where: str, kinds: Sequence[str], by: str, compare: bool) -> Grow:
    places = None if where == "auto" else where
    one_of_options("to grow", {"add": add or None, "where": places}, "for instance add=16")
    return Grow(
        add=add, where=where, kinds=tuple(kinds.split(",") if isinstance(kinds, str) else kinds), by=by, compare=compare
    )


def project(
    subject: Any,
    texts: Texts = None,
    *,
    tokenizer: Any = None,
    heads: str,
    form: str = "auto",
    window: int = 2,
    eps: float = 0.02,
    sparsity: float = 0.05,
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
    """Replace heads by fixed forms: the previous token, the first token, a band with learned values.

    Args:
        subject: A path, a `Subject`, a Hugging Face model, or a Transformer of attnworks. It stays as it is.
        texts: A list of texts, a text file (of both, every fourth text is held out for evaluation), or a corpus such
            as "grammar". Default: None, the corpus that a run was trained on, or "grammar", or "pydoc" for a language
            model, which reads texts joined into passages.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        heads: Heads to replace, as layer.head with * for all: "3.2,4.*" or "enc.0.*".
        form: Form to give them: "auto", "mix", "band", "previous", "next", "self", "first", "last", "mean", or a list
            of fixed maps such as "-2..2/first". Default: "auto".
        window: Largest offset to each side that a form may use. Default: 2.
        eps: Largest weight a head may keep at an offset outside its form. Default: 0.02.
        sparsity: Number of such offsets, as a share of the mean sentence length. Default: 0.05.
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

    >>> new, receipt = attnworks.project("runs/first", heads="enc.0.*", heal=300)  # doctest: +SKIP
    """
    return apply(
        subject, Project(heads=heads, form=form, window=window, eps=eps, sparsity=sparsity), texts, tokenizer=tokenizer,
        heal=heal, heal_by=heal_by, learning_rate=learning_rate, objective=objective, pairs=pairs, sentences=sentences,
        batch_tokens=batch_tokens, seed=seed, device=device, dtype=dtype, out=out, progress=progress,
    )  # fmt: skip
