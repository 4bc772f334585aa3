"""A statement of the documents, its verdict, and the check that computes both of its sides."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Concatenate, NamedTuple, ParamSpec, get_type_hints

from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.core.registry import Registry, unknown_name
from attnworks.theory.cases import Draw
from attnworks.theory.sides import Sides

STATEMENTS = 271
"""How many statements the five documents make."""
P = ParamSpec("P")


class Document(NamedTuple):
    """Where claims come from: the letters that their ids begin with, who wrote it, and how it is called."""

    key: str
    author: str
    title: str


DOCUMENTS = {
    document.key: document
    for document in (
        Document("S0", "Xie 2021", "Attention (rank bound)"),
        Document("S1", "the rank post, 2024", "on Dong, Cordonnier and Loukas"),
        Document("S2", "CS224N", "Attention exploration"),
        Document("S3", "Burgund", "Attention growing networks"),
        Document("S4", "Conti 2024", "The math behind transformers"),
        Document("D", "attnworks", "Derived results"),
    )
}
"""By the beginning of their ids. D is no document: statements that were found while the others were checked."""


class Verdict(StrEnum):
    """What became of a statement when both of its sides were computed."""

    HOLDS = "holds"
    CONDITION = "holds with a condition"
    TYPO = "typo"
    FALSE = "false"
    NOT_CHECKABLE = "not checkable"


@dataclass(frozen=True)
class Finding:
    """What a check computed.

    stated       both sides of the statement as printed. Where its verdict asks for a condition, on a case that meets it
    corrected    both sides of the corrected statement, for one that is wrong
    without      both sides of the statement on a case that misses its condition, and so breaks it
    figures      anything else worth knowing, by name
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
        """Whether the numbers say what the verdict says."""
        match verdict:
            case Verdict.HOLDS:
                return self.holds and self.corrected is None and self.without is None
            case Verdict.CONDITION:
                return self.holds and self.corrected is None and (self.without is None or not self.without.holds)
            case Verdict.TYPO | Verdict.FALSE:
                return not self.holds and self.without is None and (self.corrected is None or self.corrected.holds)
            case Verdict.NOT_CHECKABLE:
                return False


@dataclass(frozen=True)
class Between:
    """The values that an argument of a check may have, ends included: `n: Annotated[int, Between(2, 13)] = 5`."""

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
    note          how our numbers differ from what was known of it
    proof         of a result that we derived
    why_not       why nothing is computed; of a claim with a check it is empty
    heavy         whether a check takes long, so that the tests draw fewer cases
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
    function: Callable[..., Finding] | None = None

    def check(self, seed: int = 0, **sizes: float) -> Finding:
        """Compute both sides, on numbers drawn by `seed`; `ranges` says which sizes can be set."""
        if self.function is None:
            raise UsageError(
                asked=f"check {self.id}",
                expected="a statement that can be computed",
                got=self.why_not,
                remedy="claim(...).why_not says why not, wherever there is nothing to compute",
            )
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise UsageError(
                asked=f"{self.id} with seed={seed!r}", expected="a whole number from 0 to 2^63 - 1", got=repr(seed),
                remedy="leave it out, or choose another",
            )  # fmt: skip
        for name, value in sizes.items():
            self._check_size(name, value)
        return self.function(Draw(seed), **sizes)

    @property
    def ranges(self) -> dict[str, tuple[type, Between]]:
        """The arguments of the check besides the seed: their type, and the values they may have."""
        if self.function is None:
            return {}
        hints = get_type_hints(self.function, include_extras=True)
        return {
            name: (hint.__origin__, hint.__metadata__[0])
            for name, hint in hints.items()
            if hasattr(hint, "__metadata__")
        }

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

    def _check_size(self, name: str, value: float) -> None:
        ranges = self.ranges
        if name not in ranges:
            raise unknown_name(f"size of {self.id}", name, ranges)
        kind, allowed = ranges[name]
        if type(value) not in (int, kind) or not allowed.low <= value <= allowed.high:
            raise UsageError(
                asked=f"{self.id} with {name}={value!r}",
                expected=f"{'a whole number' if kind is int else 'a number'} from {allowed.low:g} to {allowed.high:g}",
                got=repr(value),
                remedy=f"leave it out, or choose {name} in that range",
            )


CLAIMS = Registry[Claim]("claim")


def statement(
    id: str,
    *,
    where: str,
    says: str,
    verdict: Verdict,
    correction: str = "",
    compares: str = "",
    note: str = "",
    proof: str = "",
    heavy: bool = False,
) -> Callable[[Callable[Concatenate[Draw, P], Finding]], Callable[Concatenate[Draw, P], Finding]]:
    """Register the function below as the check of a statement."""

    def register(function: Callable[Concatenate[Draw, P], Finding]) -> Callable[Concatenate[Draw, P], Finding]:
        claim = Claim(id, where, says, verdict, correction, compares, note, proof, heavy=heavy, function=function)
        CLAIMS.register(id)(claim)
        return function

    return register


def not_computed(
    id: str, *, where: str, says: str, why_not: str, verdict: Verdict = Verdict.NOT_CHECKABLE, correction: str = ""
) -> None:
    """Register a statement with nothing to compute: an image, an opinion, a slip of the pen, a fact about others."""
    CLAIMS.register(id)(Claim(id, where, says, verdict, correction, why_not=why_not))


def in_order() -> list[Claim]:
    """All claims as the documents have them, S0.2 before S0.10; ours come last."""
    documents = list(DOCUMENTS)
    return sorted((CLAIMS[id] for id in CLAIMS), key=lambda claim: (documents.index(claim.document), claim.number))


def matching(*names: str) -> list[Claim]:
    """The claims of these ids, documents (S0, D) or patterns (S4.1*), in their order; all of them for no name."""
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise UsageError(
            asked="claims", expected="ids as texts, one after the other", got=repr(wrong[0]), remedy='claim("S0.17")'
        )
    patterns = [f"{name}*" if name in DOCUMENTS else name for name in (name.upper() for name in names)]
    for name, pattern in zip(names, patterns, strict=True):
        if not any(fnmatchcase(id, pattern) for id in CLAIMS):
            close = difflib.get_close_matches(name.upper(), CLAIMS, n=1)
            raise UnknownNameError(
                asked=f"claim {name!r}",
                expected="an id such as S0.17, a document (S0 to S4, or D), or a pattern such as S4.1*",
                got="no claim of that name",
                remedy=f"did you mean {close[0]!r}?" if close else "docs/claims.md lists them all",
            )
    return [claim for claim in in_order() if not names or any(fnmatchcase(claim.id, pattern) for pattern in patterns)]
