"""From examinations to the file of a page, or to a frame in a notebook."""

from __future__ import annotations

import html
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnworks.core.errors import FolderError, UsageError
from attnworks.core.folders import disk_errors, write_file
from attnworks.exam.examination import Examination
from attnworks.exam.folder import read_exam
from attnworks.page.contents import Contents, PageAdvice, PageExam, exam_label, page_contents
from attnworks.page.html import page_html
from attnworks.page.inputs import read_advice, read_trace
from attnworks.reshape.history import receipts_of
from attnworks.reshape.receipt import Receipt

AnyPath = str | os.PathLike[str]
FRAME_HEIGHT = 720


@dataclass(frozen=True)
class WrittenPage:
    """A page on disk, and what is in it."""

    path: Path
    bytes: int
    contents: Contents


def report(
    exams: Examination | AnyPath | Sequence[Examination | AnyPath],
    out: AnyPath,
    *,
    trace: AnyPath | Sequence[AnyPath] | None = None,
    advice: AnyPath | None = None,
    model: AnyPath | None = None,
) -> Path:
    """Write the page of an examination, or of two to be compared, as one HTML file; a page that is there is replaced.

    exams     an examination, its folder, or two of them: before and after
    trace     files of `attnworks translate --trace`: translations, as word alignments and beam searches
    advice    a file of `attnworks advise --json`
    model     the folder of a reshaped model, for its receipts
    """
    return write_report(exams, out, trace=trace, advice=advice, model=model).path


def write_report(
    exams: PageExam | Examination | AnyPath | Sequence[PageExam | Examination | AnyPath],
    out: AnyPath,
    *,
    trace: AnyPath | Sequence[AnyPath] | None = None,
    advice: AnyPath | None = None,
    model: AnyPath | None = None,
) -> WrittenPage:
    """As `report`, and tells what is in the page. An `Exam` has a name of its own."""
    out = Path(out)
    check_out(out)
    several = list(exams) if isinstance(exams, Sequence) and not isinstance(exams, str) else [exams]
    traces = list(trace) if isinstance(trace, Sequence) and not isinstance(trace, str) else [trace]
    shown = [_exam(exam) for exam in several]
    for file in traces:
        shown = shown if file is None else _with_trace(shown, Path(file))
    contents = page_contents(
        shown,
        advice=None if advice is None else _advice(shown, Path(advice)),
        receipts=() if model is None else _receipts(shown, str(model)),
    )
    data = page_html(contents).encode()
    write_file(out, data)
    return WrittenPage(out, len(data), contents)


def check_out(out: Path) -> None:
    """An error if no file can be written there, or one would be lost: better known before the work than after it."""
    with disk_errors(f"a report in {out}", remedy="choose another place"):
        wrong = {
            "a folder": out.is_dir(),
            f"no folder {out.parent}": not out.parent.is_dir(),
            "a device or a pipe": out.exists() and not (out.is_file() or out.is_dir()),
            "a file that is no page, and would be lost": out.is_file() and not _is_page(out),
        }
    got = next((words for words, is_so in wrong.items() if is_so), None)
    if got is not None:
        raise FolderError(
            f"a report in {out}",
            "a new file or a page to replace",
            got,
            f"make {out.parent}" if got.startswith("no folder") else "name another file",
        )


def _is_page(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(64).lstrip().lower().startswith((b"<!doctype html", b"<html")) or not file.stat().st_size


def notebook_frame(exam: Examination) -> str:
    """The page in a frame of its own, from which its script reaches nothing of the notebook."""
    page = page_html(page_contents([PageExam(exam, exam_label(exam))], host="notebook"))
    title = html.escape(f"Examination of {exam_label(exam)}")
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" title="{title}" width="100%" height="{FRAME_HEIGHT}" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def _exam(exam: PageExam | Examination | AnyPath) -> PageExam:
    if isinstance(exam, PageExam):
        return exam
    if isinstance(exam, Examination):
        return PageExam(exam, exam_label(exam))
    if not isinstance(exam, str | os.PathLike):
        raise _no_exam(exam)
    return PageExam(read_exam(exam), Path(exam).resolve().name)


def _no_exam(got: object) -> UsageError:
    return UsageError(
        "a report", "an examination, its folder, or two of them", type(got).__name__, "pass an Examination or a path"
    )


def _advice(exams: Sequence[PageExam], file: Path) -> PageAdvice:
    advice = read_advice(file)
    _check_layers(exams, {now.slot for now in advice.advice.present}, f"the advice {file}")
    return advice


def _receipts(exams: Sequence[PageExam], model: str) -> list[Receipt]:
    found = receipts_of(model)
    if not found:
        raise UsageError(
            f"the receipts of {model}", "a model that was reshaped", "one that never was", "leave --model out"
        )
    changed = {".".join(place.split(":")[0].split(".")[:2]) for receipt in found for place in receipt.done}
    _check_layers(exams, changed, f"the receipts of {model}")
    return found


def _check_layers(exams: Sequence[PageExam], slots: Collection[str], asked: str) -> None:
    """As far as layers tell, these are those of a model that was examined."""
    known = [set(heads) if isinstance(heads := exam.exam.model.get("heads"), dict) else set(slots) for exam in exams]
    if not any(set(slots) <= layers for layers in known):
        raise UsageError(
            asked,
            "layers of a model that was examined",
            ", ".join(sorted(set(slots) - set().union(*known))[:3]) or "layers of both",
            "examine that model",
        )


def _with_trace(exams: Sequence[PageExam], file: Path) -> list[PageExam]:
    """The traced sentences go to the examination of the model that translated them, as far as names and layers tell."""
    trace = read_trace(file)
    fitting = [shown for shown in exams if trace.belongs_to(shown.exam)]
    named = [shown for shown in fitting if trace.is_by(shown.exam)]
    if len(fitting) == 1 or len(named) == 1:
        (of_trace,) = fitting if len(fitting) == 1 else named
        longer = replace(of_trace, sentences=(*of_trace.sentences, *trace.sentences))
        return [longer if exam is of_trace else exam for exam in exams]
    raise UsageError(
        f"the trace {file}",
        "translations by a model that was examined",
        f"those of {trace.run}, which could be of both" if fitting else "other layers or heads",
        "report the examination of the traced model alone"
        if fitting
        else "trace the model that was examined: attnworks translate RUN TEXT --trace FILE",
    )
