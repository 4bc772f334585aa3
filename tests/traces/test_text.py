"""Passages as a model reads them, and what it writes where a target is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnworks.core.errors import UsageError
from attnworks.text.passages import Passage, Text
from attnworks.traces.subject import Subject, wrap
from attnworks.traces.text import TARGETS_WRITTEN_AT_ONCE
from tests.exam_helpers import LINES, TINY, tiny_tokenizer

TARGETS = ["a bird sees the cat .", "it reads .", "the dog wants it ."]
PAIRS = [Passage(Text(source), Text(target)) for source, target in zip(LINES, TARGETS, strict=False)]


def subject(name: str, **changes: Any) -> Subject:
    model = TINY[name].build(**changes)
    return wrap(model, tiny_tokenizer(model.config.model_type))


def spelled(who: Subject, row: Any, side: Any = "source") -> list[str]:
    return [who.token(token, side) for token in row.ids]


def test_every_row_is_in_one_batch() -> None:
    who = subject("bert")
    text = who.read([Passage(Text(line)) for line in LINES], batch_tokens=60)
    assert sorted(row for rows in text.batches for row in rows) == list(range(len(LINES)))
    for number, rows in enumerate(text.batches):
        batch, told = text.batch(number)
        assert told.tolist() == list(rows) and len(batch) == len(rows) and batch.target is None
        for place, row in enumerate(rows):
            expected = text.sides[0][row]
            assert batch.source.ids[place, : len(expected)].tolist() == list(expected.ids)
            assert batch.source.real[place].sum() == len(expected)
            assert bool((batch.source.ids[place, len(expected) :] == 1).all())
    assert text.about() == {
        "sentences": len(LINES), "tokens": sum(len(row) for row in text.sides[0]), "longest": 16, "dropped": 0,
        "split": 0, "written_by_the_model": 0,
    }  # fmt: skip


def test_a_text_that_is_too_long_has_several_rows_of_its_number() -> None:
    who = subject("bert")
    text = who.read(
        [Passage(Text(line)) for line in (LINES[0], "the cat sees " * 30, "dog", LINES[1])], batch_tokens=99
    )
    assert [len(row) for row in text.sides[0]][1:4] == [32, 32, 32]
    assert text.kept == [0, 1, 1, 1, 3] and text.dropped == 1 and text.split == (1, 3)
    assert text.split_note == "1 text is longer than the 37 tokens that the model reads: split into 3 windows"
    told = sorted(number for place in range(len(text.batches)) for number in text.batch(place)[1].tolist())
    assert told == [0, 1, 1, 1, 3]
    with pytest.raises(UsageError, match=r"labels: expected at most 37 tokens.*got 1 text with more"):
        text.check_whole("labels")
    whole = who.read([Passage(Text(line)) for line in LINES], batch_tokens=99)
    assert whole.split_note is None
    whole.check_whole("labels")


def test_the_model_writes_a_target_for_each_window() -> None:
    who, long = subject("bart"), Text("the cat sees " * 30)
    text = who.read([Passage(long), PAIRS[0]], batch_tokens=99)
    assert text.kept == [0, 0, 0, 1] and text.written == 3
    again = who.read([Passage(long)], batch_tokens=99)
    assert [row.ids for row in text.sides[1][:3]] == [row.ids for row in again.sides[1]]
    assert spelled(who, text.sides[1][3], "target")[2:] == TARGETS[0].split()


def test_a_pair_or_one_text_is_not_split() -> None:
    who, long = subject("bart"), Text("the cat sees " * 30)
    for read in (lambda: who.read([Passage(long, PAIRS[0].target)], batch_tokens=99), lambda: who.read_one(long.text)):
        with pytest.raises(UsageError, match="at most 37 tokens, the positions of the model"):
            read()


@pytest.mark.parametrize(("name", "opening"), [("t5", ["<pad>"]), ("marian", ["</s>"]), ("bart", ["</s>", "<s>"])])
def test_targets_are_read_as_the_decoder_reads_them(name: str, opening: list[str]) -> None:
    """The start token, then the labels without their last tokens: what shifting them right gives."""
    who = subject(name)
    text = who.read(PAIRS, batch_tokens=4096)
    row = text.sides[1][0]
    assert spelled(who, row, "target") == [*opening, *TARGETS[0].split()]
    assert list(row.special) == [True] * len(opening) + [False] * len(TARGETS[0].split())
    assert list(row.word) == [-1] * len(opening) + list(range(len(TARGETS[0].split())))
    assert text.written == 0


def test_heads_move_with_the_tokens() -> None:
    side = Text("the cat sees", ("the", "cat", "sees"), (1, 2, -1))
    for name, shift in (("t5", 1), ("bart", 2)):
        row = subject(name).read([Passage(side, side)], batch_tokens=4096).sides[1][0]
        assert row.governor == (*[-1] * shift, 1 + shift, 2 + shift, -1)


@pytest.mark.parametrize("name", ["t5", "marian", "bart"])
def test_what_the_model_writes_is_its_greedy_choice(name: str) -> None:
    who = subject(name)
    model: Any = who.model
    text = who.read([Passage(Text(line)) for line in LINES[:3]], batch_tokens=4096)
    assert text.written == 3 and text.dropped == 0
    for source, target in zip(text.sides[0], text.sides[1], strict=True):
        assert target.ids[0] == model.config.decoder_start_token_id and target.special[0]
        with torch.no_grad():
            scores = model(torch.tensor([source.ids]), decoder_input_ids=torch.tensor([target.ids])).logits[0]
        assert scores.argmax(-1)[:-1].tolist() == list(target.ids[1:])


def test_what_the_model_writes_fits_its_positions() -> None:
    """A source as long as the model can read leaves no room for ten words more."""
    who = subject("bart")
    text = who.read([Passage(Text(" ".join(["cat"] * 35)))], batch_tokens=4096)
    assert len(text.sides[0][0]) == 37 and len(text.sides[1][0]) <= 37


def test_some_targets_may_be_missing() -> None:
    passages = [PAIRS[0], Passage(Text(LINES[1])), PAIRS[2]]
    who = subject("t5")
    text = who.read(passages, batch_tokens=4096)
    assert text.written == 1 and len(text.sides[1]) == 3
    assert spelled(who, text.sides[1][2], "target")[1:] == TARGETS[2].split()


def test_many_are_written_a_few_at_a_time() -> None:
    who = subject("t5")
    passages = [Passage(Text(line)) for line in (LINES * 6)[: TARGETS_WRITTEN_AT_ONCE + 3]]
    text = who.read(passages, batch_tokens=4096)
    assert len(text.sides[1]) == len(passages)
    assert text.sides[1][0].ids == text.sides[1][len(LINES)].ids


def test_a_list_of_ends_in_the_config_of_generation() -> None:
    who = subject("t5")
    model: Any = who.model
    model.generation_config.eos_token_id = [1, 2]
    text = who.read([Passage(Text(LINES[0]))], batch_tokens=4096)
    assert text.written == 1


def test_short_lines_are_dropped() -> None:
    text = subject("bert").read([Passage(Text(line)) for line in ("cat", *LINES, "dog")], batch_tokens=4096)
    assert text.dropped == 2 and len(text.sides[0]) == len(LINES)
    with pytest.raises(UsageError, match="2 tokens or more"):
        subject("bert").read([Passage(Text("cat"))], batch_tokens=4096)


def test_tokens_that_the_model_does_not_know() -> None:
    with pytest.raises(UsageError, match="ids below 11"):
        subject("gpt2", vocab_size=11).read([Passage(Text(line)) for line in LINES], batch_tokens=4096)


def test_a_padding_token_beyond_the_embedding_is_replaced() -> None:
    model = TINY["llama"].build()
    tokenizer = tiny_tokenizer("llama")
    tokenizer.add_special_tokens({"pad_token": "[padding]"})
    model.resize_token_embeddings(tokenizer.pad_token_id)
    who = wrap(model, tokenizer)
    assert who.source is not None and who.source.pad_id == 0
    text = who.read([Passage(Text(line)) for line in LINES], batch_tokens=4096)
    batch, _ = text.batch(0)
    who.run(batch)
