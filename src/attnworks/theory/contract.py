"""Claims: a statement of a document, its verdict, and the check that computes both of its sides."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypeVar, get_type_hints

from attnworks.core.checks import choice, integer, number
from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.core.registry import Registry
from attnworks.theory.cases import Draws
from attnworks.theory.sides import Sides

STATEMENT_COUNT = 271
"""How many statements the five documents make."""
_Check = TypeVar("_Check", bound="Callable[..., ClaimResult]")


class _Document(NamedTuple):
    """A source of claims: the beginning of their ids, the author, and the title."""

    key: str
    author: str
    title: str


DOCUMENTS = {
    document.key: document
    for document in (
        _Document("S0", "Xie 2021", "Attention (rank bound)"),
        _Document("S1", "the rank post, 2024", "on Dong, Cordonnier and Loukas"),
        _Document("S2", "CS224N", "Attention exploration"),
        _Document("S3", "Burgund", "Attention growing networks"),
        _Document("S4", "Conti 2024", "The math behind transformers"),
        _Document("D", "attnworks", "Derived results"),
    )
}
"""By the beginning of the ids. D is not a document: it holds results that were derived while checking the others."""


class Verdict(StrEnum):
    """Whether a statement is true, as found by computing both of its sides."""

    HOLDS = "holds"
    CONDITION = "holds with a condition"
    TYPO = "typo"
    FALSE = "false"
    NOT_CHECKABLE = "not checkable"


HOLDS, CONDITION, TYPO, FALSE, NOT_CHECKABLE = Verdict


@dataclass(frozen=True)
class ClaimResult:
    """What a check computed.

    stated       both sides of the statement as printed. If its verdict is CONDITION, on a case that meets it
    corrected    both sides of the corrected statement, for one that is wrong
    without      both sides of the statement on a case that does not meet its condition, where it fails
    figures      further numbers, by name
    """

    stated: Sides
    corrected: Sides | None = None
    without: Sides | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def left(self) -> float:
        return self.stated.left

    @property
    def right(self) -> float:
        return self.stated.right

    @property
    def holds(self) -> bool:
        """Whether the statement as printed holds on the case that was computed."""
        return self.stated.holds

    def confirms(self, verdict: Verdict) -> bool:
        """Whether the numbers agree with the verdict."""
        match verdict:
            case Verdict.HOLDS:
                return self.holds and self.corrected is None and self.without is None
            case Verdict.CONDITION:
                return self.holds and self.corrected is None and (self.without is None or not self.without.holds)
            case Verdict.TYPO | Verdict.FALSE:
                return not self.holds and self.without is None and (self.corrected is None or self.corrected.holds)
            case Verdict.NOT_CHECKABLE:
                return False


class SizeRange(NamedTuple):
    """The values that a size of a check may have, ends included."""

    low: float
    high: float


@dataclass(frozen=True)
class Claim:
    """One statement.

    id            as in S4.33: the 33rd statement of document S4; D6 is the sixth result that we derived
    where         section or equation of the document
    statement     what it states; formulas are LaTeX between dollar signs
    correction    what is true instead, or the condition under which the statement holds
    compares      what the numbers on the two sides are, left and then right
    note          how our numbers differ from earlier results
    proof         of a result that we derived
    why_not       why nothing is computed; empty for a claim with a check
    heavy         whether the check takes long; tests then draw fewer cases
    """

    id: str
    where: str
    statement: str
    verdict: Verdict
    correction: str = ""
    compares: str = ""
    note: str = ""
    proof: str = ""
    why_not: str = ""
    heavy: bool = False
    function: Callable[..., ClaimResult] | None = None

    def check(self, seed: int = 0, **sizes: float) -> ClaimResult:
        """Compute both sides, on numbers drawn by `seed`; `ranges` has the sizes that can be set."""
        if self.function is None:
            expected = "a statement that can be computed"
            raise UsageError(f"check {self.id}", expected, self.why_not, "check another claim")
        integer(f"{self.id} with seed", seed, 0, 2**63 - 1, "leave it out, or choose another")
        ranges = self.ranges
        for name, value in sizes.items():
            kind, allowed = ranges[choice(f"size of {self.id}", name, ranges)]
            what, remedy = f"{self.id} with {name}", f"leave it out, or choose {name} in that range"
            if kind is int:
                integer(what, value, int(allowed.low), int(allowed.high), remedy)
            else:
                number(what, value, allowed.low, allowed.high, remedy=remedy)
        return self.function(Draws(seed), **sizes)

    @property
    def ranges(self) -> dict[str, tuple[type, SizeRange]]:
        """The sizes that the check takes: their type, and the values they may have (`between`)."""
        if self.function is None:
            return {}
        hints = get_type_hints(self.function)
        return {name: (hints[name], allowed) for name, allowed in _SIZE_RANGES.get(self.function, {}).items()}

    @property
    def document(self) -> str:
        """S0 of S0.17, D of D6."""
        return re.split(r"\.|(?<=D)", self.id)[0]

    @property
    def number(self) -> int:
        """17 of S0.17, 6 of D6."""
        return int(self.id.removeprefix(self.document).lstrip("."))

    @property
    def code(self) -> str | None:
        """Where the check is written, as in attnworks/theory/claims/s3_heads.py:shapes_of_heads."""
        if self.function is None:
            return None
        home = Path(__file__).parents[2]
        return f"{Path(inspect.getfile(self.function)).relative_to(home).as_posix()}:{self.function.__name__}"


CLAIMS = Registry[Claim]("claim")
_SIZE_RANGES: dict[Callable[..., ClaimResult], dict[str, SizeRange]] = {}


@dataclass(frozen=True)
class statement:  # noqa: N801
    """A decorator for the check of a statement: `@statement("S0.3", "§2.1", HOLDS).says("...", compares="...")`.

    The arguments of `statement`, `says` and `not_computed` are those of `Claim`.
    """

    id: str
    where: str
    verdict: Verdict
    heavy: bool = False

    def says(
        self, text: str, *, correction: str = "", compares: str = "", note: str = "", proof: str = ""
    ) -> Callable[[_Check], _Check]:
        """Register the function below as the check of this statement."""

        def register(function: _Check) -> _Check:
            parts = (self.id, self.where, text, self.verdict, correction, compares, note, proof)
            CLAIMS.register(self.id)(Claim(*parts, heavy=self.heavy, function=function))
            return function

        return register

    def not_computed(self, text: str, *, why_not: str, correction: str = "") -> None:
        """Register a statement with nothing to compute: an image, an opinion, a misprint, a fact about others."""
        CLAIMS.register(self.id)(Claim(self.id, self.where, text, self.verdict, correction, why_not=why_not))


def between(**sizes: tuple[float, float]) -> Callable[[_Check], _Check]:
    """Set the ranges of the sizes of a check, ends included: `@between(n=(2, 13))`. Tests draw sizes from them."""

    def keep(function: _Check) -> _Check:
        _SIZE_RANGES[function] = {name: SizeRange(*ends) for name, ends in sizes.items()}
        return function

    return keep


def all_claims() -> list[Claim]:
    """All claims in the order of the documents, S0.2 before S0.10; derived results come last."""
    documents = list(DOCUMENTS)
    return sorted((CLAIMS[id] for id in CLAIMS), key=lambda claim: (documents.index(claim.document), claim.number))


def find_claims(*names: str) -> list[Claim]:
    """The claims of these ids, documents (S0, D) or patterns (S4.1*), in their order; all of them for no name."""
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise UsageError("claims", "ids, one after the other", repr(wrong[0]), 'claims("S0.17", "S2")')
    patterns = [f"{name}*" if name in DOCUMENTS else name for name in (name.upper() for name in names)]
    for name, pattern in zip(names, patterns, strict=True):
        if not any(fnmatchcase(id, pattern) for id in CLAIMS):
            close = difflib.get_close_matches(name.upper(), CLAIMS, n=1)
            expected = "an id such as S0.17, a document (S0 to S4, or D), or a pattern such as S4.1*"
            remedy = f"did you mean {close[0]!r}?" if close else "docs/claims.md lists them all"
            raise UnknownNameError(f"claim {name!r}", expected, "no claim of that name", remedy)
    return [claim for claim in all_claims() if not names or any(fnmatchcase(claim.id, pattern) for pattern in patterns)]
