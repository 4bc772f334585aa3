"""The text that heads are ranked on: how much of it, in which batches, and repeated random tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnworks.exam.probes.texts import repeated_tokens
from attnworks.reshape.pruning import ranked_text as module
from attnworks.reshape.pruning.ranked_text import in_small_batches, in_windows, ranked_text, some_texts, with_repeats
from attnworks.text.passages import Passage, Text
from attnworks.text.tokens import TokenRow
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import wrap
from attnworks.traces.text import TokenizedText
from attnworks.training.objectives import choose_objective
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.tiny_models import TINY

OPEN, CLOSE = 1, 2


def row(number: int, length: int) -> TokenRow:
    ids = (OPEN, *(3 + (number * 7 + place) % 29 for place in range(length)), CLOSE)
    special = (True, *(False,) * length, True)
    return TokenRow(ids, special, (-1, *range(length), -1))


def text_of(count: int, length: int = 11) -> TokenizedText:
    rows = [row(number, length + number % 3) for number in range(count)]
    return TokenizedText.of_rows([rows], [0], numbers=range(count), batch_tokens=60, written=0)


def rows_of(text: TokenizedText) -> list[TokenRow]:
    return [text.sides[0][index] for batch in text.batches for index in batch]


def test_short_texts_are_limited_by_their_number_and_long_ones_by_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 64 < len(rows_of(some_texts(text_of(509)))) <= 128
    monkeypatch.setattr(module, "RANKED_TOKENS", 600)
    tokens = sum(map(len, rows_of(some_texts(text_of(509)))))
    assert 300 < tokens <= 600
    long = rows_of(some_texts(text_of(83, 97)))
    assert module.MIN_RANKED_TEXTS // 2 < len(long) <= module.MIN_RANKED_TEXTS
    assert rows_of(some_texts(text_of(5))) == rows_of(text_of(5))


def test_texts_of_all_lengths_are_chosen() -> None:
    found = rows_of(some_texts(text_of(509)))
    assert {len(each) for each in found} == {13, 14, 15}
    assert [len(each) for each in found] == sorted(len(each) for each in found)


def test_small_batches_hold_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRADIENT_TOKENS", 40)
    text = text_of(23).part(slice(None, None, 2))
    small = in_small_batches(text)
    assert sorted(rows_of(small), key=hash) == sorted(rows_of(text), key=hash)
    assert max(map(len, small.batches)) == 40 // 13 and len(small.batches) > len(text.batches)


def test_windows_tile_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 7)
    text, found = text_of(5, 4), in_windows(text_of(5, 4))
    assert {len(each) for each in rows_of(found)} == {4, 6, 7}
    for read in ("ids", "special", "word"):
        whole, parts = (sorted(x for each in rows_of(of) for x in getattr(each, read)) for of in (text, found))
        assert whole == parts
    assert len({*found.kept}) == len(rows_of(found)) == found.passages
    monkeypatch.setattr(module, "WINDOW", 8)
    assert rows_of(in_windows(text)) == rows_of(text)


def test_repeats_are_an_eighth_of_the_texts_and_other_ones_than_those_of_the_probes() -> None:
    subject = wrap(TINY["gpt2"].build(), tiny_tokenizer("gpt2"))
    text = subject.read([Passage(Text(line)) for line in LINES[:7]], batch_tokens=90)
    found = with_repeats(text, subject, seed=3)
    (repeat,) = (each for each in rows_of(found) if each not in rows_of(text))
    probes = repeated_tokens(subject, seed=3, sequences=1)
    again = rows_of(with_repeats(text, subject, seed=3))
    assert len(repeat) == len(probes.rows[0]) and repeat != probes.rows[0]
    first, second = (repeat.ids[part] for part in (probes.originals[0], probes.copies[0]))
    assert first == second and repeat in again and len(again) == len(rows_of(text)) + 1
    assert repeat not in rows_of(with_repeats(text, subject, seed=4))


def test_a_model_without_repeats_is_ranked_on_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = wrap(TINY["gpt2"].build(), tiny_tokenizer("gpt2"))
    text = subject.read([Passage(Text(line)) for line in LINES], batch_tokens=90)
    monkeypatch.setattr(type(subject), "max_length", property(lambda self: 5))
    assert with_repeats(text, subject, seed=3) is text


@pytest.mark.parametrize(("family", "objective", "more"), [("gpt2", "lm", True), ("bert", "mlm", False)])
def test_only_causal_models_are_ranked_on_repeats(family: str, objective: str, more: bool) -> None:
    subject = wrap(TINY[family].build(), tiny_tokenizer(family))
    text = subject.read([Passage(Text(line)) for line in LINES], batch_tokens=90)
    text_loss = TextLoss(subject, choose_objective(objective, subject.abilities), text)
    found = ranked_text(text_loss, 0)
    assert (len(rows_of(found.text)) > len(rows_of(text))) == more
    assert found.mean() > 0 and found.objective is text_loss.objective
    positions = subject.max_length
    assert positions is None or max(map(len, rows_of(found.text))) <= positions
    assert ranked_text(replace(text_loss, text=text.part(slice(0, 1))), 0).mean() > 0
