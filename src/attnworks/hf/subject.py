"""Hugging Face models under examination, through transformers' own attention interface.

The interface hands over the true Q, K, V, mask, scale and sink logits of any architecture, after rotary positions and
all. The model keeps its own implementation of attention, `eager` or `sdpa`, and its output is the same, bit for bit. A
model with another implementation is examined with `sdpa`, or with `eager` where it does not support that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.data.text_batch import Kind, TextBatch
from attnworks.errors import UsageError
from attnworks.hf.anatomy import attention_kinds, foreign_anatomy, groups_of, is_empty, model_kind
from attnworks.hf.attention import attend_own_heads, context_given, mask_given, own_heads, register
from attnworks.mechanisms import Context, Mask
from attnworks.models.anatomy import BlockAnatomy
from attnworks.models.head_groups import HeadWeights
from attnworks.notation import tolerance
from attnworks.objectives.text import Abilities, Outputs
from attnworks.traces.layer import LayerTrace, Slot
from attnworks.traces.own import stacks_of, weight_readers
from attnworks.traces.subject import Spectator, Stacks, watching_streams

OWN_HEADS_SHOWN = "attnworks-heads-shown"
UNDERSTOOD = ("eager", "sdpa")
"""Implementations whose masks and options are understood here."""

Look = Callable[[nn.Module, Tensor, Tensor, Tensor, Mask, Tensor, dict[str, Any]], Tensor | None]
_LOOK: ContextVar[Look | None] = ContextVar("attnworks_look", default=None)


class ForeignSubject:
    """Any model of transformers that computes attention through its interface.

    given    batch -> keyword arguments of the model, for those that read something else than token ids
    """

    def __init__(
        self,
        model: nn.Module,
        name: str = "model",
        mask_id: int | None = None,
        given: Callable[[TextBatch], dict[str, Any]] | None = None,
    ) -> None:
        self.name, self.model = name, model
        self.given = self._token_ids if given is None else given
        self.base: nn.Module = getattr(model, "base_model", model)
        self.blocks: Sequence[BlockAnatomy] | None = foreign_anatomy(model)
        self.abilities = _abilities(model, mask_id)
        self._kinds = attention_kinds(model)
        self._stacks = stacks_of(self.blocks) or _guess_stacks(self.base, self._kinds)
        self._readers = weight_readers(self.blocks)
        self._bilinear: dict[Slot, bool] = {}

    def again(self, model: nn.Module) -> ForeignSubject:
        """The same subject with another model."""
        given = None if self.given == self._token_ids else self.given
        return ForeignSubject(model, self.name, self.abilities.mask_id, given)

    def run(self, batch: TextBatch, spectator: Spectator | None = None, *, scores: bool = False) -> Outputs:
        given = self.given(batch)
        if spectator is None:
            return self._forward(given, scores)
        turn = _Turn(self, batch, spectator)
        with ExitStack() as stack:
            own = any(groups_of(module) is not None for module in self._kinds)
            stack.enter_context(_own_heads_shown(self.model) if own else _interface_shown(self.model))
            stack.enter_context(watching_streams(self._stacks, batch, spectator))
            stack.enter_context(turn.watching_inputs())
            token = _LOOK.set(turn.look)
            try:
                outputs = self._forward(given, scores)
            finally:
                _LOOK.reset(token)
        if not turn.seen:
            raise _bypassed(self.model)
        return outputs

    def _forward(self, given: dict[str, Tensor], scores: bool) -> Outputs:
        """The model's head runs if scores are asked for, and where a model (T5) has no body without one."""
        body: Any = self.base
        if not scores and body is not self.model:
            return Outputs(body(**given).last_hidden_state)
        headless = self.abilities.vocabulary and body is self.model
        body = body.get_decoder() if headless else body
        hidden: list[Tensor] = []
        with ExitStack() as hooks:
            for part in _bodies(body):
                handle = part.register_forward_hook(lambda *call: hidden.append(call[-1].last_hidden_state))
                hooks.callback(handle.remove)
            outputs = self.model(**given)
        return Outputs(hidden[-1], outputs.logits if scores else None)

    def _token_ids(self, batch: TextBatch) -> dict[str, Any]:
        """What the model reads. MobileBERT's embedding of a token also reads the next one, which may be padding.

        Its padding is embedded as zero, as the end of an unpadded sentence is, so that padding does not count.
        """
        source, target = batch.source, batch.target
        given: dict[str, Any] = {"input_ids": source.ids, "attention_mask": source.real.long()}
        model: Any = self.model
        if getattr(model.config, "trigram_input", False):
            embedded = model.get_input_embeddings()(given.pop("input_ids"))
            given["inputs_embeds"] = embedded * source.real.unsqueeze(-1)
        if target is not None:
            given |= {"decoder_input_ids": target.ids, "decoder_attention_mask": target.real.long()}
        if self.abilities.kind != "encoder":
            given["use_cache"] = False
        return given

    def bilinear(self, slot: Slot, X: Tensor | None, Q: Tensor) -> bool:
        """Whether queries are linear in X; a property of the architecture, and so asked once."""
        if slot not in self._bilinear:
            read_weights = self._readers.get(slot)
            if read_weights is None or X is None:
                return False
            self._bilinear[slot] = linear_queries(X, Q, read_weights())
        return self._bilinear[slot]


