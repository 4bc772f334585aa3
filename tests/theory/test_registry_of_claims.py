"""The list is whole, every verdict has its numbers, and the page made of it is fresh."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pylatexenc.latexwalker import LatexWalker

from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.theory import Claim, ClaimResult, Verdict, all_claims, claim, find_claims
from attnworks.theory.contract import DOCUMENTS, HOLDS, STATEMENT_COUNT, SizeRange, statement
from attnworks.theory.laws import LAYER_LAWS, STACK_LAWS
from attnworks.theory.plain_text import unicode_formulas
from attnworks.theory.report import check_claims, citations, cited, markdown
from attnworks.theory.sides import same
from tests.covering import noted

ROOT = Path(__file__).parents[2]
CLAIMS = list(all_claims())
COMPUTED = [one for one in CLAIMS if one.function is not None]
ABOUT_OTHERS = {"S4.80"}
"""False, but of what another work is said to prove: nothing to compute."""


def ids(claims: list[Claim]) -> list[str]:
    return [one.id for one in claims]


def test_every_statement_is_there_once_and_none_is_left_out() -> None:
    counts = Counter(one.document for one in CLAIMS)
    assert counts == {"S0": 38, "S1": 22, "S2": 20, "S3": 31, "S4": 160, "D": 14}
    assert counts.total() - counts["D"] == STATEMENT_COUNT
    for document in DOCUMENTS:
        numbers = [int(re.split(r"\D", one.id)[-1]) for one in CLAIMS if one.document == document]
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_claim_is_checked_or_says_why_not() -> None:
    for one in CLAIMS:
        with noted(one.id):
            assert (one.function is None) == bool(one.why_not)
            assert one.verdict != Verdict.NOT_CHECKABLE or one.function is None
            assert one.where and one.statement
            assert bool(one.compares) == (one.function is not None)
            if one.verdict in (Verdict.CONDITION, Verdict.TYPO, Verdict.FALSE):
                assert one.correction
            if one.verdict == Verdict.FALSE and one.id not in ABOUT_OTHERS:
                assert one.function is not None, "a false claim has a live counterexample"


def test_formulas_can_be_read_and_stand_in_a_table() -> None:
    for one in CLAIMS:
        for text in (one.where, one.statement, one.correction, one.compares, one.note, one.proof, one.why_not):
            with noted(one.id, text):
                assert "|" not in text and "\n" not in text.strip()
                assert text.count("$") % 2 == 0
                for formula in re.findall(r"\$([^$]*)\$", text):
                    LatexWalker(formula, tolerant_parsing=False).get_latex_nodes()
                assert "\\" not in unicode_formulas(text).replace("\\ ", ""), unicode_formulas(text)


def test_a_verdict_wants_its_numbers() -> None:
    holds, fails = same(1.0, 1.0), same(1.0, 2.0)
    for verdict, confirming, others in (
        (Verdict.HOLDS, [ClaimResult(holds)], [ClaimResult(fails), ClaimResult(holds, corrected=holds)]),
        (
            Verdict.CONDITION,
            [ClaimResult(holds), ClaimResult(holds, without=fails)],
            [ClaimResult(fails), ClaimResult(holds, without=holds), ClaimResult(fails, without=fails)],
        ),
        (
            Verdict.FALSE,
            [ClaimResult(fails), ClaimResult(fails, corrected=holds)],
            [ClaimResult(holds), ClaimResult(holds, corrected=holds), ClaimResult(fails, corrected=fails)],
        ),
        (
            Verdict.TYPO,
            [ClaimResult(fails, corrected=holds)],
            [ClaimResult(holds), ClaimResult(fails, corrected=fails)],
        ),
        (Verdict.NOT_CHECKABLE, [], [ClaimResult(holds), ClaimResult(fails)]),
    ):
        assert all(finding.confirms(verdict) for finding in confirming)
        assert not any(finding.confirms(verdict) for finding in others)


def test_the_page_is_fresh() -> None:
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == markdown(), "run: make docs"


def test_the_readme_counts_right() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{STATEMENT_COUNT} published statements" in text


def test_rows_lead_to_code_that_is_there() -> None:
    for path in re.findall(r"\]\(\.\./(src/attnworks/[^)]+)\)", markdown()):
        assert (ROOT / path).is_file(), path
    for one in COMPUTED:
        assert one.function is not None and one.code is not None
        file, _, function = one.code.partition(":")
        assert f"def {function}(" in (ROOT / "src" / file).read_text(encoding="utf-8")


def test_docstrings_cite_claims_that_are_there() -> None:
    known = set(ids(CLAIMS))
    assert set(citations()) <= known
    for page in (*ROOT.glob("docs/*.md"), *ROOT.glob("tests/**/*.py"), ROOT / "README.md"):
        if page != Path(__file__):
            assert set(cited(page.read_text(encoding="utf-8"))) <= known, page


def test_laws_of_models_are_claims() -> None:
    assert {*LAYER_LAWS, *STACK_LAWS} <= set(ids(CLAIMS))


def test_claims_by_id_document_and_pattern() -> None:
    assert claim("S0.17").id == claim("s0.17").id == "S0.17"
    assert ids(find_claims("S1")) == [f"S1.{number}" for number in range(1, 23)]
    assert ids(find_claims("D6", "S0.2")) == ["S0.2", "D6"]
    assert ids(find_claims("S4.15*")) == ["S4.15", *(f"S4.15{digit}" for digit in range(10))]
    assert len(find_claims()) == len(CLAIMS)
    assert len(find_claims("D")) == 14


@pytest.mark.parametrize(("name", "remedy"), [("nothing", "docs/claims.md"), ("SO.17", "did you mean 'S4.17'")])
def test_an_unknown_id(name: str, remedy: str) -> None:
    with pytest.raises(UnknownNameError, match=remedy):
        claim(name)


def test_sizes_out_of_range_or_unknown() -> None:
    with pytest.raises(UsageError, match=r"a whole number from 2 to 13, got 99"):
        claim("S0.3").check(n=99)
    with pytest.raises(UsageError, match=r"a whole number .* got 2.5"):
        claim("S0.3").check(n=2.5)
    with pytest.raises(UnknownNameError, match=r"size of S0.3 'rows'"):
        claim("S0.3").check(rows=3)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "x", True])
def test_seeds_that_are_none(seed: Any) -> None:
    with pytest.raises(UsageError, match="a whole number from 0"):
        claim("S0.3").check(seed)


def test_one_claim_is_asked_for_by_one_id() -> None:
    with pytest.raises(UsageError, match="expected the id of one, got 22 of them"):
        claim("S1")
    with pytest.raises(UsageError, match="expected ids, one after the other, got "):
        find_claims(["S2", "D9"])  # pyright: ignore[reportArgumentType]


def test_ids_in_the_page_are_links_and_markdown_eats_nothing() -> None:
    page = markdown()
    targets = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert targets and targets <= set(re.findall(r'<a id="([^"]+)"', page))
    assert r"\{" not in page and r"\," not in page


def test_what_cannot_be_computed_says_so() -> None:
    with pytest.raises(UsageError, match=r"check S0\.7: expected a statement that can be computed"):
        claim("S0.7").check()


def test_an_id_is_taken_once() -> None:
    with pytest.raises(UsageError, match="one that is taken"):
        statement("S0.3", "", HOLDS).says("")(lambda draw: ClaimResult(same(1, 1)))


def test_the_same_seed_finds_the_same_numbers() -> None:
    assert claim("S0.3").check(seed=3) == claim("S0.3").check(seed=3) != claim("S0.3").check(seed=4)


def test_a_check_that_contradicts_its_verdict_is_told() -> None:
    wrong = dataclasses.replace(claim("S0.3"), verdict=Verdict.FALSE)
    (checked,) = check_claims([wrong])
    assert checked.confirmed is False and checked.to_json()["confirmed"] is False


def test_citations_know_ranges() -> None:
    assert cited("as in S4.20-S4.22 and S0.8-S0.9, D6.") == ["D6", "S0.8", "S0.9", "S4.20", "S4.21", "S4.22"]
    assert cited("UTF-8, CS224N, S5.1, 3D6x") == []


def test_ranges_are_read_from_annotations() -> None:
    assert claim("S0.3").ranges["n"] == (int, SizeRange(2, 13))
    assert claim("S0.7").ranges == {}
