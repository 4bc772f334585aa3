"""Every mechanism in the layers where it is defined, and a second set of projections for global tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attnworks
from attnworks.attention import MECHANISMS, Mask
from attnworks.attention.dense import Dense
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.models import AttentionConfig, RecurrentConfig, TransformerConfig
from attnworks.models.counting import count_parameters
from attnworks.models.decoding import greedy
from attnworks.models.folder import load_model, save_model
from attnworks.models.multihead import MultiHead
from tests.helpers import assert_close

SMALL = {
    "bigbird": "bigbird:window=2,block=2,n_global=1,n_random=1",
    "linformer": "linformer:rank=3,length=20",
    "longformer": "longformer:window=2,n_global=2",
    "sketched": "sketched:rank=3,seed=1",
    "truncated": "truncated:rank=2",
    "window": "window:window=2",
}


def config(mechanism: str = "dense", **changes: object) -> TransformerConfig:
    attention = AttentionConfig(heads=2, d_k=5, d_v=7)
    plain = TransformerConfig(
        vocabulary=23, d_e=12, d_ff=17, attention=attention, encoder_layers=2, decoder_layers=2, dropout=0.0,
        **changes,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    return plain.with_mechanism(mechanism)


@pytest.mark.parametrize("name", tuple(MECHANISMS))
def test_every_mechanism_learns_in_a_transformer(name: str) -> None:
    spec = SMALL.get(name, name)
    model = attnworks.build(config(spec), seed=3)
    used = {slot: model.config.slot(slot).mechanism for slot in model.config.slot_names()}
    assert used[Slot.parse("enc.0")] == used[Slot.parse("enc.1")] == spec
    source, target = torch.randint(0, 23, (3, 11)), torch.randint(0, 23, (3, 7))
    model(source, target).square().mean().backward()
    for label, parameter in model.named_parameters():
        felt = parameter.grad is not None and parameter.grad.isfinite().all()
        assert felt or not parameter.numel(), label  # heads that go by position have no queries and keys


def test_layers_without_a_definition_stay_as_they_are() -> None:
    window, linformer = config("window:window=2"), config("linformer")
    assert (
        window.slot(Slot.parse("dec.1")).mechanism == "window:window=2"
        and window.slot(Slot.parse("cross.0")).mechanism == "dense"
    )
    assert (
        linformer.slot(Slot.parse("dec.0")).mechanism == "dense"
        and linformer.slot(Slot.parse("cross.1")).mechanism == "linformer"
    )
    assert config("linear").slots == {} and config("linear").attention.mechanism == "linear"
    again = window.with_mechanism("dense")
    assert again.slots == {} and again == config()


def test_heads_of_several_kinds_where_all_are_defined() -> None:
    mixed = config().with_mechanism(("window:window=2", "dense"))
    assert (
        mixed.slot(Slot.parse("dec.0")).mechanism == ("window:window=2", "dense")
        and mixed.slot(Slot.parse("cross.0")).mechanism == "dense"
    )


@pytest.mark.parametrize(
    ("mechanism", "slot", "message"),
    [
        (
            "window",
            "cross.0",
            "window attention in cross.0: expected a mechanism that takes queries of another sequence",
        ),
        ("linformer", "dec.1", "linformer attention in dec.1: expected a mechanism that can be causal"),
    ],
)
def test_a_mechanism_in_the_wrong_layer_is_refused_at_once(mechanism: str, slot: str, message: str) -> None:
    wrong = AttentionConfig(heads=2, d_k=5, d_v=7, mechanism=mechanism)
    with pytest.raises(UsageError, match=message):
        config(slots={slot: wrong})


def test_a_recurrent_model_attends_across() -> None:
    with pytest.raises(UsageError, match="window attention in cross"):
        RecurrentConfig(vocabulary=23, d_e=12, d_h=12, mechanism="window")


@pytest.mark.parametrize("spec", ["window:window=2", SMALL["bigbird"], "linear", "longformer:window=1,n_global=2"])
def test_decoding_step_by_step_is_one_pass(spec: str) -> None:
    model = attnworks.build(config(spec), seed=3).double().eval()
    source = torch.randint(1, 23, (3, 11))
    state = model.start(source)
    written = torch.randint(1, 23, (3, 9))
    whole = model(source, written)
    for position in range(9):
        scores, state = model.step(written[:, position, None], state)
        assert_close(scores[:, 0], whole[:, position])
    assert greedy(model, source, bos=1, eos=2, max_new_tokens=5)


# --- projections for global tokens ------------------------------------------------------------------------------------


def test_encoder_layers_of_a_longformer_project_twice() -> None:
    model = attnworks.build(config("longformer:window=2"), seed=3)
    layers = {str(layer.slot): layer for layer in model.modules() if isinstance(layer, MultiHead)}
    assert [slot for slot, layer in layers.items() if layer.has_global_projections] == ["enc.0", "enc.1"]
    more = sum(count_parameters(config("longformer:window=2")).values()) - sum(count_parameters(config()).values())
    assert more == 2 * (2 * (5 + 5 + 7) * 12 + 2 * (5 + 5 + 7))


def test_only_global_tokens_look_through_the_second_projections() -> None:
    torch.manual_seed(5)
    layer = MultiHead(12, AttentionConfig(heads=2, d_k=5, d_v=7, mechanism="longformer:window=1,n_global=2")).double()
    X = torch.randn(3, 11, 12, dtype=torch.float64)
    before = layer(X)
    with torch.no_grad():
        for W in (layer.W_Qg, layer.W_Kg, layer.W_Vg):
            W += torch.randn_like(W)
    after = layer(X)
    assert torch.equal(before[:, 2:], after[:, 2:]) and (before[:, :2] - after[:, :2]).abs().min() > 1e-6
    Y = Dense()(*layer.project_global(X), Mask()).Y
    assert_close(after[:, :2], layer.output(Y)[:, :2])


def test_heads_of_several_kinds_share_the_second_projections() -> None:
    torch.manual_seed(5)
    kinds = ("dense", "longformer:window=1,n_global=2", "window:window=1")
    layer = MultiHead(12, AttentionConfig(heads=3, d_k=5, d_v=7, mechanism=kinds)).double()
    X = torch.randn(3, 11, 12, dtype=torch.float64)
    seen = []
    layer(X, observe=lambda observation: seen.append(observation))
    (observation,) = seen
    P = observation.P
    again = Dense()(*layer.project_global(X), weights=True).P
    assert again is not None
    assert_close(P[:, 1, :2], again[:, 1, :2])
    assert_close(P[:, 1, :2] @ layer.project_global(X)[2][:, 1], observation.Y[:, 1, :2])


def test_a_longformer_is_saved_whole(tmp_path: Path) -> None:
    model = attnworks.build(config("longformer:window=2,n_global=1"), seed=3)
    save_model(model, tmp_path / "model")
    again = load_model(tmp_path / "model")
    source, target = torch.randint(0, 23, (3, 11)), torch.randint(0, 23, (3, 7))
    assert torch.equal(model.eval()(source, target), again.eval()(source, target))
