"""The interface of attention mechanisms, their registry, and specs: a mechanism with its options as one short text.

Specs are written `dense`, `window:window=64` or `bigbird:window=64,n_global=2`.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnworks.attention.mask import Mask
from attnworks.core.checks import choice
from attnworks.core.errors import UsageError
from attnworks.core.places import Kind
from attnworks.core.registry import Registry

MECHANISMS: Registry[type[Mechanism]] = Registry("mechanism", "attnworks.mechanisms")


class Attended(NamedTuple):
    """The result of attention: outputs, and the weights if `weights=True`."""

    Y: Float[Tensor, "b h i v"]
    P: Float[Tensor, "b h i j"] | None = None


@dataclass(frozen=True)
class Context:
    """What some mechanisms need beyond Q, K, V and the Mask.

    scale           multiplies the scores instead of the mechanism's own factor
    global_tokens   True at tokens that see all and are seen by all, for mechanisms that have such tokens
    global_qkv      Q, K and V from a second set of projections, with which global tokens attend
    """

    scale: float | None = None
    global_tokens: Bool[Tensor, "b j"] | None = None
    global_qkv: tuple[Tensor, Tensor, Tensor] | None = None


class Geometry(NamedTuple):
    """The size of one attention layer: heads, and the width of a key and of a value in each."""

    heads: int
    d_k: int
    d_v: int


class AttentionCost(NamedTuple):
    """The cost of one forward pass over one sequence.

    edges   query-key pairs that are scored, over all heads
    flops   multiply-adds count twice; exponentials are left out
    bytes   float32 memory held besides Q, K and V: the output and what is kept for it
    """

    edges: int
    flops: int
    bytes: int


class Mechanism(nn.Module):
    """(Q [b h i k], K [b h j k], V [b h j v], Mask, Context) -> Attended(Y [b h i v], P [b h i j] or None).

    A mechanism is one file: this class, registered by name, and its `reference`, the same thing in slow loops.
    Options are keyword arguments. So are heads, d_k and d_v, if its parameters depend on them (see `for_geometry`).
    Promises, tested for every registered name: outputs and gradients equal the reference's; a query that sees no key
    gives zeros; a hidden key of finite value has no influence on values or gradients; asking for weights changes
    nothing else.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    """Fields of Context without which the mechanism cannot run."""
    supported_masks: ClassVar[frozenset[str]] = frozenset({"real", "causal", "dense"})
    """Fields of Mask that the mechanism can obey; it refuses the others."""
    rows_sum_to_one: ClassVar[bool] = True
    """Whether the rows of P are weights: not negative, and of sum one (or zero, where no key is seen)."""
    softmax: ClassVar[bool] = False
    """Whether each row of P is the softmax of one score per key that it sees, so that ln P has their differences."""
    has_global_projections: ClassVar[bool] = False
    """Whether it uses Context.global_qkv; its encoder layers then have a second set of projections."""
    supports_cross_attention: ClassVar[bool] = True
    """Whether queries may come from another sequence; if not, they are the positions of the keys, or the last ones."""
    by_content: ClassVar[bool] = True
    """Whether weights depend on Q and K; if not, they depend on positions alone, and a head has no W_Q and W_K."""

    @classmethod
    def for_geometry(cls, geometry: Geometry, **options: object) -> Mechanism:
        """Build for a layer of this size. Those of heads, d_k and d_v that `__init__` has as keywords are passed on."""
        keywords = _keywords(cls)
        return cls(**{name: size for name, size in geometry._asdict().items() if name in keywords}, **options)

    @property
    def max_keys(self) -> int | None:
        """The largest number of keys, if there is a limit."""
        return None

    def share_with(self, first: Mechanism) -> None:
        """Share parameters with `first`, the same spec in an earlier layer. Mechanisms that span layers override it."""

    def forward(
        self,
        Q: Float[Tensor, "b h i k"],
        K: Float[Tensor, "b h j k"],
        V: Float[Tensor, "b h j v"],
        mask: Mask | None = None,
        context: Context | None = None,
        *,
        weights: bool = False,
    ) -> Attended:
        mask, context = Mask() if mask is None else mask, context or Context()
        if not isinstance(mask, Mask):
            remedy = "write Mask(dense=...) or Mask(real=...)"
            raise UsageError(f"{self.name} attention", "a Mask", type(mask).__name__, remedy)
        self._check(Q, K, V, mask, context)
        if Q.shape[2] == 0:
            P = Q @ K.mT
            return Attended(P @ V, P if weights else None)
        return self.attend(Q, K, V, mask.to(dtype=Q.dtype), context, weights)

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        """The mechanism itself, on inputs that fit together."""
        raise NotImplementedError

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        """The same result in loops over batch, heads, queries and keys: slow, and easy to check by reading."""
        raise NotImplementedError

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        raise NotImplementedError

    def default_scale(self, d_k: int) -> float:
        """The factor of the scores, unless Context.scale is given."""
        return d_k**-0.5

    def scale(self, d_k: int, context: Context) -> float:
        return self.default_scale(d_k) if context.scale is None else context.scale

    def dot_scale(self, d_k: int, context: Context) -> float | None:
        """s, if P = softmax(s Q K^T + mask); None for any other mechanism."""
        del d_k, context
        return None

    def _check(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> None:
        asked = f"{self.name} attention"
        if not all(isinstance(T, Tensor) and T.dim() == 4 for T in (Q, K, V)):
            found = ", ".join(str(list(T.shape)) if isinstance(T, Tensor) else type(T).__name__ for T in (Q, K, V))
            expected = "tensors Q, K and V with four axes: [batch, heads, positions, width]"
            raise UsageError(asked, expected, found, "for one sequence and one head write Q[None, None]")
        (b, h, i, k), j = Q.shape, K.shape[2]
        if K.shape != (b, h, j, k) or V.shape[:3] != (b, h, j):
            expected = f"K [{b}, {h}, keys, {k}] and V [{b}, {h}, keys, any] for Q {list(Q.shape)}"
            remedy = "give all three the same batch and heads, Q and K one width, K and V one length"
            raise UsageError(asked, expected, f"K {list(K.shape)} and V {list(V.shape)}", remedy)
        mask.check(b, h, i, j)
        self._check_defined(mask, i, j)
        self._check_context(context, Q, K, V)
        for needed in sorted(self.needs):
            if getattr(context, needed) is None:
                raise UsageError(asked, f"a context with {needed}", "none", f"pass Context({needed}=...)")

    def _check_defined(self, mask: Mask, i: int, j: int) -> None:
        given = {"real": mask.real is not None, "causal": mask.causal, "dense": mask.dense is not None}
        for kind in (kind for kind, present in given.items() if present and kind not in self.supported_masks):
            expected = f"only masks of the kind {' or '.join(sorted(self.supported_masks)) or 'none'}"
            remedy = "use dense or window attention there"
            raise UsageError(f"{self.name} attention with a {kind} mask", expected, f"a {kind} mask", remedy)
        if not self.supports_cross_attention and not mask.causal and i != j:
            asked, found = f"{self.name} attention from one sequence to another", f"{i} queries and {j} keys"
            remedy = "use dense attention across, or Mask(causal=True) if the queries are the last positions"
            raise UsageError(asked, "queries and keys of one sequence", found, remedy)

    def _check_context(self, context: Context, Q: Tensor, K: Tensor, V: Tensor) -> None:
        tokens, second, (b, j) = context.global_tokens, context.global_qkv, (K.shape[0], K.shape[2])
        fits = isinstance(tokens, Tensor) and tokens.dtype == torch.bool and tuple(tokens.shape) in {(b, j), (1, j)}
        if tokens is not None and not fits:
            asked, expected = f"{self.name} attention with global tokens", f"one boolean per key, shape [{b}, {j}]"
            found = type(tokens).__name__
            if isinstance(tokens, Tensor):
                found = f"shape {list(tokens.shape)} of {str(tokens.dtype).removeprefix('torch.')}"
            raise UsageError(asked, expected, found, "pass True at global tokens; .bool() converts zeros and ones")
        if second is not None and [T.shape for T in second] != [Q.shape, K.shape, V.shape]:
            wanted, found = (", ".join(str(list(T.shape)) for T in qkv) for qkv in ((Q, K, V), second))
            asked = f"{self.name} attention with second projections"
            raise UsageError(asked, f"the shapes of Q, K and V: {wanted}", found, "project the same tokens twice")


def dense_edges(queries: int, keys: int, causal: bool) -> int:
    """Query-key pairs of one head: queries x keys, less the later keys when causal."""
    hidden = queries * (queries - 1) // 2 if causal else 0
    return queries * keys - hidden


MAX_WORD_LETTERS = 200


@dataclass(frozen=True)
class MechanismSpec:
    """A registered mechanism with the options to build it.

    >>> MechanismSpec.parse("dense")
    MechanismSpec(name='dense', options={})
    """

    name: str
    options: dict[str, object] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MechanismSpec:
        name, _, rest = text.partition(":")
        pairs = [_parse_option(part, text) for part in rest.split(",")] if rest else []
        for option, count in Counter(option for option, _ in pairs).items():
            if count > 1:
                found, remedy = f"{option} {count} times", f"keep one {option}="
                raise UsageError(f"mechanism {text!r}", "each option once", found, remedy)
        return cls(name, dict(pairs))

    def __post_init__(self) -> None:
        known = option_names(MECHANISMS[self.name])
        for option, value in self.options.items():
            choice(f"option of mechanism {self.name!r}", option, known)
            if not _is_option(value, 2**63 if option == "seed" else 2**31):
                expected = f"a number below 2^31, true, false, null or a word of at most {MAX_WORD_LETTERS} letters"
                found = type(value).__name__ if isinstance(value, list | dict) else _shown(value)
                asked = f"mechanism {self.name!r} with {option}={_shown(value)}"
                raise UsageError(asked, expected, found, "write it like window:window=64")

    @property
    def kind(self) -> type[Mechanism]:
        return MECHANISMS[self.name]

    def build(self, geometry: Geometry) -> Mechanism:
        return MECHANISMS[self.name].for_geometry(geometry, **self.options)

    def serves(self, kind: Kind) -> bool:
        """Whether it is defined in attention layers of this kind; those of a decoder are causal."""
        mechanism = MECHANISMS[self.name]
        causal, cross = "causal" in mechanism.supported_masks, mechanism.supports_cross_attention
        return {"decoder": causal, "cross": cross}.get(kind, True)

    def __str__(self) -> str:
        return self.name + (":" if self.options else "") + ",".join(f"{k}={_write(v)}" for k, v in self.options.items())


def option_names(mechanism: type[Mechanism]) -> tuple[str, ...]:
    """The options of a spec: the keyword arguments that are no sizes of the geometry."""
    return tuple(name for name in _keywords(mechanism) if name not in Geometry._fields)


def _keywords(mechanism: type[Mechanism]) -> list[str]:
    parameters = inspect.signature(mechanism.__init__).parameters
    return [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]


def _parse_option(part: str, text: str) -> tuple[str, object]:
    key, equals, value = part.partition("=")
    if not (key.isidentifier() and equals and value):
        expected, remedy = "name:option=value,option=value", "write it like window:window=64"
        raise UsageError(f"mechanism {text!r}", expected, repr(part), remedy)
    return key, _read(value)


def _is_option(value: object, limit: int) -> bool:
    if isinstance(value, int | float):
        return not abs(value) >= limit  # NaN passes: the mechanism checks it
    return value is None or (isinstance(value, str) and "," not in value and len(value) <= MAX_WORD_LETTERS)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or brackets in brackets
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, a number of too many digits, or too many brackets
        return text


def _write(value: object) -> str:
    """Text that `_read` turns back into `value`: JSON, without quotes around plain words."""
    return value if isinstance(value, str) and _read(value) == value else json.dumps(value)


def parse_many(text: str) -> list[MechanismSpec]:
    """Mechanisms in a list, each once; a part that is only an option belongs to the mechanism before it.

    >>> [str(spec) for spec in parse_many("dense,window,window=32,linear")]
    ['dense', 'window:window=32', 'linear']
    """
    whole: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if whole and "=" in part and ":" not in part:
            whole[-1] += f"{',' if ':' in whole[-1] else ':'}{part}"
        else:
            whole.append(part)
    return list({str(spec): spec for spec in map(MechanismSpec.parse, whole)}.values())
