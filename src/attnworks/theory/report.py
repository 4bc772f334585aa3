"""All claims checked: as plain data, for the page, and as docs/claims.md (`python -m attnworks.theory`)."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attnworks.core.display import rich_html
from attnworks.theory.contract import DOCUMENTS, STATEMENT_COUNT, Claim, ClaimResult, Verdict, all_claims
from attnworks.theory.sides import Sides, as_number

_CLAIM_ID = re.compile(r"\b(?:(S[0-4]\.)(\d+)(?:-(?:S[0-4]\.)?(\d+))?|(D)(\d+)(?:-D?(\d+))?)\b")

_PAGE_HEAD = rf"""# Claims of the source documents

attnworks implements five documents. These are their {STATEMENT_COUNT} statements, each with a verdict: found by
computing both sides, or else it is said why there is nothing to compute. The results that were derived on the way come
last. Ids are what docstrings cite. This page is made from the checks themselves (`make docs`); their numbers are
computed live:

    attnworks claims                     # all checks, in under a minute
    attnworks claims S0.17 --explain     # one statement: both sides, correction, counterexample
    attnworks claims --on runs/first     # those that can be checked on a model of your own

In Python, `from attnworks.theory import claim`, then `claim("S0.17").check(seed=3)` gives a `ClaimResult`: `left`,
`right`, `holds`, `corrected`, `figures`.

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
_SRC_LINK = "../src/"


@cache
def citations() -> dict[str, tuple[str, ...]]:
    """Id -> the files that cite it, without public functions, commands and checks. S4.20-S4.23 cites four.

    Of the theory only its mathematics and experiments count: the files that use neither `contract` nor `sides`.
    """
    home = Path(__file__).parents[1]
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(home.rglob("*.py")):
        name, text = file.relative_to(home).as_posix(), file.read_text(encoding="utf-8")
        imports_checks = re.search(r"attnworks\.theory\.(contract|sides)\b|^class Sides", text, re.M)
        if not name.startswith(("api/", "cli/")) and not (name.startswith("theory/") and imports_checks):
            for id in cited(text):
                found[id].append(name)
    return {id: tuple(names) for id, names in found.items()}


def cited(text: str) -> list[str]:
    """The ids in a text, each once.

    >>> cited("Source: S4.20-S4.22, D6.")
    ['D6', 'S4.20', 'S4.21', 'S4.22']
    """
    ids: set[str] = set()
    for book, first, last, derived, own_first, own_last in _CLAIM_ID.findall(text):
        low, high = int(first or own_first), int(last or own_last or first or own_first)
        ids |= {f"{book or derived}{number}" for number in range(low, high + 1)}
    return sorted(ids)


def markdown() -> str:
    """The whole page."""
    claims = all_claims()
    parts = [_PAGE_HEAD, *_counts(claims)]
    for document in DOCUMENTS.values():
        own = [claim for claim in claims if claim.document == document.key]
        parts.append(f"\n## {document.key}: {document.author}, {document.title}\n")
        parts += map(_derived, own) if document.key == "D" else _rows(own)
    return "\n".join(parts).rstrip() + "\n"


def _counts(claims: list[Claim]) -> Iterator[str]:
    yield f"| document | {' | '.join(Verdict)} | all |"
    yield "|---" * (len(Verdict) + 2) + "|"
    read = [document for document in DOCUMENTS.values() if document.key != "D"]
    lines = [(f"{document.key}, {document.author}", {document.key}) for document in read]
    for name, keys in [*lines, ("**all**", {document.key for document in read})]:
        counts = Counter(claim.verdict for claim in claims if claim.document in keys)
        yield f"| {name} | {' | '.join(str(counts[verdict]) for verdict in Verdict)} | {counts.total()} |"


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
    """Turn ids outside of formulas into links, and write braces and thin spaces so that Markdown keeps them."""
    parts = text.split("$")
    parts[::2] = [re.sub(r"\b(S[0-4]\.\d+|D\d+)\b", r"[\1](#\1)", part) for part in parts[::2]]
    for long, short in ((r"\{", r"\lbrace "), (r"\}", r"\rbrace "), (r"\,", r"\thinspace ")):
        parts[1::2] = [part.replace(long, short) for part in parts[1::2]]
    return "$".join(parts)


def _code(claim: Claim) -> str:
    """The check, and the files that cite the claim."""
    links = [f"[{name}]({_SRC_LINK}attnworks/{name})" for name in citations().get(claim.id, ())]
    if claim.code is not None:
        file, _, function = claim.code.partition(":")
        links.insert(0, f"[`{function}`]({_SRC_LINK}{file})")
    return ", ".join(links) or "—"


@dataclass(frozen=True)
class CheckedClaim:
    """A claim, what its check found (None where nothing can be computed), and how long that took."""

    claim: Claim
    result: ClaimResult | None
    seconds: float

    @property
    def confirmed(self) -> bool | None:
        """Whether the numbers agree with the verdict; None if nothing was computed."""
        return None if self.result is None else self.result.confirms(self.claim.verdict)

    def to_json(self) -> dict[str, Any]:
        claim, finding = self.claim, self.result
        document = DOCUMENTS[claim.document]
        data: dict[str, Any] = {
            "id": claim.id,
            "source": f"{document.author}, {claim.where}",
            "statement": claim.statement,
            "verdict": str(claim.verdict),
            "correction": claim.correction or None,
            "compares": claim.compares or None,
            "note": claim.note or None,
            "not_computed": claim.why_not or None,
            "code": claim.code,
            "confirmed": self.confirmed,
            "holds": None if finding is None else finding.holds,
        }
        for name in ("stated", "corrected", "without"):
            sides: Sides | None = getattr(finding, name, None)
            data[name] = None if sides is None else sides.to_json()
        figures = {} if finding is None else finding.figures
        return data | {"figures": {name: as_number(value) for name, value in figures.items()}, "seconds": self.seconds}

    def __rich__(self) -> Any:
        from attnworks.theory.render import claim_shown

        return claim_shown(self)

    def _repr_html_(self) -> str:
        return rich_html(self)


class CheckedClaims(list[CheckedClaim]):
    """Claims in their order, with what their checks found. Each of them shows itself in full."""

    @property
    def confirmed(self) -> bool:
        """Whether every check that computed something agrees with the verdict of its claim."""
        return all(checked.confirmed is not False for checked in self)

    def to_json(self) -> list[dict[str, Any]]:
        """An object per claim."""
        return [checked.to_json() for checked in self]

    def __rich__(self) -> Any:
        from attnworks.theory.render import claims_shown

        return claims_shown(self)

    def _repr_html_(self) -> str:
        return rich_html(self)


def check_claims(claims: Iterable[Claim], seed: int = 0) -> Iterator[CheckedClaim]:
    """Check the claims one after the other, lazily."""
    for claim in claims:
        start = time.perf_counter()
        finding = None if claim.function is None else claim.check(seed)
        yield CheckedClaim(claim, finding, time.perf_counter() - start)
