"""Any torch module as the subject of an examination; its forward function reports Q, K and V of each layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.attention.dense import fused
from attnworks.attention.heads import HeadWeights
from attnworks.core.checks import choice
from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance
from attnworks.core.places import SHORT_KINDS, Kind, Slot
from attnworks.text.tokenizers import readers_of
from attnworks.text.tokens import Batch
from attnworks.traces.layer import LayerTrace, StreamTrace, linear_queries
from attnworks.traces.subject import KINDS_OF_MODEL, LayerHook, Subject
from attnworks.training.objectives.contract import Abilities, Outputs


class AdaptedSubject(Subject):
    """Any torch module, and a function that runs it. It can be examined, but not reshaped.

    forward      (batch, show) -> the last residual stream [b i e], or Outputs with logits; it calls
                 `Y = show("enc.0", Q, K, V, Y=Y)` for every attention layer and continues with the returned Y
    kind         "encoder", "decoder" (causal) or "encoder-decoder"
    vocabulary   whether forward returns Outputs with logits over a vocabulary at each position
    classes      number of classes, if forward returns Outputs with logits of whole texts
    mask_id      the token that stands for a hidden word
    """

    can_reshape = False

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[Batch, LayerReporter], Tensor | Outputs],
        name: str = "model",
        kind: str = "encoder",
        *,
        vocabulary: bool = False,
        classes: int | None = None,
        mask_id: int | None = None,
    ) -> None:
        choice("kind of model", kind, KINDS_OF_MODEL)
        self.name, self.model, self.forward = name, model, forward
        self.abilities = Abilities(kind, vocabulary, classes, mask_id)
        self._checked: set[Slot] = set()

    def _set_model(self, model: nn.Module) -> None:
        expected = "a Transformer of attnworks or a model of Hugging Face"
        remedy = "make an AdaptedSubject of it, with a forward of its own"
        raise UsageError(f"another model in the place of {self.name}", expected, type(model).__name__, remedy)

    def _set_tokenizer(self, tokenizer: Any, max_length: int | None) -> None:
        self.source, self.target = readers_of(self.abilities.kind, tokenizer, max_length)

    def _run(self, batch: Batch, hook: LayerHook | None, *, logits: bool) -> Outputs:
        show = LayerReporter(self.name, self.abilities.kind, batch, hook, self._checked)
        given = self.forward(batch, show)
        outputs = given if isinstance(given, Outputs) else Outputs(given)
        b, i = batch.sides("encoder" if self.abilities.kind == "encoder" else "decoder")[0].ids.shape
        _expect(f"the stream that forward of {self.name} returns", outputs.hidden, (b, i, None))
        if logits and outputs.logits is None:
            remedy = "return logits, or use the objective 'embedding'"
            raise UsageError(f"logits of {self.name}", "Outputs(hidden, logits) from forward", "a stream alone", remedy)
        if hook is not None and not show.seen:
            expected = "show(slot, Q, K, V) for every layer"
            raise UsageError(f"attention of {self.name}", expected, "no layer", "call it there")
        return outputs


class LayerReporter:
    """A forward function calls it for each attention layer, and its `stream` between blocks.

    checked    layers whose Y has been compared with Q, K and V; the first report of a layer adds it
    """

    def __init__(self, name: str, kind: str, batch: Batch, hook: LayerHook | None, checked: set[Slot]) -> None:
        self.name, self.kinds, self.batch, self.hook = name, KINDS_OF_MODEL[kind], batch, hook
        self.checked = checked
        self.seen: set[Slot] = set()
        self.depths: set[tuple[Kind, int]] = set()

    def __call__(
        self,
        slot: str,
        Q: Float[Tensor, "b h i k"],
        K: Float[Tensor, "b g j k"],
        V: Float[Tensor, "b g j v"],
        mask: Mask | Tensor | None = None,
        scale: float | None = None,
        X: Float[Tensor, "b i e"] | None = None,
        weights: HeadWeights | None = None,
        *,
        Y: Float[Tensor, "b h i v"] | None = None,
        Z: Float[Tensor, "b j f"] | None = None,
        P: Float[Tensor, "b h i j"] | None = None,
    ) -> Tensor | None:
        """Report one layer, Y = softmax(scale Q K^T + mask) V. A returned tensor takes the place of Y.

        slot      enc.L, dec.L (self-attention) or cross.L, with layers from zero
        mask      a Mask, or a tensor that ends in [i j]: booleans (True: may be seen) or numbers to add to scores.
                  Padding is masked in any case. Without a mask, dec.L is causal
        scale     1 / sqrt(k) if not given
        X, Z      inputs of the projections of queries, and of keys and values; Z is X except in cross-attention
        weights   projections of all heads, for measures of weights
        Y         the output of the layer, checked once against Q, K and V; returned unless it is edited
        P         attention weights of a layer whose scores are not scale Q K^T
        """
        if self.hook is None:
            return Y
        at = self._slot(slot)
        queries, keys = self.batch.sides(at.kind)
        (b, i), j = queries.ids.shape, keys.ids.shape[1]
        _expect(f"Q of {at}", Q, (b, None, i, None))
        h = Q.shape[1]
        _expect(f"K of {at}", K, (b, None, j, Q.shape[-1]))
        _expect(f"V of {at}", V, (b, K.shape[1], j, None))
        if h % K.shape[1]:
            raise _misshapen(f"K of {at}", f"a number of heads that divides the {h} of Q", K)
        for name, given, shape in (
            ("X", X, (b, i, None)),
            ("Z", Z, (b, j, None)),
            ("Y", Y, (b, h, i, V.shape[-1])),
            ("P", P, (b, h, i, j)),
        ):
            if given is not None:
                _expect(f"{name} of {at}", given, shape)
        full = self._mask(at, mask, keys.real)
        full.check(b, h, i, j)
        factor = Q.shape[-1] ** -0.5 if scale is None else scale
        given = Y
        if Y is None or at not in self.checked:
            K_, V_ = (_repeated(T, h) for T in (K, V))
            computed = fused(Q, K_, V_, full, factor) if P is None else P.to(V_.dtype) @ V_
            self._check(at, given, computed, queries.real)
            Y = computed if given is None else given
        Z = X if Z is None and at.kind != "cross" else Z
        added = full.additive()
        no_bias = P is None and (added is None or not bool(added.any()))
        bilinear = no_bias and X is not None and weights is not None and linear_queries(X, Q, weights)
        trace = LayerTrace(
            at, Q, K, V, Y, full, factor if P is None else None, queries, keys, X=X, Z=Z, weights=weights,
            bilinear=bilinear, weigh=None if P is None else lambda: P,
        )  # fmt: skip
        self.seen.add(at)
        edited = self.hook.attention(trace)
        return given if edited is None else edited

    def stream(self, kind: Kind, depth: int, X: Float[Tensor, "b i e"]) -> None:
        """Report the residual stream before the first block (depth 0) or after block `depth` - 1."""
        if self.hook is None:
            return
        choice(f"stack of {self.name}", kind, [known for known in self.kinds if known != "cross"])
        if (kind, depth) in self.depths:
            raise _twice(f"the stream of the {kind} at depth {depth}", "one call for each depth of a forward pass")
        tokens, _ = self.batch.sides(kind)
        _expect(f"the stream of the {kind} at depth {depth}", X, (*tokens.ids.shape, None))
        self.depths.add((kind, depth))
        self.hook.stream(StreamTrace(kind, depth, X, tokens))

    def _slot(self, name: str) -> Slot:
        try:
            slot = Slot.parse(name)
        except ValueError:
            slot = None
        if slot is None or slot.kind not in self.kinds:
            expected = " or ".join(f"{SHORT_KINDS[kind]}.L" for kind in self.kinds)
            remedy = "count layers from zero, and say kind='encoder-decoder' of a model that has both"
            raise UsageError(f"attention layer {name!r} of {self.name}", expected, "another name", remedy)
        if slot in self.seen:
            raise _twice(f"attention layer {name!r} of {self.name}", "every layer once in a forward pass")
        return slot

    def _mask(self, slot: Slot, given: Mask | Tensor | None, real: Bool[Tensor, "b j"]) -> Mask:
        """The mask of a layer together with the padding of the batch."""
        if given is None:
            return Mask(real, causal=slot.causal)
        if isinstance(given, Tensor):
            return Mask(real, dense=given)
        theirs = given.real
        if theirs is not None and (theirs.shape != real.shape or not torch.equal(theirs & real, real)):
            got, remedy = "one that hides tokens", "hide them by a dense mask"
            raise UsageError(f"the padding of {slot}", "that of the batch", got, remedy)
        return Mask(real, given.causal, given.dense)

    def _check(self, slot: Slot, given: Tensor | None, computed: Tensor, real: Bool[Tensor, "b i"]) -> None:
        """Refuse a Y [b h i v] that differs at real tokens from the one computed from Q, K and V."""
        self.checked.add(slot)
        if given is None:
            return
        given, computed = (T.masked_fill(~real[:, None, :, None], 0.0) for T in (given, computed))
        error = (given - computed).abs().max().item()
        rtol, atol = tolerance(given.dtype)
        if not error <= 10 * (atol + rtol * computed.abs().max().item()):
            got = f"a Y that is {error:.1e} away from it"
            remedy = "give the scale and mask that the layer uses, or its weights as P"
            raise UsageError(f"attention of {slot}", "Y = softmax(scale Q K^T + mask) V", got, remedy)


def _repeated(grouped: Tensor, heads: int) -> Tensor:
    return grouped if grouped.shape[1] == heads else grouped.repeat_interleave(heads // grouped.shape[1], 1)


def _expect(what: str, given: Any, shape: tuple[int | None, ...]) -> None:
    fits = isinstance(given, Tensor) and len(given.shape) == len(shape)
    if not fits or any(want not in (None, got) for want, got in zip(shape, given.shape, strict=True)):
        raise _misshapen(what, f"shape [{', '.join('*' if size is None else str(size) for size in shape)}]", given)


def _misshapen(what: str, expected: str, given: Any) -> UsageError:
    got = f"shape {list(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
    remedy = "Q is [batch, heads, queries, width], K and V [batch, heads, keys, width], streams [batch, tokens, width]"
    return UsageError(what, expected, got, remedy)


def _twice(what: str, expected: str) -> UsageError:
    return UsageError(what, expected, "a second one", "number layers from zero, each its own")
