"""Decoding one token at a time: the states of models between steps, and the interface of a model that can decode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class DecodingState(Protocol):
    """The state of a model that writes `beams` hypotheses for each of `sentences` sentences."""

    @property
    def sentences(self) -> int: ...

    def reorder(self, origin: Int[Tensor, "s beams"]) -> DecodingState:
        """Hypothesis c of sentence s continues what was hypothesis origin[s, c] of the same sentence."""
        ...

    def keep(self, sentences: Int[Tensor, " kept"]) -> DecodingState:
        """The state of these sentences alone."""
        ...


@dataclass(frozen=True, eq=False)
class KeysValues:
    """Keys and values of the positions so far."""

    K: Float[Tensor, "n q t k"]
    V: Float[Tensor, "n h t v"]

    def append(self, K: Float[Tensor, "n q u k"], V: Float[Tensor, "n h u v"]) -> KeysValues:
        return KeysValues(torch.cat([self.K, K], 2), torch.cat([self.V, V], 2))

    def rows(self, index: Int[Tensor, " m"]) -> KeysValues:
        return KeysValues(self.K.index_select(0, index), self.V.index_select(0, index))


@dataclass(frozen=True, eq=False)
class Memory:
    """Keys and values of the encoded source, of each decoder layer, one row per sentence."""

    keys_values: tuple[KeysValues, ...]
    real: Bool[Tensor, "s j"] | None

    def keep(self, sentences: Int[Tensor, " kept"]) -> Memory:
        real = None if self.real is None else self.real.index_select(0, sentences)
        return Memory(tuple(layer.rows(sentences) for layer in self.keys_values), real)


@dataclass(frozen=True, eq=False)
class TransformerState:
    """`own` holds the decoder's keys and values, one row per hypothesis; `memory` the source's, one per sentence."""

    sentences: int
    position: int
    own: tuple[KeysValues, ...] | None
    memory: Memory | None

    def reorder(self, origin: Int[Tensor, "s beams"]) -> TransformerState:
        if self.own is None:
            return self
        rows = _rows(self.sentences, self.own[0].K.shape[0] // self.sentences, origin)
        return replace(self, own=tuple(layer.rows(rows) for layer in self.own))

    def keep(self, sentences: Int[Tensor, " kept"]) -> TransformerState:
        own = None
        if self.own is not None:
            rows = _rows_of(sentences, self.own[0].K.shape[0] // self.sentences)
            own = tuple(layer.rows(rows) for layer in self.own)
        memory = None if self.memory is None else self.memory.keep(sentences)
        return replace(self, sentences=len(sentences), own=own, memory=memory)


@dataclass(frozen=True, eq=False)
class RecurrentState:
    """The decoder's hidden state (and cell) [layers hypotheses d], and the encoder states of each sentence."""

    last: tuple[Float[Tensor, "layers n d"], ...]
    states: Float[Tensor, "s j d"]
    real: Bool[Tensor, "s j"] | None

    @property
    def sentences(self) -> int:
        return self.states.shape[0]

    def reorder(self, origin: Int[Tensor, "s beams"]) -> RecurrentState:
        rows = _rows(self.sentences, self.last[0].shape[1] // self.sentences, origin)
        return replace(self, last=tuple(part.index_select(1, rows) for part in self.last))

    def keep(self, sentences: Int[Tensor, " kept"]) -> RecurrentState:
        rows = _rows_of(sentences, self.last[0].shape[1] // self.sentences)
        return RecurrentState(
            tuple(part.index_select(1, rows) for part in self.last),
            self.states.index_select(0, sentences),
            None if self.real is None else self.real.index_select(0, sentences),
        )


def _rows(sentences: int, beams: int, origin: Int[Tensor, "s beams"]) -> Int[Tensor, " n"]:
    """Rows of the flattened [sentences beams] that `origin` points at."""
    return (torch.arange(sentences, device=origin.device)[:, None] * beams + origin).flatten()


def _rows_of(sentences: Int[Tensor, " kept"], beams: int) -> Int[Tensor, " n"]:
    """All rows that belong to these sentences."""
    return (sentences[:, None] * beams + torch.arange(beams, device=sentences.device)).flatten()


@runtime_checkable
class Writer(Protocol):
    """A model that writes one token at a time, with a DecodingState between the steps."""

    def start(self, source: Int[Tensor, "s i"], real: Bool[Tensor, "s i"] | None = None) -> DecodingState:
        """The state before the first target token, with one hypothesis for each sentence."""
        ...

    def step(self, tokens: Int[Tensor, "s beams"], state: Any) -> tuple[Float[Tensor, "s beams w"], DecodingState]:
        """Logits of the token after these, and the state after these."""
        ...
