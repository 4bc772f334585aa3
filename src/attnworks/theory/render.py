"""Checked claims, shown to people."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnworks.core.display import counted
from attnworks.theory.contract import DOCUMENTS, Verdict
from attnworks.theory.on_model import LawTallies, LawTally
from attnworks.theory.plain_text import unicode_formulas
from attnworks.theory.report import CheckedClaim
from attnworks.theory.sides import Sides

_STYLES = {
    Verdict.HOLDS: "green",
    Verdict.CONDITION: "cyan",
    Verdict.TYPO: "yellow",
    Verdict.FALSE: "red",
    Verdict.NOT_CHECKABLE: "dim",
}
_SHORT = {Verdict.CONDITION: "condition", Verdict.NOT_CHECKABLE: "—"}
_REMARKS = {Verdict.HOLDS: "remark", Verdict.CONDITION: "condition", Verdict.NOT_CHECKABLE: "remark"}
_ROUNDING = 1e-6
"""A larger share of both sides that they may differ by is shown."""
_RELATIONS = {"<=": "≤", ">=": "≥"}


def claims_shown(claims: Sequence[CheckedClaim]) -> Group:
    """A table for each document, and how many checks confirm their verdict."""
    parts: list[RenderableType] = []
    for key, of_document in groupby(claims, key=lambda checked: checked.claim.document):
        document = DOCUMENTS[key]
        parts += [Text(f"\n{document.key}: {document.author}, {document.title}", "bold"), _claims_table(of_document)]
    return Group(*parts, claims_summary(claims))


def claims_summary(claims: Sequence[CheckedClaim]) -> Text:
    """The number of claims with each verdict, and of checks that confirm theirs."""
    printed = [checked for checked in claims if checked.claim.document != "D"]
    computed = [checked for checked in claims if checked.result is not None]
    wrong = [checked.claim.id for checked in computed if not checked.confirmed]
    summary = Text()
    if printed:
        counts = Counter(checked.claim.verdict for checked in printed)
        verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        summary.append(f"\n{counted(len(printed), 'statement')} of the documents: {verdicts}.")
    if own := len(claims) - len(printed):
        summary.append(f"\n{counted(own, 'result')} of our own.")
    seconds = sum(checked.seconds for checked in claims)
    summary.append(f"\n{len(computed) - len(wrong)} of {len(computed)} checks confirm their verdict; {seconds:.1f} s.")
    if wrong:
        summary.append(f"\nThese do not: {', '.join(wrong)}.", "bold red")
    return summary


def _claims_table(claims: Iterable[CheckedClaim]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("id", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("states", ratio=1, overflow="fold")
    table.add_column("found", ratio=1)
    for checked in claims:
        claim = checked.claim
        table.add_row(claim.id, _verdict(claim.verdict), Text(unicode_formulas(claim.statement)), _found(checked))
    return table


def _verdict(verdict: Verdict) -> Text:
    return Text(_SHORT.get(verdict, verdict), _STYLES[verdict])


def _found(checked: CheckedClaim) -> Text:
    """Both sides, those of the correction or without the condition, and the figures."""
    finding = checked.result
    if finding is None:
        return Text(checked.claim.why_not, "dim")
    found = Text()
    if not checked.confirmed:
        found.append("does not confirm its verdict: ", "bold red")
    found.append(_both(finding.stated))
    for words, sides in (("corrected", finding.corrected), ("without it", finding.without)):
        if sides is not None:
            found.append(f"\n{words} ", "dim").append(_both(sides))
    if finding.figures:
        found.append("\n" + "; ".join(f"{name} {_number(value)}" for name, value in finding.figures.items()), "dim")
    return found


def _both(sides: Sides) -> Text:
    mark = ("✓", "green") if sides.holds else ("✗", "red")
    loose = sides.slack > _ROUNDING * max(1.0, abs(sides.left), abs(sides.right))
    within = f"± {sides.slack:.2g} " if loose else ""
    relation = _RELATIONS.get(sides.relation, sides.relation)
    return Text.assemble(f"{_number(sides.left)} {relation} {_number(sides.right)} {within}", mark)


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def claim_shown(checked: CheckedClaim) -> Group:
    """Everything that is known of a claim."""
    claim = checked.claim
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for name, value in _rows(checked):
        if value:
            table.add_row(name, Text(value) if isinstance(value, str) else value)
    return Group(Text.assemble((f"\n{claim.id}  ", "bold"), (claim.verdict, _STYLES[claim.verdict])), table)


def _rows(checked: CheckedClaim) -> Iterator[tuple[str, str | Text]]:
    claim, finding = checked.claim, checked.result
    yield "source", f"{DOCUMENTS[claim.document].author}, {claim.where}"
    yield "states", unicode_formulas(claim.statement)
    yield _REMARKS.get(claim.verdict, "correction"), unicode_formulas(claim.correction)
    yield "note", unicode_formulas(claim.note)
    yield "proof", unicode_formulas(claim.proof)
    yield "not computed", claim.why_not
    if finding is None:
        return
    yield "compares", unicode_formulas(claim.compares)
    yield "computed" if finding.corrected is None else "as printed", _both(finding.stated)
    yield "corrected", "" if finding.corrected is None else _both(finding.corrected)
    yield "without it", "" if finding.without is None else _both(finding.without)
    yield "figures", "\n".join(f"{_number(value)}  {name}" for name, value in finding.figures.items())
    yield "the case", unicode_formulas(" ".join((claim.function.__doc__ or "").split()))
    yield "sizes", ", ".join(f"{name} {bounds.low:g}-{bounds.high:g}" for name, (_, bounds) in claim.ranges.items())
    yield "code", claim.code or ""


def tallies_shown(tallies: LawTallies) -> Group:
    """Where each claim holds on a model, how tightly, and where it does not apply."""
    told = (
        f"{tallies.model} on {tallies.sentences} lines from {tallies.source}, in float64. Every layer (or stack) "
        "counts once for each sentence; left/right is the median. Verdicts are about all models: what is false may "
        "hold here."
    )
    missed = [
        Text(f"{tally.law.id} does not apply in {counted(left, 'place')}: {_reasons(tally)}.", "dim")
        for tally in tallies
        if (left := tally.not_applicable.total())
    ]
    return Group(Text(told, "dim"), _tallies_table(tally for tally in tallies if tally.computed), *missed)


def _reasons(tally: LawTally) -> str:
    return "; ".join(f"{reason} ({places})" for reason, places in tally.not_applicable.items())


def _tallies_table(tallies: Iterable[LawTally]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("id", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("compares", ratio=1, min_width=8)
    table.add_column("holds in", justify="right", no_wrap=True)
    table.add_column("left/right", justify="right", no_wrap=True)
    table.add_column("nearest to breaking", ratio=1, min_width=8)
    for tally in tallies:
        sides, place = tally.worst or (None, "")
        table.add_row(
            tally.law.id,
            _verdict(tally.claim.verdict),
            Text(tally.law.description),
            Text(f"{tally.held} of {tally.computed}", "" if tally.held == tally.computed else "yellow"),
            _number(statistics.median(tally.tightness)) if tally.tightness else "",
            "" if sides is None else _both(sides).append(f"  {place}", "dim"),
        )
    return table
