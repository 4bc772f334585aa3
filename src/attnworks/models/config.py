"""Frozen configs of models, and configs as JSON."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

from attnworks.attention import Geometry, MechanismSpec
from attnworks.attention.heads import HeadGroup, grouped
from attnworks.core.checks import LARGEST_FLOAT, choice, each, integer, number
from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.core.json_records import parse, shown_value
from attnworks.core.places import Kind, Slot

MAX_WIDTH = 2**20
MAX_VOCABULARY = 2**26
MAX_LAYERS = 2**12

NormOrder = Literal["post", "pre"]
NormKind = Literal["standard", "documented"]
PositionKind = Literal["sinusoid", "index", "normalised-index", "learned", "none"]
Tying = Literal["none", "target", "all"]
Initialisation = Literal["glorot", "normal", "scaled"]
CellKind = Literal["lstm", "gru"]

_Config = TypeVar("_Config", bound="TokenConfig")


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """One multi-head attention layer.

    heads       number of heads; a layer without heads gives the bias of its output
    d_k, d_v    width of a key and of a value, independent of d_e / heads: one width for all heads, or one per head
    bias        whether the four projections have biases
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
        integer("heads", self.heads, 0, MAX_WIDTH)
        for name in ("d_k", "d_v"):
            self._normalise_widths(name)
        number("scale", self.scale or 0.0, -LARGEST_FLOAT)
        if isinstance(self.mechanism, tuple):
            each("a mechanism for each head", len(self.mechanism), self.heads, "mechanisms")
        self.mechanism_groups()

    def _normalise_widths(self, name: str) -> None:
        """Widths that are all the same are one number, so that equal layers have equal configs."""
        given = getattr(self, name)
        widths = tuple(given) if isinstance(given, list | tuple) else (given,)
        for width in widths:
            integer(name, width, 1, MAX_WIDTH)
        if widths != (given,):
            each(f"{name} for each head", len(widths), self.heads, "widths")
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
        """Heads, and the widths of the widest head; the other heads are padded with zeros to these widths."""
        d_k, d_v = (width if isinstance(width, int) else max(width) for width in (self.d_k, self.d_v))
        return Geometry(self.heads, d_k, d_v)

    def mechanism_groups(self) -> list[HeadGroup]:
        """Each distinct mechanism with the heads that use it, in order of their first head."""
        return grouped((self.mechanism,) * self.heads if isinstance(self.mechanism, str) else self.mechanism)


