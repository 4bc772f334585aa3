"""Configs: what is refused and in which words, names of slots, and the way to JSON and back."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnworks.attention import MechanismSpec, names
from attnworks.core.errors import AttnworksError, UnknownNameError, UsageError
from attnworks.core.places import Slot
from attnworks.models import PRESETS, AttentionConfig, ModelConfig, PureConfig, RecurrentConfig, TransformerConfig
from attnworks.models.build import skeleton
from attnworks.models.config import MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH, config_from_json, config_to_json
from tests.helpers import unchecked
from tests.model_helpers import attention_config, pure_config, recurrent_config, transformer_config

# Validation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "low", "high"),
    [
        ("vocabulary", 0, 1, MAX_VOCABULARY),
        ("vocabulary", MAX_VOCABULARY + 1, 1, MAX_VOCABULARY),
        ("target_vocabulary", 0, 1, MAX_VOCABULARY),
        ("d_e", -2, 1, MAX_WIDTH),
        ("d_e", MAX_WIDTH + 2, 1, MAX_WIDTH),
        ("d_ff", 0, 1, MAX_WIDTH),
        ("encoder_layers", -1, 0, MAX_LAYERS),
        ("decoder_layers", MAX_LAYERS + 1, 0, MAX_LAYERS),
        ("max_length", 0, 1, MAX_VOCABULARY),
        ("dropout", -0.1, 0, 1),
        ("dropout", 1.5, 0, 1),
        ("dropout", float("nan"), 0, 1),
        ("norm_eps", -1e-5, 0, 1),
        ("norm_eps", float("nan"), 0, 1),
        ("position_base", 0.5, 1, 1e30),
        ("position_base", float("inf"), 1, 1e30),
    ],
)
def test_transformer_sizes(field: str, value: float, low: float, high: float) -> None:
    with pytest.raises(UsageError) as caught:
        transformer_config(**{field: value})
    kind = "a whole number" if isinstance(value, int) else "a number"
    end = "" if high == 1e30 else f" to {high:,}"
    assert str(caught.value) == (
        f"{field}={value}: expected {kind} from {low:,}{end}, got {value}; choose a value in that range"
    )


@pytest.mark.parametrize("field", ["heads", "d_k", "d_v"])
@pytest.mark.parametrize("value", [0, -1, MAX_WIDTH + 1])
def test_attention_sizes(field: str, value: int) -> None:
    least = 0 if field == "heads" else 1
    if value == least:
        assert attention_config(heads=0).geometry.heads == 0
        return
    with pytest.raises(UsageError, match=f"^{field}={value}: .* a whole number from {least} to {MAX_WIDTH:,}"):
        attention_config(**{field: value})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_attention_scale_is_finite(value: float) -> None:
    assert attention_config(scale=-0.5).scale == -0.5
    with pytest.raises(UsageError, match=r"^scale="):
        attention_config(scale=value)


@pytest.mark.parametrize("field", ["vocabulary", "target_vocabulary", "d_e", "d_h", "layers"])
def test_recurrent_sizes(field: str) -> None:
    with pytest.raises(UsageError, match=f"^{field}=0: "):
        recurrent_config(**{field: 0})


@pytest.mark.parametrize("field", ["d_e", "d_ff", "layers"])
def test_pure_sizes(field: str) -> None:
    with pytest.raises(UsageError, match=f"^{field}=0: "):
        pure_config(**{field: 0})


@pytest.mark.parametrize(
    ("config", "field", "wrong"),
    [
        (transformer_config, "norm", "sandwich"),
        (transformer_config, "norm_kind", "rms"),
        (transformer_config, "positions", "sinusoidal"),
        (transformer_config, "tie", "both"),
        (recurrent_config, "cell", "rnn"),
        (pure_config, "norm_kind", "rms"),
    ],
)
def test_a_misspelt_choice_is_refused(config: Any, field: str, wrong: str) -> None:
    """A word that is no choice must not fall through to the last branch of some `if`."""
    with unchecked(), pytest.raises(UnknownNameError, match=f"^{field} '{wrong}': expected one of "):
        config(**{field: wrong})


def test_no_layers_at_all() -> None:
    with pytest.raises(UsageError) as caught:
        transformer_config(encoder_layers=0, decoder_layers=0)
    assert str(caught.value) == (
        "a transformer: expected at least one layer, got none; set encoder_layers or decoder_layers to 1"
    )


def test_tying_all_needs_one_vocabulary() -> None:
    with pytest.raises(UsageError) as caught:
        transformer_config(tie="all")
    assert str(caught.value) == ('tie="all": expected one vocabulary, got 17 and 19; tie="target" allows two')


def test_sinusoids_need_an_even_width() -> None:
    with pytest.raises(UsageError, match=r"an even d_e, got d_e=13; sines and cosines"):
        transformer_config(d_e=13)
    assert transformer_config(d_e=13, positions="index").d_e == 13


@pytest.mark.parametrize("slot", ["enc.2", "dec.-1", "cross.5", "enc", "", "Enc.0"])
def test_unknown_slots(slot: str) -> None:
    with pytest.raises(UsageError) as caught:
        transformer_config(slots={slot: attention_config()})
    assert str(caught.value) == (
        f"attention slot {slot!r}: expected one of enc.0, enc.1, dec.0, cross.0, dec.1, cross.1, "
        "got an unknown slot; name slots enc.L, dec.L or cross.L with layers from zero"
    )


def test_as_many_mechanisms_as_heads() -> None:
    with pytest.raises(UsageError) as caught:
        attention_config(mechanism=("dense", "luong-dot"))
    assert str(caught.value) == (
        "a mechanism for each head: expected 3 mechanisms, got 2; give one for all heads, or as many as there are heads"
    )


@pytest.mark.parametrize("mechanism", ["dens", ("dense", "dens", "dense")])
def test_unknown_mechanism_suggests_the_closest(mechanism: str | tuple[str, ...]) -> None:
    with pytest.raises(UnknownNameError, match=r"mechanism 'dens'.* did you mean 'dense'\?"):
        attention_config(mechanism=mechanism)
    with pytest.raises(UnknownNameError, match="did you mean 'luong-dot'"):
        recurrent_config(mechanism="luong-do")


def test_positions_that_are_learned_limit_the_length() -> None:
    assert transformer_config().max_positions is None and recurrent_config().max_positions is None
    assert transformer_config(positions="learned", max_length=23).max_positions == 23


def test_slot_names() -> None:
    assert transformer_config().slot_names() == tuple(
        map(Slot.parse, ("enc.0", "enc.1", "dec.0", "cross.0", "dec.1", "cross.1"))
    )
    assert transformer_config(decoder_layers=0).slot_names() == (Slot("encoder", 0), Slot("encoder", 1))
    assert transformer_config(encoder_layers=0).slot_names() == (Slot("decoder", 0), Slot("decoder", 1))


def test_slots_and_defaults() -> None:
    special = attention_config(heads=1)
    config = transformer_config(slots={"dec.1": special}, target_vocabulary=None)
    assert config.slot(Slot.parse("dec.1")) is special and config.slot(Slot.parse("dec.0")) is config.attention
    assert config.target_size == config.vocabulary
    assert config.with_vocabulary(31, 37).target_size == 37 and config.with_vocabulary(31).target_size == 31
    assert pure_config(d_ff=None).hidden == 4 * 7


def test_mechanism_groups_keep_the_order_of_heads() -> None:
    config = attention_config(
        heads=5, mechanism=("luong-dot", "dense", "luong-dot", "bahdanau-additive:d_a=7", "dense")
    )
    groups = [(str(spec), heads) for spec, heads in config.mechanism_groups()]
    assert groups == [("luong-dot", (0, 2)), ("dense", (1, 4)), ("bahdanau-additive:d_a=7", (3,))]


# To JSON and back ----------------------------------------------------------------------------------------------------


def there_and_back(config: ModelConfig) -> ModelConfig:
    return config_from_json(json.loads(json.dumps(config_to_json(config))))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_round_trip_of_presets(name: str) -> None:
    assert there_and_back(PRESETS[name]) == PRESETS[name]


SIZE = st.integers(1, 64)
FLOAT = st.floats(0.0, 1.0)


@st.composite
def attentions(draw: st.DrawFn) -> AttentionConfig:
    heads = draw(st.integers(1, 5))
    everywhere = [name for name in names() if all(MechanismSpec(name).serves(kind) for kind in ("decoder", "cross"))]
    name = st.sampled_from([*everywhere, "bahdanau-additive:d_a=7"])
    mechanism = draw(name | st.tuples(*[name] * heads))
    scale = draw(st.none() | st.floats(-10, 10))
    return AttentionConfig(
        heads=heads, d_k=draw(SIZE), d_v=draw(SIZE), bias=draw(st.booleans()), mechanism=mechanism, scale=scale
    )


@st.composite
def transformers(draw: st.DrawFn) -> TransformerConfig:
    layers = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any))
    config = TransformerConfig(
        vocabulary=draw(SIZE),
        d_e=2 * draw(SIZE),
        d_ff=draw(SIZE),
        attention=draw(attentions()),
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        norm=draw(st.sampled_from(["post", "pre"])),
        norm_kind=draw(st.sampled_from(["standard", "documented"])),
        norm_eps=draw(FLOAT),
        final_norm=draw(st.none() | st.booleans()),
        positions=draw(st.sampled_from(["sinusoid", "index", "normalised-index", "learned", "none"])),
        position_base=draw(st.floats(1.0, 1e6)),
        max_length=draw(SIZE),
        tie=draw(st.sampled_from(["none", "target", "all"])),
        output_bias=draw(st.booleans()),
        dropout=draw(FLOAT),
    )
    slots = draw(st.dictionaries(st.sampled_from([*map(str, config.slot_names())]), attentions(), max_size=3))
    target = draw(st.none() | SIZE) if config.tie != "all" else None
    return replace(config, slots=slots, target_vocabulary=target)


RECURRENTS = st.builds(
    RecurrentConfig,
    vocabulary=SIZE,
    d_e=SIZE,
    d_h=SIZE,
    target_vocabulary=st.none() | SIZE,
    layers=st.integers(1, 3),
    cell=st.sampled_from(["lstm", "gru"]),
    mechanism=st.none() | st.sampled_from(["luong-dot", "luong-multiplicative", "bahdanau-additive:d_a=3"]),
    dropout=FLOAT,
)
PURES = st.builds(
    PureConfig,
    d_e=SIZE,
    layers=st.integers(1, 3),
    attention=attentions(),
    skip=st.booleans(),
    mlp=st.booleans(),
    norm=st.booleans(),
    d_ff=st.none() | SIZE,
    norm_kind=st.sampled_from(["standard", "documented"]),
    norm_eps=FLOAT,
)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")  # the type checker does
@given(transformers() | RECURRENTS | PURES)
def test_round_trip_of_any_config(config: ModelConfig) -> None:
    again = there_and_back(config)
    assert again == config and type(again) is type(config)
    assert {n: p.shape for n, p in skeleton(again).named_parameters()} == {
        n: p.shape for n, p in skeleton(config).named_parameters()
    }


def plain(**changes: Any) -> dict[str, Any]:
    """A transformer as JSON, with some keys changed."""
    return json.loads(json.dumps(config_to_json(transformer_config(slots={"enc.1": attention_config()})))) | changes


def test_keys_with_defaults_may_be_left_out() -> None:
    config = config_from_json({"kind": "recurrent", "vocabulary": 5, "d_e": 7, "d_h": 11})
    assert config == RecurrentConfig(vocabulary=5, d_e=7, d_h=11)


def test_whole_numbers_serve_as_floats() -> None:
    config = config_from_json(plain(dropout=0))
    assert isinstance(config, TransformerConfig) and config.dropout == 0.0 and type(config.dropout) is float


REFUSED: list[tuple[Any, str]] = [
    (None, "a model config: expected a JSON object with \"kind\", got NoneType None; known are"),
    ([], "a model config: expected a JSON object with \"kind\", got list []"),
    ({"vocabulary": 3}, "got dict {'vocabulary': 3}; known are pure, recurrent, transformer"),
    ({"kind": 3}, "got dict {'kind': 3}"),
    ({"kind": "transfomer"}, "model kind 'transfomer': expected one of pure, recurrent, transformer, got an unknown"),
    ({"kind": "transfomer"}, "did you mean 'transformer'?"),
    ({"kind": "pure"}, "config.d_e: expected int, got nothing; add the key"),
    (plain(d_model=3), "key of config 'd_model': expected one of attention, d_e,"),
    (plain(vocabularies=3), "did you mean 'vocabulary'?"),
    (plain(d_e="14"), "config.d_e: expected int, got str '14'; correct that key"),
    (plain(d_e=14.0), "config.d_e: expected int, got float 14.0"),
    (plain(d_e=True), "config.d_e: expected int, got bool True"),
    (plain(d_e=None), "config.d_e: expected int, got NoneType None"),
    (plain(dropout=True), "config.dropout: expected float, got bool True"),
    (plain(dropout=10**400), "config.dropout: expected float, got int 1000"),
    (plain(output_bias=1), "config.output_bias: expected bool, got int 1"),
    (plain(target_vocabulary=True), "config.target_vocabulary: expected int | None, got bool True"),
    (plain(norm="Post"), "config.norm: expected one of 'post', 'pre', got str 'Post'"),
    (plain(norm=["post"]), "config.norm: expected one of 'post', 'pre', got list ['post']"),
    (plain(attention=3), "config.attention: expected AttentionConfig, got int 3"),
    (plain(attention={"heads": 3, "d_k": 5}), "attention.d_v: expected int | tuple[int, ...], got nothing; add"),
    (plain(attention={"heads": 3, "d_k": 5, "dv": 2}), "key of config.attention 'dv': expected one of"),
    (plain(attention={"heads": 1, "d_k": 5, "d_v": 2, "mechanism": [1]}), "mechanism: expected str | tuple[str, ...]"),
    (
        plain(attention={"heads": 1, "d_k": 5, "d_v": 2, "mechanism": "near"}),
        "For one of a plug-in, name its module: attnworks --plugin MODULE, or import it",
    ),
    (plain(slots=[]), "config.slots: expected dict[str, "),
    (plain(slots={"enc.0": 3}), "config.slots.enc.0: expected AttentionConfig, got int 3"),
    (plain(slots={"enc.0": {"heads": "3", "d_k": 5, "d_v": 2}}), "config.slots.enc.0.heads: expected int, got str '3'"),
    (plain(slots={"enc.7": {"heads": 3, "d_k": 5, "d_v": 2}}), "attention slot 'enc.7': expected one of enc.0"),
    (plain(d_e="x" * 10_000), "got str 'xxxx"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "text"), REFUSED, ids=range(len(REFUSED)))
def test_wrong_json_says_where_and_what(data: Any, text: str) -> None:
    with pytest.raises(AttnworksError) as caught:
        config_from_json(data)
    message = str(caught.value)
    assert text in message and "\n" not in message and len(message) < 600


@pytest.mark.parametrize(
    "changes",
    [
        {"vocabulary": 10**30},
        {"d_e": 2**62},
        {"encoder_layers": 10**9},
        {"max_length": 10**12, "positions": "learned"},
        {"attention": {"heads": 10**12, "d_k": 5, "d_v": 2}},
        {"slots": {"enc.0": {"heads": 3, "d_k": 10**15, "d_v": 2}}},
    ],
    ids=str,
)
def test_absurd_sizes_are_refused_without_memory(changes: dict[str, Any]) -> None:
    data = plain(**changes)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="expected a whole number from"):
            config_from_json(data)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
