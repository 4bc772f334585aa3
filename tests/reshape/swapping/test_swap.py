"""Swapping mechanisms: errors are those of the swapped layers, and what is chosen keeps within the bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnworks.attention import Geometry, MechanismSpec
from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.core.json_records import parse
from attnworks.core.places import HeadId, Slot
from attnworks.hf.anatomy import hf_layers
from attnworks.hf.subject import HFSubject
from attnworks.hf.tiny import tiny_model
from attnworks.hf.tiny_text import tiny_tokenizer as tiny_tokenizer_of
from attnworks.models import AttentionConfig
from attnworks.models.folder import weights_fingerprint
from attnworks.models.modes import inference_mode
from attnworks.reshape.contract import RESHAPES, ReshapeContext
from attnworks.reshape.long_texts import TrialText, join, joined
from attnworks.reshape.run import ReshapeSettings, run_reshape, text_loss_on
from attnworks.reshape.surgery import attention_groups, attention_parts, mechanisms_of, with_mechanisms
from attnworks.reshape.swapping import advice as advice_module
from attnworks.reshape.swapping import trials as trials_module
from attnworks.reshape.swapping.advice import default_candidates, find_advice, swapped
from attnworks.reshape.swapping.swap import Swap, heads_of_layers
from attnworks.reshape.swapping.trials import (
    PRESENT,
    Present,
    SwapTrial,
    SwapTrialHook,
    Timed,
    swap_layers,
    try_mechanisms,
)
from attnworks.text.passages import Passage, Text
from attnworks.text.tokens import TokenRow
from attnworks.traces.layer import first
from attnworks.training.objectives import choose_objective
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.helpers import unchecked
from tests.model_helpers import the
from tests.reshape.reshape_helpers import PASSAGES, context_of, heads_of, load, model_of, save, subject_of, texts
from tests.tiny_models import TINY
from tests.traces.trace_helpers import Keep, random_batch

NARROW, WIDE = "window:window=1", "window:window=64"
LINEAR, LINFORMER, BIGBIRD = "linear", "linformer:rank=3,length=37", "bigbird:window=1,block=1,n_global=1,n_random=1"
LENGTH = 9
FEW = texts(PASSAGES[:8])
NOTHING_SAVED = {
    "error": 0.0, "attention_time_ratio": 1.0, "attention_time_ratio_low": 1.0, "attention_time_ratio_high": 1.0,
}  # fmt: skip


def foreign_bench(name: str, **changes: Any) -> ReshapeContext:
    """A tiny model of Hugging Face, and lines of several lengths."""
    model = TINY[name].build(**changes)
    subject = HFSubject(model, name, tiny_tokenizer(name))
    pairs = [Passage(Text(line), Text(other)) for line, other in zip(LINES, LINES[::-1], strict=True)]
    objective = choose_objective(None, subject.abilities)
    return ReshapeContext(subject, text_loss_on(subject, objective, pairs, ReshapeSettings(batch_tokens=70)), LENGTH)


def everywhere(model: nn.Module, *specs: str) -> dict[Slot, dict[str, tuple[str, ...]]]:
    return {
        slot: {spec: (spec,) * len(now) for spec in specs} for slot, now in mechanisms_of(model, cross=True).items()
    }


def branch_outputs(context: ReshapeContext, model: nn.Module, slot: Slot) -> list[Tensor]:
    """What a layer adds to the stream for every real query, in all batches."""
    found: list[Tensor] = []
    subject: Any = context.subject
    handle = attention_parts(model, cross=True)[slot].branch.register_forward_hook(
        lambda module, given, output: found.append(first(output).detach().clone())
    )
    kept: list[Tensor] = []
    with inference_mode(model):
        for number in range(len(context.calibration.text.batches)):
            batch, _ = context.calibration.text.batch(number)
            subject.with_model(model).run(batch)
            real = batch.source.real if slot.kind == "encoder" or batch.target is None else batch.target.real
            kept.append(found.pop()[real])
    handle.remove()
    return kept


def true_error(context: ReshapeContext, slot: Slot, *specs: str) -> float:
    """The layer's output in a model with only this layer swapped, against that of before, the output bias aside."""
    now = mechanisms_of(context.model, cross=True)
    new = swapped(context.model, {slot: specs if len(specs) > 1 else specs * len(now[slot])})
    before, after = (torch.cat(branch_outputs(context, model, slot)) for model in (context.model, new))
    bias = the(attention_parts(context.model, cross=True)[slot].weights)().b_O
    whole = before if bias is None else before - bias
    return ((after - before).norm() / whole.norm()).item()


