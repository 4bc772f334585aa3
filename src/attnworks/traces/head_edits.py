"""Heads with other weights or other outputs, for the runs inside `with subject.edit(...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention.heads import Scoring
from attnworks.core.errors import UsageError
from attnworks.core.places import NO_HEADS, HeadId, Slot, names_head
from attnworks.traces.layer import LayerHook, LayerTrace, StreamTrace
from attnworks.traces.maps import maps_of

HeadChange = Tensor | Callable[[Tensor], Tensor]
"""A tensor to use instead, or a function of the one that the head computed."""


@dataclass(eq=False)
class HeadEdits:
    """Which heads are switched off, and which get other weights or outputs.

    several    whether the model has several kinds of attention, so that names of heads begin with the kind
    found      names and patterns that a head of the model has
    layers     the number of heads of every layer that has run
    """

    off: str | Sequence[str]
    weights: Mapping[str, HeadChange]
    outputs: Mapping[str, HeadChange]
    several: bool
    found: set[str] = field(default_factory=set)
    layers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        off = [self.off] if isinstance(self.off, str) else self.off
        changes = [self.weights, self.outputs]
        if not isinstance(off, Sequence) or not all(isinstance(name, str) for name in off):
            raise UsageError("edit with off", "names of heads", repr(self.off), 'write for instance off="3.5,4.*"')
        for what, change in zip(("weights", "outputs"), changes, strict=True):
            if not isinstance(change, Mapping) or not all(isinstance(name, str) for name in change):
                remedy = f'write for instance {what}={{"3.5": new}}'
                raise UsageError(f"edit with {what}", "a dict by names of heads", type(change).__name__, remedy)

    @property
    def patterns(self) -> list[str]:
        """Every name or pattern of heads that was given."""
        names = self.off.split(",") if isinstance(self.off, str) else self.off
        off = [name.strip() for name in names if name.strip() not in ("", NO_HEADS)]
        return [*off, *self.weights, *self.outputs]

    def before(self, hook: LayerHook | None) -> LayerHook:
        """A hook that makes these edits, and shows the edited layer to `hook`."""
        return _EditHook(self, hook)

    def matching(self, pattern: str, slot: Slot, heads: int) -> list[int]:
        """The heads of a layer that this name or pattern names."""
        found = [head for head in range(heads) if names_head(pattern, HeadId(slot, head), short=not self.several)]
        if found:
            self.found.add(pattern)
        return found

    def look_up(self, heads: Mapping[Slot, int], name: str) -> None:
        """Refuse names that none of these heads has: the number of heads of every layer of the model."""
        for slot, count in heads.items():
            self.layers[str(slot)] = count
            for pattern in self.patterns:
                self.matching(pattern, slot, count)
        self.check_found(name)

    def apply(self, trace: LayerTrace) -> LayerTrace | None:
        """The layer with these edits; None if it has none."""
        self.layers[str(trace.slot)] = trace.heads
        at = trace.slot, trace.heads
        off = {head for part in self.patterns_off for head in self.matching(part, *at)}
        weights = {head: change for name, change in self.weights.items() for head in self.matching(name, *at)}
        outputs = {head: change for name, change in self.outputs.items() for head in self.matching(name, *at)}
        if not (off or weights or outputs):
            return None
        Y, edited = trace.Y.clone(), trace
        if weights:
            P = full_weights(trace)
            for head, change in weights.items():
                P[:, head] = _changed(change, P[:, head], f"weights of {trace.slot}.{head}")
                V = trace.shared(trace.V, slice(head, head + 1))[:, 0]  # [b j v]
                Y[:, head] = (P[:, head].to(V.dtype) @ V).to(Y.dtype)
            scoring = trace.head_scoring
            scales = tuple(None if head in weights else scale for head, scale in enumerate(scoring.scales))
            edited = replace(
                trace, scale=None, scoring=Scoring(scales, scoring.softmax), bilinear=False, replaced=P,
                weigh=lambda: P.clamp_min(0.0),
            )  # fmt: skip
        for head, change in outputs.items():
            Y[:, head] = _changed(change, Y[:, head], f"output of {trace.slot}.{head}")
        Y[:, sorted(off)] = 0.0
        return replace(edited, Y=Y)

    @property
    def patterns_off(self) -> list[str]:
        return self.patterns[: len(self.patterns) - len(self.weights) - len(self.outputs)]

    def check_found(self, name: str) -> None:
        """Refuse names that no head of the model has. Heads of a model of unknown parts are known once it has run."""
        if missing := [pattern for pattern in self.patterns if pattern not in self.found]:
            known = ", ".join(f"{slot}.0 to {slot}.{heads - 1}" for slot, heads in self.layers.items() if heads)
            raise UsageError(
                f"an edit of {missing[0]} in {name}", f"a head ({known})", "no such head", "name one of these"
            )


class _EditHook(LayerHook):
    def __init__(self, edits: HeadEdits, then: LayerHook | None) -> None:
        self.edits, self.then = edits, then

    def attention(self, trace: LayerTrace) -> Tensor | None:
        edited = self.edits.apply(trace)
        shown = None if self.then is None else self.then.attention(trace if edited is None else edited)
        return shown if shown is not None or edited is None else edited.Y

    def stream(self, stream: StreamTrace) -> None:
        if self.then is not None:
            self.then.stream(stream)


@torch.no_grad()
def full_weights(trace: LayerTrace) -> Float[Tensor, "b h i j"]:
    """P of all sentences and heads, with zeros at padding. No gradient flows through them."""
    (b, h, i, _), j = trace.Q.shape, trace.K.shape[2]
    P = torch.zeros(b, h, i, j, dtype=torch.promote_types(trace.Q.dtype, torch.float32), device=trace.Q.device)
    for piece in maps_of(trace):
        rows, columns = piece.P.shape[2:]
        P[piece.sentences, piece.heads, :rows, :columns] = piece.P
    return P


def _changed(change: HeadChange, old: Tensor, what: str) -> Tensor:
    new = change(old.clone()) if callable(change) else change
    try:
        return torch.as_tensor(new, device=old.device).to(old.dtype).expand(old.shape)
    except (RuntimeError, TypeError, ValueError) as error:
        got = f"shape {list(new.shape)}" if isinstance(new, Tensor) else type(new).__name__
        expected = f"a tensor of shape {list(old.shape[1:])} or {list(old.shape)}"
        raise UsageError(f"new {what}", expected, got, "give one of this shape") from error
