"""A module of one's own under examination: it shows the Q, K and V of every attention layer as it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.attention.dense import fused
from attnworks.attention.heads import HeadWeights
from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance
from attnworks.core.registry import unknown_name
from attnworks.models.anatomy import BlockAnatomy
from attnworks.text.tokenizers import readers_of
from attnworks.text.tokens import Kind, TextBatch, TokenRow
from attnworks.traces.layer import SHORT, LayerTrace, Slot, StreamTrace, linear_queries
from attnworks.traces.subject import Examinee, Spectator
from attnworks.training.objectives.contract import Abilities, Outputs

KINDS: dict[str, tuple[Kind, ...]] = {
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "encoder-decoder": ("encoder", "decoder", "cross"),
}
"""What a model is, and the attention that it has."""


class AdaptedSubject:
    """Any torch module, and a function that runs it.

    forward      (batch, show) -> the last residual stream [b i e], or Outputs with scores; it calls
                 `Y = show("enc.0", Q, K, V, Y=Y)` for every attention layer and continues with what that returns
    kind         "encoder", "decoder" (it reads left to right) or "encoder-decoder"
    vocabulary   whether forward gives Outputs whose scores are over a vocabulary at each position
    classes      over how many classes its scores are, if they are of whole texts
    mask_id      the token that stands for a hidden word
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[TextBatch, Show], Tensor | Outputs],
        name: str = "model",
        kind: str = "encoder",
        *,
        vocabulary: bool = False,
        classes: int | None = None,
        mask_id: int | None = None,
    ) -> None:
        if kind not in KINDS:
            raise unknown_name("kind of model", kind, KINDS)
        self.name, self.model, self.forward = name, model, forward
        self.blocks: Sequence[BlockAnatomy] | None = None
        self.abilities = Abilities(kind, vocabulary, classes, mask_id)
        self._checked: set[Slot] = set()

    def run(self, batch: TextBatch, spectator: Spectator | None = None, *, scores: bool = False) -> Outputs:
        show = Show(self.name, self.abilities.kind, batch, spectator, self._checked)
        given = self.forward(batch, show)
        outputs = given if isinstance(given, Outputs) else Outputs(given)
        b, i = batch.sides("encoder" if self.abilities.kind == "encoder" else "decoder")[0].ids.shape
        _expect(f"the stream that forward of {self.name} returns", outputs.hidden, (b, i, None))
        if scores and outputs.scores is None:
            raise UsageError(
                asked=f"scores of {self.name}",
                expected="Outputs(hidden, scores) from forward",
                got="a stream alone",
                remedy="return scores too, or ask for the objective 'embedding'",
            )
        if spectator is not None and not show.seen:
            raise UsageError(
                asked=f"attention of {self.name}",
                expected="show(slot, Q, K, V) once for every attention layer",
                got="no layer at all",
                remedy="call show in forward",
            )
        return outputs


