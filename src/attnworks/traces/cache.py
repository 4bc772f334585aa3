"""`attnworks.trace`: the activations of one text by name: Q, K, V, scores, weights, outputs and the residual stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.display import ShownTable, counted, data_frame, format_number
from attnworks.core.errors import UsageError
from attnworks.core.places import KINDS, Kind, Slot, select_heads
from attnworks.models.modes import eval_mode
from attnworks.text.passages import Passage
from attnworks.traces.layer import LayerTrace, StreamTrace
from attnworks.traces.maps import maps_of, masked_scores
from attnworks.traces.subject import LayerHook, Subject, wrap

_Tokens = tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Activations(ShownTable):
    """The attention of one layer, or of one head, on one text.

    Tensors of a layer have the heads as their first axis. Tensors of one head do not have this axis.

    Q               queries, [h i k]
    K               keys, [h j k]; repeated where several heads share them
    V               values, [h j v]; repeated likewise
    scores          [h i j]: what the softmax reads; -inf where a key is hidden, and ln P if weights are no softmax of
                    Q K^T
    weights         attention weights P, [h i j]; each row sums to one, or to less if the layer has a sink logit
    outputs         Y = P V, [h i v], before the output projection
    query_tokens    the i tokens of the queries
    key_tokens      the j tokens of the keys
    """

    name: str
    Q: Float[Tensor, "*h i k"]
    K: Float[Tensor, "*h j k"]
    V: Float[Tensor, "*h j v"]
    scores: Float[Tensor, "*h i j"]
    weights: Float[Tensor, "*h i j"]
    outputs: Float[Tensor, "*h i v"]
    query_tokens: tuple[str, ...]
    key_tokens: tuple[str, ...]

    @property
    def heads(self) -> int:
        """The number of heads; 1 for a single head."""
        return 1 if self.weights.dim() == 2 else len(self.weights)

    def head(self, number: int) -> Activations:
        """The activations of one head of a layer."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        chosen = {name: value[number] for name, value in parts.items() if isinstance(value, Tensor)}
        return replace(self, name=f"{self.name}.{number}", **chosen)

    def to_frame(self) -> Any:
        """The attention weights of one head as a pandas DataFrame: queries down, keys across.

        Tokens may repeat, so every label is the position and the token, as in `3 cat`.
        """
        if self.weights.dim() != 2:
            raise UsageError(
                f"a table of {self.name}", "one head", f"a layer of {self.heads} heads", f"ask for {self.name}.0"
            )
        rows, columns = (
            [f"{place} {token}" for place, token in enumerate(tokens)]
            for tokens in (self.query_tokens, self.key_tokens)
        )
        return data_frame(self.weights.float().cpu().numpy(), index=rows, columns=columns)

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{part.name} {list(value.shape)}"
            for part in fields(self)
            if isinstance(value := getattr(self, part.name), Tensor)
        )
        return f"<Activations of {self.name}: {shapes}>"

    def _table(self) -> tuple[str, Sequence[str], Iterable[Sequence[str]]]:
        """Of one head, the key that each query attends to most; of a layer, this weight averaged over queries."""
        title = f"{self.name}: {len(self.query_tokens)} queries, {len(self.key_tokens)} keys"
        largest, keys = self.weights.float().max(-1)
        if self.weights.dim() == 2:
            found = zip(self.query_tokens, keys.tolist(), largest.tolist(), strict=True)
            rows = [(query, self.key_tokens[key], format_number(weight)) for query, key, weight in found]
            return title, ("query", "attends most to", "weight"), rows
        means = largest.mean(-1).tolist()
        rows = [(f"{self.name}.{head}", format_number(mean)) for head, mean in enumerate(means)]
        return title, ("head", "largest weight of a query, on average"), rows


class _Streams(dict[Kind, Tensor]):
    """The residual streams of a model; an error with their names for any other."""

    def __missing__(self, name: object) -> Tensor:
        first = next(iter(self), None)
        remedy = "examine another model" if first is None else f"use residual[{first!r}]"
        raise UsageError(
            f"the residual stream {name!r}", " or ".join(map(repr, self)) or "a stack", "another name", remedy
        )


