"""Shares and small numbers in words: two thirds, nearly half, three."""

from __future__ import annotations

FRACTIONS = (
    (0.1, "a tenth"),
    (0.2, "a fifth"),
    (0.25, "a quarter"),
    (1 / 3, "a third"),
    (0.4, "two fifths"),
    (0.5, "half"),
    (0.6, "three fifths"),
    (2 / 3, "two thirds"),
    (0.75, "three quarters"),
    (0.8, "four fifths"),
    (0.9, "nine tenths"),
)
EXACT = 0.01
"""A share this near to a fraction is called by its name alone."""
ALMOST_ALL, FEW = 0.95, 0.075
"""Above the first a share is almost all; below the second it is given in percent."""
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def share_words(share: float) -> str:
    """The nearest simple fraction, with nearly or over where it is not exact; all, almost all, or a few percent.

    >>> [share_words(share) for share in (0.03, 0.47, 2 / 3, 0.69, 0.97, 1.0)]
    ['3 %', 'nearly half', 'two thirds', 'over two thirds', 'almost all', 'all']
    """
    if share >= 1.0:
        return "all"
    if share > ALMOST_ALL:
        return "almost all"
    if share < FEW:
        return f"{100 * share:.0f} %" if share >= 0.005 else "almost nothing"
    fraction, name = min(FRACTIONS, key=lambda entry: abs(entry[0] - share))
    if abs(share - fraction) <= EXACT:
        return name
    return f"nearly {name}" if share < fraction else f"over {name}"


def number_words(number: int) -> str:
    """A whole number, in words up to twelve."""
    return NUMBERS[number] if 0 <= number < len(NUMBERS) else f"{number:,}"


def part_of(share: float, things: str) -> str:
    """two thirds of the heads; all heads."""
    words = share_words(share)
    return f"{words} {things.removeprefix('the ')}" if words == "all" else f"{words} of {things}"
