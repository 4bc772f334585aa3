"""Losses with their intervals: what is measured once per model, and what is said about it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import attnworks
from attnworks.core.errors import UsageError
from attnworks.core.json_records import parse
from attnworks.reshape import evaluate
from attnworks.reshape.evaluate import Evaluation, compare_losses, interval_of_mean, outcome_of
from attnworks.reshape.losses import Losses, LossIntervals, loss_warnings, perplexity
from attnworks.reshape.probed import NOT_PROBED
from attnworks.reshape.receipt import Receipt
from attnworks.text.passages import Passage, Text
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import Subject, wrap
from attnworks.training.objectives import choose_objective
from attnworks.training.objectives.sentences import SentenceEmbedding
from tests.exam_helpers import LINES, TINY, tiny_tokenizer, write_lines
from tests.reshape.swapping.test_advice import RECEIPT

PASSAGES = [Passage(Text(line)) for line in LINES]


def subject(name: str, seed: int = 0) -> Subject:
    model = TINY[name].build(seed)
    return wrap(model, tiny_tokenizer(model.config.model_type))


@pytest.mark.parametrize(
    ("name", "objective", "passes"),
    [("gpt2", "lm", 1), ("bert", "mlm", 2), ("bert", "embedding", 1), ("bart", "seq2seq", 1), ("gpt2", "embedding", 1)],
)
def test_one_pass_gives_what_the_parts_give(
    name: str, objective: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, other = subject(name), subject(name, seed=1)
    held_out = TextLoss(who, choose_objective(objective, who.abilities), who.read(PASSAGES, batch_tokens=40))
    drift = TextLoss(who, SentenceEmbedding(), held_out.text)
    expected = {model: (held_out.each(model), drift.mean(model)) for model in (who, other)}
    runs = 0

    def counted(self: Subject, *given: Any, **named: Any) -> Any:
        nonlocal runs
        runs += 1
        return run(self, *given, **named)

    run = type(who).run
    monkeypatch.setattr(type(who), "run", counted)
    monkeypatch.setattr(evaluate, "probe", lambda subject, seed, tell: NOT_PROBED)
    before = outcome_of(held_out, who)
    after = outcome_of(held_out, other, before)
    assert runs == 2 * passes * len(held_out.text.batches)
    for model, found in ((who, before), (other, after)):
        torch.testing.assert_close(found.losses, expected[model][0], rtol=1e-9, atol=1e-12)
        assert found.scores(before)["embedding drift"] == pytest.approx(expected[model][1], rel=1e-9, abs=1e-12)
        assert found.loss == pytest.approx(held_out.mean(model), rel=1e-9, abs=1e-12)


def test_a_model_at_distance_zero_from_itself_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    who = subject("bert")
    drift = TextLoss(who, SentenceEmbedding(), who.read(PASSAGES, batch_tokens=40))
    outputs = who.run(drift.text.batch(0)[0])
    again = drift.objective.distance(
        outputs, drift.objective.target(outputs, *drift.text.batch(0)), *drift.text.batch(0)
    )
    assert float(again.abs().max()) < 1e-6
    monkeypatch.setattr(type(who), "run", None)
    assert torch.equal(drift.each(), torch.zeros(len(PASSAGES), dtype=torch.float64))


def outcome(losses: Tensor) -> Evaluation:
    return Evaluation(losses, torch.zeros(len(losses), 2), None)


def test_intervals_are_those_of_the_paired_t_test() -> None:
    draw = torch.Generator().manual_seed(3)
    before = torch.rand(11, generator=draw, dtype=torch.float64) + 3
    after = before + 0.2 + 0.05 * torch.randn(11, generator=draw, dtype=torch.float64)
    healed = before - 0.01 * torch.rand(11, generator=draw, dtype=torch.float64)
    loss = compare_losses(outcome(before), 0.3, outcome(after), outcome(healed))
    assert loss.intervals is not None and loss.predicted == pytest.approx(float(before.mean()) + 0.3)
    for found, now, then in (
        (loss.intervals.rise, after, before), (loss.intervals.healed_rise, healed, before),
        (loss.intervals.before, before, 0 * before), (loss.intervals.after, after, 0 * after),
        (loss.intervals.healed, healed, 0 * healed),
    ):  # fmt: skip
        expected = stats.ttest_rel(now.numpy(), then.numpy()).confidence_interval(0.95)
        assert found == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert loss.last_rise == loss.intervals.healed_rise
    assert compare_losses(outcome(before), 0.3, outcome(after)).last_rise == loss.intervals.rise


def test_one_sentence_or_an_infinite_loss_has_no_interval() -> None:
    one, odd = torch.tensor([1.0]), torch.tensor([1.0, torch.inf])
    assert interval_of_mean(one) is None and interval_of_mean(odd) is None
    two = torch.tensor([1.0, 2.0])
    loss = compare_losses(outcome(two), 1.0, outcome(odd))
    assert loss.intervals == LossIntervals(before=interval_of_mean(two)) and loss.after == torch.inf
    assert perplexity(2.0) == pytest.approx(7.389056) and perplexity(1e9) == torch.inf


@pytest.mark.parametrize(
    ("before", "after", "rise", "told"),
    [
        (3.0, 3.3, (0.1, 0.5), True), (3.0, 3.3, (0.2, 0.4), False), (3.0, 3.001, (-0.02, 0.022), False),
        (3.0, 3.001, (-0.2, 0.202), True), (0.0, 0.1, (0.02, 0.18), True), (0.0, 0.001, (0.0, 0.002), False),
    ],
)  # fmt: skip
def test_held_out_text_that_is_too_small(before: float, after: float, rise: Any, told: bool) -> None:
    found = loss_warnings(Losses(before, after, after, None, LossIntervals(rise=rise)), 9)
    assert bool(found) == told
    if told:
        assert found[0].startswith("The held-out text is too small") and f"{rise[1]:+.2g}" in found[0]


def test_receipts_warn_and_old_ones_have_no_intervals() -> None:
    who = subject("gpt2")
    _, receipt = attnworks.prune(who, LINES * 3, heads="0.*", sentences=1)
    assert receipt.warnings == (
        "There is only one held-out sentence, so that no interval of the loss is known. Give more text.",
    )
    assert f"Warning: {receipt.warnings[0]}" in receipt._repr_html_().replace("\n", " ")
    told = asdict(replace(RECEIPT, warnings=("Look out.",)))
    assert parse(Receipt, told, "receipt").warnings == ("Look out.",)
    del told["warnings"], told["loss"]["intervals"]
    old = parse(Receipt, told, "receipt")
    assert old.loss.intervals is None and old.warnings == () and "95 %" not in old.summary.partition("faster")[0]


def test_a_receipt_of_a_language_model_counts_passages_and_tokens() -> None:
    _, receipt = attnworks.prune(subject("gpt2"), heads="0.*", pairs=300)
    assert receipt.text["corpus"] == "pydoc" and receipt.text["passage_tokens"] == 37
    assert receipt.text["calibration_tokens"] > 4_000 and receipt.text["evaluation_tokens"] > 4_000
    assert receipt.loss.intervals is not None and receipt.loss.intervals.rise is not None
    low, high = receipt.loss.intervals.rise
    assert low < receipt.loss.after - receipt.loss.before < high
    assert "perplexity" in receipt.summary and "held-out passages of up to 37 tokens" in receipt._repr_html_()


def test_long_sentences_are_split_and_the_receipt_says_so() -> None:
    _, receipt = attnworks.prune(subject("bert"), [*LINES, "the cat sees " * 20, *LINES[::-1]], heads="0.0")
    (note,) = receipt.text["split"]
    assert note.endswith("text: 1 text is longer than the 37 tokens that the model reads: split into 2 windows")
    assert "split into 2 windows" in receipt._repr_html_().replace("\n", " ")


class TestLabels:
    """Labels belong to the lines of the text, also to those that are held out."""

    model = "BertForSequenceClassification"

    def classifier(self) -> Subject:
        settings = TINY["bert"]._replace(model=self.model)
        return wrap(settings.build(num_labels=3), tiny_tokenizer("bert"))

    def test_every_line_keeps_its_label(self, tmp_path: Path) -> None:
        lines = [f"the {noun} {verb} it ." for noun in ("cat", "dog", "child") for verb in ("sees", "wants", "loves")]
        who, labels = self.classifier(), [0, 1, 2, 2, 1, 0, 1, 0, 2]
        file = write_lines(tmp_path / "labels.txt", [*map(str, labels)])
        _, receipt = attnworks.prune(who, lines, heads="0.0", objective=f"labels:{file}")
        losses = []
        for number in (3, 7):
            with torch.no_grad():
                scores = who.logits(lines[number])
            losses.append(float(-scores.log_softmax(-1)[labels[number]]))
        assert receipt.loss.before == pytest.approx(sum(losses) / 2, rel=1e-5)

    def test_what_has_no_labels_is_refused(self, tmp_path: Path) -> None:
        file = write_lines(tmp_path / "labels.txt", [*"012012012"])
        with pytest.raises(UsageError, match="expected 9, one per sentence, got 8"):
            attnworks.prune(
                self.classifier(),
                LINES + ["a cat ."] * 2,
                heads="0.0",
                objective=f"labels:{write_lines(file, ['0'] * 8)}",
            )
        with pytest.raises(UsageError, match="expected the lines of a file or a list of texts"):
            attnworks.prune(self.classifier(), "grammar", heads="0.0", objective=f"labels:{file}", pairs=50)
        long = ["the cat sees " * 20, *LINES, "the dog sees it ."]
        with pytest.raises(UsageError, match="the objective 'labels': expected at most 37 tokens"):
            attnworks.prune(
                self.classifier(), long, heads="0.0", objective=f"labels:{write_lines(file, ['0'] * len(long))}"
            )
        with pytest.raises(UsageError, match="the objective 'labels': expected at most 37 tokens"):
            attnworks.examine(self.classifier(), long, objective=f"labels:{file}", measures=["importance"])
