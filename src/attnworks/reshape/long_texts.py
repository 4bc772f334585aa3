"""Join short passages into long texts, to measure errors and losses at a given length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnworks.text.tokens import NO_WORD, TokenRow
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import Subject
from attnworks.traces.text import TokenizedText

TRIAL_SENTENCES, MIN_LONG_TEXTS = 64, 8
"""About TRIAL_SENTENCES sentences are used, or long texts with as many tokens, but at least MIN_LONG_TEXTS of them."""
LONG_ENOUGH_SHARE = 0.8
"""A text with this share of the tokens that were asked for counts as long enough."""


@dataclass(frozen=True, eq=False)
class TrialText:
    """Some sentences of a text, and long texts made of it, where more tokens are asked for than its sentences have.

    short    the loss on the sentences as they are; only `some` of them are used
    long     the loss on passages that were joined; None if the sentences are long enough
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
        why = f"the model has {positions:,} positions" if most < asked else None
        why = "there is no more text" if tokens < LONG_ENOUGH_SHARE * most else why
        note = f"Times are for {asked:,} positions, errors and losses for texts of at most {tokens:,} tokens: {why}."
        return cls(text_loss, some, replace(text_loss, text=long), asked, (note,) if why else ())

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
        """The mean loss of sentences as they are; then that of long texts, if there are any."""
        return [self.short.mean(subject, some=self.some), *([] if self.long is None else [self.long.mean(subject)])]


def longest(text: TokenizedText) -> int:
    """Tokens of the longest of the texts that are in batches, on either side."""
    return max(len(rows[place]) for batch in text.batches for rows in text.sides for place in batch)


def joined(text: TokenizedText, tokens: int) -> TokenizedText:
    """Consecutive passages as one text, as many as have at most `tokens` tokens on either side; one text to a batch.

    Only the special tokens before the first passage and after the last are kept. A longer passage is a text by itself.
    A text has the number of its first passage.
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
    """One row of several, with the special tokens that open the first and close the last; governors are left out."""
    pieces: list[tuple[int, bool, int]] = []
    words = 0
    for row, places in zip(rows, _kept(rows), strict=True):
        for place in places:
            word = row.word[place]
            pieces.append((row.ids[place], row.special[place], NO_WORD if word == NO_WORD else words + word))
        words += max(row.word) + 1
    return TokenRow(*zip(*pieces, strict=True))


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
