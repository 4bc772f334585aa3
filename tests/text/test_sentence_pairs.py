"""Two texts in one sequence: the ids of the tokenizer's own pair, and which token belongs to which text and word."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attnworks.core.errors import UsageError
from attnworks.text.passages import Passage, Text, Truth
from attnworks.text.sentence_pairs import texts_kept
from attnworks.text.tokenizers import HuggingFaceReader, Pieces, TextReader, VocabularyReader
from attnworks.text.tokens import TokenRow, collate
from attnworks.text.vocabulary import BOS, EOS, Vocabulary

CAT = Text("The cat sleeps.", ("The", "cat", "sleeps", "."), (1, 2, -1, 2))
GO = Text("don't go", ("do", "n't", "go"), (2, 2, -1))
TRUTH = Truth(((1, 2), (2, 1), (2, 2)), (), ())
"""cat - go, sleeps - n't and go."""
PAIR = Passage(CAT, GO, TRUTH)


def pieces_with(single: str, pair: str | None, *, types: bool = False) -> PreTrainedTokenizerFast:
    """Word pieces with these templates for one text and for two."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sleep", "##s", ".", "don", "'", "t", "go"]
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ["input_ids", "token_type_ids", "attention_mask"] if types else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", sep_token="[SEP]", model_input_names=names
    )


@lru_cache
def like_bert() -> PreTrainedTokenizerFast:
    return pieces_with("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", types=True)


@lru_cache
def byte_pairs(*, whole: bool = False) -> PreTrainedTokenizerFast:
    """Without a template; with `whole`, a token may cross from one line to the next."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not whole)
    trainer = trainers.BpeTrainer(
        vocab_size=271, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["go.\ngo.\ngo.\n"] * 7, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def read(tokenizer: PreTrainedTokenizerBase, pair: Passage, max_tokens: int | None = None) -> TokenRow:
    return HuggingFaceReader(tokenizer, max_tokens=max_tokens).joining_pairs().read_passage(pair)


def spelled(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    return list(tokenizer.convert_ids_to_tokens(list(ids)))


# Templates -----------------------------------------------------------------------------------------------------------


def test_a_pair_is_that_of_the_template() -> None:
    row = read(like_bert(), PAIR)
    own: Any = like_bert()(CAT.text, GO.text)
    assert {*(row.type_ids or ())} == {0, 1}
    assert (list(row.ids), list(row.type_ids or ())) == (own["input_ids"], own["token_type_ids"])
    tokens = ["[CLS]", "the", "cat", "sleep", "##s", ".", "[SEP]", "don", "'", "t", "go", "[SEP]"]
    assert spelled(like_bert(), row.ids) == tokens
    assert row.side == (-1, 0, 0, 0, 0, 0, -1, 1, 1, 1, 1, -1)
    assert row.special == tuple(side == -1 for side in row.side or ())


def test_words_governors_and_alignment_are_those_of_both_texts() -> None:
    """Words of the target are counted after the four of the source."""
    row = read(like_bert(), PAIR)
    assert row.word == (-1, 0, 1, 2, 2, 3, -1, 4, 5, 5, 6, -1)
    assert row.governor == (-1, 2, 3, -1, -1, 3, -1, 10, 10, 10, -1, -1)
    assert row.aligned is not None
    links = {token: found for token, found in enumerate(row.aligned) if found}
    assert links == {2: (10,), 3: (8, 9, 10), 4: (8, 9, 10), 8: (3, 4), 9: (3, 4), 10: (2, 3, 4)}


def test_each_text_has_the_words_and_governors_that_it_has_alone() -> None:
    row, reader = read(like_bert(), PAIR), HuggingFaceReader(like_bert())
    assert row.side is not None and row.governor is not None
    for side, text, before in ((0, CAT, 0), (1, GO, 4)):
        alone = reader.read(text)
        assert alone.governor is not None
        own = [place for place, special in enumerate(alone.special) if not special]
        there = [place for place, found in enumerate(row.side) if found == side]
        at = {-1: -1, **dict(zip(own, there, strict=True))}
        assert [row.word[place] - before for place in there] == [alone.word[place] for place in own]
        assert [row.governor[place] for place in there] == [at[alone.governor[place]] for place in own]


def test_texts_without_words_have_those_of_the_tokenizer() -> None:
    row = read(like_bert(), Passage(Text(CAT.text), Text(GO.text)))
    assert row.word == (-1, 0, 1, 2, 2, 3, -1, 4, 5, 6, 7, -1)
    assert row.governor is None and row.aligned is None


def test_a_parse_of_one_text_alone() -> None:
    row = read(like_bert(), Passage(CAT, Text(GO.text)))
    assert row.governor == (-1, 2, 3, -1, -1, 3, -1, -1, -1, -1, -1, -1)


def test_the_separator_of_roberta_and_its_types() -> None:
    tokenizer = pieces_with("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]")
    row = read(tokenizer, PAIR)
    assert list(row.ids) == tokenizer(CAT.text, GO.text)["input_ids"] and row.type_ids is None
    assert row.side == (-1, 0, 0, 0, 0, 0, -1, -1, 1, 1, 1, 1, -1)


def test_a_tokenizer_that_knows_no_positions() -> None:
    tokenizer = ByT5Tokenizer()
    row = read(tokenizer, Passage(Text("òx"), Text("y")))
    assert list(row.ids) == tokenizer("òx", "y")["input_ids"]
    assert row.side == (0, 0, 0, -1, 1, -1) and {*row.word} == {-1}


def test_the_words_of_a_special_token_in_the_text_belong_to_the_text() -> None:
    row = read(like_bert(), Passage(Text("the [SEP] cat"), Text("[SEP] go")))
    assert list(row.ids) == like_bert()("the [SEP] cat", "[SEP] go")["input_ids"]
    assert row.side == (-1, 0, 0, 0, -1, 1, 1, -1)


# Lines of one text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", ["$A $B", "[CLS] $A [CLS] $B"])
def test_without_a_separator_the_texts_are_two_lines(pair: str) -> None:
    """A second [CLS] separates nothing: it would begin another text."""
    tokenizer = pieces_with("[CLS] $A" if "[CLS]" in pair else "$A", pair)
    row = read(tokenizer, PAIR)
    assert list(row.ids) == tokenizer(f"{CAT.text}\n{GO.text}")["input_ids"] and row.type_ids is None
    begin = int("[CLS]" in pair)
    assert row.side == (*[-1] * begin, 0, 0, 0, 0, 0, 1, 1, 1, 1)
    assert row.word == (*[-1] * begin, 0, 1, 2, 2, 3, 4, 5, 5, 6)


def test_a_line_end_is_in_neither_text_and_begins_no_word() -> None:
    tokenizer = byte_pairs()
    pair = Passage(Text("go x", ("go", "x"), (1, -1)), Text("x  è", ("x", "è"), (1, -1)), Truth(((0, 1),), (), ()))
    row = read(tokenizer, pair)
    assert list(row.ids) == tokenizer("go x\nx  è")["input_ids"]
    assert spelled(tokenizer, row.ids) == ["go", "Ġ", "x", "Ċ", "x", "Ġ", "Ġ", "Ã", "¨"]
    assert row.side == (0, 0, 0, -1, 1, 1, 1, 1, 1) and row.word == (0, 1, 1, -1, 2, 3, 3, 3, 3)
    assert row.governor == (1, -1, -1, -1, 5, -1, -1, -1, -1) and not any(row.special)
    assert row.aligned is not None and row.aligned[0] == (5, 6, 7, 8) and row.aligned[8] == (0,)


def test_a_token_across_the_line_end_belongs_to_the_text_with_its_letters() -> None:
    row = read(byte_pairs(whole=True), Passage(Text("go."), Text("go.")))
    assert spelled(byte_pairs(whole=True), row.ids) == ["go.Ċ", "go", "."]
    assert row.side == (0, 1, 1)


def test_lines_need_positions_of_tokens() -> None:
    class Plain(ByT5Tokenizer):
        """Without an end of texts."""

        def build_inputs_with_special_tokens(
            self, token_ids_0: list[int], token_ids_1: list[int] | None = None
        ) -> list[int]:
            return token_ids_0 + (token_ids_1 or [])

        def get_special_tokens_mask(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, token_ids_0: list[int], token_ids_1: list[int] | None = None, **_: object
        ) -> list[int]:
            return [0] * len(token_ids_0 + (token_ids_1 or []))

    with pytest.raises(UsageError, match="separator of pairs") as error:
        read(Plain(), Passage(Text("xy"), Text("z")))
    assert "\n" not in str(error.value)


# Vocabularies of attnworks ------------------------------------------------------------------------------------------


def test_a_vocabulary_ends_each_text_and_a_decoder_begins_once() -> None:
    vocabulary = Vocabulary.train("word", [["the", "cat", "sleeps", "."]])
    pair = Passage(
        Text("the cat", ("the", "cat"), (1, -1)), Text("cat sleeps .", ("cat", "sleeps", "."), (1, -1, 1)), TRUTH
    )
    the, cat, sleeps, dot = (vocabulary.encode([word])[0] for word in ("the", "cat", "sleeps", "."))
    row = VocabularyReader(vocabulary).joining_pairs().read_passage(pair)
    assert row.ids == (the, cat, EOS, cat, sleeps, dot, EOS) and row.side == (0, 0, -1, 1, 1, 1, -1)
    assert row.governor == (1, -1, -1, 4, -1, 4, -1) and row.word == (0, 1, -1, 2, 3, 4, -1)
    row = VocabularyReader(vocabulary, "target").joining_pairs().read_passage(pair)
    assert row.ids == (BOS, the, cat, EOS, cat, sleeps, dot) and row.side == (-1, 0, 0, -1, 1, 1, 1)
    assert row.governor == (-1, 2, -1, -1, 5, -1, 5)


# Cutting -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [1, 2, 5, 11])
@pytest.mark.parametrize("target", [1, 3, 7, 13])
def test_a_cut_pair_is_that_of_the_tokenizer(source: int, target: int) -> None:
    """`longest_first` of tokenizers: the longer text is cut from its end."""
    texts = "the " * source, "go " * target
    reader = HuggingFaceReader(like_bert(), max_tokens=30).joining_pairs()
    for max_tokens in range(5, 3 + source + target + 2):
        reader.cut_to(max_tokens)
        row = reader.read_passage(Passage(Text(texts[0]), Text(texts[1])))
        own = like_bert()(*texts, truncation="longest_first", max_length=max_tokens)
        assert list(row.ids) == own["input_ids"], max_tokens
        assert row.side is not None and 0 in row.side and 1 in row.side


def test_governors_and_links_to_words_that_were_cut_are_dropped() -> None:
    row = read(like_bert(), PAIR, 8)
    assert spelled(like_bert(), row.ids) == ["[CLS]", "the", "cat", "sleep", "[SEP]", "don", "'", "[SEP]"]
    assert row.governor == (-1, 2, 3, -1, -1, -1, -1, -1) and row.side == (-1, 0, 0, 0, -1, 1, 1, -1)
    assert row.aligned == ((), (), (), (6,), (), (), (3,), ())
    longer = read(like_bert(), PAIR, 11)
    assert spelled(like_bert(), longer.ids)[4:8] == ["##s", "[SEP]", "don", "'"], "the full stop is cut"
    assert longer.governor == (-1, 2, 3, -1, -1, -1, 9, 9, 9, -1, -1), "positions after the cut"
    assert longer.aligned is not None and longer.aligned[2] == (9,) and longer.aligned[9] == (2, 3, 4)


@pytest.mark.parametrize("lengths", [(1, 1), (2, 9), (9, 2), (5, 5), (7, 11)])
def test_what_is_kept_fills_the_room_and_leaves_no_text_empty(lengths: tuple[int, int]) -> None:
    for room in range(2, sum(lengths) + 1):
        kept = texts_kept(*lengths, room)
        assert sum(kept) == room and min(kept) >= 1
        assert all(one <= length for one, length in zip(kept, lengths, strict=True))


# Mistakes ------------------------------------------------------------------------------------------------------------


def error_of(reader: TextReader, pair: Passage) -> str:
    with pytest.raises(UsageError) as error:
        reader.joining_pairs().read_passage(pair)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_mistakes_are_told_in_one_line() -> None:
    assert "two texts in every passage" in error_of(HuggingFaceReader(like_bert()), Passage(CAT))
    assert "--max-length 11" in error_of(HuggingFaceReader(like_bert(), max_length=11), PAIR)
    assert "choose 5 or more" in error_of(HuggingFaceReader(like_bert(), max_tokens=4), PAIR)

    class Own(TextReader):
        pad_id = 0

        def ordinary_ids(self) -> range:
            return range(5, 6)

        def _pieces(self, side: Text) -> Pieces:
            return Pieces([5], [False], [0], {0: 0})

    assert "Own" in error_of(Own(0), PAIR)


def test_texts_that_have_no_token_have_no_side() -> None:
    for source, target in (("\u200b", "go"), ("go", "\u200b"), ("\u200b", "\u200b")):
        row = read(like_bert(), Passage(Text(source), Text(target)))
        assert row.side is not None
        assert {*row.side} == {-1} | ({0} if source == "go" else set()) | ({1} if target == "go" else set())


# Batches -------------------------------------------------------------------------------------------------------------


def test_rows_of_one_text_say_nothing_of_sides() -> None:
    row = HuggingFaceReader(like_bert()).read_passage(PAIR)
    assert row == HuggingFaceReader(like_bert()).read(CAT) and (row.side, row.type_ids, row.aligned) == (None,) * 3
    tokens = collate([row], 0)
    assert (tokens.side, tokens.type_ids, tokens.aligned) == (None,) * 3


def test_batches_are_padded_with_tokens_of_no_text() -> None:
    rows = [
        read(like_bert(), PAIR),
        read(like_bert(), Passage(GO, Text("go"))),
        HuggingFaceReader(like_bert()).read(CAT),
    ]
    tokens = collate(rows, 0)
    assert tokens.side is not None and tokens.type_ids is not None and tokens.aligned is not None
    assert tokens.aligned.shape == (3, 12, 3)
    for number, row in enumerate(rows):
        n = len(row)
        assert tokens.side[number].tolist() == [*(row.side or [-1] * n), *[-1] * (12 - n)]
        assert tokens.type_ids[number].tolist() == [*(row.type_ids or [0] * n), *[0] * (12 - n)]
        for token in range(12):
            found = (row.aligned or [()] * n)[token] if token < n else ()
            assert tokens.aligned[number, token].tolist() == [*found, *[-1] * (3 - len(found))]
    part = tokens.part(slice(1, 3), slice(5))
    assert part.side is not None and part.aligned is not None and torch.equal(part.aligned, tokens.aligned[1:, :5])
