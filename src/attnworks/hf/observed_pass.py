"""One forward pass of a Hugging Face model: a trace of every attention layer, and edits of heads in direct calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.attention.heads import HeadGroups, HeadWeights
from attnworks.core.errors import UsageError
from attnworks.core.places import Kind, Slot
from attnworks.hf.attention import attend_head_groups, context_of_call, dense_heads
from attnworks.hf.attention_hook import attention_hook, current_hook
from attnworks.hf.head_modules import head_groups_of, is_empty
from attnworks.hf.masks import added_scores
from attnworks.hf.observe import no_attention, observe_interface
from attnworks.hf.softmax_observer import observe_softmax
from attnworks.text.tokens import Batch, Tokens
from attnworks.traces.head_edits import HeadEdits
from attnworks.traces.layer import LayerHook, LayerTrace


class LayerNames:
    """Names attention layers while a model runs.

    kinds    attention modules and their kinds; layers of modules that are not in `slots` are counted by kind
    slots    attention modules and the layers that they serve, in the order of their calls
    """

    def __init__(self, kinds: Mapping[nn.Module, Kind], slots: Mapping[nn.Module, Sequence[Slot]]) -> None:
        self.kinds, self.slots = kinds, slots
        self.calls: Counter[nn.Module] = Counter()
        self.given: set[Slot] = set()

    def restart(self, *kinds: Kind) -> None:
        """Forget the calls of these kinds of attention; without arguments, of all."""
        for module in [module for module in self.calls if not kinds or self.kind(module) in kinds]:
            del self.calls[module]
        self.given = {slot for slot in self.given if kinds and slot.kind not in kinds}

    def kind(self, module: nn.Module) -> Kind:
        return self.slots[module][0].kind if module in self.slots else self.kinds.get(module, "encoder")

    def next(self, module: nn.Module) -> Slot:
        """The layer that this call of a module is."""
        number, known = self.calls[module], self.slots.get(module, ())
        self.calls[module] += 1
        if number < len(known):
            slot = known[number]
        else:
            kind = self.kind(module)
            taken = [slot.layer for slot in self.given if slot.kind == kind]
            slot = Slot(kind, max(taken, default=-1) + 1)
        self.given.add(slot)
        return slot


class ObservedPass:
    """One observed forward pass: names layers, and passes a trace of each to the hook.

    names           of the attention layers
    read_weights    of each layer whose weights are known
    bilinear        (slot, X, Q) -> whether the queries of a layer are linear in X
    projections     attention module -> the projections of its queries and of its keys, whose inputs are X and Z
    at_softmax      layers that were observed at their softmax
    passed_over     layers that were not passed to the hook, and why
    """

    def __init__(
        self,
        names: LayerNames,
        read_weights: Mapping[Slot, Callable[[], HeadWeights]],
        bilinear: Callable[[Slot, Tensor | None, Tensor], bool],
        batch: Batch,
        hook: LayerHook,
        projections: Mapping[nn.Module, tuple[nn.Module, nn.Module]],
    ) -> None:
        self.names, self.read_weights, self.bilinear = names, read_weights, bilinear
        self.batch, self.hook, self.projections = batch, hook, projections
        self.seen: set[Slot] = set()
        self.at_softmax: set[Slot] = set()
        self.passed_over: dict[Slot, str] = {}
        self.inputs: dict[nn.Module, Tensor] = {}

    @contextmanager
    def hook_inputs(self) -> Iterator[None]:
        """Remember what the projections of queries and keys read until attention is computed."""
        with ExitStack() as hooks:
            for projection in {one for pair in self.projections.values() for one in pair}:
                hooks.enter_context(projection.register_forward_pre_hook(self._remember, with_kwargs=True))
            yield

    def _remember(self, projection: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        read = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        if read is not None:
            self.inputs[projection] = read

    def _inputs_of(self, module: nn.Module, queries: Tokens, keys: Tokens) -> tuple[Tensor | None, Tensor | None]:
        query, key = self.projections.get(module, (None, None))
        return self._input(query, queries), self._input(key, keys)

    def _input(self, projection: nn.Module | None, tokens: Tokens) -> Tensor | None:
        """[b i e], also where the projection reads all tokens in one row, [(b i) e]."""
        read = None if projection is None else self.inputs.get(projection)
        if read is None or read.shape[:-1].numel() != tokens.ids.numel():
            return None
        return read if read.shape[:-1] == tokens.ids.shape else read.reshape(*tokens.ids.shape, -1)

    def attention(
        self, module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, Y: Tensor, options: dict[str, Any]
    ) -> Tensor | None:
        """One attention layer: Q [b h i k], K [b g j k], V [b g j v], Y [b h i v], and the options of the interface."""
        slot = self.names.next(module)
        if is_empty(module):
            self.seen.add(slot)
            return None
        queries, keys = self.batch.sides(slot.kind)
        if (reason := _not_of_tokens(Q, K, queries, keys)) is not None:
            self.passed_over[slot] = reason
            return None
        self.seen.add(slot)
        X, Z = self._inputs_of(module, queries, keys)
        trace = _layer_trace(slot, module, Q, K, V, mask, Y, options, queries, keys)
        if trace.at_softmax:
            self.at_softmax.add(slot)
        bilinear = _scores_by_content(trace) and added_scores(options) is None and self.bilinear(slot, X, Q)
        return self.hook.attention(
            replace(trace, X=X, Z=Z, read_weights=self.read_weights.get(slot), bilinear=bilinear)
        )

    def check_seen(self, name: str) -> None:
        """Refuse a model none of whose layers was passed to the hook."""
        if not self.seen:
            if not self.passed_over:
                raise no_attention(name)
            slot, got = next(iter(self.passed_over.items()))
            expected = "queries and keys that are its tokens"
            remedy = "show its Q, K and V through attnworks.traces.adapted"
            raise UsageError(f"attention of {slot} in {name}", expected, got, remedy)


def _scores_by_content(trace: LayerTrace) -> bool:
    """Whether the scores of all heads are one factor times Q K^T, and nothing else."""
    plain = trace.scale is not None and trace.sink is None and trace.softcap is None
    return plain and not (trace.at_softmax and trace.mask.additive() is not None)


def _not_of_tokens(Q: Tensor, K: Tensor, queries: Tokens, keys: Tokens) -> str | None:
    """How many queries and keys there are, if that is not one per token."""
    (b, _, i, _), j, tokens = Q.shape, K.shape[2], (queries.ids.shape[1], keys.ids.shape[1])
    if (i, j) != tokens:
        return f"{i} queries and {j} keys for {tokens[0]} and {tokens[1]} tokens"
    return None if b == len(queries.ids) else f"{b} rows for {len(queries.ids)} sentences"


def _layer_trace(
    slot: Slot,
    module: nn.Module,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    mask: Mask,
    Y: Tensor,
    options: dict[str, Any],
    queries: Tokens,
    keys: Tokens,
) -> LayerTrace:
    """A layer as the attention interface shows it, or its softmax: without its input and its weights."""
    groups, weigh, scoring, sink = head_groups_of(module), None, None, options.get("s_aux")
    scale, at_softmax = options.get("scaling"), "weights" in options
    if at_softmax and scale is None:
        weigh = partial(options.__getitem__, "weights")
    elif scale is None:
        scale = Q.shape[-1] ** -0.5
    if groups is not None:
        weigh = partial(_weigh, module, Q, K, V, mask, options)
        scoring = groups.scoring(Q.shape[-1], context_of_call(Q, options))
        scale = scoring.scale
        sink = None if sink is None else _of_dense_heads(sink, groups)
    return LayerTrace(
        slot, Q, K, V, Y, mask, scale, queries, keys, weigh=weigh, scoring=scoring, sink=sink,
        softcap=options.get("softcap"), at_softmax=at_softmax,
    )  # fmt: skip


def _of_dense_heads(sink: Float[Tensor, " h"], groups: HeadGroups) -> Float[Tensor, " h"]:
    """Sink logits that give no weight to the sink in heads whose weights do not come from the softmax of the model."""
    found = torch.full_like(sink, torch.finfo(sink.dtype).min)
    heads = dense_heads(groups)
    found[heads] = sink.detach()[heads]
    return found


class _EditedCalls:
    """Edits heads in direct calls of a model, of which only shapes are known: every token counts as real."""

    def __init__(self, name: str, names: LayerNames, edits: Sequence[HeadEdits]) -> None:
        self.name, self.names, self.edits = name, names, edits
        self.modules = {*names.kinds, *names.slots}

    @contextmanager
    def hook_passes(self, model: Any) -> Iterator[None]:
        """Name layers anew in every pass of the model, its body, or its encoder, which `generate` calls."""
        bodies = {model, getattr(model, "base_model", model)}
        encoder = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else None
        with ExitStack() as hooks:
            for body in bodies:
                hooks.enter_context(body.register_forward_pre_hook(self._begin))
            if isinstance(encoder, nn.Module):
                hooks.enter_context(encoder.register_forward_pre_hook(self._begin_encoder))
            hooks.enter_context(model.register_forward_hook(self._check_found))
            yield

    def _begin(self, *_: object) -> None:
        if current_hook() is not None:
            self.names.restart()

    def _begin_encoder(self, *_: object) -> None:
        if current_hook() is not None:
            self.names.restart("encoder")

    def _check_found(self, *_: object) -> None:
        """Refuse names of heads that the model does not have."""
        if current_hook() is None:  # this call is not edited
            return
        for edits in self.edits:
            edits.check_found(self.name)

    def attention(
        self, module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, Y: Tensor, options: dict[str, Any]
    ) -> Tensor | None:
        if module not in self.modules:  # a layer of another model, which runs inside the block
            return None
        slot = self.names.next(module)
        if is_empty(module):
            return None
        queries, keys = (Tokens(real.long(), real) for real in (_all_real(Q), _all_real(K)))
        trace, edited = _layer_trace(slot, module, Q, K, V, mask, Y, options, queries, keys), None
        for edits in self.edits:
            edited = edits.apply(trace) or edited
            trace = edited or trace
        return None if edited is None else edited.Y


def _all_real(rows: Float[Tensor, "b h i k"]) -> Bool[Tensor, "b i"]:
    return torch.ones(rows.shape[0], rows.shape[2], dtype=torch.bool, device=rows.device)


@contextmanager
def edited_calls(model: nn.Module, name: str, names: LayerNames, edits: Sequence[HeadEdits]) -> Iterator[None]:
    """Make these edits in every direct call of the model, also in `generate`, inside the context."""
    calls = _EditedCalls(name, names, edits)
    with ExitStack() as stack:
        stack.enter_context(observe_attention(model))
        stack.enter_context(calls.hook_passes(model))
        stack.enter_context(attention_hook(calls.attention))
        yield


@contextmanager
def observe_attention(model: nn.Module, *, softmax: bool = True) -> Iterator[None]:
    """Within this context attention of a model is passed to the hook of this thread.

    softmax    whether attention that the model computes in its own code is observed, too
    """
    with ExitStack() as stack:
        stack.enter_context(observe_interface(model))
        if softmax:
            stack.enter_context(observe_softmax(model))
        yield


def _weigh(module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, options: dict[str, Any]) -> Tensor:
    P = attend_head_groups(module, Q, K, V, mask, options, weights=True).P
    assert P is not None
    return P
