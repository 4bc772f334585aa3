"""Frozen descriptions of models. A config says everything that the weights do not."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

from attnworks.attention import Geometry, MechanismSpec
from attnworks.attention.heads import Group, grouped
from attnworks.core.checks import LARGEST_FLOAT
from attnworks.core.errors import UsageError
from attnworks.core.json_records import parse, shown_value
from attnworks.core.registry import unknown_name

LARGEST_WIDTH = 2**20
LARGEST_VOCABULARY = 2**26
MOST_LAYERS = 2**12

NormOrder = Literal["post", "pre"]
NormKind = Literal["standard", "documented"]
PositionKind = Literal["sinusoid", "index", "normalised-index", "learned", "none"]
Tying = Literal["none", "target", "all"]
Cell = Literal["lstm", "gru"]

C = TypeVar("C", bound="TokenConfig")


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """One multi-head attention layer.

    heads       how many; a layer without any gives the bias of its output
    d_k, d_v    width of a key and of a value, free of d_e / heads: the same in all heads, or one width per head
    bias        whether the four projections carry biases
    mechanism   a mechanism for all heads, or one per head; options as in `window:window=64`
    scale       factor of the scores, if not the mechanism's own
    """

    heads: int
    d_k: int | tuple[int, ...]
    d_v: int | tuple[int, ...]
    bias: bool = True
    mechanism: str | tuple[str, ...] = "dense"
    scale: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.mechanism, list):
            object.__setattr__(self, "mechanism", tuple(self.mechanism))
        whole("heads", self.heads, 0, LARGEST_WIDTH)
        for name in ("d_k", "d_v"):
            self._settle_widths(name)
        within("scale", self.scale or 0.0, -LARGEST_FLOAT, LARGEST_FLOAT)
        if isinstance(self.mechanism, tuple) and len(self.mechanism) != self.heads:
            raise UsageError(
                asked="a mechanism for each head",
                expected=f"{self.heads} mechanisms",
                got=str(len(self.mechanism)),
                remedy="give one for all heads, or as many as there are heads",
            )
        self.mechanism_groups()

    def _settle_widths(self, name: str) -> None:
        """Widths that are all the same are one number, so that equal layers have equal configs."""
        given = getattr(self, name)
        widths = tuple(given) if isinstance(given, list | tuple) else (given,)
        for width in widths:
            whole(name, width, 1, LARGEST_WIDTH)
        if len(widths) != self.heads and widths != (given,):
            raise UsageError(
                asked=f"{name} for each head",
                expected=f"{self.heads} widths",
                got=str(len(widths)),
                remedy="give one for all heads, or as many as there are heads",
            )
        object.__setattr__(self, name, widths[0] if len({*widths}) == 1 else widths)

    @property
    def key_widths(self) -> tuple[int, ...]:
        """d_k of each head."""
        return (self.d_k,) * self.heads if isinstance(self.d_k, int) else self.d_k

    @property
    def value_widths(self) -> tuple[int, ...]:
        """d_v of each head."""
        return (self.d_v,) * self.heads if isinstance(self.d_v, int) else self.d_v

    @property
    def geometry(self) -> Geometry:
        """With the widths of the widest head, to which all others are padded by zeros."""
        d_k, d_v = (width if isinstance(width, int) else max(width) for width in (self.d_k, self.d_v))
        return Geometry(self.heads, d_k, d_v)

    def mechanism_groups(self) -> list[Group]:
        """Each distinct mechanism with the heads that use it, in order of their first head."""
        return grouped((self.mechanism,) * self.heads if isinstance(self.mechanism, str) else self.mechanism)


@dataclass(frozen=True, kw_only=True)
class TokenConfig:
    """What models of tokens share: how many kinds there are on each side, and the width of their embeddings."""

    vocabulary: int
    d_e: int
    target_vocabulary: int | None = None

    def __post_init__(self) -> None:
        whole("vocabulary", self.vocabulary, 1, LARGEST_VOCABULARY)
        whole("target_vocabulary", self.target_size, 1, LARGEST_VOCABULARY)
        whole("d_e", self.d_e, 1, LARGEST_WIDTH)

    @property
    def target_size(self) -> int:
        return self.vocabulary if self.target_vocabulary is None else self.target_vocabulary

    @property
    def longest(self) -> int | None:
        """How many positions a model has; None if nothing limits them."""
        return None

    def with_vocabulary(self: C, vocabulary: int, target_vocabulary: int | None = None) -> C:
        return replace(self, vocabulary=vocabulary, target_vocabulary=target_vocabulary)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TokenConfig):
    """An encoder, a decoder or both; zero layers leave a side out.

    vocabulary, target_vocabulary   token kinds; the target's defaults to the source's
    attention                       every attention layer, unless `slots` names it
    slots                           exceptions by slot: enc.0, dec.1 (self-attention), cross.1
    norm                            after each residual sum ("post", as documented) or before each part ("pre")
    norm_kind                       sqrt(var + eps) ("standard") or sigma + eps ("documented", eq. 2)
    final_norm                      one more norm after each stack; by default only with norm="pre"
    tie                             which embeddings are one matrix: "target" with the output, or "all" three
    """

    kind: ClassVar[str] = "transformer"

    d_ff: int
    attention: AttentionConfig
    encoder_layers: int
    decoder_layers: int
    slots: dict[str, AttentionConfig] = field(default_factory=dict)
    norm: NormOrder = "post"
    norm_kind: NormKind = "standard"
    norm_eps: float = 1e-5
    final_norm: bool | None = None
    positions: PositionKind = "sinusoid"
    position_base: float = 10_000.0
    max_length: int = 1024
    tie: Tying = "none"
    output_bias: bool = False
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("d_ff", self.d_ff, 1, LARGEST_WIDTH)
        whole("encoder_layers", self.encoder_layers, 0, MOST_LAYERS)
        whole("decoder_layers", self.decoder_layers, 0, MOST_LAYERS)
        whole("max_length", self.max_length, 1, LARGEST_VOCABULARY)
        object.__setattr__(self, "slots", dict(self.slots))
        within("dropout", self.dropout, 0.0, 1.0)
        within("norm_eps", self.norm_eps, 0.0, 1.0)
        within("position_base", self.position_base, 1.0, LARGEST_FLOAT)
        one_of("norm", self.norm, NormOrder)
        one_of("norm_kind", self.norm_kind, NormKind)
        one_of("positions", self.positions, PositionKind)
        one_of("tie", self.tie, Tying)
        if self.encoder_layers + self.decoder_layers == 0:
            raise UsageError(
                asked="a transformer",
                expected="at least one layer",
                got="encoder_layers=0 and decoder_layers=0",
                remedy="set one of them to 1 or more",
            )
        if self.tie == "all" and self.target_size != self.vocabulary:
            raise UsageError(
                asked='tie="all"',
                expected="one vocabulary for source and target",
                got=f"{self.vocabulary} and {self.target_size} token kinds",
                remedy='use a joint vocabulary, or tie="target"',
            )
        if self.positions == "sinusoid" and self.d_e % 2:
            raise UsageError(
                asked="sinusoidal positions",
                expected="an even d_e (sines and cosines come in pairs)",
                got=f"d_e={self.d_e}",
                remedy="choose an even d_e or other positions",
            )
        for slot in self.slots:
            if slot not in self.slot_names():
                raise UsageError(
                    asked=f"attention slot {slot!r}",
                    expected=f"one of {', '.join(self.slot_names())}",
                    got="a slot this model does not have",
                    remedy="name slots enc.L, dec.L or cross.L with layers from zero",
                )

        for slot in self.slot_names():
            for spec, _ in self.slot(slot).mechanism_groups():
                check_serves(spec, slot)

    def with_mechanism(self, mechanism: str | tuple[str, ...]) -> TransformerConfig:
        """Attention of this kind (or these, head by head) wherever all are defined; other layers stay as they are."""
        specs = [MechanismSpec.parse(text) for text in ((mechanism,) if isinstance(mechanism, str) else mechanism)]
        slots = {
            slot: replace(self.slot(slot), mechanism=mechanism)
            if all(spec.serves(slot) for spec in specs)
            else self.slot(slot)
            for slot in self.slot_names()
        }
        if len(set(map(repr, slots.values()))) == 1:
            return replace(self, attention=next(iter(slots.values())), slots={})
        return replace(self, slots=slots)

    @property
    def has_final_norm(self) -> bool:
        return self.norm == "pre" if self.final_norm is None else self.final_norm

    @property
    def longest(self) -> int | None:
        return self.max_length if self.positions == "learned" else None

    def slot_names(self) -> tuple[str, ...]:
        """Every attention layer, in the order in which data meets them."""
        encoder = tuple(f"enc.{layer}" for layer in range(self.encoder_layers))
        decoder = tuple(
            name
            for layer in range(self.decoder_layers)
            for name in ((f"dec.{layer}", f"cross.{layer}") if self.encoder_layers else (f"dec.{layer}",))
        )
        return encoder + decoder

    def slot(self, name: str) -> AttentionConfig:
        return self.slots.get(name, self.attention)


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(TokenConfig):
    """A recurrent encoder-decoder; without `mechanism` the last encoder state is all that the decoder gets."""

    kind: ClassVar[str] = "recurrent"

    d_h: int
    layers: int = 1
    cell: Cell = "lstm"
    mechanism: str | None = None
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("d_h", self.d_h, 1, LARGEST_WIDTH)
        whole("layers", self.layers, 1, MOST_LAYERS)
        within("dropout", self.dropout, 0.0, 1.0)
        one_of("cell", self.cell, Cell)
        if self.mechanism is not None:
            check_serves(MechanismSpec.parse(self.mechanism), "cross")


@dataclass(frozen=True, kw_only=True)
class PureConfig:
    """Attention layers on vectors, with skip, MLP and norm each on or off: what the rank theorems speak of."""

    kind: ClassVar[str] = "pure"

    d_e: int
    layers: int
    attention: AttentionConfig
    skip: bool = False
    mlp: bool = False
    norm: bool = False
    d_ff: int | None = None
    norm_kind: NormKind = "standard"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        whole("d_e", self.d_e, 1, LARGEST_WIDTH)
        whole("layers", self.layers, 1, MOST_LAYERS)
        whole("d_ff", self.hidden, 1, LARGEST_WIDTH)
        within("norm_eps", self.norm_eps, 0.0, 1.0)
        one_of("norm_kind", self.norm_kind, NormKind)

    @property
    def hidden(self) -> int:
        return 4 * self.d_e if self.d_ff is None else self.d_ff


def check_serves(spec: MechanismSpec, slot: str) -> None:
    if not spec.serves(slot):
        across = slot.startswith("cross")
        raise UsageError(
            asked=f"{spec.name} attention in {slot}",
            expected=f"a mechanism that {'takes queries of another sequence' if across else 'can be causal'}",
            got=spec.name,
            remedy="choose dense, luong-dot or linear there; TransformerConfig.with_mechanism(...) does it by itself",
        )


ModelConfig = TransformerConfig | RecurrentConfig | PureConfig


def whole(name: str, value: int, low: int, high: int) -> None:
    """A size: a whole number within bounds."""
    if type(value) is not int:
        raise UsageError(
            asked=f"{name}={value!r}",
            expected=f"a whole number from {low} to {high}",
            got=type(value).__name__,
            remedy=f"choose {name} in that range",
        )
    within(name, value, low, high)


def within(name: str, value: float, low: float, high: float) -> None:
    """Refuse sizes that make no sense before anything is allocated for them."""
    if not low <= value <= high:
        raise UsageError(
            asked=f"{name}={value}",
            expected=f"a value from {low} to {high}",
            got=str(value),
            remedy=f"choose {name} in that range",
        )


def one_of(name: str, value: str, choices: Any) -> None:
    """Refuse a word that is no choice of this Literal."""
    if value not in get_args(choices):
        raise unknown_name(name, value, get_args(choices))


_CONFIGS: dict[str, type[ModelConfig]] = {config.kind: config for config in typing.get_args(ModelConfig)}


def config_to_json(config: ModelConfig) -> dict[str, Any]:
    """A plain dictionary that `config_from_json` turns back into an equal config."""
    return {"kind": config.kind, **dataclasses.asdict(config)}


def config_from_json(data: object) -> ModelConfig:
    """The config that a JSON document describes."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise UsageError(
            asked="a model config",
            expected='a JSON object with "kind"',
            got=shown_value(data),
            remedy=f"set kind to one of {', '.join(sorted(_CONFIGS))}",
        )
    if data["kind"] not in _CONFIGS:
        raise unknown_name("model kind", data["kind"], _CONFIGS)
    fields = {key: value for key, value in data.items() if key != "kind"}
    return parse(_CONFIGS[data["kind"]], fields, "config")
