"""From examinations to the file of a page, or to a frame in a notebook."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnworks.core.errors import FolderError, UsageError
from attnworks.core.folders import disk_errors, write_file
from attnworks.exam.examination import Examination
from attnworks.exam.folder import read_exam
from attnworks.page.contents import Contents, PageExam, exam_label, page_contents
from attnworks.page.html import PAGE_START, page_html
from attnworks.page.inputs import TRACE, read_advice, read_trace
from attnworks.reshape.history import receipts_of
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.swapping.advice import Advice

AnyPath = str | os.PathLike[str]
FRAME_HEIGHT = 720


@dataclass(frozen=True)
class WrittenPage:
    """A page on disk, and its contents. It may be used as a path.

    path      the file
    bytes     its size
    contents  what is in it
    opened    whether it was opened in the browser
    """

    path: Path
    bytes: int
    contents: Contents = field(repr=False)
    opened: bool = False

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is not in the page, and why."""
        return tuple(self.contents.page["remarks"])

    def to_json(self) -> dict[str, Any]:
        held, heads = self.contents.heads
        about = {"path": str(self.path), "bytes": self.bytes, "maps": heads, "maps_held": held}
        return {**about, "remarks": list(self.remarks)}

    def __rich__(self) -> Any:
        from attnworks.page.render import page_line

        return page_line(self)

    def _repr_html_(self) -> str:
        """In a notebook: a link to the file."""
        return f'<a href="{html.escape(self.path.absolute().as_uri())}">{html.escape(str(self.path))}</a>'


def report(
    exams: PageExam | Examination | AnyPath | Sequence[PageExam | Examination | AnyPath],
    out: AnyPath,
    *,
    trace: AnyPath | Sequence[AnyPath] = (),
    advice: AnyPath | None = None,
    model: AnyPath | None = None,
) -> WrittenPage:
    """Write the page of an examination, or of two to be compared, as one HTML file that needs no network.

    Args:
        exams: An `Examination`, its folder, or two of them: before and after.
        out: The file to write. A page of attnworks there is replaced; any other file is refused.
        trace: Files that `attnworks translate --trace` wrote, whose word alignments and beam searches are shown.
            Default: (), none.
        advice: A file with what `attnworks advise --json` printed. Default: None.
        model: The folder of a reshaped model, whose receipts are shown. Default: None.

    Returns:
        A `WrittenPage`: its path, its size in bytes, and remarks on what did not fit.

    >>> attnworks.report("exams/first", "first.html")  # doctest: +SKIP
    """
    out = Path(out)
    check_out(out)
    shown = [_page_exam(exam) for exam in _as_list(exams)]
    for file in _as_list(trace):
        shown = _with_trace(shown, Path(file))
    page_advice = None if advice is None else _advice(shown, Path(advice))
    receipts = () if model is None else _receipts(shown, str(model))
    contents = page_contents(shown, advice=page_advice, receipts=receipts)
    data = page_html(contents).encode()
    write_file(out, data)
    return WrittenPage(out, len(data), contents)


def _as_list(one_or_several: Any) -> list[Any]:
    is_several = isinstance(one_or_several, Sequence) and not isinstance(one_or_several, str)
    return list(one_or_several) if is_several else [one_or_several]


def check_out(out: Path) -> None:
    """An error, before any work is done, if no file can be written there or if a file would be lost."""
    asked, remedy = f"a report in {out}", "name another file"
    with disk_errors(asked, remedy="choose another place"):
        if out.is_dir():
            got = "a folder"
        elif not out.parent.is_dir():
            got, remedy = f"no folder {out.parent}", f"make {out.parent}"
        elif out.exists() and not out.is_file():
            got = "a device or a pipe"
        elif out.is_file() and not _is_page(out):
            got = "a file that is no page of attnworks, and would be lost"
        else:
            return
    raise FolderError(asked, "a new file or a page of attnworks to replace", got, remedy)


def _is_page(file: Path) -> bool:
    """Whether attnworks wrote it as a page; an empty file counts too."""
    with file.open("rb") as opened:
        return opened.read(len(PAGE_START)) in (PAGE_START, b"")


def notebook_frame(exam: Examination) -> str:
    """The page in a frame of its own, so that its script cannot reach the notebook."""
    page = page_html(page_contents([_page_exam(exam)], host="notebook"))
    title = html.escape(f"Examination of {exam_label(exam)}")
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" title="{title}" width="100%" height="{FRAME_HEIGHT}" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def _page_exam(exam: PageExam | Examination | AnyPath) -> PageExam:
    if isinstance(exam, PageExam):
        return exam
    if isinstance(exam, Examination):
        return PageExam(exam, exam_label(exam))
    if isinstance(exam, str | os.PathLike):
        return PageExam(read_exam(exam), Path(exam).resolve().name)
    expected, remedy = "an examination, its folder, or two of them", "pass an Examination or a path"
    raise UsageError("a report", expected, type(exam).__name__, remedy)


def _advice(exams: Sequence[PageExam], file: Path) -> Advice:
    advice = read_advice(file)
    _check_layers(exams, {now.slot for now in advice.present}, f"the advice {file}")
    return advice


def _receipts(exams: Sequence[PageExam], model: str) -> list[Receipt]:
    asked, receipts = f"the receipts of {model}", receipts_of(model)
    if not receipts:
        raise UsageError(asked, "a model that was reshaped", "one that never was", "leave --model out")
    layers = {".".join(place.split(":")[0].split(".")[:2]) for receipt in receipts for place in receipt.done}
    _check_layers(exams, layers, asked)
    return receipts


def _check_layers(exams: Sequence[PageExam], slots: set[str], asked: str) -> None:
    """An error unless an examined model has these layers; a model with unknown layers passes."""
    known = [set(heads) if isinstance(heads := exam.exam.model.get("heads"), dict) else slots for exam in exams]
    if not any(slots <= layers for layers in known):
        got = ", ".join(sorted(slots - set().union(*known))[:3]) or "layers of both"
        raise UsageError(asked, "layers of a model that was examined", got, "examine that model")


def _with_trace(exams: Sequence[PageExam], file: Path) -> list[PageExam]:
    """Add the traced sentences to the one examination of a model with the same layers (or, of two, the same name)."""
    trace = read_trace(file)
    fitting = [shown for shown in exams if trace.belongs_to(shown.exam)]
    named = [shown for shown in fitting if trace.is_by(shown.exam)]
    if len(fitting) == 1 or len(named) == 1:
        (of_trace,) = fitting if len(fitting) == 1 else named
        longer = replace(of_trace, sentences=(*of_trace.sentences, *trace.sentences))
        return [longer if exam is of_trace else exam for exam in exams]
    got, remedy = "other layers or heads", f"trace the model that was examined: {TRACE.command}"
    if fitting:
        got = f"those of {trace.run}, which could be of both"
        remedy = "report the examination of the traced model alone"
    raise UsageError(f"the trace {file}", "translations by a model that was examined", got, remedy)
