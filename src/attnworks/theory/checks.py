"""Run checks, and say what they found as plain data."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attnworks.theory.contract import Claim, Finding
from attnworks.theory.documents import DOCUMENTS
from attnworks.theory.sides import Sides, number


@dataclass(frozen=True)
class Checked:
    """A claim, what its check found (None where nothing can be computed), and how long that took."""

    claim: Claim
    finding: Finding | None
    seconds: float

    @property
    def confirmed(self) -> bool | None:
        """Whether the numbers say what the verdict says; None where there are none."""
        return None if self.finding is None else self.finding.confirms(self.claim.verdict)

    def to_json(self) -> dict[str, Any]:
        claim, finding = self.claim, self.finding
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
        return {**data, "figures": {name: number(value) for name, value in figures.items()}, "seconds": self.seconds}


def check_claims(claims: Iterable[Claim], seed: int = 0) -> Iterator[Checked]:
    """Check one claim after the other, as the caller asks for them."""
    for claim in claims:
        start = time.perf_counter()
        finding = None if claim.function is None else claim.check(seed)
        yield Checked(claim, finding, time.perf_counter() - start)
