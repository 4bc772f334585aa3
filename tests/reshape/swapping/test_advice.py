"""What advice and receipts say of losses at the length asked for, and of times, which are given here, not measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from attnworks.cli.console import console
from attnworks.core.errors import UsageError
from attnworks.core.json_records import parse
from attnworks.core.places import Slot
from attnworks.core.timing import Race
from attnworks.reshape import evaluate
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.long_texts import TrialText
from attnworks.reshape.receipt import BeforeAfter, HealReport, Losses, LossesAtLength, Receipt
from attnworks.reshape.render import receipt_shown
from attnworks.reshape.run import ReshapeSettings, mean_length, run_reshape, text_loss_on
from attnworks.reshape.surgery import mechanisms_of
from attnworks.reshape.swapping import advice as advice_module
from attnworks.reshape.swapping import trials
from attnworks.reshape.swapping.advice import Advice, find_advice, swapped, whole_layers
from attnworks.reshape.swapping.swap import Swap
from attnworks.reshape.swapping.trials import PRESENT, Present, SwapPlace, SwapTrial, SwapTrialHook, Timed
from attnworks.traces.subject import Subject
from tests.model_helpers import the
from tests.reshape.reshape_helpers import PASSAGES, context_of, model_of, subject_of, texts

WINDOW, OTHER = "window:window=17", "window:window=9"
LONG = 90
Interval = tuple[float, float]
Times = dict[SwapPlace, Timed]


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    """Times by layer and mechanism; others take half of what is there. The whole model takes 100 seconds, then 90."""
    known: Times = {}

    def told(tried: SwapTrialHook, *given: Any) -> Times:
        del given
        half = Timed(0.5, (0.45, 0.55))
        return {place: known.get(place, half) for place in (*tried.groups, *((slot, PRESENT) for slot in tried.layers))}

    monkeypatch.setattr(trials, "measure_times", told)
    known.update({(slot, PRESENT): Timed(1.0, (1.0, 1.0)) for slot in mechanisms_of(model_of(), cross=True)})
    told_race(monkeypatch, [0.9] * 9)
    return known


def told_race(monkeypatch: pytest.MonkeyPatch, shares: Sequence[float], before: float = 100.0) -> None:
    """Rounds in which the whole model takes these shares of the seconds before."""
    race = Race({"old": (before,) * len(shares), "new": tuple(before * share for share in shares)})
    monkeypatch.setattr(advice_module, "interleave_within", lambda candidates, **options: race)


def with_mix(context: ReshapeContext, chosen: Mapping[str, str]) -> Subject:
    subject: Any = context.subject
    return subject.with_model(swapped(context.model, whole_layers(context.model, chosen)))


# Losses --------------------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_texts_of_the_length_asked_for(times: Times) -> None:
    """A window of 17 tokens changes nothing in sentences of 9 tokens, and much in texts of 90."""
    context = context_of(subject_of(model_of()))
    advice = find_advice(context, (WINDOW,), max_error=1.0, length=LONG)
    long = the(TrialText.of(context.calibration, context.length, LONG).long)
    assert advice.chosen and advice.tried_at > 0.8 * LONG
    after = with_mix(context, advice.chosen)
    assert advice.loss == pytest.approx(long.mean(), rel=1e-12)
    assert advice.loss + advice.rise == pytest.approx(long.mean(after), rel=1e-12)
    assert abs(advice.rise) > 1e-4
    assert the(advice.sentence_loss) == pytest.approx(context.calibration.mean(), rel=1e-12)
    assert the(advice.sentence_rise) == pytest.approx(0, abs=1e-12)


def test_without_longer_texts_there_is_one_loss(times: Times) -> None:
    context = context_of(subject_of(model_of()))
    advice = find_advice(context, (WINDOW,), max_error=1.0)
    assert advice.chosen and advice.loss == pytest.approx(context.calibration.mean(), rel=1e-12)
    assert advice.sentence_loss is None and advice.sentence_rise is None


def test_advice_says_if_no_text_is_as_long_as_asked(times: Times) -> None:
    advice = find_advice(context_of(subject_of(model_of()), texts(PASSAGES[:8])), (WINDOW,), max_error=1.0, length=4096)
    first, *others = advice.notes
    assert first == (
        f"Times are for 4,096 positions, errors and losses for texts of at most {advice.tried_at} tokens: there is no "
        "more text."
    )
    assert "No text is long enough to time the whole model." in others and advice.model_time_ratio is None
    assert advice.sentence_loss is not None and advice.loss != advice.sentence_loss


def test_the_losses_that_refuse_a_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told are errors of nearly nothing, so that only the loss of long texts speaks against it."""
    context = context_of(subject_of(model_of(seed=1)))
    told = [SwapTrial(slot, WINDOW, 1e-9, 0.1, 1, time_interval=(0.1, 0.1)) for slot in ("enc.0", "enc.1")]
    present = [Present(str(slot), now, 1.0, 1) for slot, now in mechanisms_of(context.model, cross=True).items()]
    monkeypatch.setattr(advice_module, "try_mechanisms", lambda *given, **options: (present, told))
    advice = find_advice(context, (WINDOW,), max_error=1e-7, length=LONG)
    long = the(TrialText.of(context.calibration, context.length, LONG).long)
    after = long.mean(with_mix(context, {"enc.0": WINDOW, "enc.1": WINDOW}))
    assert advice.chosen == {} and advice.time_ratio == 1.0 and advice.time_interval == (1.0, 1.0)
    refused = the(advice.refused)
    assert refused.tokens == advice.tried_at
    assert (refused.before, refused.after) == pytest.approx((long.mean(), after))
    assert refused.after > refused.before


