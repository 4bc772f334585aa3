"""From the options of `attnworks examine` to an examination, shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnworks.cli.console import console, print_json, progress_console
from attnworks.cli.examine_display import examine_progress, show
from attnworks.cli.report_display import show_remarks, show_written
from attnworks.core.checks import one_of_options
from attnworks.core.errors import UsageError
from attnworks.core.team import join_team
from attnworks.exam.examination import Examination
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.exam.folder import check_exam_place, write_exam
from attnworks.exam.measures import ALL_MEASURES, all_measures, choose_measures
from attnworks.page.contents import PageExam, exam_label
from attnworks.page.file import check_out, write_report
from attnworks.reshape.history import receipts_of
from attnworks.text.conllu import attach, read_parses
from attnworks.text.corpora import from_corpus
from attnworks.text.grammar import grammar_passages
from attnworks.text.passages import Passage, from_file
from attnworks.traces.subject import open_subject

MOST_AXES = 4
"""Readings with this number of axes are for other programs."""


def examine_and_show(model: str, options: dict[str, Any]) -> None:
    screen, quiet = progress_console(), options["as_json"]
    request = ExamSettings(
        measures=(ALL_MEASURES,) if options["everything"] else options["measures"],
        objective=options["objective"],
        without=options["without"] or (),
        pin=options["pin"] or (None if options["out"] or options["report"] else ()),
        batch_tokens=options["batch_tokens"],
        seed=options["seed"],
    )
    names = {"--measures": options["measures"], "--all": options["everything"]}
    one_of_options("measures", names, "leave one of them out", optional=True)
    if options["out"] is not None:
        check_exam_place(options["out"])
    if options["pin"] and options["out"] is None and options["report"] is None:
        raise UsageError(
            "--pin", "a place for the maps", "neither --out nor --report", "add --out FOLDER or --report FILE"
        )
    if options["report"] is not None:
        check_out(options["report"])
    choose_measures(request.measures)
    with join_team(options["device"]) as team:
        quiet = quiet or not team.leads
        subject = open_subject(
            model, max_length=options["max_tokens"], device=options["device"], dtype=options["dtype"]
        )
        receipts = receipts_of(model)
        passages, about, remark = passages_of(options)
        if remark and not quiet:
            screen.print(f"[yellow]{remark}")
        with examine_progress(screen, None, quiet) as advance:

            def begin(steps: int, costs: Mapping[str, str]) -> None:
                for name, cost in costs.items() if not quiet else ():
                    screen.print(f"[dim]{name}: {cost}")
                advance.begin(steps)

            exam = run_examination(
                subject, passages, request, about=about, receipts=receipts, team=team, begin=begin, advance=advance
            )
        if team.leads:
            _hand_over(exam, options, model if receipts else None)


def _hand_over(exam: Examination, options: dict[str, Any], reshaped: str | None) -> None:
    """Write and show an examination; `reshaped` is the folder of a model with receipts, for the page."""
    folder: Path | None = options["out"]
    if folder is not None:
        write_exam(exam, folder)
    if options["as_json"]:
        print_json(exam.to_json())
    else:
        show(exam, console(), folder, tables_of(exam, options["measures"] or ()))
    if options["report"] is not None:
        label = exam_label(exam) if folder is None else folder.resolve().name
        written = write_report(PageExam(exam, label), options["report"], model=reshaped)
        if options["as_json"]:
            show_remarks(written)
        else:
            show_written(written, as_json=False)


def tables_of(exam: Examination, measures: Sequence[str]) -> list[str]:
    """Every reading of these measures that the summary does not draw."""
    known = all_measures()
    drawn = {name for name in known if known[name].default} - {"structure"}
    return [
        str(reading.table())
        for reading in exam.readings.values()
        if (name := reading.name.partition(".")[0]) in measures and name not in drawn and len(reading.axes) < MOST_AXES
    ]


def passages_of(options: dict[str, Any]) -> tuple[list[Passage], dict[str, Any], str | None]:
    """The text that was asked for, where it is from, and what is odd about it."""
    text, corpus, number = (options[name] for name in ("text", "corpus", "sentences"))
    parses = options.get("parses")
    if corpus is not None and (text is not None or parses is not None):
        raise UsageError(
            "the text to read",
            f"--corpus SPEC, or --text FILE{' and --parses FILE' if 'parses' in options else ''}",
            f"both --corpus and {'--parses' if text is None else '--text'}",
            "leave one out",
        )
    if text is not None:
        passages, report = from_file(text)
        passages, about, remark = passages[:number], _named(text), report.summary() if report.bad else None
        if parses is not None:
            passages, unparsed = attach(passages, read_parses(parses))
            about["without_parses"] = unparsed
        return passages, about, remark
    if parses is not None:
        return read_parses(parses)[:number], {"name": str(parses)}, None
    if corpus is not None:
        passages, report = from_corpus(corpus, number, options["seed"])
        return passages, {"name": corpus}, report.summary() if report.bad else None
    return grammar_passages(number), {"name": "grammar"}, None


def _named(text: Path) -> dict[str, Any]:
    return {"name": str(text)}
