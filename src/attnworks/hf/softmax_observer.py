"""Attention that a model computes in its own code, observed at its softmax.

What is recognised is S = Q K^T, a product of two tensors that the model has computed, with anything done to it before
P = softmax(S), and Y = P V; or a call of `scaled_dot_product_attention`. Scores and weights are followed from function
to function, so that neither the names of modules nor those of variables matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from attnworks.attention import Mask
from attnworks.core.notation import tolerance
from attnworks.hf.attention_hook import current_hook, is_softmax_unobserved
from attnworks.hf.cut.stored import call_hook, kept_heads
from attnworks.hf.head_modules import is_empty
from attnworks.hf.products import Placed, Product, product_of

SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax}
TIMES = {torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__}
DIVIDED = {torch.div, Tensor.div, Tensor.div_, Tensor.__truediv__, Tensor.__itruediv__, torch.true_divide}
PLUS = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
MINUS = {torch.sub, Tensor.sub, Tensor.sub_, Tensor.__sub__, Tensor.__isub__}
KEEPS_SCORES = {
    *(Tensor.view, Tensor.reshape, torch.reshape, Tensor.unflatten, torch.unflatten, Tensor.flatten, torch.flatten),
    *(Tensor.to, Tensor.type, Tensor.type_as, Tensor.float, Tensor.double, Tensor.contiguous, Tensor.clone),
    *(Tensor.squeeze, Tensor.unsqueeze, torch.squeeze, torch.unsqueeze, F.dropout),
    *(Tensor.masked_fill, Tensor.masked_fill_, torch.masked_fill, torch.where, torch.max, torch.maximum, torch.clamp),
}
"""Functions after which scores are what they were, wherever keys may be seen."""
MIXES = {F.linear, torch.addmm, torch.addbmm, F.layer_norm, F.rms_norm, F.conv1d, F.conv2d, F.embedding, F.group_norm}
"""Functions whose results are neither scores nor weights."""
TURNS = {Tensor.transpose, torch.transpose, Tensor.permute, torch.permute, Tensor.mT.__get__, Tensor.T.__get__}  # type: ignore
FAR_BELOW = 1e3
"""A score that is this far below the largest one of its row, and has no weight, is that of a hidden key."""


@dataclass(frozen=True, eq=False)
class Scores:
    """A tensor that comes from a product of queries and keys.

    scale    it is scale Q K^T plus what was added; None if it was changed in other ways, too
    scaled_by_entry    parts of it were multiplied by numbers of their own, as by zero where a key is hidden
    """

    Q: Float[Tensor, "*a i k"]
    K: Float[Tensor, "*a j k"]
    scale: float | None
    scaled_by_entry: bool = False


@dataclass(frozen=True, eq=False)
class Weights:
    """A tensor that comes from the softmax of these scores, which are the tensor S."""

    scores: Scores
    S: Tensor
    dtype: torch.dtype


@contextmanager
def observe_softmax(model: nn.Module) -> Iterator[None]:
    """Within this context attention that a model computes in its own code is passed to the hook of this thread.

    The options of such a call are `weights`, P [b h i j] as the model has computed it (None if it has not), and
    `scaling`, the factor of Q K^T, or None if scores are no such product.
    """
    observer = _SoftmaxObserver()
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(observer.entered, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(observer.left, always_call=True))
        token = _RUNNING.set(observer)
        hooks.callback(_RUNNING.reset, token)
        hooks.enter_context(observer)
        yield


class _SoftmaxObserver(TorchFunctionMode):
    """Is called in the place of every function of torch, in this thread alone."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[nn.Module] = []
        self.batch = 0
        self.found = WeakTensorKeyDictionary()

    def entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _RUNNING.get() is self:
            if not self.running:
                self.batch = _batch_size(args, kwargs)
            self.running.append(module)

    def left(self, *_: object) -> None:
        if _RUNNING.get() is self:
            self.running.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.running or is_softmax_unobserved():
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._fused(args, kwargs)
        product = product_of(func, args, kwargs)
        if product is not None:
            if isinstance(weights := self._found(product.left.tensor), Weights):
                return self._weighted_values(product, weights, func, args, kwargs)
            out = func(*args, **kwargs)
            scale = product.scale if self._found(product.added) is None else None
            self.found[out] = Scores(product.left.read(), product.right.read().mT, scale)
            return out
        out = func(*args, **kwargs)
        if len(self.found) and func not in MIXES and isinstance(out, Tensor) and out.is_floating_point():
            self._follow(func, args, kwargs, out)
        return out

    def _found(self, value: Any) -> Scores | Weights | None:
        return self.found.get(value) if isinstance(value, Tensor) else None

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        """Note what the result of a function is, if one of its arguments is scores or weights."""
        given = [item for arg in args for item in (arg if isinstance(arg, list | tuple) else (arg,))]
        given += kwargs.values()
        known = [(item, found) for item in given if (found := self._found(item)) is not None]
        if not known:
            return
        source, found = known[0]
        if func in SOFTMAX:
            if isinstance(found, Scores) and _over_last_axis(args, kwargs, source.ndim):
                self.found[out] = Weights(found, source, out.dtype)
        elif isinstance(found, Weights):
            if out.numel() == found.S.numel() and func not in TURNS:
                self.found[out] = found
        else:
            self.found[out] = found if func in KEEPS_SCORES else _changed(func, found, given, len(known))

    def _weighted_values(
        self, product: Product, weights: Weights, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        """Y = P V, as the hook wants it to be. The product is computed from the V that the hook is given."""
        V, queries = (_by_head(T, self.batch) for T in (product.right.read(), weights.scores.Q))
        if V is None or queries is None:
            return func(*args, **kwargs)
        own = None
        if (kept := kept_heads(self._attention(), queries, V)) is not None:
            own, V = kept.separate(V)
        same = product.right.write(V.reshape(product.right.read().shape))
        args, kwargs = (_with(given, product.right.tensor, same) for given in (args, kwargs))
        out = Placed(func(*args, **kwargs), product.out)
        tensors = (weights.scores.Q, weights.scores.K, out.read(), product.left.read(), weights.S)
        Q, K, Y, P, S = (_by_head(T, self.batch) for T in tensors)
        if Q is None or K is None or Y is None or P is None or S is None or not _fit(Q, K, V, P, S):
            return out.tensor
        K, V = _same_heads(K, V, Q.shape[1])
        with torch.no_grad():
            scale, mask = _scale_and_mask(Q, K, P, S, weights)
        edited = self._call(Q, K, V, mask, Y, {"scaling": scale, "weights": P}, own)
        return out.tensor if edited is None else out.write(edited.reshape(out.read().shape))

    def _fused(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """`scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale)`."""
        out = F.scaled_dot_product_attention(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        Q, K, V, Y = (_by_head(T, self.batch) for T in (given["query"], given["key"], given["value"], out))
        added = given.get("attn_mask")
        if Q is None or K is None or V is None or Y is None or (added is not None and added.ndim == 3):
            return out
        scale = given.get("scale")
        mask = Mask(dense=added, causal=bool(given.get("is_causal")))
        options = {"scaling": Q.shape[-1] ** -0.5 if scale is None else scale, "weights": None}
        edited = self._call(Q, K, V, mask, Y, options)
        return out if edited is None else edited.reshape(out.shape)

    def _attention(self) -> nn.Module:
        """The innermost module that is running and has parameters."""
        callers = (m for m in reversed(self.running) if is_empty(m) or any(True for _ in m.parameters()))
        return next(callers, self.running[0])

    def _call(
        self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, Y: Tensor, options: dict[str, Any], own: Tensor | None = None
    ) -> Tensor | None:
        hook = current_hook()
        return None if hook is None else call_hook(hook, self._attention(), Q, K, V, mask, Y, options, own)


_RUNNING: ContextVar[_SoftmaxObserver | None] = ContextVar("attnworks_softmax_observer", default=None)


def _batch_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many sentences a model is given."""
    first = ("input_ids", "inputs_embeds", "decoder_input_ids", "hidden_states")
    given = [*(kwargs.get(name) for name in first), *args, *kwargs.values()]
    return next((T.shape[0] for T in given if isinstance(T, Tensor) and T.ndim >= 2), 0)


def _with(given: Any, old: Tensor, new: Tensor) -> Any:
    """These arguments, with one tensor in the place of another."""
    if isinstance(given, dict):
        return {name: _with(value, old, new) for name, value in given.items()}
    if isinstance(given, list | tuple):
        return type(given)(_with(value, old, new) for value in given)
    return new if given is old else given


def _over_last_axis(args: tuple[Any, ...], kwargs: dict[str, Any], axes: int) -> bool:
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return isinstance(axis, int) and axis % axes == axes - 1


def _changed(func: Any, found: Scores, given: list[Any], known: int) -> Scores:
    """What scores are after any other function: multiplied, added to, or no longer known."""
    other = given[1] if len(given) == 2 else None
    number = other.item() if isinstance(other, Tensor) and other.numel() == 1 and known == 1 else other
    if found.scale is None or known > 1 or other is None:
        return replace(found, scale=None)
    if func in TIMES or (func in DIVIDED and isinstance(number, int | float)):
        if not isinstance(number, int | float):
            return replace(found, scaled_by_entry=True)
        return replace(found, scale=found.scale * number if func in TIMES else found.scale / number)
    return found if func in PLUS or func in MINUS else replace(found, scale=None)


def _by_head(T: Tensor, b: int) -> Float[Tensor, "b h i k"] | None:
    """[b h i k] itself, or [(b h) i k] with the axis of sentences and heads split."""
    if T.ndim == 4 and T.shape[0] == b:
        return T
    return T.unflatten(0, (b, -1)) if T.ndim == 3 and b and T.shape[0] % b == 0 else None


def _fit(Q: Tensor, K: Tensor, V: Tensor, P: Tensor, S: Tensor) -> bool:
    heads = Q.shape[1]
    shared = all(heads % T.shape[1] == 0 for T in (K, V))
    return shared and P.shape == S.shape == (*Q.shape[:3], K.shape[2]) and V.shape[2] == K.shape[2]


def _same_heads(K: Tensor, V: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values, repeated for all heads where fewer heads have keys than values, or the other way round."""
    if K.shape[1] == V.shape[1]:
        return K, V
    return K.repeat_interleave(heads // K.shape[1], 1), V.repeat_interleave(heads // V.shape[1], 1)


def _scale_and_mask(Q: Tensor, K: Tensor, P: Tensor, S: Tensor, weights: Weights) -> tuple[float | None, Mask]:
    """The factor s of S = s Q K^T + mask, if P is the softmax of such scores, and the mask.

    Without such a factor the mask says which keys are hidden.
    """
    wide = torch.promote_types(S.dtype, torch.float32)
    S = S.to(wide)
    hidden = (P == 0) & (S.amax(-1, keepdim=True) - S > FAR_BELOW)
    visible = Mask(dense=~hidden if bool(hidden.any()) else None)
    scores, rtol = weights.scores, max(tolerance(dtype).rtol for dtype in (Q.dtype, S.dtype, weights.dtype))
    if scores.scale is None or not _is_softmax(P, S, rtol):
        return None, visible
    added = S - scores.scale * (Q.to(wide) @ K.to(wide).repeat_interleave(Q.shape[1] // K.shape[1], 1).mT)
    added = added.masked_fill(hidden, 0.0)
    if bool(added.abs().max() <= rtol * S.masked_fill(hidden, 0.0).abs().max()):
        return scores.scale, visible
    if scores.scaled_by_entry:
        return None, visible
    return scores.scale, Mask(dense=added.masked_fill(hidden, -torch.inf))


def _is_softmax(P: Tensor, S: Tensor, rtol: float) -> Bool[Tensor, ""] | bool:
    return bool((P - S.softmax(-1)).abs().max() <= rtol)
