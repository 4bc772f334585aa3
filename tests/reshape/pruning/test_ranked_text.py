"""The text that heads are ranked on: how much of it, in which batches, and repeated random tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnworks.exam.probes.texts import repeated_tokens
from attnworks.reshape.pruning import ranked_text as module
from attnworks.reshape.pruning.ranked_text import in_small_batches, ranked_text, windows, with_repeats
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


def ranked(text: TokenizedText) -> tuple[list[TokenRow], bool]:
    """The rows that an encoder is ranked on, and whether they are all."""
    subject = wrap(TINY["bert"].build(), tiny_tokenizer("bert"))
    found, all_read = ranked_text(TextLoss(subject, choose_objective("mlm", subject.abilities), text), 0)
    return rows_of(found.text), all_read


def test_short_texts_are_limited_by_their_number_and_long_ones_by_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, all_read = ranked(text_of(509))
    assert 64 < len(rows) <= 128 and not all_read
    monkeypatch.setattr(module, "RANKED_TOKENS", 600)
    assert 300 < sum(map(len, ranked(text_of(509))[0])) <= 600
    long, _ = ranked(text_of(83, 97))
    assert module.MIN_RANKED_TEXTS // 2 < len(long) <= module.MIN_RANKED_TEXTS
    assert ranked(text_of(5)) == (rows_of(text_of(5)), True)


def test_texts_of_all_lengths_are_chosen() -> None:
    found, _ = ranked(text_of(509))
    assert {len(each) for each in found} == {13, 14, 15}
    assert [len(each) for each in found] == sorted(len(each) for each in found)


def test_small_batches_hold_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRADIENT_TOKENS", 40)
    text = text_of(23).part(slice(None, None, 2))
    small = in_small_batches(text)
    assert sorted(rows_of(small), key=hash) == sorted(rows_of(text), key=hash)
    assert max(map(len, small.batches)) == 40 // 13 and len(small.batches) > len(text.batches)


def test_windows_tile_the_text_and_keep_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its first token, a window would be read with another token as the sink of attention."""
    monkeypatch.setattr(module, "WINDOW", 7)
    for length in (4, 5, 6, 11, 29):
        whole = row(length, length)
        parts = windows(whole)
        assert max(map(len, parts)) <= 7 and max(map(len, parts)) - min(map(len, parts)) <= 1
        assert all(part.ids[0] == OPEN and part.ids[-1] == CLOSE and sum(part.special) == 2 for part in parts)
        for read in ("ids", "word"):
            assert [x for part in parts for x in getattr(part, read)[1:-1]] == [*getattr(whole, read)[1:-1]]
        assert len(parts) == -(-length // 5)
    bare = TokenRow((3, 4, 5, 6, 7, 8, 9, 10), (False,) * 8, tuple(range(8)))
    assert [part.ids for part in windows(bare)] == [(3, 4, 5, 6), (7, 8, 9, 10)]
    assert windows(row(3, 5)) == [row(3, 5)]


def test_repeats_are_a_quarter_of_the_texts_and_other_ones_than_those_of_the_probes() -> None:
    subject = wrap(TINY["gpt2"].build(), tiny_tokenizer("gpt2"))
    rows = rows_of(subject.read([Passage(Text(line)) for line in LINES[:3]], batch_tokens=90))
    found = with_repeats(rows, subject, seed=3)
    (repeat,) = (each for each in found if each not in rows)
    probes = repeated_tokens(subject, seed=3, sequences=1)
    assert len(repeat) == len(probes.rows[0]) and repeat != probes.rows[0]
    first, second = (repeat.ids[part] for part in (probes.originals[0], probes.copies[0]))
    assert first == second and repeat in with_repeats(rows, subject, seed=3) and len(found) == len(rows) + 1
    assert repeat not in with_repeats(rows, subject, seed=4)


def test_a_model_without_repeats_is_ranked_on_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = wrap(TINY["gpt2"].build(), tiny_tokenizer("gpt2"))
    rows = rows_of(subject.read([Passage(Text(line)) for line in LINES], batch_tokens=90))
    monkeypatch.setattr(type(subject), "max_length", property(lambda self: 5))
    assert with_repeats(rows, subject, seed=3) == rows


@pytest.mark.parametrize(("family", "objective", "more"), [("gpt2", "lm", True), ("bert", "mlm", False)])
def test_only_causal_models_are_ranked_on_repeats(family: str, objective: str, more: bool) -> None:
    subject = wrap(TINY[family].build(), tiny_tokenizer(family))
    text = subject.read([Passage(Text(line)) for line in LINES], batch_tokens=90)
    text_loss = TextLoss(subject, choose_objective(objective, subject.abilities), text)
    found, _ = ranked_text(text_loss, 0)
    assert (len(rows_of(found.text)) > len(rows_of(text))) == more
    assert found.mean() > 0 and found.objective is text_loss.objective
    positions = subject.max_length
    assert positions is None or max(map(len, rows_of(found.text))) <= positions
    assert ranked_text(replace(text_loss, text=text.part(slice(0, 1))), 0)[0].mean() > 0
