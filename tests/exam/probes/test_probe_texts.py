"""The texts of probes: what is copied from where, for vocabularies and positions of any number."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import attnworks
from attnworks.core.errors import UsageError
from attnworks.exam.probes.texts import (
    CONTEXT,
    LONGEST_LEAD,
    NEEDLE,
    NEEDLES,
    PERIOD,
    SEQUENCES,
    ProbeText,
    copied_needles,
    repeated_tokens,
)
from attnworks.text.grammar import grammar_passages
from attnworks.text.passages import Text
from attnworks.text.tokenizers import Pieces, TextReader
from attnworks.text.tokens import TokenRow
from attnworks.text.vocabulary import BOS, SPECIALS, Vocabulary
from attnworks.traces.own import OwnSubject
from tests.exam.probes.probe_helpers import FRAMES, tiny_subject, word_tokenizer
from tests.exam.probes.probe_helpers import SPECIALS as TINY_SPECIALS
from tests.model_helpers import transformer

WORDS = (8, 11, 31, 53, 60)
POSITIONS = (8, 9, 13, 31, 101, 107, 211)
BEFORE = {"none": (), "bos": (2,), "both": (2,), "tagged": (2, 4)}
AFTER = {"none": (), "bos": (), "both": (3,), "tagged": (3,)}


def ids_of(row: TokenRow, place: slice) -> list[int]:
    return list(row.ids[place])


def check_frames(text: ProbeText, frame: str) -> None:
    """Special tokens are those of the tokenizer, and nothing else."""
    before, after = BEFORE[frame], AFTER[frame]
    for row in text.rows:
        assert row.ids[: len(before)] == before and row.ids[len(row) - len(after) :] == after
        inside = range(len(before), len(row) - len(after))
        assert row.special == tuple(place not in inside for place in range(len(row)))


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("words", WORDS)
def test_random_tokens_are_repeated(words: int, frame: str) -> None:
    """Periods are the longest that vocabulary and positions allow, and up to four less."""
    specials = len(BEFORE[frame]) + len(AFTER[frame])
    for positions in POSITIONS:
        subject = tiny_subject("llama", words, frame, positions + specials)
        text = repeated_tokens(subject, seed=1)
        assert len(text.rows) == len(text.copies) == len(text.originals) == SEQUENCES
        check_frames(text, frame)
        periods, leads = Counter[int](), set[int]()
        for row, copy, original in zip(text.rows, text.copies, text.originals, strict=True):
            assert len(row) <= positions + specials
            assert original.stop == copy.start and copy.stop + len(AFTER[frame]) == len(row)
            x, lead = ids_of(row, original), ids_of(row, slice(len(BEFORE[frame]), original.start))
            assert x == ids_of(row, copy) and len({*x, *lead}) == len(x) + len(lead), "no token twice"
            assert all(len(TINY_SPECIALS) <= token < len(TINY_SPECIALS) + words for token in (*x, *lead))
            periods[len(x)] += 1
            leads.add(len(lead))
        longest = min(PERIOD + 2, positions // 2, words)
        assert {*periods} == {max(4, longest - less) for less in (0, 1, 3, 4)}
        assert len(periods) < 4 or {*periods.values()} == {SEQUENCES // 4}
        assert leads == {*range(min(LONGEST_LEAD, max(0, positions - 104), max(0, words - 52)) + 1)}


@pytest.mark.parametrize("period", [25, 50])
def test_random_tokens_of_a_period(period: int) -> None:
    text = repeated_tokens(tiny_subject("gpt2", 60, "bos", 128), period=period, sequences=5)
    lengths = [copy.stop - copy.start for copy in text.copies]
    assert lengths == [period - 2, period - 1, period + 1, period + 2, period - 2]


@pytest.mark.parametrize(
    ("words", "positions", "message"),
    [
        (7, 40, r"probes of llama: expected a vocabulary of 8 tokens or more, got 7; use --no-probe"),
        (20, 9, r"probes of llama: expected 8 positions for text, got 7; use --no-probe"),
    ],
)
def test_what_has_no_room_is_refused(words: int, positions: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        repeated_tokens(tiny_subject("llama", words, "both", positions))


def test_models_with_two_stacks_or_without_text_are_refused() -> None:
    with pytest.raises(UsageError, match=r"a model with one stack of layers, got two"):
        repeated_tokens(OwnSubject(transformer(), "own"))
    with pytest.raises(UsageError, match=r"expected a tokenizer, got none"):
        repeated_tokens(OwnSubject(transformer(encoder_layers=0), "own"))


@pytest.mark.parametrize("make", [repeated_tokens, copied_needles])
def test_a_seed_gives_the_same_text(make: Any) -> None:
    subject = tiny_subject("gpt2", 31, "bos", 101)
    one, same, other = make(subject, seed=3), make(subject, seed=3), make(subject, seed=4)
    assert one.rows == same.rows and one.copies == same.copies and one.originals == same.originals
    assert one.rows != other.rows
    state = torch.random.get_rng_state()
    make(subject)
    assert torch.equal(state, torch.random.get_rng_state()), "other random numbers stay as they are"


# Needles --------------------------------------------------------------------------------------------------------------


def corpus_of(subject: Any, passages: int) -> list[int]:
    reader = subject.cut_to(subject.max_length).source
    return [token for passage in grammar_passages(passages) for token in reader.read(passage.source).text_ids]


@pytest.mark.parametrize("frame", ["none", "tagged"])
@pytest.mark.parametrize("words", [8, 13, 60])
def test_needles_are_copied_at_the_end(words: int, frame: str) -> None:
    specials, needle = len(BEFORE[frame]) + len(AFTER[frame]), min(NEEDLE, words // 2)
    for positions in (4 * needle - 1, 4 * needle, 103, 211):
        subject = tiny_subject("llama", words, frame, positions + specials)
        text = copied_needles(subject, seed=1)
        if positions < 4 * needle:
            assert text is None
            continue
        assert text is not None and len(text.rows) == NEEDLES
        check_frames(text, frame)
        context = min(CONTEXT, positions - 2 * needle)
        corpus = corpus_of(subject, context)
        for row, copy, original in zip(text.rows, text.copies, text.originals, strict=True):
            assert len(row) == context + 2 * needle + specials <= positions + specials
            assert original.stop <= copy.start and copy.stop + len(AFTER[frame]) == len(row)
            assert copy.stop - copy.start == original.stop - original.start == needle
            assert ids_of(row, original) == ids_of(row, copy) and len({*row.ids[original]}) == needle
            around = [*row.ids[len(BEFORE[frame]) : original.start], *row.ids[original.stop : copy.start]]
            assert len(around) == context
            assert any(
                around == [corpus[(start + place) % len(corpus)] for place in range(context)]
                for start in range(len(corpus))
            ), "the text around is the embedded corpus"


def test_a_needle_is_not_in_the_text_around_it() -> None:
    """The vocabulary has words of the corpus; those of the text are left out of its needle."""
    corpus = {word: None for passage in grammar_passages(40) for word in (passage.source.words or ())}
    vocabulary = Vocabulary.train("word", [list(corpus)])
    model = transformer(encoder_layers=0, target_vocabulary=len(vocabulary))
    subject = OwnSubject(model, "own", vocabulary)
    text = copied_needles(subject)
    assert text is not None
    for row, copy, original in zip(text.rows, text.copies, text.originals, strict=True):
        assert row.ids[0] == BOS and all(token >= len(SPECIALS) for token in row.ids[original])
        for token in ids_of(row, copy):
            assert row.ids.count(token) == 2
    assert len({text.rows[0].ids[place] for place in range(1, 40)}) > 10, "words of the corpus are known"
    repeated = repeated_tokens(subject)
    assert all(row.ids[0] == BOS and row.special == (True, *[False] * (len(row) - 1)) for row in repeated.rows)


# Tokenizers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [repeated_tokens, copied_needles])
def test_tokens_that_the_model_does_not_know_are_left_out(make: Any) -> None:
    """Of a vocabulary that is larger than the embedding, also where words of the corpus are among them."""
    corpus = list(dict.fromkeys(word for passage in grammar_passages(40) for word in passage.source.text.split()))
    subject = tiny_subject("gpt2", 20, positions=64).with_tokenizer(word_tokenizer(corpus))
    text = make(subject)
    assert len(corpus) > 60
    largest = max(token for row in text.rows for token in row.ids)
    assert largest == len(TINY_SPECIALS) + 20 - 1


class _LetterReader(TextReader):
    """Reads letters, and takes those that it does not know for special tokens, as some slow tokenizers do."""

    pad_id = 0

    def __init__(self, known: str) -> None:
        super().__init__(1, 37)
        self.known = known

    def ordinary_ids(self) -> range:
        return range(1, 1 + len(self.known))

    def _pieces(self, side: Text) -> Pieces:
        ids = [1 + self.known.find(letter) for letter in side.text] + [0]
        return Pieces(ids, [token == 0 for token in ids], [-1] * len(ids), {})


@pytest.mark.parametrize("known", ["abcdefghijklm", "0123456789"])
def test_texts_longer_than_the_model_are_cut(known: str) -> None:
    """A sentence of the corpus has more letters than the model has positions, and may have no letter that is known."""
    subject = tiny_subject("gpt2", 20, positions=37)
    subject.source = _LetterReader(known)
    for text in (repeated_tokens(subject), copied_needles(subject)):
        assert text is not None
        for row in text.rows:
            assert len(row) <= 37 and {*row.ids} <= {*range(len(known) + 1)}
    assert subject.source.max_tokens is None, "the reader of the subject is as it was"


def test_probes_read_a_subject_with_a_length_of_its_own() -> None:
    """`--max-length` cuts texts; probes have the length of the model."""
    subject = attnworks.wrap(tiny_subject("gpt2", 31, "bos", 101), max_length=7)
    text = repeated_tokens(subject)
    assert (
        max(map(len, text.rows)) == 1 + 2 * 31
        and text.rows == repeated_tokens(tiny_subject("gpt2", 31, "bos", 101)).rows
    )


def test_pointers_to_what_was_copied() -> None:
    text = repeated_tokens(tiny_subject("gpt2", 11, "tagged", 40), sequences=6)
    (batch, part), *rest = text.batches()
    assert not rest and len(text.rows[part]) == len(text.rows) == 6
    for ahead in (0, 1, 3):
        found = text.original_of(part, batch.source.ids.shape[1], ahead)
        for number, (row, copy, original) in enumerate(zip(text.rows, text.copies, text.originals, strict=True)):
            for place in range(batch.source.ids.shape[1]):
                behind = place - copy.start + ahead
                copied = copy.start <= place < copy.stop and behind < copy.stop - copy.start
                assert int(found[number, place]) == (original.start + behind if copied else -1)
                if copied and place + ahead < len(row):
                    assert row.ids[original.start + behind] == row.ids[place + ahead]


def test_batches_have_all_sequences_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = repeated_tokens(tiny_subject("gpt2", 31, "bos", 101))
    for size in (1, 100, 640, 10**6):
        monkeypatch.setattr("attnworks.exam.probes.texts.PROBE_BATCH_TOKENS", size)
        rows = [
            tuple(ids[:length].tolist())
            for batch, part in text.batches()
            for ids, length in zip(batch.source.ids, batch.source.lengths, strict=True)
            if batch.source.ids.numel() <= max(size, 63) and part.stop > part.start
        ]
        assert rows == [row.ids for row in text.rows]