def test_receipts_have_the_loss_at_the_length_asked_for(times: Times) -> None:
    given, subject = texts(), subject_of(model_of())
    settings = ReshapeSettings(steps=1)
    new, receipt = run_reshape(Swap(to=(WINDOW,), layers="enc.*", length=LONG), subject, given, settings)
    held_out = text_loss_on(subject, context_of(subject).calibration.objective, given.held_out, settings)
    long = the(TrialText.of(held_out, mean_length(held_out.text), LONG).long)
    found = the(receipt.loss_at_length)
    subject: Any = subject
    assert found.tokens == max(len(row) for rows in long.text.sides for row in rows) > 2 * mean_length(held_out.text)
    assert found.before == pytest.approx(long.mean(), rel=1e-12)
    assert found.healed == pytest.approx(long.mean(subject.with_model(new.eval())), rel=1e-12)
    plain = with_mix(context_of(subject), {"enc.0": WINDOW, "enc.1": WINDOW})
    assert found.after == pytest.approx(long.mean(plain), rel=1e-12)
    assert abs(found.after - found.before) > 1e-5 and receipt.loss.after == pytest.approx(receipt.loss.before, rel=1e-9)
    learn = text_loss_on(subject, held_out.objective, given.learn, settings)
    learned = the(TrialText.of(learn, mean_length(learn.text), LONG).long)
    rise = learned.mean(plain) - learned.mean()
    assert found.predicted == pytest.approx(found.before + rise, rel=1e-12)
    assert receipt.loss.predicted == pytest.approx(receipt.loss.before, rel=1e-9)


def test_receipts_without_a_length_have_one_loss(times: Times) -> None:
    _, receipt = run_reshape(Swap(to=(WINDOW,), layers="enc.*"), subject_of(model_of()), texts(PASSAGES[:8]))
    assert receipt.loss_at_length is None


# Times ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "taken"),
    [((0.6, 0.8), True), ((0.3, 1.0), False), ((0.4, 1.6), False)],
    ids=["surely", "to 1", "over 1"],
)
def test_only_what_is_measurably_faster_is_chosen(interval: Interval, taken: bool, times: Times) -> None:
    times.update(
        {
            (slot, WINDOW): Timed(0.7, interval)
            for slot in (Slot.parse("enc.0"), Slot.parse("enc.1"), Slot.parse("dec.0"), Slot.parse("dec.1"))
        }
    )
    advice = find_advice(context_of(subject_of(model_of()), texts(PASSAGES[:8])), (WINDOW,), max_error=1.0)
    assert (advice.chosen != {}) == taken
    assert [trial.time_interval for trial in advice.trials if trial.reason is None] == [interval] * 4


