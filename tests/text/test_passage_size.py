"""Texts joined into passages: as many tokens as asked for, in order, and no text in two passages unless it is long."""

from __future__ import annotations

import pytest

from attnworks.text.corpora import open_corpus
from attnworks.text.passage_size import PASSAGE_TOKENS, PassageSize
from attnworks.text.passages import Passage, Text
from attnworks.text.tokenizers import HuggingFaceReader, TextReader, VocabularyReader
from attnworks.text.vocabulary import Vocabulary
from tests.text.test_tokenizers import byte_level, mini_lm, without_pre_tokenizer

LINES = [f"the {'very ' * (number % 7)}cat sleeps on mat {number} ." for number in range(60)]
PASSAGES = [Passage(Text(line), Text("a target")) for line in LINES]


def reader_of(name: str) -> TextReader:
    if name == "words":
        return VocabularyReader(Vocabulary.train("word", [line.split() for line in LINES]), "target")
    tokenizers = {"word pieces": mini_lm, "bytes": byte_level, "no words": without_pre_tokenizer}
    return HuggingFaceReader(tokenizers[name]())


@pytest.mark.parametrize("name", ["words", "word pieces", "bytes", "no words"])
@pytest.mark.parametrize("tokens", [40, 150])
def test_passages_are_full_and_not_too_long(name: str, tokens: int) -> None:
    size = PassageSize.of(reader_of(name), tokens)
    found = size.join(PASSAGES)
    assert "\n".join(passage.source.text for passage in found).split("\n") == LINES
    assert all(passage.target is None for passage in found)
    sizes = [size.reader.count(passage.source) for passage in found]
    longest = max(size.reader.count(Text(line)) for line in LINES)
    assert max(sizes) <= max(tokens, longest)
    if longest < tokens:
        assert min(sizes[:-1]) > 0.8 * (tokens - longest)


def test_a_short_text_makes_short_passages() -> None:
    reader = reader_of("words")
    total = sum(reader.count(passage.source) for passage in PASSAGES)
    size = PassageSize.of(reader).fitted(PASSAGES, 8)
    assert size.tokens == total // 8 and 8 <= len(size.join(PASSAGES)) <= 10
    assert PassageSize.of(reader).fitted(PASSAGES * 20, 8).tokens == PASSAGE_TOKENS
    single = PassageSize.of(reader).fitted(PASSAGES, 10**6)
    assert single.tokens == reader.specials + 2
    assert [passage.source.text for passage in single.join(PASSAGES)] == LINES


def test_the_model_and_a_limit_make_passages_shorter() -> None:
    known = Vocabulary.train("word", [line.split() for line in LINES])
    assert PassageSize.of(VocabularyReader(known, max_length=60)).tokens == 60
    assert PassageSize.of(VocabularyReader(known, max_length=60, max_tokens=30)).tokens == 30
    assert PassageSize.of(VocabularyReader(known), 0).tokens == 3


def test_a_long_text_is_split_between_words() -> None:
    reader = reader_of("words")
    found = PassageSize.of(reader).join([Passage(Text(" ".join(LINES * 4)))])
    assert " ".join(passage.source.text for passage in found) == " ".join(LINES * 4)
    sizes = [reader.count(passage.source) for passage in found]
    assert len(sizes) > 1 and PASSAGE_TOKENS // 2 < max(sizes) <= PASSAGE_TOKENS


def test_a_split_text_keeps_its_blanks_and_line_ends() -> None:
    text = "\n\n    ".join(f"{line}\tx" for line in LINES * 6)
    found = PassageSize.of(reader_of("words")).join([Passage(Text(text))])
    assert len(found) > 1 and all("\n\n    " in passage.source.text for passage in found)
    begin = 0
    for passage in found:
        begin = text.index(passage.source.text, begin) + len(passage.source.text)
    assert text.split() == [word for passage in found for word in passage.source.text.split()]


def test_prose_in_passages_of_512_tokens() -> None:
    size = PassageSize.of(HuggingFaceReader(mini_lm(), 512))
    sizes = [size.reader.count(passage.source) for passage in size.join(open_corpus("pydoc", pairs=200).train)]
    assert max(sizes) <= 512 and sum(sizes) / len(sizes) > 440
