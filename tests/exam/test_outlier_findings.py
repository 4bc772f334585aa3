"""What is said of outlying tokens, in findings and in a terminal, and what is said without them."""

from __future__ import annotations

from collections.abc import Sequence

from attnworks.exam.examination import Examination
from attnworks.exam.findings import find
from attnworks.exam.reading import Reading, Readings
from tests.exam.test_examination import screen
from tests.exam.test_findings import NAN, by_depth, said


def outlying(
    numbers: Sequence[float], norms: Sequence[float], first: float = 1.0, delimiter: float = 0.0, channels: float = 1.0
) -> list[Reading]:
    """Outlying tokens by depth: their number, the largest norm, and where and in how many channels they are."""
    shares = {"first": first, "delimiter": delimiter, "channels": channels}
    about = [by_depth(f"rank.outliers_{name}", [value] * len(numbers)) for name, value in shares.items()]
    return [by_depth("rank.outliers", [*numbers]), by_depth("rank.largest_norm", [*norms]), *about]


def test_massive_activations() -> None:
    ends = (
        ": keep it in sparse attention and quantise with care; rank and cosine leave it out (up to 174 times the "
        "median norm)"
    )
    assert said(*outlying([0, 1, 1, 0, 1.2], [1.1, 36, 174, 1, 9])) == [
        f"the first token has massive activations after layers 0-1 and at 1 more depth{ends}"
    ]
    numbers, norms = [1, 0, 0, 1], [174, 1, 1, 0.3]
    (text,) = said(*outlying(numbers, norms, first=0, delimiter=0.9, channels=300))
    assert text.startswith("a special token has a far larger norm than the others at the embeddings and at 1 more")
    (text,) = said(*outlying(numbers, norms, first=0.4, delimiter=0.3))
    assert text.startswith("single tokens have massive activations at the") and text.count(" them ") == 2
    assert said(*outlying([0, 0.09], [1, 5])) == [] == said(*outlying([NAN, 1], [1, NAN]))


def test_collapse_is_judged_without_outlying_tokens() -> None:
    none, massive = outlying([0, 0.05], [1, 1]), outlying([0, 1], [1, 99])
    cosine = [by_depth("rank.cosine", [0.1, 0.2]), by_depth("rank.cosine_without_outliers", [0.1, 0.95])]
    residual = [by_depth("rank.residual", [0.9, 0.96]), by_depth("rank.residual_without_outliers", [0.9, 0.51])]
    fallen = [residual[0], by_depth("rank.residual_without_outliers", [0.9, 0.1])]
    assert said(*none, *cosine) == [] and "after layer 0" in said(*massive, *cosine)[0]
    (kept,) = said(*none, *residual)
    assert "0.900, at depth 0" in kept
    assert ["0.510, at depth 1" in text for text in said(*massive, *residual)] == [False, True]
    (finding,) = [finding for finding in find(Readings([*massive, *fallen])) if "become alike" in finding.text]
    assert finding.readings == ("rank.residual_without_outliers",)
    assert finding.text.endswith("(0.900 of the stream differs at depth 0, 0.100 at depth 1)")
    assert not any("become alike" in text for text in said(*none, *fallen))


def test_a_terminal_shows_the_largest_norm_and_the_rest_without_outlying_tokens() -> None:
    stable = [by_depth("rank.stable", [9.0, 1.0]), by_depth("rank.stable_without_outliers", [9.0, 7.0])]
    text = screen(Examination({}, {}, Readings([*outlying([0, 1], [1, 99]), *stable])))
    assert numbers_by_depth(text) == [["9.00", "1.00"], ["7.00", "99.0"]]
    assert "largest norm: of a token, over the median; outlying tokens are left out" in text
    text = screen(Examination({}, {}, Readings([*outlying([0, 0.05], [1, 1]), *stable])))
    assert numbers_by_depth(text) == [["9.00"], ["1.00"]] and "largest norm" not in text


def numbers_by_depth(text: str) -> list[list[str]]:
    lines = [line.split()[1:] for line in text.splitlines() if line[:1] in ("0", "1")]
    return [[word for word in words if word[0].isdigit()] for words in lines]
