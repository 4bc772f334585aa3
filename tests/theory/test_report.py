"""What the claims tab shows is fresh and whole: every statement, every formula, numbers that say what was found."""

from __future__ import annotations

import json
import math
import operator
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnworks.theory import report
from attnworks.theory.contract import DOCUMENTS, Claim, all_claims
from attnworks.theory.report import ROUNDS_TO_ZERO, check_claims, page_claims, rounded_number
from attnworks.theory.sides import at_most

ROOT = Path(__file__).parents[2]
SHOWN: list[dict[str, Any]] = json.loads((ROOT / "src/attnworks/page/claims.json").read_text(encoding="utf-8"))
CLAIMS = all_claims()
STALE = "run: make docs"

TEXTS = {
    "statement": "statement", "correction": "correction", "compares": "compares",
    "note": "note", "not_computed": "why_not", "proof": "proof",
}  # fmt: skip
"""By their names on the page: their names in a claim."""
ELEMENTS = {"mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "msub", "msup", "msubsup", "mover"}
ATTRIBUTES = {"mathvariant", "stretchy", "accent", "linethickness", "width", "lspace", "rspace", "form"}
RELATIONS = {"=": operator.eq, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
SAMPLE = [claim for claim in CLAIMS if claim.function is not None and not claim.heavy][::5]


def formulas() -> list[list[Any]]:
    texts = [text for shown in SHOWN for text in (shown[name] for name in TEXTS) if text]
    return [part for text in texts for part in text if isinstance(part, list)]


def inside(formula: list[Any]) -> tuple[dict[str, str], list[Any]]:
    """The attributes and the children of an element."""
    has_attributes = len(formula) > 1 and isinstance(formula[1], dict)
    return (formula[1], formula[2:]) if has_attributes else ({}, formula[1:])


def written(text: list[Any] | None) -> str:
    """A text as it was before its formulas were drawn."""
    return "".join(part if isinstance(part, str) else f"${inside(part)[0]['alttext']}$" for part in text or ())


def test_every_statement_is_there_word_by_word() -> None:
    assert [shown["id"] for shown in SHOWN] == [claim.id for claim in CLAIMS], STALE
    for shown, claim in zip(SHOWN, CLAIMS, strict=True):
        assert shown["verdict"] == claim.verdict.name.lower().replace("_", " "), STALE
        assert shown["code"] == claim.code, STALE
        assert shown["source"] == f"{DOCUMENTS[claim.document].author}, {claim.where}", STALE
        for name, attribute in TEXTS.items():
            assert written(shown[name]) == getattr(claim, attribute), f"{claim.id} {name}; {STALE}"


def test_every_formula_is_drawn() -> None:
    """No LaTeX stands among words, and a formula has only elements and attributes that browsers know."""

    def check(child: Any) -> None:
        if isinstance(child, str):
            assert child and "\\" not in child, child
            return
        attributes, children = inside(child)
        assert child[0] in ELEMENTS and set(attributes) <= ATTRIBUTES, child
        for one in children:
            check(one)

    found = formulas()
    assert len(found) == sum(getattr(claim, name).count("$") // 2 for claim in CLAIMS for name in TEXTS.values())
    for formula in found:
        attributes, children = inside(formula)
        assert formula[0] == "math" and set(attributes) == {"alttext"} and children, formula
        for child in children:
            check(child)
    words = [part for shown in SHOWN for name in TEXTS for part in shown[name] or () if isinstance(part, str)]
    assert not [part for part in words if "$" in part or "\\" in part]


@pytest.mark.parametrize("claim", SAMPLE, ids=[claim.id for claim in SAMPLE])
def test_numbers_are_those_of_the_checks(claim: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the last digit that is shown, since machines round in different ways."""
    monkeypatch.setattr(report, "all_claims", lambda: [claim])
    (fresh,) = page_claims()
    (shown,) = (shown for shown in SHOWN if shown["id"] == claim.id)
    assert shown["confirmed"] is True
    assert list(shown["figures"]) == list(fresh["figures"]), STALE
    for name in ("stated", "corrected", "without"):
        old, new = shown[name], fresh[name]
        assert (old is None) == (new is None), STALE
        if old is not None:
            assert (old["relation"], old["holds"]) == (new["relation"], new["holds"]), STALE
            for side in ("left", "right", "within"):
                assert_alike(old[side], new[side])
    for name, value in fresh["figures"].items():
        assert_alike(shown["figures"][name], value)


def assert_alike(old: float | str | None, new: float | str | None) -> None:
    if isinstance(old, int | float) and isinstance(new, int | float):
        assert math.isclose(old, new, rel_tol=2e-3, abs_tol=1e-9), STALE
    else:
        assert old == new, STALE


def test_shown_numbers_say_what_was_found() -> None:
    """Four digits are enough to see that 393 <= 357.6 is false; equal sides may be apart by their slack."""
    for shown in SHOWN:
        for sides in (shown[name] for name in ("stated", "corrected", "without") if shown[name]):
            left, right = float(sides["left"]), float(sides["right"])
            if sides["within"] is None:
                assert RELATIONS[sides["relation"]](left, right) == sides["holds"], shown["id"]
            else:
                assert (abs(left - right) <= sides["within"]) == sides["holds"], shown["id"]


def test_documents_have_the_titles_that_they_have_here() -> None:
    view = (ROOT / "web/src/views/claims_search.ts").read_text(encoding="utf-8")
    found = re.findall(r'key: "(\w+)", author: "([^"]+)", title: "([^"]+)"', view)
    assert [key for key, _, _ in found] == list(DOCUMENTS)
    for key, author, title in found[:-1]:
        document = DOCUMENTS[key]
        assert (author.lower(), title) == (document.author.lower(), document.title)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12))
def test_rounding_keeps_whole_numbers_and_four_digits(value: float) -> None:
    """Half a unit of the fourth digit is at most 0.5 / 1000 of the number."""
    short = rounded_number(value)
    assert isinstance(short, int | float)
    assert abs(short - value) <= 0.5e-3 * abs(value) + ROUNDS_TO_ZERO
    assert short == value or not value.is_integer()


def test_what_is_no_number_is_a_word() -> None:
    assert [rounded_number(value) for value in (math.inf, -math.inf, math.nan)] == ["Infinity", "-Infinity", "NaN"]


def test_a_slack_is_told_where_equal_sides_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    (random,) = check_claims([claim for claim in CLAIMS if claim.id == "S4.18"])
    monkeypatch.setattr(report, "check_claims", lambda claims: [random])
    (shown,) = page_claims()
    assert shown["stated"]["within"] > abs(shown["stated"]["left"] - shown["stated"]["right"]) > 0
    assert report.rounded_sides(at_most(1.0, 2.0, slack=0.5)) == {
        "left": 1, "relation": "<=", "right": 2, "within": None, "holds": True,
    }  # fmt: skip


@pytest.mark.parametrize(("arguments", "begins"), [(["--data"], '["data"]'), ([], "# Claims of the source")])
def test_written_to_standard_output(
    arguments: list[str], begins: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "page_claims", lambda: ["data"])
    monkeypatch.setattr("sys.argv", ["attnworks.theory", *arguments])
    runpy.run_module("attnworks.theory", run_name="__main__")
    assert capsys.readouterr().out.startswith(begins)