def test_the_interval_of_all_cores_weighs_layers_by_their_times(times: Times) -> None:
    """Six layers; that of enc.0 takes 5 seconds and falls to 2, those of others take 1 and two fall to a half."""
    times[Slot.parse("enc.0"), PRESENT] = Timed(5.0, (1.0, 1.0))
    times[Slot.parse("enc.0"), OTHER] = Timed(2.0, (0.3, 0.5))
    times.update(
        {
            (slot, spec): Timed(3.0, (2.0, 4.0))
            for slot in (Slot.parse("dec.0"), Slot.parse("dec.1"))
            for spec in (WINDOW, OTHER)
        }
    )
    context = context_of(subject_of(model_of()), texts(PASSAGES[:8]))
    times.update(
        {(Slot.parse("enc.1"), OTHER): Timed(2.0, (1.9, 2.1)), (Slot.parse("enc.0"), WINDOW): Timed(9.0, (1.8, 1.8))}
    )
    advice = find_advice(context, (WINDOW, OTHER), max_error=1.0)
    assert advice.chosen == {"enc.0": OTHER, "enc.1": WINDOW}
    assert advice.time_ratio == pytest.approx((2.0 + 0.5 + 4) / 10)
    assert advice.time_interval == pytest.approx(((5 * 0.3 + 0.45 + 4) / 10, (5 * 0.5 + 0.55 + 4) / 10))


def test_a_candidate_is_timed_with_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {PRESENT: (2.0, 4.0, 2.0, 2.0, 4.0, 2.0, 2.0), WINDOW: (1.0, 2.2, 1.2, 1.3, 2.8, 1.5, 1.6)}

    def told(candidates: Mapping[str, Any], **options: Any) -> Race:
        return Race({name: seconds[name] for name in candidates})

    monkeypatch.setattr(trials, "interleave_within", told)
    context = context_of(subject_of(model_of()), texts(PASSAGES[:8]))
    wanted = {Slot.parse("enc.0"): {WINDOW: (WINDOW, WINDOW)}}
    present, (trial,) = trials.try_mechanisms(context.calibration, wanted, 9)
    assert [layer.seconds for layer in present] == [2.0] * len(mechanisms_of(context.model, cross=True))
    assert trial.seconds == pytest.approx(2.0 * 0.65) and trial.time_interval == pytest.approx((0.5, 0.8))


def advice_with_model(monkeypatch: pytest.MonkeyPatch, shares: Sequence[float], before: float = 100.0) -> Advice:
    """Attention takes 6 seconds of the whole model's, and saves 2 to 2.2 of them."""
    told_race(monkeypatch, shares, before)
    return find_advice(context_of(subject_of(model_of()), texts(PASSAGES[:8])), (WINDOW,), max_error=1.0)


def test_the_time_of_the_whole_model(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98]
    advice = advice_with_model(monkeypatch, shares, before=10.0)
    assert len(advice.chosen) == 4
    assert advice.model_time_ratio == pytest.approx(0.94)
    assert advice.model_time_interval == pytest.approx((0.91, 0.97))
    assert advice.model_time_least == pytest.approx(1 - 4 * 0.55 / 10), "cores save at most 4 times 0.55 seconds of 10"
    assert advice.notes == ()