@dataclass(frozen=True, kw_only=True)
class TokenConfig:
    """The vocabulary sizes of source and target, and the width of their embeddings."""

    vocabulary: int
    d_e: int
    target_vocabulary: int | None = None

    def __post_init__(self) -> None:
        integer("vocabulary", self.vocabulary, 1, MAX_VOCABULARY)
        integer("target_vocabulary", self.target_size, 1, MAX_VOCABULARY)
        integer("d_e", self.d_e, 1, MAX_WIDTH)

    @property
    def target_size(self) -> int:
        return self.vocabulary if self.target_vocabulary is None else self.target_vocabulary

    @property
    def max_positions(self) -> int | None:
        """The number of positions of a model; None if there is no limit."""
        return None

    def with_vocabulary(self: _Config, vocabulary: int, target_vocabulary: int | None = None) -> _Config:
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
    initialisation                  how new weights are drawn (`attnworks.models.initialisation`)
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
    initialisation: Initialisation = "glorot"

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("d_ff", self.d_ff, 1, MAX_WIDTH)
        integer("encoder_layers", self.encoder_layers, 0, MAX_LAYERS)
        integer("decoder_layers", self.decoder_layers, 0, MAX_LAYERS)
        integer("max_length", self.max_length, 1, MAX_VOCABULARY)
        object.__setattr__(self, "slots", dict(self.slots))
        number("dropout", self.dropout, 0.0, 1.0)
        number("norm_eps", self.norm_eps, 0.0, 1.0)
        number("position_base", self.position_base, 1.0)
        choice("norm", self.norm, get_args(NormOrder))
        choice("norm_kind", self.norm_kind, get_args(NormKind))
        choice("positions", self.positions, get_args(PositionKind))
        choice("tie", self.tie, get_args(Tying))
        choice("initialisation", self.initialisation, get_args(Initialisation))
        if self.encoder_layers + self.decoder_layers == 0:
            raise UsageError("a transformer", "at least one layer", "none", "set encoder_layers or decoder_layers to 1")
        if self.tie == "all" and self.target_size != self.vocabulary:
            sizes = f"{self.vocabulary} and {self.target_size}"
            raise UsageError('tie="all"', "one vocabulary", sizes, 'tie="target" allows two')
        if self.positions == "sinusoid" and self.d_e % 2:
            raise UsageError("sinusoidal positions", "an even d_e", f"d_e={self.d_e}", "sines and cosines are in pairs")
        known = [str(slot) for slot in self.slot_names()]
        for name in self.slots:
            if name not in known:
                remedy = "name slots enc.L, dec.L or cross.L with layers from zero"
                raise UsageError(f"attention slot {name!r}", f"one of {', '.join(known)}", "an unknown slot", remedy)
        for slot in self.slot_names():
            for spec, _ in self.slot(slot).mechanism_groups():
                check_serves(spec, slot)

    def with_mechanism(self, mechanism: str | tuple[str, ...]) -> TransformerConfig:
        """This mechanism, or one per head, in all layers where it is defined; other layers stay as they are."""
        specs = [MechanismSpec.parse(text) for text in ((mechanism,) if isinstance(mechanism, str) else mechanism)]
        slots = {
            str(slot): replace(self.slot(slot), mechanism=mechanism)
            if all(spec.serves(slot.kind) for spec in specs)
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
    def max_positions(self) -> int | None:
        return self.max_length if self.positions == "learned" else None

    def slot_names(self) -> tuple[Slot, ...]:
        """Every attention layer, in the order of a forward pass."""
        kinds: tuple[Kind, ...] = ("decoder", "cross") if self.encoder_layers else ("decoder",)
        encoder = tuple(Slot("encoder", layer) for layer in range(self.encoder_layers))
        return encoder + tuple(Slot(kind, layer) for layer in range(self.decoder_layers) for kind in kinds)

    def slot(self, slot: Slot) -> AttentionConfig:
        return self.slots.get(str(slot), self.attention)


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(TokenConfig):
    """A recurrent encoder-decoder; without `mechanism` the decoder gets only the last encoder state."""

    kind: ClassVar[str] = "recurrent"

    d_h: int
    layers: int = 1
    cell: CellKind = "lstm"
    mechanism: str | None = None
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("d_h", self.d_h, 1, MAX_WIDTH)
        integer("layers", self.layers, 1, MAX_LAYERS)
        number("dropout", self.dropout, 0.0, 1.0)
        choice("cell", self.cell, get_args(CellKind))
        if self.mechanism is not None:
            check_serves(MechanismSpec.parse(self.mechanism), Slot("cross", 0))


@dataclass(frozen=True, kw_only=True)
class PureConfig:
    """Attention layers on vectors, with skip, MLP and norm each on or off: the networks of the rank theorems."""

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
        integer("d_e", self.d_e, 1, MAX_WIDTH)
        integer("layers", self.layers, 1, MAX_LAYERS)
        integer("d_ff", self.hidden, 1, MAX_WIDTH)
        number("norm_eps", self.norm_eps, 0.0, 1.0)
        choice("norm_kind", self.norm_kind, get_args(NormKind))

    @property
    def hidden(self) -> int:
        return 4 * self.d_e if self.d_ff is None else self.d_ff


def check_serves(spec: MechanismSpec, slot: Slot) -> None:
    if not spec.serves(slot.kind):
        expected = f"a mechanism that {'takes queries of another sequence' if slot.crosses else 'can be causal'}"
        remedy = "choose dense, luong-dot or linear there; TransformerConfig.with_mechanism(...) leaves such layers out"
        raise UsageError(f"{spec.name} attention in {slot}", expected, spec.name, remedy)


ModelConfig = TransformerConfig | RecurrentConfig | PureConfig


_CONFIGS: dict[str, type[ModelConfig]] = {config.kind: config for config in typing.get_args(ModelConfig)}


def config_to_json(config: ModelConfig) -> dict[str, Any]:
    """A plain dictionary that `config_from_json` turns back into an equal config."""
    return {"kind": config.kind, **dataclasses.asdict(config)}


def config_from_json(data: object) -> ModelConfig:
    """The config that a JSON document describes."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        kinds = f"known are {', '.join(sorted(_CONFIGS))}"
        raise UsageError("a model config", 'a JSON object with "kind"', shown_value(data), kinds)
    choice("model kind", data["kind"], _CONFIGS)
    fields = {key: value for key, value in data.items() if key != "kind"}
    try:
        return parse(_CONFIGS[data["kind"]], fields, "config")
    except UnknownNameError as error:
        if not error.asked.startswith("mechanism "):
            raise
        remedy = f"{error.remedy} For one of a plug-in, name its module: attnworks --plugin MODULE, or import it"
        raise UnknownNameError(error.asked, error.expected, error.got, remedy) from None
