"""The cost of growing is printed before the long work, and its progress is one percentage that never falls."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from attnworks.cli.console import progress_display
from attnworks.core.display import overall_progress
from attnworks.core.errors import UsageError
from attnworks.models import Transformer
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.growth import cost as cost_module
from attnworks.reshape.growth import grow, statistics
from attnworks.reshape.growth.cost import (
    COMPARING,
    EVALUATIONS_PER_SEARCH,
    FITS_PER_PAIR,
    FITTING,
    SEARCHING,
    GrowthCost,
    measured_cost,
)
from attnworks.reshape.growth.grow import Grow
from attnworks.reshape.growth.places import TRYING_PLACES
from attnworks.reshape.growth.score import GrowthTrial
from attnworks.reshape.growth.statistics import SEARCHING_SLICE
from attnworks.reshape.growth.survey import ANGLES, COPIES, GROWTH_KINDS, KEYS_OF_COPIES, PAIRS_PASS, PASSES
from attnworks.reshape.run import ReshapeSettings, run_reshape
from tests.reshape.growth.growth_helpers import growing_bench, growing_model, growing_texts, subject_of

Told = list[tuple[str, int, int]]


def model() -> Transformer:
    """One layer."""
    return growing_model(encoder_layers=0)


def told_by(asked: Grow, settings: ReshapeSettings | None = None) -> tuple[Told, Any]:
    """All progress reports while a model grows, and the new model."""
    events: Told = []
    new, _ = run_reshape(asked, subject_of(model()), growing_texts(), settings, lambda *told: events.append(told))
    return events, new


def test_stages_that_come_again_or_are_not_known_do_not_move_the_scale_back() -> None:
    events: Told = []
    tell = overall_progress(lambda *told: events.append(told), {"one": 1.0, "two": 0.0, "three": 3.0})
    for event in (("one", 1, 2), ("two", 1, 1), ("three", 1, 2), ("one", 0, 1), ("other", 3, 4), ("three", 2, 2)):
        tell(*event)
    assert [done for _, done, _ in events] == [12, 25, 62, 62, 62, 100]
    assert [stage for stage, _, _ in events] == ["one", "two", "three", "one", "other", "three"]


def test_a_message_stays_a_message() -> None:
    events: Told = []
    tell = overall_progress(lambda *told: events.append(told), {"one": 1.0})
    for event in (("one", 1, 2), ("read this", 0, 0), ("one", 2, 2)):
        tell(*event)
    assert events == [("one", 50, 100), ("read this", 0, 0), ("one", 100, 100)]


@pytest.mark.parametrize(
    ("asked", "stages"),
    [
        (Grow(add=3), [*PASSES[:1], COPIES, PASSES[1], KEYS_OF_COPIES, PASSES[2], TRYING_PLACES, FITTING, SEARCHING]),
        (Grow(where="dec.0.1:values=2"), [PASSES[0], FITTING, SEARCHING]),
        (Grow(where="dec.0.1:values=1", compare=True), [PASSES[0], FITTING, SEARCHING, COMPARING]),
    ],
)
def test_a_message_comes_first_and_then_one_percentage(asked: Grow, stages: list[str]) -> None:
    events, _ = told_by(asked)
    messages = [number for number, (_, _, total) in enumerate(events) if not total]
    assert len(messages) == 1
    message, passes = (
        events[messages[0]][0],
        stages.count(PASSES[0]) + stages.count(PASSES[1]) + stages.count(PASSES[2]),
    )
    assert message.startswith(f"Growing reads 72 sentences: {passes} backward pass")
    assert "Estimated time: " in message
    growing_now = [event for event in events[messages[0] + 1 :] if event[0] in (*stages, COMPARING)]
    assert not any(stage in stages for stage, _, _ in events[: messages[0]])
    assert list(dict.fromkeys(stage for stage, _, _ in growing_now)) == stages
    assert {total for _, _, total in growing_now} == {100}
    done = [done for _, done, _ in growing_now]
    assert done == sorted(done) and done[0] == 0 and 0 < done[-1] <= 100
    assert asked.compare or done[-1] == 100


def test_the_counts_are_those_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    backward: Counter[str] = Counter()
    graded = statistics.graded_layers
    monkeypatch.setattr(statistics, "graded_layers", lambda *given: backward.update(["batch"]) or graded(*given))
    events: Told = []
    context = growing_bench(model())
    context = ReshapeContext(context.subject, context.calibration, context.length, lambda *told: events.append(told))
    cost = measured_cost(context.calibration, GROWTH_KINDS, add=4)
    assert not backward  # one batch is run, but not to be summed up
    monkeypatch.setattr(grow, "measured_cost", lambda *given, **options: cost)
    monkeypatch.setattr(grow, "overall_progress", lambda tell, stages: tell)
    Grow(add=4).make(context)
    assert backward["batch"] == cost.passes * cost.batches
    totals = {stage: total for stage, _, total in events}
    assert totals[TRYING_PLACES] == cost.places == 2 + 2 + 1  # keys and values of two heads, and a new head
    assert totals[COPIES] == cost.copies == cost.layers == 1
    assert totals[FITTING] <= 4 and cost.chosen == 2


def test_the_estimate_adds_up_what_was_timed() -> None:
    cost = GrowthCost(
        sentences=4096, batches=20, layers=2, keys=2, copies=2, places=10, chosen=3, trial_sentences=128,
        search_sentences=512, compared=0, batch=2.0, trial=0.5, fit=4.0,
    )  # fmt: skip
    search = EVALUATIONS_PER_SEARCH * 0.5
    passes, new_heads = 3 * 20 * 2.0, 2 * search + 2 * (search + 4.0)
    assert cost.seconds == pytest.approx(passes + new_heads + 10 * search + 2 * 4.0 + 3 * (search + 4.0) + search * 5)
    assert str(cost).endswith("for each of up to 15 directions. Estimated time: 3.6 min.")
    rotary = replace(cost, copies=0, turned=1, scan=7.0)
    assert rotary.passes == 2 and rotary.stages[ANGLES] == 7.0 and rotary.stages[PAIRS_PASS] == 20 * 2.0
    fits = 4.0 * (2 + FITS_PER_PAIR)
    assert rotary.seconds == pytest.approx(
        2 * 20 * 2.0 + 7.0 + 10 * search + fits + 3 * (search + fits / 2) + search * 5
    )


def test_time_is_taken_of_one_pass_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr("attnworks.reshape.growth.cost.time.perf_counter", lambda: float(next(ticks) ** 2))
    cost = measured_cost(growing_bench(model()).calibration, ("keys",), given=1)
    assert (cost.trial, cost.batch, cost.fit) == (1.0, 5.0, 9.0)
    assert (cost.places, cost.chosen, cost.passes) == (0, 1, 1)
    assert measured_cost(growing_bench(model()).calibration, ("values",), given=1).fit == 0.0


def test_sentences_to_search_on_are_counted_as_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """About 7 of 18 are wanted, and every second one is taken."""
    monkeypatch.setattr(cost_module, "STEP_SEARCH_SENTENCES", 7)
    used: list[slice] = []
    monkeypatch.setattr(grow, "GrowthTrial", lambda text_loss, some: used.append(some) or GrowthTrial(text_loss, some))
    context = growing_bench(model())
    Grow(where="dec.0.1:values=2").make(context)
    (some,) = {(one.start, one.step) for one in used if one.start == SEARCHING_SLICE.start}
    sentences = len(range(some[0], sum(map(len, context.calibration.text.batches)), some[1]))
    assert measured_cost(context.calibration, ("values",), given=1).search_sentences == sentences > 7


def test_telling_changes_nothing_and_nothing_is_timed_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Grow(where="dec.0.1:values=2")
    _, heard = told_by(asked)
    monkeypatch.setattr(grow, "measured_cost", lambda *_, **__: pytest.fail("timed"))
    alone, _ = run_reshape(asked, subject_of(model()), growing_texts())
    assert weights_fingerprint(alone) == weights_fingerprint(heard)
    with progress_display("grow", quiet=True) as quiet:
        unheard, _ = run_reshape(asked, subject_of(model()), growing_texts(), None, quiet)
    assert weights_fingerprint(unheard) == weights_fingerprint(heard)


def test_what_cannot_grow_is_refused_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grow, "measured_cost", lambda *_, **__: pytest.fail("timed"))
    with pytest.raises(UsageError, match="an objective that a change of the model can lower"):
        told_by(Grow(add=2), ReshapeSettings("embedding"))


@pytest.mark.parametrize("quiet", [False, True])
def test_the_message_is_a_line_on_standard_error(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display("grow", quiet=quiet) as tell:
        tell("Growing reads 4 sentences", 0, 0)
        tell("looking", 1, 2)
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines() == ([] if quiet else ["Growing reads 4 sentences", "looking"])