class TraceCache(ShownTable, Mapping[str, Activations]):
    """Every activation of one text by name.

    tokens      the tokens of the text; of the source, if the model has an encoder and a decoder
    target      the tokens that the decoder reads, if they are others
    residual    the residual stream of each stack before its first block and after every block: [depth i e]
    hidden      the last hidden state, [i e]
    logits      the logits of the output layer, [i vocabulary] or [classes]; None if the model has no output layer

    `cache["3"]` is layer 3 and `cache["3.5"]` its head 5. A model with several kinds of attention wants the kind:
    `cache["enc.3.5"]`, `cache["dec.3"]`, `cache["cross.3.5"]`.
    """

    def __init__(
        self,
        layers: Mapping[Slot, Activations],
        residual: Mapping[Kind, Float[Tensor, "_ _ _"]],
        hidden: Float[Tensor, "i e"],
        logits: Tensor | None,
        tokens: tuple[str, ...],
        target: tuple[str, ...] | None,
    ) -> None:
        self.layers, self.residual, self.hidden, self.logits = dict(layers), _Streams(residual), hidden, logits
        self.tokens, self.target = tokens, target

    def __getitem__(self, name: str | int | tuple[int | str, ...]) -> Activations:
        if isinstance(name, int | tuple):  # cache[3], cache[3, 5]
            name = ".".join(map(str, name)) if isinstance(name, tuple) else str(name)
        if not isinstance(name, str):
            raise UsageError(f"activations of {name!r}", 'a name such as "3" or "3.5"', type(name).__name__, "name one")
        layers = {str(slot): slot for slot in self.layers}
        if len({slot.kind for slot in self.layers}) == 1:
            layers |= {str(slot.layer): slot for slot in self.layers}
        if name in layers:
            return self.layers[layers[name]]
        try:
            heads = select_heads(name, {slot: layer.heads for slot, layer in self.layers.items()})
        except UsageError:
            if not self.layers:
                raise
            last = [*self.layers][-1]
            heads_of = (f"{slot}.0 to {slot}.{layer.heads - 1}" for slot, layer in self.layers.items())
            expected = f"a layer or a head ({', '.join(heads_of)})"
            raise UsageError(
                f"activations of {name!r}", expected, "no such layer or head", f"for instance {last} or {last}.0"
            ) from None
        if len(heads) != 1:
            raise UsageError(f"activations of {name!r}", "one layer or one head", f"{len(heads)} heads", "name one")
        return self.layers[heads[0].slot].head(heads[0].head)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str | int | tuple) and self[name] is not None
        except UsageError:
            return False

    def get(self, name: str | int | tuple[int | str, ...], default: Any = None) -> Any:
        """The activations of this name; the default if there are none."""
        try:
            return self[name]
        except UsageError:
            return default

    def __iter__(self) -> Iterator[str]:
        return map(str, self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        heads = sum(layer.heads for layer in self.layers.values())
        names = ", ".join(self)
        return f"<TraceCache of {len(self.tokens)} tokens: {len(self)} layers, {heads} heads ({names})>"

    def _table(self) -> tuple[str, Sequence[str], Iterable[Sequence[str]]]:
        title = f"Trace of {counted(len(self.tokens), 'token')}: {' '.join(self.tokens)}"
        sizes = ("heads", "queries", "keys", "key width", "value width")
        rows = [
            (name, *map(str, (layer.heads, *layer.scores.shape[1:], layer.K.shape[-1], layer.V.shape[-1])))
            for name, layer in self.items()
        ]
        return title, ("layer", *sizes), rows


class _KeepHook(LayerHook):
    """Keeps all that a forward pass of one text shows."""

    def __init__(self, sides: Mapping[Kind, tuple[tuple[str, ...], tuple[str, ...]]]) -> None:
        self.sides = sides
        self.layers: dict[Slot, Activations] = {}
        self.streams: dict[Kind, list[Tensor]] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        every = slice(trace.heads)
        # Batches hold one text, so that nothing is padded: [1 h i k] -> [h i k].
        self.layers[trace.slot] = Activations(
            str(trace.slot),
            trace.Q[0].detach().clone(),
            trace.shared(trace.K, every)[0].detach().clone(),
            trace.shared(trace.V, every)[0].detach().clone(),
            masked_scores(trace)[0],
            torch.cat([piece.P for piece in maps_of(trace)], 1)[0].detach(),
            trace.Y[0].detach().clone(),
            *self.sides[trace.slot.kind],
        )
        return None

    def stream(self, stream: StreamTrace) -> None:
        self.streams.setdefault(stream.kind, []).append(stream.X[0].detach().clone())


def trace(
    subject: Subject | str | Path | Any,
    text: str | Passage,
    *,
    target: str | None = None,
    tokenizer: Any = None,
    max_length: int | None = None,
) -> TraceCache:
    """Run a model on one text and keep Q, K, V, scores, weights, outputs and the residual stream of every layer.

    Args:
        subject: A path, a `Subject`, a Hugging Face model, or a model of attnworks.
        text: The text to read; the source, if the model has an encoder and a decoder.
        target: What the decoder of an encoder-decoder reads; a model with one stack reads it behind the text, in the
            same sequence. Default: the model writes it greedily; with one stack, none.
        tokenizer: The tokenizer or vocabulary of a model in memory. Default: None, for a path or a `Subject`.
        max_length: Cut the text after this number of tokens. Default: None, refuse a text that does not fit.

    Returns:
        A `TraceCache`: `cache["3.5"].weights` is the attention of head 5 in layer 3, [queries, keys].

    The outputs of the model are bit for bit those of a run without a trace. Everything is kept in memory: about
    4 layers x heads x tokens^2 numbers.

    >>> cache = attnworks.trace("bert-folder", "The cat sat .")  # doctest: +SKIP
    >>> cache["3.5"].weights.shape, cache["3.5"].key_tokens  # doctest: +SKIP
    """
    subject = wrap(subject, tokenizer, max_length=max_length)
    read = subject.read_one(text, target)
    batch, _ = read.batch(0)
    tokens, written = subject.tokens_of(read)
    hook = _KeepHook({kind: _sides(kind, tokens, written) for kind in KINDS})
    with eval_mode(subject.model), torch.no_grad():
        outputs = subject.run(batch.to(subject.device), hook, logits=subject.has_logits)
    residual: dict[Kind, Tensor] = {kind: torch.stack(streams) for kind, streams in hook.streams.items()}
    logits = None if outputs.logits is None else outputs.logits[0]
    return TraceCache(hook.layers, residual, outputs.hidden[0], logits, tokens, written)


def _sides(kind: Kind, source: _Tokens, target: _Tokens | None) -> tuple[_Tokens, _Tokens]:
    """The tokens of queries and of keys."""
    written = source if target is None else target
    return source if kind == "encoder" else written, written if kind == "decoder" else source