def _bodies(body: Any) -> list[nn.Module]:
    """The body, and its decoder: a model such as OPT runs that without the body around it."""
    inner = getattr(body, "decoder", None)
    return [body, inner] if isinstance(inner, nn.Module) and hasattr(inner, "layers") else [body]


def linear_queries(X: Tensor, Q: Tensor, weights: HeadWeights) -> bool:
    """Whether queries are X W_Q + b_Q up to a factor, seen on the last position, which rotary positions turn."""
    at = torch.einsum("be,hek->bhk", X[:, -1], weights.W_Q)
    at = at if weights.b_Q is None else at + weights.b_Q
    tiny = torch.finfo(Q.dtype).tiny
    factor = (at * Q[:, :, -1]).sum() / at.square().sum().clamp_min(tiny)
    error = (factor * at - Q[:, :, -1]).abs().max() / Q[:, :, -1].abs().max().clamp_min(tiny)
    return bool(error < tolerance(Q.dtype).rtol)


class _Turn:
    """One forward pass: which layer comes next, and what its attention was given."""

    def __init__(self, subject: ForeignSubject, batch: TextBatch, spectator: Spectator) -> None:
        self.subject, self.batch, self.spectator = subject, batch, spectator
        self.seen: Counter[Kind] = Counter()
        self.inputs: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def watching_inputs(self) -> Iterator[None]:
        """Remember what each attention module reads until its attention is computed."""
        with ExitStack() as hooks:
            for module in self.subject._kinds if self.subject.blocks is not None else ():
                handle = module.register_forward_pre_hook(self._given, with_kwargs=True)
                hooks.callback(handle.remove)
            yield

    def _given(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        X = args[0] if args else kwargs["hidden_states"]
        others = (kwargs.get(name) for name in ("key_value_states", "encoder_hidden_states"))
        Z = next((other for other in others if other is not None), X)
        self.inputs[module] = X, Z

    def look(
        self,
        module: nn.Module,
        Q: Tensor,
        K: Tensor,
        V: Tensor,
        mask: Mask,
        Y: Tensor,
        options: dict[str, Any],
    ) -> Tensor | None:
        kind = self.subject._kinds.get(module, "encoder")
        slot = Slot(kind, self.seen[kind])
        self.seen[kind] += 1
        if is_empty(module):
            return None
        queries, keys = self.batch.sides(kind)
        if (Q.shape[2], K.shape[2]) != (queries.ids.shape[1], keys.ids.shape[1]):
            raise UsageError(
                asked=f"attention of {slot}",
                expected=f"{queries.ids.shape[1]} queries and {keys.ids.shape[1]} keys, one per token",
                got=f"{Q.shape[2]} and {K.shape[2]}",
                remedy="examine a model whose sequence is its tokens",
            )
        X, Z = self.inputs.pop(module, (None, None))
        groups, weigh, scoring = groups_of(module), None, None
        sink, softcap = options.get("s_aux"), options.get("softcap")
        scale = options.get("scaling")
        scale = Q.shape[-1] ** -0.5 if scale is None else scale
        if groups is not None:
            context = context_given(Q, options)
            weigh, scoring = partial(_weigh, module, Q, K, V, mask, context), groups.scoring(Q.shape[-1], context)
            scale = scoring.scale
            if Q.shape[1] < groups.count:
                Q, K = groups.every_head(Q), groups.every_head(K)
        plain = scale is not None and sink is None and softcap is None
        return self.spectator.attention(
            LayerTrace(
                slot, Q, K, V, Y, mask, scale, queries, keys,
                X=X, Z=Z, read_weights=self.subject._readers.get(slot), weigh=weigh, scoring=scoring, sink=sink,
                softcap=softcap,
                bilinear=plain and _added(options) is None and self.subject.bilinear(slot, X, Q),
            )
        )  # fmt: skip


@contextmanager
def _implementation(model: Any, name: str) -> Iterator[None]:
    """Let the model compute attention by this implementation for a while."""
    before = {id(part.config): (part.config, part.config._attn_implementation) for part in _configured(model)}
    try:
        try:
            model.set_attn_implementation(name)
        except ValueError as error:
            raise _bypassed(model) from error
        yield
    finally:
        for config, old in before.values():
            config._attn_implementation = old


def _configured(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation"):
            yield module


@contextmanager
def _own_heads_shown(model: nn.Module) -> Iterator[None]:
    register(OWN_HEADS_SHOWN, _own_heads)
    with _implementation(model, OWN_HEADS_SHOWN):
        yield


@contextmanager
def _interface_shown(model: nn.Module) -> Iterator[None]:
    """Show what the attention interface of transformers returns to the observer of this thread, for a while.

    The name of the model's implementation stays: some models, such as A.X-K2, fold the keys that they choose into the
    mask for `eager` and `sdpa` alone. Masks of other implementations are not tables, so that those become `sdpa`, or
    `eager` in a model that sdpa cannot compute.
    """
    with ExitStack() as stack:
        if any(part.config._attn_implementation not in UNDERSTOOD for part in _configured(model)):
            stack.enter_context(_implementation(model, "sdpa" if getattr(model, "_supports_sdpa", True) else "eager"))
        stack.enter_context(_SHOWING)
        yield


class _Showing:
    """Wraps AttentionInterface.get_interface while any thread examines a model; threads that do not see no change."""

    def __init__(self) -> None:
        self._lock, self._open = Lock(), 0
        self._plain: Callable[..., Callable[..., Any]] | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._open += 1
            if self._plain is None:
                interface = _interface()
                plain = self._plain = interface.get_interface
                interface.get_interface = _shown_interface(plain)

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                _interface().get_interface, self._plain = self._plain, None


def _interface() -> Any:
    from transformers import AttentionInterface

    return AttentionInterface


def _shown_interface(plain: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        found = plain(self, attn_implementation, default)
        watched = _LOOK.get() is not None and attn_implementation in UNDERSTOOD
        return partial(_attention, found, attn_implementation) if watched else found

    return get_interface


_SHOWING = _Showing()


def _attention(
    attend: Callable[..., tuple[Tensor, Any]],
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Any]:
    """The model's own attention, shown to the observer of this thread."""
    Y, P = attend(module, query, key, value, attention_mask, **options)
    read_mask = _eager_mask if name == "eager" else _sdpa_mask
    return _shown(module, query, key, value, read_mask(module, query, attention_mask, options), Y, options), P


def _own_heads(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The attention of a model with mechanisms of attnworks, shown to the observer of this thread."""
    Y, _ = own_heads(module, query, key, value, attention_mask, **options)
    mask = mask_given(module, query, key, attention_mask, options)
    return _shown(module, query, key, value, mask, Y, options), None


def _shown(
    module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, Y: Tensor, options: dict[str, Any]
) -> Tensor:
    look = _LOOK.get()
    edited = None if look is None else look(module, Q, K, V, mask, Y.transpose(1, 2), options)
    return Y if edited is None else edited.transpose(1, 2).contiguous()


def _weigh(module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Tensor:
    P = attend_own_heads(module, Q, K, V, mask, context, weights=True).P
    assert P is not None
    return P


def _added(options: dict[str, Any]) -> Tensor | None:
    added = options.get("position_bias")
    return None if added is None or not added.any() else added


def _sdpa_mask(module: nn.Module, Q: Tensor, given: Tensor | None, options: dict[str, Any]) -> Mask:
    """The mask as sdpa understands it: a table of booleans or of summands, or causal where there is none."""
    added, flag = _added(options), options.get("is_causal")
    causal = given is None and Q.shape[2] > 1 and bool(getattr(module, "is_causal", True) if flag is None else flag)
    if added is None:
        return Mask(dense=given, causal=causal)
    added = added.to(Q.dtype)
    if given is None:
        return Mask(dense=added, causal=causal)
    return Mask(dense=added.masked_fill(~given, -torch.inf) if given.dtype == torch.bool else added + given)


def _eager_mask(module: nn.Module, Q: Tensor, given: Tensor | None, options: dict[str, Any]) -> Mask:
    """The mask as eager attention understands it: a table of summands, the least number where a key is hidden."""
    added = _added(options)
    if given is None:
        return Mask(dense=None if added is None else added.to(Q.dtype))
    hidden = ~given if given.dtype == torch.bool else given <= torch.finfo(given.dtype).min / 2
    table = torch.zeros_like(given, dtype=Q.dtype) if given.dtype == torch.bool else given.masked_fill(hidden, 0.0)
    if added is None and not bool(table.any()):
        return Mask(dense=~hidden)
    return Mask(dense=(table if added is None else table + added.to(Q.dtype)).masked_fill(hidden, -torch.inf))


def _guess_stacks(base: nn.Module, kinds: dict[nn.Module, Kind]) -> Stacks:
    """Outermost lists of modules that hold attention: the blocks of a model whose family is not known."""
    guessed: dict[Kind, list[nn.Module]] = {}
    inside: set[nn.Module] = set()
    for module in base.modules():
        if not isinstance(module, nn.ModuleList) or module in inside:
            continue
        held = [{kinds[part] for part in block.modules() if part in kinds} for block in module]
        if held and all(held):
            inside.update(module.modules())
            guessed.setdefault("decoder" if "decoder" in held[0] else "encoder", []).extend(module)
    return guessed


def _abilities(model: Any, mask_id: int | None) -> Abilities:
    name = type(model).__name__
    vocabulary = getattr(model, "get_output_embeddings", lambda: None)() is not None
    classes = model.config.num_labels if name.endswith("ForSequenceClassification") else None
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = ends or getattr(model.config, "eos_token_id", None)
    return Abilities(model_kind(model), vocabulary, classes, mask_id, ends[0] if isinstance(ends, list) else ends)


def _bypassed(model: nn.Module) -> UsageError:
    return UsageError(
        asked=f"attention of {type(model).__name__}",
        expected="a model that computes attention through transformers' attention interface",
        got="one that does not (block-sparse BigBird, XLNet, code that reads ALL_ATTENTION_FUNCTIONS[...] itself, as "
        "models written for transformers 4 do, and some others)",
        remedy="examine another model, or show its Q, K and V through attnworks.traces.adapted",
    )
