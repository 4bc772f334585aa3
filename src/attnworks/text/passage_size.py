"""Join consecutive texts into passages of the length that a language model is used at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from attnworks.text.passages import Passage, Text
from attnworks.text.tokenizers import MIN_TEXT_TOKENS, TextReader

PASSAGE_TOKENS = 512
"""The most tokens of a passage."""


@dataclass(frozen=True, eq=False)
class PassageSize:
    """Texts in their order, with line ends between them, as passages of at most `tokens` tokens.

    reader    counts tokens, as the model reads them
    """

    reader: TextReader
    tokens: int

    @classmethod
    def of(cls, reader: TextReader, tokens: int = PASSAGE_TOKENS) -> PassageSize:
        """Passages of at most `tokens` tokens, or as many as the reader takes if these are fewer."""
        limits = (limit for limit in (reader.max_tokens, reader.max_length) if limit is not None)
        return cls(reader, max(min([tokens, *limits]), reader.specials + MIN_TEXT_TOKENS))

    def fitted(self, passages: Sequence[Passage], count: int) -> PassageSize:
        """Shorter passages, if that is needed to make `count` of them; but never by splitting a text."""
        total, wanted = 0, self.tokens * count
        for passage in passages:
            total += self.reader.count(passage.source)
            if total >= wanted:
                return self
        return replace(self, tokens=max(total // count, self.reader.specials + MIN_TEXT_TOKENS))

    def join(self, passages: Sequence[Passage]) -> list[Passage]:
        """The sources as passages without targets. A text longer than PASSAGE_TOKENS is split between words.

        Texts stay whole otherwise: one that does not fit into a passage any more begins the next.
        """
        specials, most = self.reader.specials, max(self.tokens, PassageSize.of(self.reader).tokens)
        groups: list[list[str]] = []
        used = self.tokens
        for passage in passages:
            for text, tokens in self._pieces(passage.source.text, most):
                used += 1 + tokens - specials  # with the line end before it
                if not groups or used > self.tokens:
                    groups.append([])
                    used = tokens
                groups[-1].append(text)
        return [Passage(Text("\n".join(group))) for group in groups]

    def _pieces(self, text: str, most: int) -> Iterator[tuple[str, int]]:
        """The text, or parts with about equal numbers of words and at most this number of tokens, which come along."""
        begins, tokens = [word.start() for word in re.finditer(r"\S+", text)], self.reader.count(Text(text))
        if len(begins) < 2 or tokens <= most:
            yield text, tokens
            return
        middle = begins[len(begins) // 2]
        for half in (text[:middle].rstrip(), text[middle:]):
            yield from self._pieces(half, most)
