"""Short passages joined into long ones, for what shows only in long text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnworks.text.tokens import NO_WORD, TokenRow
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import Subject
from attnworks.traces.text import TokenizedText

TRIAL_SENTENCES, MIN_LONG_TEXTS = 64, 8
"""About TRIAL_SENTENCES sentences are read, or long texts with as many tokens: MIN_LONG_TEXTS or more, if there are."""
LONG_ENOUGH_SHARE = 0.8
"""A text with this share of the tokens that were asked for is as long as asked."""


@dataclass(frozen=True, eq=False)
class TrialText:
    """Some sentences of a text, and long texts made of it, where more tokens are asked for than its sentences have.

    short    judges by the sentences as they are, `some` of them
    long     judges by passages that were joined; None if sentences are long enough
    asked    tokens that a text should have
    """

    short: TextLoss
    some: slice
    long: TextLoss | None
    asked: int
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, text_loss: TextLoss, mean: int, asked: int) -> TrialText:
        """Texts of about `asked` tokens, at most as many as the model has positions; `mean` is the mean length now."""
        text, positions = text_loss.text, text_loss.original.max_length
        some = slice(None, None, max(1, len(text.kept) // TRIAL_SENTENCES))
        if asked <= mean:
            return cls(text_loss, some, None, asked)
        most = asked if positions is None else min(asked, positions)
        long = joined(text, most).part(slice(max(MIN_LONG_TEXTS, TRIAL_SENTENCES * mean // asked)))
        tokens = longest(long)
        why = "there is no more text" if tokens < LONG_ENOUGH_SHARE * most else ""
        if not why and most < asked:
            why = f"the model has {positions:,} positions"
        told = f"Times are for {asked:,} positions, errors and losses for texts of at most {tokens:,} tokens: {why}."
        return cls(text_loss, some, replace(text_loss, text=long), asked, (told,) if why else ())

    @property
    def text_loss(self) -> TextLoss:
        """What errors are measured on."""
        return replace(self.short, text=self.short.text.part(self.some)) if self.long is None else self.long

    @property
    def longest(self) -> int:
        """Tokens of the longest text that errors are measured on."""
        return longest(self.text_loss.text)

    @property
    def long_enough(self) -> bool:
        return self.longest >= LONG_ENOUGH_SHARE * self.asked

    @property
    def lengths(self) -> list[int]:
        """Tokens of the longest of the texts that each of the `losses` is measured on."""
        short = self.short.text.part(self.some)
        return [longest(short), *([] if self.long is None else [self.longest])]

    def losses(self, subject: Subject) -> list[float]:
        """The mean loss of sentences as they are, and that of long texts if there are some.

        The first is that of sentences; the last that of texts of the length asked for, or as near to it as they come.
        """
        return [self.short.mean(subject, some=self.some), *([] if self.long is None else [self.long.mean(subject)])]


def longest(text: TokenizedText) -> int:
    """Tokens of the longest of the texts that are in batches, on either side."""
    return max(len(rows[place]) for batch in text.batches for rows in text.sides for place in batch)


def joined(text: TokenizedText, tokens: int) -> TokenizedText:
    """Consecutive passages as one text, as many as have at most `tokens` tokens on either side; one text to a batch.

    Special tokens are those before the first passage and after the last. A passage that is longer stays by itself. A
    text has the number of its first passage.
    """
    groups: list[list[int]] = []
    for row in range(len(text.kept)):
        if groups and all(_length([rows[place] for place in (*groups[-1], row)]) <= tokens for rows in text.sides):
            groups[-1].append(row)
        else:
            groups.append([row])
    return replace(
        text,
        sides=tuple([join([rows[row] for row in group]) for group in groups] for rows in text.sides),
        batches=[[place] for place in range(len(groups))],
        kept=[text.kept[group[0]] for group in groups],
    )


def join(rows: Sequence[TokenRow]) -> TokenRow:
    """One row of several, with the special tokens that open the first and close the last; heads are left out."""
    pieces: list[tuple[int, bool, int]] = []
    words = 0
    for row, places in zip(rows, _kept(rows), strict=True):
        for place in places:
            word = row.word[place]
            pieces.append((row.ids[place], row.special[place], NO_WORD if word == NO_WORD else words + word))
        words += max(row.word) + 1
    ids, special, word = zip(*pieces, strict=True)
    return TokenRow(ids, special, word)


def _length(rows: Sequence[TokenRow]) -> int:
    return sum(map(len, _kept(rows)))


def _kept(rows: Sequence[TokenRow]) -> list[range]:
    """Which places of each row stay."""
    spans: list[range] = []
    for number, row in enumerate(rows):
        begins = row.special.index(False) if number else 0
        ends = row.special[::-1].index(False) if number < len(rows) - 1 else 0
        spans.append(range(begins, len(row) - ends))
    return spans
