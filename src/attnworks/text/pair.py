"""Records of the parallel corpora: a pair of texts and what is known to be true of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Truth:
    """Gold structure of a pair: alignment, dependency trees and coreference, as word positions."""

    alignment: tuple[tuple[int, int], ...]
    """(source word, target word) links, many-to-many, sorted."""
    source_heads: tuple[int, ...]
    """Dependency head of each source word; -1 for the one root of each sentence."""
    target_heads: tuple[int, ...]
    """Dependency head of each target word; -1 for the one root of each sentence."""
    source_coreference: tuple[tuple[int, int], ...]
    """(pronoun, antecedent) positions in the source."""
    target_coreference: tuple[tuple[int, int], ...]
    """(pronoun, antecedent) positions in the target, where the pronoun is overt."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A source text and its translation, both as words with punctuation as its own word."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    truth: Truth | None = None