def timed(seconds: float) -> Timed:
    return Timed(seconds, (0.99 * seconds, 1.01 * seconds))


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds by mechanism, in the place of measured ones, known to one percent; what is there takes one second."""
    seconds: dict[str, float] = {}

    def told(tried: SwapTrialHook, *given: Any) -> dict[tuple[Slot, str], Timed]:
        del given
        known = {place: timed(seconds.get(place[1], 0.5)) for place in tried.groups}
        return known | {(slot, PRESENT): Timed(1.0, (1.0, 1.0)) for slot in tried.layers}

    monkeypatch.setattr(trials_module, "measure_times", told)
    return seconds


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [NARROW, "longformer:window=1", BIGBIRD, LINEAR, LINFORMER, "structured"])
def test_errors_are_those_of_the_swapped_layer(spec: str, times: dict[str, float]) -> None:
    """e = |(Y' - Y) W_O|_F / |Y W_O|_F: a layer adds Y W_O + b_O to the stream, and its input is the same in both."""
    context = context_of(subject_of(model_of(attention=AttentionConfig(heads=2, d_k=3, d_v=5, scale=0.7))), FEW)
    _, trials = try_mechanisms(context.calibration, everywhere(context.model, spec), LENGTH)
    assert [trial.slot for trial in trials] == ["enc.0", "enc.1", "dec.0", "cross.0", "dec.1", "cross.1"]
    for trial in trials:
        assert (trial.reason is None) == MechanismSpec.parse(spec).serves(Slot.parse(trial.slot).kind)
        if trial.error is not None:
            assert trial.error == pytest.approx(true_error(context, Slot.parse(trial.slot), spec), rel=1e-9, abs=1e-12)
        else:
            assert (trial.seconds, trial.flops) == (None, None)
    assert max(trial.error or 0.0 for trial in trials) > 1e-2


@pytest.mark.parametrize(
    ("name", "spec"), [("bert", LINFORMER), ("llama", NARROW), ("gpt2", LINEAR), ("bart", LINEAR), ("t5", NARROW)]
)
def test_errors_in_models_of_hugging_face(name: str, spec: str, times: dict[str, float]) -> None:
    """Keys that heads share (Llama), scales (GPT-2), padding and added positions (T5) are those of the model itself."""
    context = foreign_bench(name)
    _, trials = try_mechanisms(context.calibration, everywhere(context.model, spec), LENGTH)
    able = [trial for trial in trials if trial.error is not None]
    assert len(able) == sum(MechanismSpec.parse(spec).serves(Slot.parse(trial.slot).kind) for trial in trials) > 0
    for trial in able:
        assert trial.error == pytest.approx(true_error(context, Slot.parse(trial.slot), spec), rel=1e-9, abs=1e-12)
    assert max(trial.error or 0.0 for trial in trials) > 1e-2


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_next"])
def test_errors_without_known_weights(name: str) -> None:
    """Of what a linear output projection gives (latent keys), or of the outputs of heads that are gated before it."""
    tiny = tiny_model(name)
    subject = HFSubject(tiny.model, name, tiny_tokenizer_of(tiny.model))
    slot = next(iter(mechanisms_of(tiny.model)))
    by_head = (NARROW,) * len(mechanisms_of(tiny.model)[slot])
    layers = swap_layers(tiny.model)
    tried = SwapTrialHook(layers, {slot: {NARROW: by_head}}, next(tiny.model.parameters()))
    batch = random_batch((9, 5))
    seen: list[list[Tensor]] = []
    with inference_mode(tiny.model):
        subject.run(batch, tried)
        for model in (tiny.model, swapped(tiny.model, {slot: by_head})):
            seen.append([])
            output = the(attention_parts(model)[slot].output)
            hook = output.register_forward_hook(lambda module, given, result: seen[-1].extend([given[0], result]))  # pyright: ignore[reportArgumentType]
            keep = Keep()
            subject.with_model(model).run(batch, keep)
            hook.remove()
            Y = next(trace.Y for trace in keep.traces if trace.slot == slot).transpose(1, 2)
            gated = "gate" in hf_layers(model)[slot].place()[1].problems
            assert gated == (name == "qwen3_next") == (layers[slot].W_O is None)
            seen[-1] = [(Y if gated else seen[-1][1])[batch.source.real]]
    (before,), (after,) = seen
    assert tried.errors()[slot, NARROW] == pytest.approx(((after - before).norm() / before.norm()).item(), rel=1e-6)


def test_reasons() -> None:
    context = foreign_bench("t5")
    _, trials = try_mechanisms(context.calibration, everywhere(context.model, LINEAR, NARROW, LINFORMER), LENGTH)
    told = {(trial.slot, trial.spec): trial.reason for trial in trials}
    assert told["enc.0", LINEAR] == "has no scores that positions could be added to, as the model does"
    assert told["cross.0", LINEAR] is None and told["enc.0", NARROW] is None
    assert told["cross.0", NARROW] == "is not defined from one sequence to another"
    assert told["dec.0", LINFORMER] == "has no causal form"


def test_more_reasons() -> None:
    form = "structured:members=-1,error=none"
    model = model_of(slots={"enc.0": heads_of("dense", form)})
    context = context_of(subject_of(model), FEW)
    wanted = {Slot.parse("enc.0"): {NARROW: (NARROW,) * 2, "half": (NARROW, form)}, Slot.parse("enc.1"): {}}
    wanted[Slot.parse("enc.1")] = {
        name: (name,) * 2 for name in ("linformer:length=3", "linformer:length=30", "window:window=1")
    }
    _, trials = try_mechanisms(context.calibration, wanted, 41)
    told = {(trial.slot, trial.spec): trial.reason for trial in trials}
    assert told["enc.0", NARROW] == "needs queries and keys, which heads of the layer have lost"
    assert told["enc.0", "half"] is None and told["enc.1", NARROW] is None
    assert str(told["enc.1", "linformer:length=3"]).startswith("expects at most 3, the length")
    assert str(told["enc.1", "linformer:length=30"]).endswith("got 41"), "the text is shorter"


def test_a_layer_with_a_window(times: dict[str, float]) -> None:
    """A mechanism keeps to it, if it can obey a table of keys."""
    context = foreign_bench("mistral", sliding_window=3)
    _, trials = try_mechanisms(context.calibration, everywhere(context.model, NARROW, LINEAR, BIGBIRD), LENGTH)
    told = {(trial.slot, trial.spec): trial for trial in trials}
    assert told["dec.1", NARROW].error == pytest.approx(true_error(context, Slot.parse("dec.1"), NARROW), rel=1e-9)
    assert told["dec.1", LINEAR].reason == "cannot keep to the window of 3 tokens that the layer has"
    assert (
        told["dec.1", BIGBIRD].reason == "counts positions from the first one, which the layer forgets after 3 tokens"
    )


def test_heads_of_unequal_widths(times: dict[str, float]) -> None:
    model = model_of(attention=AttentionConfig(heads=2, d_k=(3, 7), d_v=5))
    context = context_of(subject_of(model), FEW)
    _, trials = try_mechanisms(context.calibration, everywhere(model, LINEAR, NARROW), LENGTH)
    told = {(trial.slot, trial.spec): trial for trial in trials}
    assert "columns of zeros" in str(told["enc.0", LINEAR].reason)
    assert told["enc.0", NARROW].error == pytest.approx(true_error(context, Slot.parse("enc.0"), NARROW), rel=1e-9)


# Times and FLOPs -----------------------------------------------------------------------------------------------------


def test_rows() -> None:
    context = context_of(subject_of(model_of()), FEW)
    present, trials = try_mechanisms(context.calibration, everywhere(context.model, NARROW, LINEAR), 23)
    assert [layer.slot for layer in present] == [*map(str, mechanisms_of(context.model, cross=True))]
    seconds = {(trial.slot, trial.spec): trial.seconds for trial in trials}
    assert seconds["enc.0", LINEAR] == seconds["enc.1", LINEAR] == seconds["cross.1", LINEAR], "timed once"
    assert seconds["dec.0", NARROW] == seconds["dec.1", NARROW] != seconds["enc.0", NARROW], "causal ones apart"
    assert all(layer.seconds > 0 and layer.by_head == ("dense", "dense") for layer in present)
    geometry = Geometry(2, 3, 5)
    for trial in trials:
        if trial.reason is None:
            built, causal = MechanismSpec.parse(trial.spec).build(geometry), trial.slot.startswith("dec")
            assert trial.flops == built.cost(23, 23, geometry, causal=causal).flops
            assert the(trial.seconds) > 0


def test_the_flops_of_heads_that_differ() -> None:
    model = model_of(slots={"enc.0": heads_of("dense", NARROW)})
    layer = swap_layers(model)[Slot.parse("enc.0")]
    one = Geometry(1, 3, 5)
    each = (MechanismSpec.parse(spec).build(one).cost(7, 7, one).flops for spec in ("dense", NARROW))
    assert layer.flops(layer.present(), 7) == sum(each)


def test_candidates_that_could_pay() -> None:
    layers = swap_layers(model_of(attention=AttentionConfig(heads=2, d_k=8, d_v=8)))
    short, long = default_candidates(layers, 100), default_candidates(layers, 600, longest=700)
    assert [spec for spec in short if spec.startswith("window")] == ["window:window=32"]
    assert [spec for spec in long if spec.startswith("window")] == [f"window:window={w}" for w in (32, 64, 128, 256)]
    assert "bigbird:window=64,block=64" in long and not any(spec.startswith("bigbird") for spec in short)
    assert "linformer:length=700" in long and {"linear", "longformer"} <= {*long}
    assert not {"dense", "graph", "luong-dot", "truncated", "sketched", "window"} & {*short, *long}


# Long texts ----------------------------------------------------------------------------------------------------------


def row(*ids: int) -> TokenRow:
    """Zero opens and closes."""
    words = [place - 1 if token else -1 for place, token in enumerate(ids)]
    return TokenRow(ids, tuple(token == 0 for token in ids), tuple(words))


def test_joined_rows() -> None:
    long = join([row(0, 5, 7, 0), row(0, 3, 0), row(0, 8, 9, 0)])
    assert long.ids == (0, 5, 7, 3, 8, 9, 0)
    assert long.special == (True, *(False,) * 5, True) and long.word == (-1, 0, 1, 2, 3, 4, -1)
    assert join([row(0, 5, 7, 0)]) == row(0, 5, 7, 0)


def test_joined_texts() -> None:
    text = context_of(subject_of(model_of())).calibration.text
    long = joined(text, 31)
    for rows, before in zip(long.sides, text.sides, strict=True):
        assert [token for one in rows for token in one.text_ids] == [token for one in before for token in one.text_ids]
        assert all(len(one) <= 31 for one in rows)
    assert len(long.kept) == len(long.sides[1]) < len(text.kept) and long.batch(0)[0].source.ids.shape[0] == 1
    assert [len(one) for one in joined(text, 2).sides[0]] == [len(one) for one in text.sides[0]]


def test_texts_are_as_long_as_asked_or_as_the_model_has_positions() -> None:
    text_loss = context_of(subject_of(model_of())).calibration
    plain, long = TrialText.of(text_loss, LENGTH, LENGTH), TrialText.of(text_loss, LENGTH, 40)
    assert plain.long is None and not plain.notes and len(plain.losses(text_loss.original)) == 1
    assert 30 < long.longest <= 40 and long.long_enough and not long.notes
    assert long.losses(text_loss.original) == [text_loss.mean(), pytest.approx(the(long.long).mean())]
    too_long = TrialText.of(text_loss, LENGTH, 100_000)
    assert "there is no more text" in too_long.notes[0] and not too_long.long_enough
    learned = context_of(subject_of(model_of(positions="learned", max_length=29))).calibration
    cut = TrialText.of(learned, LENGTH, 100_000)
    assert cut.longest <= 29
    (told,) = cut.notes
    assert told.startswith("Times are for 100,000 positions") and told.endswith("the model has 29 positions.")


def test_a_window_shows_in_long_text_only(times: dict[str, float]) -> None:
    context = context_of(subject_of(model_of()))
    spec = "window:window=17"
    for length, low, high in ((None, 0.0, 1e-9), (90, 0.005, 10.0)):
        advice = find_advice(context, (spec,), length=length)
        errors = [trial.error for trial in advice.trials if trial.error is not None]
        assert len(errors) == 4 and all(low <= error <= high for error in errors)
    assert advice.length == 90 and 60 < advice.tried_at <= 90


# Auto ----------------------------------------------------------------------------------------------------------------

STEPS = {f"window:window={window}": 0.1 * window for window in (1, 2, 3, 5, 7)}


@pytest.mark.parametrize("max_error", [0.05, 0.2])
def test_the_cheapest_mix_within_the_bound(max_error: float, times: dict[str, float]) -> None:
    """All mixes of five windows in four layers are tried, with times that are told."""
    times.update(STEPS)
    context = context_of(subject_of(model_of()), FEW)
    advice = find_advice(context, [*STEPS], max_error=max_error)
    errors = {(trial.slot, trial.spec): trial.error for trial in advice.trials}
    squared = sum(the(errors[slot, spec]) ** 2 for slot, spec in advice.chosen.items())
    assert advice.error == pytest.approx(math.sqrt(squared / 6)) and advice.error <= max_error
    cost = sum(times[spec] for spec in advice.chosen.values()) + 6 - len(advice.chosen)
    assert advice.time_ratio == pytest.approx(cost / 6)
    assert advice.chosen and cost == pytest.approx(brute_force(errors, times, 6 * max_error**2))
    assert advice.rise <= max_error * advice.loss, "so that the first mix was taken"
    new = swapped(context.model, advice_module.whole_layers(context.model, advice.chosen))
    subject: Any = context.subject
    assert advice.rise == pytest.approx(context.calibration.mean(subject.with_model(new)) - advice.loss, abs=1e-12)


def brute_force(errors: Mapping[tuple[str, str], float | None], times: Mapping[str, float], bound: float) -> float:
    """The least seconds of all mixes whose squared errors are within the bound."""
    mixes = [(2.0, 0.0)]  # two layers of cross-attention stay as they are
    for slot in ("enc.0", "enc.1", "dec.0", "dec.1"):
        options = [(1.0, 0.0), *((times[spec], the(errors[slot, spec]) ** 2) for spec in STEPS)]
        mixes = [(cost + more, error + added) for cost, error in mixes for more, added in options]
    return min(cost for cost, error in mixes if error <= bound)


def trial(slot: str, spec: str, error: float) -> SwapTrial:
    """Ten times as fast as what is there."""
    return SwapTrial(slot, spec, error, 0.1, 1, time_interval=(0.09, 0.11))


@pytest.mark.parametrize("objective", ["seq2seq", "embedding"])
def test_a_small_error_of_attention_with_a_large_loss_is_dropped(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told are tiny errors of a mechanism that does much, and of one that does nothing on short text."""
    context = context_of(subject_of(model_of()), FEW, objective=objective)
    present = [Present(str(slot), now, 1.0, 1) for slot, now in mechanisms_of(context.model, cross=True).items()]
    subject: Any = context.subject
    loss = context.calibration.mean()
    rises = {
        slot: context.calibration.mean(subject.with_model(swapped(context.model, {Slot.parse(slot): (NARROW,) * 2})))
        - loss
        for slot in ("enc.0", "enc.1", "dec.0")
    }
    worst = max(rises, key=rises.__getitem__)
    told = [trial(worst, NARROW, 1e-9), trial("dec.1", WIDE, 1e-10)]
    monkeypatch.setattr(advice_module, "try_mechanisms", lambda *given, **options: (present, told))
    rise = rises[worst]
    share = rise if objective == "embedding" else rise / loss
    assert share > 1e-6 and (loss == 0) == (objective == "embedding")
    generous, strict = (find_advice(context, (NARROW, WIDE), max_error=factor * share) for factor in (1.01, 0.99))
    assert generous.chosen == {worst: NARROW, "dec.1": WIDE} and generous.rise == pytest.approx(rise, rel=1e-6)
    assert strict.chosen == {"dec.1": WIDE} and strict.rise == pytest.approx(0, abs=1e-12)


def test_losses_count_on_long_texts_too(times: dict[str, float]) -> None:
    """On the sentences as they are this window changes nothing; on long texts it must not pass unseen."""
    context = context_of(subject_of(model_of(seed=1)))
    spec = "window:window=17"
    told = [trial(slot, spec, 1e-9) for slot in ("enc.0", "enc.1")]
    present = [Present(str(slot), now, 1.0, 1) for slot, now in mechanisms_of(context.model, cross=True).items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advice_module, "try_mechanisms", lambda *given, **options: (present, told))
        short, long = (find_advice(context, (spec,), max_error=1e-7, length=length) for length in (None, 90))
    assert short.chosen == {"enc.0": spec, "enc.1": spec} and long.chosen == {}


def test_what_saves_next_to_nothing_is_not_taken(times: dict[str, float]) -> None:
    times[WIDE] = 0.97
    context = context_of(subject_of(model_of()), FEW)
    assert find_advice(context, (WIDE,)).chosen == {}
    times[WIDE] = 0.9
    assert list(find_advice(context, (WIDE,)).chosen) == ["enc.0", "enc.1", "dec.0", "dec.1"]


def test_auto(times: dict[str, float]) -> None:
    times.update(STEPS)
    asked = Swap(to=tuple(STEPS), max_error=0.2)
    new, receipt = run_reshape(asked, subject_of(model_of()), FEW, ReshapeSettings(steps=2))
    assert receipt.done and parse(RESHAPES["swap"], receipt.asked, "asked") == asked and receipt.loss.healed is not None
    now = mechanisms_of(new, cross=True)
    assert {str(slot): specs[0] for slot, specs in now.items() if specs != ("dense", "dense")} == receipt.done
    ratios = {f"{of}_time_ratio{end}" for of in ("attention", "model") for end in ("", "_low", "_high")}
    assert {*receipt.facts} == {"error", *ratios, *(f"error_{slot}" for slot in receipt.done)}
    squared = sum(receipt.facts[f"error_{slot}"] ** 2 for slot in receipt.done)
    assert receipt.facts["error"] == pytest.approx(math.sqrt(squared / 6)) and receipt.facts["error"] <= 0.2
    assert receipt.facts["attention_time_ratio"] < 1


def test_layers_that_share_their_weights_are_chosen_together(times: dict[str, float]) -> None:
    """The error of all five layers is below the bound, that of the first four and no other would be too."""
    times.update({NARROW: 0.5, WIDE: 0.9})
    context = foreign_bench("albert")
    advice = find_advice(context, (NARROW, WIDE), max_error=0.5)
    slots = [str(slot) for slot in mechanisms_of(context.model)]
    assert len(slots) == 5 and advice.chosen in ({}, dict.fromkeys(slots, NARROW), dict.fromkeys(slots, WIDE))
    assert advice.chosen and len({*advice.chosen.values()}) == 1
    errors = [trial.error for trial in advice.trials if advice.chosen[trial.slot] == trial.spec]
    assert advice.error == pytest.approx(math.sqrt(sum(the(error) ** 2 for error in errors) / 5))
    assert mechanisms_of(swapped(context.model, dict.fromkeys(mechanisms_of(context.model), (NARROW,) * 3)))


def test_auto_without_names_tries_what_could_pay() -> None:
    made = Swap(max_error=0.0, length=70).make(context_of(subject_of(model_of()), FEW))
    assert made.done == {} and made.facts == NOTHING_SAVED


# Named layers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "done"),
    [
        ("enc.1", {"enc.1": LINEAR}),
        ("cross.*,dec.0.1", {"dec.0.1": LINEAR, "cross.0": LINEAR, "cross.1": LINEAR}),
        ("*.0.0", {f"{slot}.0": LINEAR for slot in ("enc.0", "dec.0", "cross.0")}),
        ("none", {}),
    ],
)
def test_named(layers: str, done: dict[str, str], times: dict[str, float]) -> None:
    context = context_of(subject_of(model_of()), FEW)
    before = weights_fingerprint(context.model)
    made = Swap(to=(LINEAR,), layers=layers).make(context)
    assert made.done == done and weights_fingerprint(context.model) == before
    now = mechanisms_of(made.model, cross=True)
    for slot, specs in now.items():
        assert specs == tuple(
            LINEAR if str(slot) in done or f"{slot}.{head}" in done else "dense" for head in range(len(specs))
        )
    swapped_layers = dict.fromkeys(".".join(place.split(".")[:2]) for place in done)
    assert {*made.facts} == {*NOTHING_SAVED, *(f"error_{slot}" for slot in swapped_layers)}
    for slot in swapped_layers:
        assert made.facts[f"error_{slot}"] == pytest.approx(
            true_error(context, Slot.parse(slot), *now[Slot.parse(slot)]), rel=1e-9, abs=1e-12
        )


def test_layers_and_heads_by_name() -> None:
    one = {Slot.parse("enc.0"): 2, Slot.parse("enc.1"): 2, Slot.parse("enc.10"): 2}
    assert heads_of_layers("1", one) == heads_of_layers("enc.1", one) == [*map(HeadId.parse, ("enc.1.0", "enc.1.1"))]
    assert heads_of_layers("0,1.1", one) == [*map(HeadId.parse, ("enc.0.0", "enc.0.1", "enc.1.1"))]
    assert len(heads_of_layers("*", one)) == len(heads_of_layers("enc.*", one)) == 6
    assert heads_of_layers("*.1", one) == [*map(HeadId.parse, ("enc.0.1", "enc.1.1", "enc.10.1"))], (
        "heads, as everywhere"
    )


@pytest.mark.parametrize("name", ["own", "bart", "llama"])
def test_swapping_to_what_is_there_changes_nothing(name: str, times: dict[str, float]) -> None:
    context = context_of(subject_of(model_of()), FEW) if name == "own" else foreign_bench(name)
    swap = Swap(to=("dense",), layers="*")
    made = swap.make(context)
    assert made.done == {} and made.rise == 0 and made.facts == NOTHING_SAVED
    old, new = context.model.state_dict(), made.model.state_dict()
    assert list(old) == list(new) and all(torch.equal(old[key], new[key]) for key in old)
    subject: Any = context.subject
    assert context.calibration.mean(subject.with_model(made.model)) == context.calibration.mean()


def test_a_mechanism_with_parameters_is_there_as_it_was_tried() -> None:
    """The same draw in trials and in the model, whatever was drawn before; heads that stay keep theirs."""
    torch.manual_seed(3)
    context = foreign_bench("bert")
    first_time = swapped(context.model, {Slot.parse("enc.1"): (LINFORMER, "dense", "dense")})
    torch.manual_seed(5)
    again = swapped(context.model, {Slot.parse("enc.1"): (LINFORMER, "dense", "dense")})
    assert weights_fingerprint(first_time) == weights_fingerprint(again)
    with torch.no_grad():
        for parameter in attention_groups(again)[Slot.parse("enc.1")].parameters():
            parameter.add_(1.0)
    kept = swapped(again, {Slot.parse("enc.1"): (LINFORMER, NARROW, "dense")})
    mine, theirs = (attention_groups(model)[Slot.parse("enc.1")].mechanisms[0].state_dict() for model in (kept, again))
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    assert all(parameter.requires_grad for parameter in attention_groups(kept)[Slot.parse("enc.1")].parameters())


@pytest.mark.parametrize("name", ["own", "bert", "bart"])
def test_saved_and_loaded(name: str, tmp_path: Path, times: dict[str, float]) -> None:
    context = context_of(subject_of(model_of()), FEW) if name == "own" else foreign_bench(name)
    slot = [*mechanisms_of(context.model, cross=True)][-1]
    made = Swap(to=(LINEAR,), layers=str(slot)).make(context)
    assert made.done == {str(slot): LINEAR} and slot.crosses == (name in ("own", "bart"))
    save(made.model, tmp_path / "new")
    opened = load(tmp_path / "new")
    assert mechanisms_of(opened, cross=True) == mechanisms_of(made.model, cross=True)
    subject: Any = context.subject
    losses = [context.calibration.mean(subject.with_model(model)) for model in (made.model, opened)]
    assert losses[0] == losses[1] != context.calibration.mean()
    assert losses[0] - context.calibration.mean() == pytest.approx(made.rise, abs=1e-12)


def test_cross_attention_is_named_only_where_it_is_asked_for() -> None:
    model = model_of()
    assert [*map(str, mechanisms_of(model))] == ["enc.0", "enc.1", "dec.0", "dec.1"]
    assert [*map(str, mechanisms_of(model, cross=True))] == ["enc.0", "enc.1", "dec.0", "cross.0", "dec.1", "cross.1"]
    new = with_mechanisms(model, {Slot.parse("cross.1"): (LINEAR, "dense")})
    assert mechanisms_of(new, cross=True)[Slot.parse("cross.1")] == (LINEAR, "dense")
    assert mechanisms_of(new) == mechanisms_of(model) and Slot.parse("cross.1") in attention_groups(new, cross=True)
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        old_layer, layer = (attention_parts(one, cross=True)[Slot.parse("cross.1")].attention for one in (model, new))
        assert torch.equal(getattr(old_layer, name), getattr(layer, name))
    with pytest.raises(UsageError, match=r"window attention in cross\.0"):
        with_mechanisms(model, {Slot.parse("cross.0"): (NARROW, "dense")})


def test_layers_that_share_their_weights_by_name(times: dict[str, float]) -> None:
    context = foreign_bench("albert")
    made = Swap(to=(NARROW,), layers="enc.*").make(context)
    assert {*mechanisms_of(made.model).values()} == {(NARROW,) * 3}
    for one in (Swap(to=(NARROW,), layers="enc.0"), Swap(layers=f"enc.3={NARROW}")):
        again = one.make(context)
        assert mechanisms_of(again.model) == mechanisms_of(made.model) and again.done == made.done
    two = Swap(layers=f"enc.0.0={NARROW} enc.4.2={WIDE}").make(context)
    assert {*mechanisms_of(two.model).values()} == {(NARROW, "dense", WIDE)}
    assert two.done == {f"enc.{layer}.{head}": spec for layer in range(5) for head, spec in ((0, NARROW), (2, WIDE))}
    for pairs in (f"enc.0={NARROW} enc.1={WIDE}", f"enc.0=dense enc.1={NARROW}"):
        with pytest.raises(UsageError, match=r"enc\.\d: expected the same in all layers that share its weights"):
            Swap(layers=pairs).check(context.model)


# Mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"to": "window"}, "a list of texts"),
        ({"to": (7,)}, "a list of texts"),
        ({"max_error": -0.1}, "a number from 0 to 1"),
        ({"max_error": float("nan")}, "a number from 0 to 1"),
        ({"max_error": True}, "a number from 0 to 1"),
        ({"length": 1}, "a whole number from 2 to 32,768"),
        ({"length": 5.0}, "a whole number"),
        ({"layers": 3}, "layers to swap: expected text"),
        ({"layers": "enc.0"}, "one mechanism, got none"),
        ({"layers": "enc.0", "to": (NARROW, LINEAR)}, f"got {NARROW}, {LINEAR}"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as error, unchecked():
        Swap(**options)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_names_that_are_not_known() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'window'"):
        Swap(to=("windw",))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"to": (NARROW,), "layers": "enc.7"}, "'enc.7'"),
        ({"to": (NARROW,), "layers": "cross.0"}, "window attention in cross.0"),
        ({"to": ("linformer",), "layers": "dec.*"}, "linformer attention in dec.0"),
    ],
    ids=str,
)
def test_layers_that_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as error:
        Swap(**options).check(model_of())
    assert told in str(error.value)


def test_a_named_layer_in_which_the_mechanism_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"linear in enc\.0: .* got one that has no scores that positions could be"):
        Swap(to=(LINEAR,), layers="enc.0").make(foreign_bench("t5"))
