"""Vocabularies: special ids, words and byte pairs there and back, saving, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from attnworks.core.errors import FolderError, UsageError
from attnworks.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary, VocabularyKind
from attnworks.text.words import words

SENTENCES = [
    words(text)
    for text in (
        "Luca is studying in Spain . He is very happy .",
        "L'amica di Maria non c'è .",
        "the mother-in-law eats 3.14 apples at 10:30 !",
        "perché la città è così bella ?",
    )
]
KINDS: tuple[VocabularyKind, ...] = ("word", "bpe")


def refused(path: Path) -> str:
    with pytest.raises(FolderError) as caught:
        Vocabulary.load(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_four_ids_are_special(kind: VocabularyKind) -> None:
    vocabulary = Vocabulary.train(kind, SENTENCES)
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert [vocabulary.token(identity) for identity in range(4)] == SPECIALS
    assert min(token for sentence in SENTENCES for token in vocabulary.encode(sentence)) >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: VocabularyKind) -> None:
    vocabulary = Vocabulary.train(kind, SENTENCES)
    for sentence in SENTENCES:
        ids = vocabulary.encode(sentence)
        assert vocabulary.decode(ids) == list(sentence)
        assert max(ids) < len(vocabulary)
    assert vocabulary.encode_all(SENTENCES) == [vocabulary.encode(sentence) for sentence in SENTENCES]
    assert vocabulary.encode([]) == [] and vocabulary.decode([]) == []


def test_one_id_per_word_and_unknown_words() -> None:
    vocabulary = Vocabulary.train("word", SENTENCES)
    assert len(vocabulary.encode(SENTENCES[0])) == len(SENTENCES[0])
    assert vocabulary.encode(["Luca", "flies", "."])[1] == UNK
    assert vocabulary.decode(vocabulary.encode(["Luca", "flies", "."])) == ["Luca", "<unk>", "."]
    assert len(vocabulary) == len({word for sentence in SENTENCES for word in sentence}) + 4


@given(st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=4))
def test_byte_pairs_know_every_word_of_known_letters(sentence: list[str]) -> None:
    vocabulary = Vocabulary.train("bpe", [["ab", "abc"], ["ab"]])
    ids = vocabulary.encode(sentence)
    assert UNK not in ids
    assert vocabulary.decode(ids) == sentence


@pytest.mark.parametrize("sentence", [["q", "ab"], ["ab", "q", "ab"], ["ab", "q"], ["qab", "abq", "aqb"]])
def test_unknown_letters_leave_the_other_words_as_they_are(sentence: list[str]) -> None:
    vocabulary = Vocabulary.train("bpe", [["ab", "abc"], ["ab"]])
    assert vocabulary.decode(vocabulary.encode(sentence)) == [word.replace("q", "<unk>") for word in sentence]


@pytest.mark.parametrize("kind", KINDS)
def test_decode_leaves_out_specials_but_not_the_unknown_word(kind: VocabularyKind) -> None:
    vocabulary = Vocabulary.train(kind, [["ab", "cd"], ["ab", "cd"]])
    ab, cd = vocabulary.encode(["ab"]), vocabulary.encode(["cd"])
    assert vocabulary.decode([BOS, *ab, PAD, *cd, EOS, PAD]) == ["ab", "cd"]
    assert "<unk>" in "".join(vocabulary.decode([BOS, *ab, UNK, EOS]))


@pytest.mark.parametrize("kind", KINDS)
def test_same_sentences_same_vocabulary(kind: VocabularyKind) -> None:
    texts = {Vocabulary.train(kind, SENTENCES).tokenizer.to_str() for _ in range(5)}
    assert len(texts) == 1


def test_words_are_ordered_by_count() -> None:
    vocabulary = Vocabulary.train("word", [["b", "b", "b"], ["a", "a"], ["c"]])
    assert vocabulary.encode(["b", "a", "c"]) == [4, 5, 6]


def test_size_keeps_the_most_frequent() -> None:
    vocabulary = Vocabulary.train("word", [["a", "a", "a", "b", "b", "c"]], size=6)
    assert len(vocabulary) == 6
    assert vocabulary.encode(["a", "b", "c"]) == [4, 5, UNK]


def test_min_count_drops_the_rare() -> None:
    vocabulary = Vocabulary.train("word", [["a", "a", "b"]], min_count=2)
    assert vocabulary.encode(["a", "b"]) == [4, UNK]


def test_byte_pairs_stay_within_size() -> None:
    assert len(Vocabulary.train("bpe", SENTENCES * 3, size=60)) <= 60


@pytest.mark.parametrize("size", [4, 0, -3, 10**30])
def test_a_size_that_cannot_be(size: int) -> None:
    with pytest.raises(UsageError, match="vocabulary"):
        Vocabulary.train("word", SENTENCES, size=size)


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(kind: VocabularyKind, tmp_path: Path) -> None:
    vocabulary = Vocabulary.train(kind, SENTENCES)
    vocabulary.save(tmp_path / "v.json")
    again = Vocabulary.load(tmp_path / "v.json")
    assert again.tokenizer.to_str() == vocabulary.tokenizer.to_str()
    assert again.encode_all(SENTENCES) == vocabulary.encode_all(SENTENCES)
    again.save(tmp_path / "w.json")
    assert (tmp_path / "w.json").read_bytes() == (tmp_path / "v.json").read_bytes()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"model": 3}', b"\xff\xfe", b"{}" * 5])
def test_a_file_that_is_no_vocabulary(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    path.write_bytes(content)
    assert "cannot be read" in refused(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "v.json")
    assert "expected a regular file, got a folder" in refused(tmp_path)


def test_a_tokenizer_without_our_specials(tmp_path: Path) -> None:
    foreign = Tokenizer(models.WordLevel(unk_token="<unk>"))
    foreign.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    foreign.train_from_iterator(["a b <pad>"], trainers.WordLevelTrainer(special_tokens=["<unk>"]))
    (tmp_path / "v.json").write_text(foreign.to_str())
    assert "without our special tokens" in refused(tmp_path / "v.json")


def test_specials_at_other_ids(tmp_path: Path) -> None:
    vocabulary = Vocabulary.train("word", SENTENCES)
    vocabulary.save(tmp_path / "v.json")
    data = json.loads((tmp_path / "v.json").read_text())
    ids = data["model"]["vocab"]
    ids["<bos>"], ids["<eos>"] = ids["<eos>"], ids["<bos>"]
    data["added_tokens"] = []
    (tmp_path / "v.json").write_text(json.dumps(data))
    assert "without our special tokens" in refused(tmp_path / "v.json")
