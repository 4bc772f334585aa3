"""attnworks count --mechanism and --compare."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from attnworks import attention
from attnworks.attention import MECHANISMS, AttentionCost, Geometry
from attnworks.attention.dense import Dense
from attnworks.cli import main


class Thrifty(Dense):
    """Cheaper than dense from n = 101 on, and causally not defined."""

    name = "thrifty"
    supported_masks = frozenset({"real"})

    def __init__(self, *, keys: int = 100) -> None:
        super().__init__()
        self.keys = keys

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        edges = geometry.heads * queries * self.keys
        return AttentionCost(edges, 2 * edges * (geometry.d_k + geometry.d_v), 8 * edges)


@pytest.fixture(autouse=True)
def thrifty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MECHANISMS._entries, "thrifty", Thrifty)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["count", *arguments])


def count(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_one_mechanism_against_dense() -> None:
    text = count("--mechanism", "thrifty", "--length", "1000")
    assert "thrifty: self-attention over n = 1,000 positions, 8 heads of width 64" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["edges", "800,000", "8,000,000", "10", "%"] in rows
    assert ["FLOPs", "204,800,000", "2,048,000,000", "10", "%"] in rows
    assert ["bytes", "6.4", "MB", "2.08", "MB", "308", "%"] in rows
    assert "10 times fewer FLOPs than dense at n = 1,000; fewer from n = 101 on." in text


def test_where_it_does_not_pay_it_says_from_when_it_does() -> None:
    text = count("--mechanism", "thrifty:keys=7000", "--length", "3500", "--num-heads", "1", "--width", "3")
    assert "3,500 positions, 1 head of width 3" in text and "200 %" in text
    assert "More expensive than dense at n = 3,500: 2 times the FLOPs; fewer from n = 7,001 on." in text
    assert "As many FLOPs as dense at n = 100; fewer" in count("--mechanism", "thrifty", "--length", "100")
    never = count("--mechanism", "luong-multiplicative", "--length", "11")
    assert "never fewer up to n = 1,048,576" in never


def test_one_mechanism_as_json() -> None:
    options = ("--length", "7", "--num-heads", "3", "--width", "5", "--causal", "--json")
    report = json.loads(count("--mechanism", "luong-dot", *options))
    cost = {"edges": 84, "flops": 2 * 84 * 10, "bytes": 4 * 3 * 7 * 6}
    ratio = {"edges": 1.0, "flops": 1.0, "bytes": 1.0}
    size = {"length": 7, "num_heads": 3, "width": 5, "causal": True}
    assert report == {"mechanism": "luong-dot", **size, "cost": cost, "dense": cost, "ratio": ratio, "pays_from": None}
    assert json.loads(count("--mechanism", "thrifty:keys=9", "--json"))["pays_from"] == 10


def test_every_mechanism_and_the_recurrent_layer_are_compared() -> None:
    report = json.loads(count("--compare", "--length", "1009", "--num-heads", "2", "--width", "16", "--json"))
    rows = {row["mechanism"]: row for row in report["rows"]}
    assert rows.keys() == {*attention.names(), "recurrent (LSTM)"} and "thrifty" in rows
    assert rows["dense"] == {
        "mechanism": "dense",
        "time": "O(n² d)",
        "memory": "O(n d)",
        "steps": "O(1)",
        "path": {"law": "O(1)", "layers": 1},
        "edges": 2 * 1009**2,
        "flops": 4 * 32 * 1009**2,
        "bytes": 4 * 2 * 1009 * 17,
        "of_dense": 1.0,
        "options": [],
    }
    assert rows["thrifty"]["options"] == ["keys"] and rows["thrifty"]["time"] == "O(n d)"
    assert (rows["recurrent (LSTM)"]["steps"], rows["recurrent (LSTM)"]["path"]["layers"]) == ("O(n)", 1008)
    assert report["quadratic_share"] == 1009 / (1009 + 6 * 32)
    costs = [row["flops"] for row in report["rows"][:-1]]
    assert costs == sorted(costs)


def test_the_table_fits_and_explains_itself() -> None:
    text = count("--compare", "--length", "1024", "--num-heads", "2", "--width", "256")
    lines = text.splitlines()
    table = lines[: next(number for number, line in enumerate(lines) if line.startswith("recurrent")) + 1]
    assert max(len(line.rstrip()) for line in table) <= 100
    for name in attention.names():
        assert any(line.split()[:1] == [name] for line in table)
    assert next(line for line in table if line.startswith("dense")).rstrip().endswith("100 %")
    prose = " ".join(text.split())
    assert "thrifty (keys)" in prose
    assert "takes n / (n + 6d) = 25.0 % of the FLOPs, and half of them at n = 3,072." in prose


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--mechanism", "bigbird", "--length", "1000000000000"],
            "length=1000000000000: expected a whole number from 1 to 1,048,576",
        ),
        (["--compare", "--length", "1048577"], "length=1048577: expected a whole number from 1 to 1,048,576"),
        (["--mechanism", "thrifti"], "did you mean 'thrifty'?"),
        (["--mechanism", "thrifty:kyes=3"], "did you mean 'keys'?"),
        (["--mechanism", "thrifty:keys"], "name:option=value"),
        (["--mechanism", "thrifty", "--causal"], "a mechanism with a causal form, got none"),
        (["--mechanism", "dense", "--compare"], "got mechanism and compare; count one at a time"),
        (["base", "--compare"], "got model and compare"),
        (["base", "--length", "7"], "count with length: expected mechanism or compare, got model; add it"),
        (["--num-heads", "7"], "got none"),
        (["--compare", "--causal"], "count with causal: expected mechanism, got compare"),
        (["--compare", "--vocabulary-size", "5"], "expected model, got compare"),
        (["--vocabulary-size", "5"], "expected model, got none"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("attnworks: ") and result.stderr.count("\n") == 1
    assert said in result.stderr
