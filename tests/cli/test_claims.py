"""attnworks claims, as a user meets it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from transformers import AutoTokenizer

import attnworks
from attnworks.cli import main
from attnworks.core.errors import UnknownNameError
from attnworks.theory import Verdict, all_claims, claim
from attnworks.theory.contract import CLAIMS, DOCUMENTS
from tests.exam_helpers import LINES, tiny_folder, write_lines


def claims(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["claims", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def told(*arguments: object) -> list[dict[str, Any]]:
    result = claims(*arguments, "--json")
    assert result.exit_code == 0 and result.stderr == "", result.output
    return json.loads(result.stdout)


def mistake(*arguments: object) -> str:
    result = claims(*arguments)
    assert result.exit_code == 2 and result.stdout == "", result.output
    *usage, last = result.stderr.splitlines()
    assert not usage, usage
    return last


def test_all_of_them() -> None:
    result = claims()
    assert result.exit_code == 0
    rows = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert [row for row in rows if row in CLAIMS] == [one.id for one in all_claims()]
    for document in DOCUMENTS.values():
        assert f"{document.key}: {document.author}, {document.title}" in result.stdout
    computed = sum(one.function is not None for one in all_claims())
    assert f"{computed} of {computed} checks confirm their verdict" in result.stdout


def test_json_has_all_that_is_known_of_a_claim() -> None:
    (found,) = told("S0.9", "--seed", 3)
    finding = claim("S0.9").check(seed=3)
    assert found["id"] == "S0.9" and found["source"].startswith("Xie 2021, ")
    assert found["statement"] == claim("S0.9").statement and found["correction"] == claim("S0.9").correction
    assert found["verdict"] == "typo" and found["holds"] is False and found["confirmed"] is True
    assert found["stated"]["left"] == finding.left and found["corrected"]["holds"] is True
    assert found["figures"] == dict(finding.figures) and found["seconds"] >= 0
    assert found["code"].startswith("attnworks/theory/claims/s0")


def test_documents_patterns_and_verdicts() -> None:
    assert [one["id"] for one in told("S1", "--verdict", "false")] == [
        one.id for one in all_claims() if one.document == "S1" and one.verdict == Verdict.FALSE
    ]
    assert {one["verdict"] for one in told("S2", "--verdict", "holds")} == {"holds"}
    assert {one["verdict"] for one in told("S2", "--verdict", "condition", "--verdict", "typo")} == {
        "holds with a condition",
        "typo",
    }
    assert [one["id"] for one in told("s0.3*")] == ["S0.3", *(f"S0.3{digit}" for digit in range(9))]


@pytest.mark.smoke
def test_explained() -> None:
    text = " ".join(claims("S0.17", "--explain").stdout.split())
    for words in ("S0.17 false", "source Xie 2021", "as printed", "✗", "corrected", "✓", "claims/s0", "confirm"):
        assert words in text, words
    assert "(4β/√(d_{qk}))^{(3^L-1)/2}" in text


def test_brackets_are_no_markup() -> None:
    for text in (claims("S4.14").stdout, claims("S4.14", "--explain").stdout):
        assert "[h; s]" in " ".join(text.split())


def test_what_is_not_computed_is_explained_too() -> None:
    text = claims("S0.7", "--explain").stdout
    assert "not checkable" in text and claim("S0.7").why_not in text and "0 of 0" in text


def test_a_check_that_contradicts_its_verdict_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dataclasses.replace(claim("S0.3"), verdict=Verdict.FALSE)
    monkeypatch.setitem(CLAIMS._entries, "S0.3", wrong)
    result = claims("S0.3")
    assert result.exit_code == 1
    assert "does not confirm its verdict" in result.stdout and "These do not: S0.3." in result.stdout
    assert claims("S0.3", "--json").exit_code == 1


def test_mistakes_in_one_line(tmp_path: Path) -> None:
    assert "claim 'S7'" in mistake("S7")
    assert "did you mean 'S4.17'" in mistake("SO.17")
    assert "got --explain too" in mistake("--on", tmp_path, "--explain")
    assert "got a verdict too" in mistake("--on", tmp_path, "--verdict", "false")
    assert claims("--on", tmp_path / "nothing").exit_code == 2


def test_on_a_model(tmp_path: Path) -> None:
    model, text = tiny_folder("bert"), write_lines(tmp_path / "lines.txt", LINES[:3])
    found = {one["id"]: one for one in told("--on", model, "--text", text)}
    assert found["D6"]["held"] == found["D6"]["computed"] == 2 * 3
    assert found["D6"]["worst"]["place"].startswith("enc.")
    assert found["S0.17"]["not_applicable"] == {"it is about layers of one head": 6}
    shown = claims("--on", model, "--text", text, "D6", "S0.17").stdout
    assert "6 of 6" in shown and "S0.17 does not apply in 6 places: it is about layers of one head (6)." in shown
    assert "S0.9 on a model: expected some of D1, " in mistake("S0.9", "--on", model)


def test_text_options_want_a_model(tmp_path: Path) -> None:
    assert "on=MODEL" in mistake("S0.3", "--text", tmp_path)
    assert "claims with sentences: expected a model that reads text" in mistake("S0.3", "--sentences", 3)
    assert "claims with max_length: expected a model that reads text" in mistake("S0.3", "--max-length", 3)


def test_no_claim_of_that_verdict() -> None:
    assert "claims D3: expected some with verdict typo, got none" in mistake("D3", "--verdict", "typo")


def test_loose_sides_tell_by_how_much() -> None:
    (one,) = told("S0.21")
    slack = one["corrected"]["slack"]
    assert f"± {slack:.2g} ✓" in claims("S0.21").stdout and "±" not in claims("S0.3").stdout


def test_as_wide_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, claims("S0.1*").stdout.splitlines())) <= 80


def test_long_sentences_are_split_or_cut(tmp_path: Path) -> None:
    model, text = tiny_folder("bert"), write_lines(tmp_path / "lines.txt", ["the cat sees a bird . " * 40])
    (found,) = told("--on", model, "--text", text, "D6")
    assert found["computed"] > 2
    (found,) = told("--on", model, "--text", text, "D6", "--max-length", 9)
    assert found["computed"] == 2


def test_in_python_claims_are_a_list_that_shows_itself(tmp_path: Path) -> None:
    found = attnworks.claims("S1", verdict="false")
    assert {one.claim.verdict for one in found} == {Verdict.FALSE} and found.confirmed
    assert [one["id"] for one in found.to_json()] == [one.claim.id for one in found]
    assert found[0].claim.id in found._repr_html_() and "as printed" in found[0]._repr_html_()
    steps: list[tuple[str, int, int]] = []
    attnworks.claims("S0.1", "S0.3", progress=lambda *step: steps.append(step))
    assert [step[1:] for step in steps] == [(1, 2), (2, 2)]
    with pytest.raises(UnknownNameError, match="did you mean 'false'"):
        attnworks.claims(verdict=["flase"])


def test_in_python_claims_on_a_model_in_memory() -> None:
    subject = attnworks.open(tiny_folder("bert"))
    found = attnworks.claims("D6", on=subject, texts=LINES[:3])
    assert found.held and found.sentences == 3 and [tally.law.id for tally in found] == ["D6"]
    assert "6 of 6" in found._repr_html_()
    (again,) = attnworks.claims(
        "D6", on=subject.model, tokenizer=AutoTokenizer.from_pretrained(tiny_folder("bert")), texts=LINES[:3]
    )
    assert again.to_json() == found.to_json()[0]


def test_any_encoding() -> None:
    result = CliRunner(charset="ascii").invoke(main, ["claims", "S0.13"])
    assert result.exit_code == 0 and "S0.13" in result.stdout


def test_a_model_that_reads_no_text() -> None:
    model = tiny_folder("vit")
    assert "expected a model that reads text, got one that reads pixel_values" in mistake("--on", model)