def test_a_model_that_saves_more_than_its_attention_is_doubted(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    advice = advice_with_model(monkeypatch, [0.85, 0.9, 0.91, 0.92, 0.93, 1.02, 1.03])
    assert advice.model_time_ratio == pytest.approx(0.92) and advice.model_time_interval == pytest.approx((0.85, 1.03))
    assert advice.model_time_least == pytest.approx(1 - 4 * 0.55 / 100)
    (note,) = advice.notes
    assert re.match(
        r"The whole model was measured to save 8 % .* accounts for at most 2\.2 %: go by the interval", note
    )


def test_cores_that_take_longer_than_the_model_bound_it_by_their_own_ratio(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = advice_with_model(monkeypatch, [0.7] * 7, before=0.1)
    assert advice.model_time_least == pytest.approx(advice.time_interval[0]) and advice.notes == ()


def test_receipts_have_times_with_intervals(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = (0.9, 0.92, 0.94, 0.96, 0.98, 1.0, 1.02)
    race = Race({"before": (1.0,) * 7, "after": rounds})
    monkeypatch.setattr(evaluate, "interleave_within", lambda candidates, **options: race)
    _, receipt = run_reshape(Swap(to=(WINDOW,), max_error=1.0), subject_of(model_of()), texts(PASSAGES[:8]))
    assert receipt.done and receipt.time == pytest.approx(0.96) and receipt.time_interval == pytest.approx((0.9, 1.02))
    facts = receipt.facts
    ratios = [facts[f"attention_time_ratio{end}"] for end in ("_low", "", "_high")]
    assert ratios == pytest.approx([(2 + 4 * 0.45) / 6, (2 + 4 * 0.5) / 6, (2 + 4 * 0.55) / 6])
    assert [facts[f"model_time_ratio{end}"] for end in ("_low", "", "_high")] == pytest.approx([0.9] * 3)


# Receipts, shown -----------------------------------------------------------------------------------------------------


def shown(receipt: Receipt) -> str:
    screen = console()
    with screen.capture() as captured:
        screen.print(receipt_shown(receipt))
    return " ".join(captured.get().split())


RECEIPT = Receipt(
    reshape="swap", asked={"length": 90}, text={}, objective="lm", done={"enc.0": WINDOW},
    healing=HealReport(steps=0, learning_rate=1e-3, batch_tokens=5, seed=0), parameters=BeforeAfter(before=7, after=7),
    flops=BeforeAfter(before=13, after=11), length=90, loss=Losses(before=1.0, predicted=1.0, after=1.0), seconds=0.5,
    numbers=("float32", "cpu"), fingerprint=("a", "b"), version="0", time=0.96, time_interval=(0.9, 1.02),
    loss_at_length=LossesAtLength(before=2.0, predicted=2.25, after=2.5, tokens=87),
    facts={
        "error": 0.1, "attention_time_ratio": 0.5, "attention_time_ratio_low": 0.4, "attention_time_ratio_high": 0.625,
        "model_time_ratio": 0.9, "model_time_ratio_low": 0.8, "model_time_ratio_high": 1.25,
    },
)  # fmt: skip


def test_receipts_show_the_loss_at_length_and_intervals() -> None:
    told = shown(RECEIPT)
    assert told.startswith(
        "Swapped attention in 1 layer: loss unchanged at 1, loss 2 -> 2.5 (+0.5), perplexity 7.39 -> 12.2 on texts of "
        "up to 87 tokens, no measurable change in speed at length 90"
    )
    assert "loss on texts of up to 87 tokens 2 2.25 2.5" in told
    assert "time of a forward pass 1 0.96 no measurable change (95 % interval 0.9 to 1.02)" in told
    assert "attention cores at length 90 2x faster (1.6 to 2.5)" in told
    assert "whole model at length 90 no measurable gain (0.8 to 1.25 times as fast)" in told
    faster = shown(replace(RECEIPT, time_interval=(0.9, 0.98)))
    assert "0.96 95 % interval 0.9 to 0.98" in faster and "no measurable change (" not in faster


def test_older_receipts_are_shown_without_intervals() -> None:
    facts = {"error": 0.1, "attention_time_ratio": 0.5}
    told = shown(replace(RECEIPT, time_interval=None, loss_at_length=None, facts=facts))
    assert "time of a forward pass 1 0.96" in told
    assert "2x faster" in told and "interval" not in told and "texts of up to" not in told


def test_an_interval_has_two_ends() -> None:
    stored = {**asdict(RECEIPT), "time_interval": [0.9, 0.95, 1.0]}
    with pytest.raises(UsageError, match="time_interval"):
        parse(Receipt, stored, "receipt")
    assert parse(Receipt, asdict(RECEIPT), "receipt") == RECEIPT
