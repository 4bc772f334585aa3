"""Shares of parameters and of time: how they are written, the search for the fewest heads, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from attnworks.cli import main
from attnworks.core.errors import UsageError
from attnworks.exam.lineage import HeadMap
from attnworks.reshape.evaluate import parameter_count
from attnworks.reshape.pruning import budget as module
from attnworks.reshape.pruning.budget import Budget
from attnworks.reshape.pruning.prune import Prune
from attnworks.reshape.pruning.units import units_of
from attnworks.reshape.run import run_reshape
from attnworks.reshape.texts import split_texts
from attnworks.traces.subject import wrap
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.reshape.reshape_helpers import model_of, subject_of, texts
from tests.tiny_models import TINY


@pytest.mark.parametrize(
    ("given_as", "of", "share"),
    [
        (0.9, "parameters", 0.9),
        ("0.9", "parameters", 0.9),
        ("parameters:0.25", "parameters", 0.25),
        ("time:1", "time", 1),
    ],
)
def test_how_it_is_written(given_as: float | str, of: str, share: float) -> None:
    assert Budget.parse(given_as) == Budget(of, share)
    assert Budget.parse(str(Budget(of, share))) == Budget(of, share)


@pytest.mark.parametrize(
    "odd", ["space:0.5", "time", "time:", "time:half", "0.5:time", 1.5, "time:-1", "nan", ":0.5", True]
)
def test_what_cannot_be_read_is_refused_in_one_line(odd: Any) -> None:
    with pytest.raises(UsageError, match=r"^pruning with budget=?.*: expected .*; ") as error:
        Prune(budget=odd)
    assert "\n" not in str(error.value)


def test_one_of_keep_budget_and_heads() -> None:
    wrong: list[dict[str, Any]] = [{"keep": 0.5, "budget": 0.9}, {"budget": 0.9, "heads": "0.1"}, {}]
    for options in wrong:
        with pytest.raises(UsageError, match="keep or budget or heads"):
            Prune(**options)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_the_search_finds_the_most_heads_that_fit(data: st.DataObject) -> None:
    """For any share that grows with the heads, in at most two steps for every halving."""
    heads = data.draw(st.integers(1, 211))
    steps = data.draw(st.lists(st.integers(0, 9), min_size=heads, max_size=heads))
    floor = data.draw(st.integers(0, 50))
    whole = floor + sum(steps) or 1
    shares = [(floor + sum(steps[:kept])) / whole for kept in range(heads)] + [1.0]
    share = data.draw(st.integers(0, 100)) / 100
    if shares[0] > share:
        with pytest.raises(UsageError, match="removing every head leaves"):
            Budget("parameters", share).check(shares[0])
        return
    asked: list[int] = []
    found = Budget("parameters", share).most_kept(heads, shares[0], lambda kept: asked.append(kept) or shares[kept])
    assert shares[found] <= share and (found == heads or shares[found + 1] > share or found + 1 == heads == share)
    assert len(asked) <= 2 * heads.bit_length() and len({*asked}) == len(asked)


def test_a_straight_line_needs_few_steps() -> None:
    asked: list[int] = []
    assert (
        Budget("parameters", 0.8).most_kept(270, 0.6, lambda kept: asked.append(kept) or 0.6 + 0.4 * kept / 270) == 135
    )
    assert len(asked) <= 3


@pytest.mark.parametrize("family", ["own", "llama", "bert"])
def test_parameters_are_counted(family: str) -> None:
    """At most the share is left, and with one unit more it would be more."""
    if family == "own":
        subject, split = subject_of(model_of()), texts()
    else:
        subject = wrap(TINY[family].build(), tiny_tokenizer(family))
        split = split_texts(LINES)
    whole, units = parameter_count(subject.model), units_of(subject.model)
    new, receipt = run_reshape(Prune(budget=0.93, by="norm"), subject, split)
    assert parameter_count(new) <= 0.93 * whole and receipt.facts["heads_cut"] > 0
    fewer = receipt.facts["heads_cut"] - len(units[0])
    more, _ = run_reshape(Prune(keep=1 - fewer / receipt.facts["heads_before"], by="norm"), subject, split)
    assert parameter_count(more) > 0.93 * whole


def test_what_cannot_be_reached_is_refused_before_text_is_read() -> None:
    with pytest.raises(UsageError) as error:
        Prune(budget="parameters:0.1").check(model_of())
    assert str(error.value).startswith("pruning with budget='parameters:0.1': expected 0.")
    assert "removing every head leaves" in str(error.value) and str(error.value).endswith("% of the parameters")
    Prune(budget="parameters:1").check(model_of())
    Prune(budget="time:0").check(model_of())


def timed(monkeypatch: pytest.MonkeyPatch, floor: float) -> list[int]:
    """Times that grow with the parameters, with an interval; the number of heads of every model that was timed."""
    seen: list[int] = []

    def time_ratio(text_loss: Any, subject: Any) -> Any:
        assert len(text_loss.text.batches) == 1
        whole, least = parameter_count(text_loss.original.model), parameter_count(none.model)
        share = floor + (1 - floor) * (parameter_count(subject.model) - least) / (whole - least)
        seen.append(sum(len(layer.W_O) for layer in subject.model.modules() if hasattr(layer, "W_O")))
        return share, (share - 0.02, share + 0.02)

    from attnworks.reshape.pruning.cut import without

    none = without(model_of(), units_of(model_of()))
    monkeypatch.setattr(module, "time_ratio", time_ratio)
    return seen


@pytest.mark.parametrize("evenly", [False, True])
def test_the_whole_interval_of_a_time_is_within_the_budget(monkeypatch: pytest.MonkeyPatch, evenly: bool) -> None:
    seen = timed(monkeypatch, 0.4)
    subject = subject_of(model_of())
    _, receipt = run_reshape(Prune(budget="time:0.8", by="random", evenly=evenly), subject, texts())
    kept = round(receipt.facts["heads_before"] - receipt.facts["heads_cut"])
    assert receipt.facts["heads_before"] == 12 and seen[0] == 0 and kept in seen
    assert 0.4 + 0.6 * kept / 12 + 0.02 <= 0.8 < 0.4 + 0.6 * (kept + (6 if evenly else 1)) / 12 + 0.02


def test_a_time_that_cannot_be_reached_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, 0.7)
    with pytest.raises(UsageError, match=r"removing every head leaves 72 % of the time of a forward pass$"):
        run_reshape(Prune(budget="time:0.5", by="random"), subject_of(model_of()), texts())


def test_a_budget_of_time_is_replayed_by_the_heads_that_went() -> None:
    heads = {
        "enc.0": HeadMap(before=5, after=(0, 1, 4)),
        "dec.1": HeadMap(before=2, after=()),
        "enc.2": HeadMap(before=4, after=(3,)),
    }
    again = Prune(budget="time:0.8").again({}, heads)
    assert again == Prune(heads="enc.0.2,enc.0.3,dec.1.0,dec.1.1,enc.2.0,enc.2.1,enc.2.2")
    for same in (Prune(budget=0.8), Prune(keep=0.5)):
        assert same.again({}, heads) is same
    assert Prune(budget="time:1").again({}, {}) == Prune(heads="none")


def test_on_the_command_line(tmp_path: Path) -> None:
    for odd in ("space:1", "parameters:0.1", "1.5"):
        arguments = ["prune", "RUN", "--budget", odd, "--keep", "0.5", "--out", str(tmp_path / "out")]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2 and "--keep or --budget or --heads" in result.output
