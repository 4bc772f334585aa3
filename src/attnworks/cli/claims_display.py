"""From the options of `attnworks claims` to checked claims, shown."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnworks.cli.claims import VERDICTS
from attnworks.cli.console import console, print_json, progress_bar, progress_console
from attnworks.core.errors import UsageError
from attnworks.text.sources import read_texts
from attnworks.theory import Verdict, find_claims
from attnworks.theory.contract import DOCUMENTS
from attnworks.theory.laws import LAYER_LAWS, STACK_LAWS
from attnworks.theory.on_model import LawTally, check_on_model
from attnworks.theory.plain_text import unicode_formulas
from attnworks.theory.report import CheckedClaim, check_claims
from attnworks.theory.sides import Sides
from attnworks.traces.subject import open_subject

SENTENCES = 16
STYLES = {
    Verdict.HOLDS: "green",
    Verdict.CONDITION: "cyan",
    Verdict.TYPO: "yellow",
    Verdict.FALSE: "red",
    Verdict.NOT_CHECKABLE: "dim",
}
SHORT = {Verdict.CONDITION: "condition", Verdict.NOT_CHECKABLE: "—"}
REMARKS = {Verdict.HOLDS: "remark", Verdict.CONDITION: "condition", Verdict.NOT_CHECKABLE: "remark"}
ROUNDING = 1e-6
"""What sides may differ by beyond this share of them is told."""
RELATIONS = {"<=": "≤", ">=": "≥"}


def check_and_show(ids: Sequence[str], options: dict[str, Any]) -> None:
    """Check the chosen claims, document by document, and fail if one is not as its verdict says."""
    for name in ("text", "corpus", "sentences", "max_tokens"):
        if options[name] is not None:
            raise UsageError(
                f"--{name.replace('_', '-')}", "a model that reads text", "no --on MODEL", "add it, or leave this out"
            )
    verdicts = [dict(zip(VERDICTS, Verdict, strict=True))[name] for name in options["verdict"]]
    chosen = [claim for claim in find_claims(*ids) if not verdicts or claim.verdict in verdicts]
    if not chosen:
        raise UsageError(
            f"claims {' '.join(ids)}".strip(), f"some with verdict {' or '.join(verdicts)}", "none", "leave it out"
        )
    screen, quiet = console(), options["as_json"]
    done: list[CheckedClaim] = []
    with progress_bar("claims", progress_console(), shown=not quiet) as progress:
        task = progress.add_task("", total=len(chosen))
        for key, claims in groupby(chosen, key=lambda claim: claim.document):
            checked = []
            for one in check_claims(claims, options["seed"]):
                checked.append(one)
                progress.update(task, advance=1, description=one.claim.id)
            done += checked
            if not quiet and not options["explain"]:
                document = DOCUMENTS[key]
                screen.print(Text(f"\n{document.key}: {document.author}, {document.title}", "bold"))
                screen.print(_table(checked))
    if quiet:
        print_json([one.to_json() for one in done])
    else:
        for one in done if options["explain"] else ():
            _explain(one, screen)
        _summary(done, screen)
    if any(one.confirmed is False for one in done):
        click.get_current_context().exit(1)


def _table(checked: Iterable[CheckedClaim]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("id", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("states", ratio=1)
    table.add_column("found", ratio=1)
    for one in checked:
        verdict = one.claim.verdict
        states = Text(unicode_formulas(one.claim.statement))
        table.add_row(one.claim.id, Text(SHORT.get(verdict, verdict), STYLES[verdict]), states, _found(one))
    return table


def _found(one: CheckedClaim) -> Text:
    """Both sides, those of the correction or without the condition, and the figures."""
    if one.result is None:
        return Text(one.claim.why_not, "dim")
    found = Text()
    if not one.confirmed:
        found.append("does not confirm its verdict: ", "bold red")
    found.append(_sides(one.result.stated))
    for words, sides in (("corrected", one.result.corrected), ("without it", one.result.without)):
        if sides is not None:
            found.append(f"\n{words} ", "dim").append(_sides(sides))
    if one.result.figures:
        figures = "; ".join(f"{name} {_number(value)}" for name, value in one.result.figures.items())
        found.append(f"\n{figures}", "dim")
    return found


def _sides(sides: Sides) -> Text:
    relation = RELATIONS.get(sides.relation, sides.relation)
    mark = ("✓", "green") if sides.holds else ("✗", "red")
    loose = sides.slack > ROUNDING * max(abs(sides.left), abs(sides.right))
    within = f"± {sides.slack:.2g} " if loose and sides.slack > ROUNDING else ""
    return Text.assemble(f"{_number(sides.left)} {relation} {_number(sides.right)} {within}", mark)


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def _explain(one: CheckedClaim, screen: Console) -> None:
    claim, finding = one.claim, one.result
    document = DOCUMENTS[claim.document]
    screen.print(Text.assemble((f"\n{claim.id}  ", "bold"), (claim.verdict, STYLES[claim.verdict])))
    rows: list[tuple[str, str | Text]] = [
        ("source", f"{document.author}, {claim.where}"),
        ("states", unicode_formulas(claim.statement)),
    ]
    rows.append((REMARKS.get(claim.verdict, "correction"), unicode_formulas(claim.correction)))
    rows += [
        ("note", unicode_formulas(claim.note)),
        ("proof", unicode_formulas(claim.proof)),
        ("not computed", claim.why_not),
    ]
    if finding is not None:
        rows.append(("compares", unicode_formulas(claim.compares)))
        described = "as printed" if finding.corrected is not None else "computed"
        rows.append((described, _sides(finding.stated)))
        rows += [
            (words, _sides(sides))
            for words, sides in (("corrected", finding.corrected), ("without it", finding.without))
            if sides is not None
        ]
        rows += [("figures", "\n".join(f"{_number(value)}  {name}" for name, value in finding.figures.items()))]
        if claim.function is not None and claim.function.__doc__:
            rows.append(("the case", unicode_formulas(" ".join(claim.function.__doc__.split()))))
        sizes = ", ".join(f"{name} {bounds.low:g}-{bounds.high:g}" for name, (_, bounds) in claim.ranges.items())
        rows += [("sizes", sizes), ("code", claim.code or "")]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for name, value in rows:
        if value:
            table.add_row(name, Text(value) if isinstance(value, str) else value)
    screen.print(table)


def _summary(done: Sequence[CheckedClaim], screen: Console) -> None:
    printed = [one for one in done if one.claim.document != "D"]
    counts = Counter(one.claim.verdict for one in printed)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    computed = [one for one in done if one.result is not None]
    wrong = [one.claim.id for one in computed if not one.confirmed]
    screen.print()
    if printed:
        screen.print(f"{len(printed)} statement{'s' if len(printed) > 1 else ''} of the documents: {verdicts}.")
    if own := len(done) - len(printed):
        screen.print(f"{own} result{'s' if own > 1 else ''} of our own.")
    seconds = sum(one.seconds for one in done)
    screen.print(f"{len(computed) - len(wrong)} of {len(computed)} checks confirm their verdict; {seconds:.1f} s.")
    if wrong:
        screen.print(Text(f"These do not: {', '.join(wrong)}.", "bold red"))


def check_on_and_show(ids: Sequence[str], options: dict[str, Any]) -> None:
    """Check what can be checked on a model, and show where it holds and how tightly."""
    if options["explain"] or options["verdict"]:
        raise UsageError(
            "claims on a model", "--on MODEL alone, or with ids", "--explain or --verdict as well", "leave one out"
        )
    laws = {*LAYER_LAWS, *STACK_LAWS}
    wanted = {claim.id for claim in find_claims(*ids)} & laws
    if not wanted:
        raise UsageError(
            f"{' '.join(ids)} on a model", f"some of {', '.join(sorted(laws))}", "none of these", "choose some of them"
        )
    texts = options["text"] if options["corpus"] is None else options["corpus"]
    passages, about, remark = read_texts(texts, sentences=options["sentences"] or SENTENCES, seed=options["seed"])
    screen, errors, quiet = console(), progress_console(), options["as_json"]
    if remark and not quiet:
        errors.print(f"[yellow]{remark}")
    subject = open_subject(options["on"], max_length=options["max_tokens"])
    with progress_bar("sentences", errors, shown=not quiet) as progress:
        task = progress.add_task("", total=len(passages))
        tallies = check_on_model(subject, passages, lambda sentences: progress.advance(task, sentences), wanted)
    if quiet:
        print_json([tally.to_json() for tally in tallies])
        return
    told = (
        f"{subject.name} on {len(passages)} lines from {about['name']}, in float64. Every layer (or stack) "
        "counts once for each sentence; left/right is the median. Verdicts are about all models: what is false may "
        "hold here."
    )
    screen.print(told, style="dim", markup=False)
    screen.print(_on_table([tally for tally in tallies if tally.computed]))
    for tally in tallies:
        if tally.not_applicable:
            reasons = "; ".join(f"{reason} ({places})" for reason, places in tally.not_applicable.items())
            told = f"{tally.law.id} says nothing of {tally.not_applicable.total()} places: {reasons}."
            screen.print(told, style="dim", markup=False)


def _on_table(tallies: Iterable[LawTally]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("id", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("compares", ratio=1)
    table.add_column("holds in", justify="right", no_wrap=True)
    table.add_column("left/right", justify="right", no_wrap=True)
    table.add_column("nearest to breaking", ratio=1)
    for tally in tallies:
        verdict = tally.claim.verdict
        sides, place = tally.worst or (None, "")
        tight = _number(statistics.median(tally.tightness)) if tally.tightness else ""
        table.add_row(
            tally.law.id,
            Text(SHORT.get(verdict, verdict), STYLES[verdict]),
            tally.law.description,
            Text(f"{tally.held} of {tally.computed}", "" if tally.held == tally.computed else "yellow"),
            tight,
            "" if sides is None else _sides(sides).append(f"  {place}", "dim"),
        )
    return table
