"""The table of all claims as Markdown: docs/claims.md is `python -m attnworks.theory`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from attnworks.theory.citations import citations
from attnworks.theory.contract import Claim, Verdict, in_order
from attnworks.theory.documents import DOCUMENTS, STATEMENTS

HEAD = rf"""# Claims of the source documents

attnworks implements five documents. These are their {STATEMENTS} statements, each with a verdict: found by computing
both sides, or else it is said why there is nothing to compute. The results that were derived on the way come last. Ids
are what docstrings cite. This page is made from the checks themselves (`make docs`); their numbers are computed live:

    attnworks claims                     # all checks, in under a minute
    attnworks claims S0.17 --explain     # one statement: both sides, correction, counterexample
    attnworks claims --on runs/first     # those that can be checked on a model of your own

In Python, `from attnworks.theory import claim`, then `claim("S0.17").check(seed=3)` gives a `Finding`: `left`, `right`,
`holds`, `corrected`, `figures`.

**Verdicts.** *holds*: true as printed. *holds with a condition*: true once the stated condition or reading is added.
*typo*: a slip (symbol, index, shape, scale) whose intended statement is true. *false*: the statement, its formula or
its reasoning is wrong. *not checkable*: an image, an experiment or an opinion that the text does not let one check. A
few verdicts are about spelling or about what other works say; these rows are not computed either, and say so.

**Conventions.** Tokens are rows; softmax acts on rows; $P$ is row-stochastic; $\mathbf 1$ is the vector of ones;
$W_{{QK}} = W_Q W_K^\top$; $W_h = W_{{V,h}} W_{{O,h}}$; $\lVert\cdot\rVert_1$ is the largest column sum,
$\lVert\cdot\rVert_\infty$ the largest row sum, $\lVert\cdot\rVert_2$ the spectral norm, the composite
$\lVert\cdot\rVert_{{1,\infty}}$ is $\sqrt{{\lVert\cdot\rVert_1 \lVert\cdot\rVert_\infty}}$; $\mathrm{{diam}}_2$ is the
largest distance of two rows; $[M]_k$ is the truncated singular value decomposition; $\ln$ is natural.
"""

SOURCE = "../src/"


def markdown() -> str:
    """The whole page."""
    claims = in_order()
    parts = [HEAD, *_counts(claims)]
    for document in DOCUMENTS.values():
        own = [claim for claim in claims if claim.document == document.key]
        parts.append(f"\n## {document.key}: {document.author}, {document.title}\n")
        parts += map(_derived, own) if document.key == "D" else _rows(own)
    return "\n".join(parts).rstrip() + "\n"


def _counts(claims: list[Claim]) -> Iterator[str]:
    yield f"| document | {' | '.join(Verdict)} | all |"
    yield "|---" * (len(Verdict) + 2) + "|"
    totals: Counter[Verdict] = Counter()
    for document in DOCUMENTS.values():
        if document.key == "D":
            continue
        counts = Counter(claim.verdict for claim in claims if claim.document == document.key)
        totals += counts
        yield _count_row(f"{document.key}, {document.author}", counts)
    yield _count_row("**all**", totals)


def _count_row(name: str, counts: Counter[Verdict]) -> str:
    return f"| {name} | {' | '.join(str(counts[verdict]) for verdict in Verdict)} | {counts.total()} |"


def _rows(claims: list[Claim]) -> Iterator[str]:
    yield "| id | where | states | verdict | correction or condition | code |"
    yield "|---|---|---|---|---|---|"
    for claim in claims:
        yield (
            f'| <a id="{claim.id}"></a>{claim.id} | {claim.where} | {_written(claim.statement)} | **{claim.verdict}** '
            f"| {_written(_remarks(claim)) or '—'} | {_code(claim)} |"
        )


def _derived(claim: Claim) -> str:
    proof = f"\n\n*Proof.* {_written(claim.proof)}" if claim.proof else ""
    return f'<a id="{claim.id}"></a>**{claim.id}.** {_written(claim.statement)}{proof}\n\n*Code:* {_code(claim)}\n'


def _remarks(claim: Claim) -> str:
    note = f"*Note:* {claim.note}" if claim.note else ""
    why_not = f"*Not computed:* {claim.why_not}." if claim.why_not else ""
    return " ".join(part for part in (claim.correction, note, why_not) if part)


def _written(text: str) -> str:
    """Ids outside of formulas become links; braces and blanks are spelled so that Markdown does not eat them."""
    parts = text.split("$")
    parts[::2] = [re.sub(r"\b(S[0-4]\.\d+|D\d+)\b", r"[\1](#\1)", part) for part in parts[::2]]
    for long, short in ((r"\{", r"\lbrace "), (r"\}", r"\rbrace "), (r"\,", r"\thinspace ")):
        parts[1::2] = [part.replace(long, short) for part in parts[1::2]]
    return "$".join(parts)


def _code(claim: Claim) -> str:
    """The check, and the files that cite the claim."""
    check = []
    if claim.code is not None:
        file, _, function = claim.code.partition(":")
        check = [f"[`{function}`]({SOURCE}{file})"]
    return ", ".join(check + [f"[{name}]({SOURCE}attnworks/{name})" for name in citations().get(claim.id, ())]) or "—"
