"""Words to token ids and back, by whole words or by byte pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from attnworks.core.checks import integer
from attnworks.core.errors import AttnworksError, FolderError
from attnworks.core.folders import read_file
from attnworks.text.words import JOINER, written

VocabularyKind = Literal["word", "bpe"]

PAD, UNK, BOS, EOS = range(4)
SPECIALS = ["<pad>", "<unk>", "<bos>", "<eos>"]
"""The first four ids of every vocabulary: padding, unknown word, begin and end of sentence."""
MAX_VOCABULARY = 2**26
MAX_VOCABULARY_BYTES = 2**31
NEVER_SEEN = "\U000fffff"
"""A word that no vocabulary has: encoding it fails in a tokenizer that has no token for unknown words."""


class Vocabulary:
    """A trained tokenizer with our four special tokens.

    word    one id per word; splitting at white space, as in the documented experiment (Conti 2024, section 3.1)
    bpe     words fall into byte pairs, so that none is unknown as long as its letters were seen

    >>> english = Vocabulary.train("word", [["Luca", "is", "happy"], ["Luca", "sings"]])
    >>> english.encode(["Luca", "flies"])
    [4, 1]
    >>> english.decode([4, 7])
    ['Luca', 'sings']
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def train(
        cls, kind: VocabularyKind, sentences: Iterable[Sequence[str]], size: int = 32_000, min_count: int = 1
    ) -> Vocabulary:
        """Learn from sentences of words. Same sentences, same vocabulary."""
        remedy = f"{len(SPECIALS)} tokens are special"
        integer("vocabulary size", size, len(SPECIALS) + 1, MAX_VOCABULARY, remedy)
        common = {"vocab_size": size, "min_frequency": min_count, "special_tokens": SPECIALS, "show_progress": False}
        if kind == "word":
            tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIALS[UNK]))
            tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
            trainer = trainers.WordLevelTrainer(**common)
        else:
            tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS[UNK]))
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # a word begins with ▁, a letter of its own
            tokenizer.decoder = decoders.Metaspace()
            trainer = trainers.BpeTrainer(**common)
        tokenizer.train_from_iterator((" ".join(words) for words in sentences), trainer)
        return cls(tokenizer)

    @cached_property
    def has_joiners(self) -> bool:
        """Whether words are spelled with joiners (`attnworks.text.words`), so that it can write text as people do."""
        return any(JOINER in token for token in self.tokenizer.get_vocab())

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, words: Sequence[str]) -> list[int]:
        """Ids of the words, without begin and end."""
        return self.tokenizer.encode(" ".join(words), add_special_tokens=False).ids

    def encode_all(self, sentences: Iterable[Sequence[str]]) -> list[list[int]]:
        texts = [" ".join(words) for words in sentences]
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> list[str]:
        """Words of the ids; special tokens are left out, except the unknown word."""
        kept = [token for token in ids if token == UNK or token >= len(SPECIALS)]
        if self.tokenizer.decoder is None:
            return [self.token(token) for token in kept]
        return self.tokenizer.decode(kept, skip_special_tokens=False).split()

    def text(self, ids: Sequence[int]) -> str:
        """The text of the ids, with blanks where they belong."""
        return written(self.decode(ids))

    def token(self, identity: int) -> str:
        """The text of one id, as it labels an axis."""
        text = self.tokenizer.id_to_token(identity)
        return SPECIALS[UNK] if text is None else text

    def save(self, path: Path) -> None:
        path.write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        try:
            vocabulary = cls(Tokenizer.from_str(read_file(path, MAX_VOCABULARY_BYTES).decode()))
            vocabulary.encode([NEVER_SEEN])
        except AttnworksError:
            raise
        except Exception as error:  # the tokenizers library raises bare Exception
            raise _no_vocabulary(path, f"a file that cannot be read ({error})") from error
        if [vocabulary.tokenizer.token_to_id(token) for token in SPECIALS] != list(range(len(SPECIALS))):
            raise _no_vocabulary(path, "a tokenizer without our special tokens")
        return vocabulary


def _no_vocabulary(path: Path, got: str) -> FolderError:
    return FolderError(f"load the vocabulary {path}", "one that attnworks saved", got, "copy the run folder again")