class Show:
    """What a module of one's own calls in a forward pass: itself for each attention layer, `stream` between blocks."""

    def __init__(
        self, name: str, kind: str, batch: TextBatch, spectator: Spectator | None, checked: set[Slot] | None = None
    ) -> None:
        self.name, self.kinds, self.batch, self.spectator = name, KINDS[kind], batch, spectator
        self.checked: set[Slot] = set() if checked is None else checked
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
        """Show one layer, Y = softmax(scale Q K^T + mask) V; a tensor that comes back takes the place of Y.

        slot      enc.L, dec.L (self-attention) or cross.L, with layers from zero
        mask      a Mask, or a table that ends in [i j] of booleans (True: may see) or of summands; padding is known
                  already, and dec.L sees no later token if no mask is given
        scale     1 / sqrt(k) if not given
        X, Z      what queries, and keys and values, were projected from; Z is X except in cross-attention
        weights   head first, for measures of weights
        Y         what the layer computed, checked once against Q, K and V; given, it is also what comes back unedited
        P         the weights of a layer that scores otherwise than by scale Q K^T
        """
        if self.spectator is None:
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
        bilinear = P is None and (added is None or not bool(added.any()))
        if bilinear:
            bilinear = X is not None and weights is not None and linear_queries(X, Q, weights)
        trace = LayerTrace(
            at, Q, K, V, Y, full, factor if P is None else None, queries, keys, X=X, Z=Z, weights=weights,
            bilinear=bilinear, weigh=None if P is None else lambda: P,
        )  # fmt: skip
        self.seen.add(at)
        edited = self.spectator.attention(trace)
        return given if edited is None else edited

    def stream(self, kind: Kind, depth: int, X: Float[Tensor, "b i e"]) -> None:
        """Show the residual stream before the first block (depth 0) or after block `depth` - 1."""
        if self.spectator is None:
            return
        stacks = [known for known in self.kinds if known != "cross"]
        if kind not in stacks:
            raise unknown_name(f"stack of {self.name}", kind, stacks)
        if (kind, depth) in self.depths:
            raise _twice(f"the stream of the {kind} at depth {depth}", "one call for each depth of a forward pass")
        tokens, _ = self.batch.sides(kind)
        _expect(f"the stream of the {kind} at depth {depth}", X, (*tokens.ids.shape, None))
        self.depths.add((kind, depth))
        self.spectator.stream(StreamTrace(kind, depth, X, tokens))

    def _slot(self, name: str) -> Slot:
        short, _, layer = name.partition(".")
        known = [SHORT[kind] for kind in self.kinds]
        if short not in known or not layer.isdecimal():
            raise UsageError(
                asked=f"attention layer {name!r} of {self.name}",
                expected=" or ".join(f"{kind}.L" for kind in known),
                got="another name",
                remedy="count layers from zero, and say kind='encoder-decoder' of a model that has both",
            )
        slot = Slot.parse(name)
        if slot in self.seen:
            raise _twice(f"attention layer {name!r} of {self.name}", "every layer once in a forward pass")
        return slot

    def _mask(self, slot: Slot, given: Mask | Tensor | None, real: Bool[Tensor, "b j"]) -> Mask:
        if given is None:
            return Mask(real, causal=slot.kind == "decoder")
        if isinstance(given, Tensor):
            return Mask(real, dense=given)
        padding = given.padding
        if padding is not None and (padding.shape != real.shape or not torch.equal(padding & real, real)):
            raise UsageError(
                asked=f"the padding of {slot}",
                expected="that of the batch",
                got="another, which hides real tokens",
                remedy="hide them by a dense mask",
            )
        return Mask(real, given.causal, given.dense)

    def _check(self, slot: Slot, given: Tensor | None, computed: Tensor, real: Bool[Tensor, "b i"]) -> None:
        self.checked.add(slot)
        if given is None:
            return
        given, computed = (T.masked_fill(~real[:, None, :, None], 0.0) for T in (given, computed))
        error = (given - computed).abs().max().item()
        rtol, atol = tolerance(given.dtype)
        if not error <= 10 * (atol + rtol * computed.abs().max().item()):
            raise UsageError(
                asked=f"attention of {slot}",
                expected="Y = softmax(scale Q K^T + mask) V",
                got=f"a Y that is {error:.1e} away from it",
                remedy="give the scale and mask that the layer uses, or its weights as P",
            )


def examinee_at(path: str, *, max_tokens: int | None, device: str, dtype: str) -> None:
    """No path leads to a module of one's own."""
    del path, max_tokens, device, dtype


def examinee_with(model: Any, tokenizer: Any, name: str | None, max_tokens: int | None) -> Examinee | None:
    """An `AdaptedSubject`, which has a name already; None for another model."""
    del name
    if not isinstance(model, AdaptedSubject):
        return None
    source, target, spell = readers_of(model.abilities.kind, tokenizer, max_tokens)
    return Examinee(model, source, target, unwritten, spell)


def unwritten(model: Any, sources: Sequence[TokenRow]) -> list[TokenRow]:
    """What an adapted decoder would write is not known."""
    del model
    raise UsageError(
        asked=f"targets of {len(sources)} sources",
        expected="passages with a target each",
        got="sources alone",
        remedy="give pairs of texts; a module of your own is not asked to translate",
    )


def _repeated(grouped: Tensor, heads: int) -> Tensor:
    return grouped if grouped.shape[1] == heads else grouped.repeat_interleave(heads // grouped.shape[1], 1)


def _expect(what: str, given: Any, shape: tuple[int | None, ...]) -> None:
    fits = isinstance(given, Tensor) and len(given.shape) == len(shape)
    if not fits or any(want not in (None, got) for want, got in zip(shape, given.shape, strict=True)):
        raise _misshapen(what, f"shape [{', '.join('*' if size is None else str(size) for size in shape)}]", given)


def _misshapen(what: str, expected: str, given: Any) -> UsageError:
    got = f"shape {list(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
    remedy = "Q is [batch, heads, queries, width], K and V [batch, heads, keys, width], streams [batch, tokens, width]"
    return UsageError(asked=what, expected=expected, got=got, remedy=remedy)


def _twice(what: str, expected: str) -> UsageError:
    return UsageError(asked=what, expected=expected, got="a second one", remedy="number layers from zero, each its own")
