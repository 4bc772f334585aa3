"""Growing: places, how widths are spread, every method, receipts, folders with optimizers, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file
from torch import Tensor, nn

import attnworks
from attnworks.cli import main
from attnworks.core.errors import UsageError
from attnworks.core.json_records import parse
from attnworks.core.places import Slot
from attnworks.models import AttentionConfig, MultiHead, Transformer
from attnworks.models.anatomy import attention_layers, heads_of
from attnworks.models.build import PRESETS
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape import NoBottleneckError
from attnworks.reshape.contract import RESHAPES
from attnworks.reshape.growth.apply import GrowthPlace as At
from attnworks.reshape.growth.apply import grown
from attnworks.reshape.growth.graded import graded_layers
from attnworks.reshape.growth.grow import Grow, output_difference, plan_step, survey_growth
from attnworks.reshape.growth.methods import METHODS, refit_steps
from attnworks.reshape.growth.places import Spot, Widths, read_places, spread
from attnworks.reshape.growth.survey import GROWTH_KINDS, GrowthSurvey
from attnworks.reshape.history import ModelFolder, receipts, replay, undo, write_outcome
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.run import ReshapeSettings, run_reshape
from attnworks.reshape.surgery import anatomy_of, layers_of
from attnworks.reshape.texts import TextSplit, split_corpus
from attnworks.text.passages import Passage, Text
from attnworks.traces.subject import open_subject
from attnworks.training.run import Run
from tests.exam_helpers import LINES, save_model, tiny_tokenizer, write_lines
from tests.helpers import assert_close, unchecked
from tests.model_helpers import the
from tests.reshape.growth.growth_helpers import PASSAGES, growing_bench, growing_model, growing_texts, survey_of
from tests.reshape.reshape_helpers import D_E, D_K, D_V, WORDS, files_of, load, small_run, subject_of, without_time
from tests.tiny_models import TINY
from tests.traces.trace_helpers import Keep
from tests.training.training_helpers import SMALL

pytestmark = pytest.mark.slow

LAYERS = {Slot.parse("enc.0"): 2, Slot.parse("enc.1"): 3, Slot.parse("dec.0"): 2, Slot.parse("cross.0"): 2}
CARE = ReshapeSettings()


def spots(asked: str, layers: Mapping[Slot, int] = LAYERS) -> dict[str, int]:
    return {str(spot): width for spot, width in read_places(asked, layers).items()}


def grow(model: Transformer | None = None, settings: ReshapeSettings = CARE, **options: Any) -> tuple[Any, Receipt]:
    model = growing_model() if model is None else model
    return run_reshape(Grow(**options), subject_of(model), growing_texts(), settings)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(scope="module")
def survey() -> GrowthSurvey:
    return survey_of(growing_bench(), *GROWTH_KINDS)


@pytest.fixture(autouse=True)
def small_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "small", SMALL["small"])


# Places --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("enc.0.1:keys=8", {"enc.0.1:keys": 8}),
        ("enc.1.*:values=2", {"enc.1.0:values": 2, "enc.1.1:values": 2, "enc.1.2:values": 2}),
        ("dec.0:heads=1", {"dec.0:heads": 1}),
        ("enc.*:heads=1", {"enc.0:heads": 1, "enc.1:heads": 1}),
        (
            " cross.0.0:keys=1 , cross.0.0:values=5,cross.0:heads=1",
            {"cross.0.0:keys": 1, "cross.0.0:values": 5, "cross.0:heads": 1},
        ),
        ("enc.0.*:keys=2,enc.0.1:keys=7", {"enc.0.0:keys": 2, "enc.0.1:keys": 7}),
    ],
)
def test_places(asked: str, found: dict[str, int]) -> None:
    assert spots(asked) == found


@pytest.mark.parametrize(
    "asked",
    [
        *("", "enc.0.0", "enc.0.0:keys", "enc.0.0:keys=", "enc.0.0:keys=0", "enc.0.0:keys=-1", "enc.0.0:keys=1.5"),
        *(
            "enc.0.0:wings=1",
            "enc.7.0:keys=1",
            "enc.0.2:keys=1",
            "enc.0:keys=1",
            "enc.0.0:heads=1",
            "enc.0:heads=2",
            "enc.0.0:keys=1;",
        ),
        *("enc.0.0:keys=1,,", "enc.0.0=8", "nonsense:heads=1", f"enc.0.0:keys={10**9}", f"enc.0.0:keys={'9' * 5000}"),
    ],
    ids=lambda asked: asked[:30],
)
def test_places_that_are_none(asked: str) -> None:
    with pytest.raises(UsageError) as error:
        spots(asked)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kinds": "keys"}, "expected some of keys, values, heads"),
        ({"kinds": ()}, "some of keys, values, heads"),
        ({"kinds": ("keys", "wings")}, "wings"),
        ({"add": -1}, "a whole number from 0 to"),
        ({"add": 2.0}, "a whole number from 0 to"),
        ({"add": True}, "a whole number from 0 to"),
        ({"add": 10**12}, "a whole number from 0 to"),
        ({"add": 3, "where": "enc.0.0:keys=1"}, "got both; leave out add"),
        ({"by": "fischer"}, "fisher"),
        ({"where": 3}, "places to grow at: expected text, got int"),
    ],
    ids=str,
)
def test_options_that_cannot_be_used(options: dict[str, Any], told: str) -> None:
    with unchecked(), pytest.raises((UsageError, LookupError)) as error:
        Grow(**options)
    assert told in str(error.value) and "\n" not in str(error.value)


# Spreading widths ----------------------------------------------------------------------------------------------------


def cost(survey: GrowthSurvey, widths: Widths) -> int:
    """A head costs as many widths as it has keys and values."""
    return sum(width * (D_K + D_V if spot.kind == "heads" else 1) for spot, width in widths.items())


@pytest.mark.parametrize("kinds", [("keys",), ("values",), ("heads",), GROWTH_KINDS])
def test_as_many_widths_as_were_asked_for(survey: GrowthSurvey, kinds: Any) -> None:
    for add in (9,) if kinds == ("keys",) else (9, 17):
        widths = spread(survey, kinds, add)
        assert {spot.kind for spot in widths} <= {*kinds} and all(widths.values())
        found = cost(survey, widths)
        assert found == add if kinds != ("heads",) else found == add // (D_K + D_V) * (D_K + D_V)
        for spot in widths:
            score = survey.scores(spot.place.slot, spot.kind)[spot.place.head or 0]
            assert survey.tried(score).refusal is None


def test_the_first_goes_where_it_pays_most(survey: GrowthSurvey) -> None:
    """Per parameter, among the places that are not refused."""
    (best,) = spread(survey, GROWTH_KINDS, 1)
    tried = {
        Spot(score.place, kind): survey.tried(score)
        for slot in survey.layers
        for kind in GROWTH_KINDS
        for score in survey.scores(slot, kind)
    }
    affordable = {spot: one for spot, one in tried.items() if one.refusal is None and spot.kind != "heads"}
    assert best == max(affordable, key=lambda spot: affordable[spot].gain / affordable[spot].parameters)


def test_limits(survey: GrowthSurvey) -> None:
    free = spread(survey, ("values",), 8)
    most = dict.fromkeys(list(free)[:2], 1)
    limited = spread(survey, ("values",), 8, most)
    assert limited == most
    with pytest.raises(NoBottleneckError, match="one more of them is more than was asked for"):
        spread(survey, ("values",), 8, {})


def test_too_few_widths_for_a_head(survey: GrowthSurvey) -> None:
    with pytest.raises(NoBottleneckError) as error:
        spread(survey, ("heads",), 1)
    assert "None" not in str(error.value) and "more than was asked for" in str(error.value)


def test_what_is_left_after_a_head_goes_to_columns(survey: GrowthSurvey) -> None:
    widths = spread(survey, GROWTH_KINDS, D_K + D_V + 3)
    assert cost(survey, widths) == D_K + D_V + 3


# Methods -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "left_out"),
    [
        ("enc.0.0:keys=3,cross.0.1:keys=2", ()),
        ("dec.0.*:values=3", ("document",)),
        ("cross.0:heads=1", ("document",)),
    ],
)
def test_all_methods_add_the_same_parameters(survey: GrowthSurvey, where: str, left_out: tuple[str, ...]) -> None:
    model = survey.text_loss.original.model
    widths, added = read_places(where, survey.every), set[int]()
    assert {*METHODS} == {"fisher", "whitened", "random", "zero", "gradmax", "document"}
    for name in METHODS:
        method = METHODS[name]
        if name in left_out:
            with pytest.raises(UsageError, match="another kind"):
                method(survey, widths, 0)
            continue
        try:
            line = method(survey, widths, 0)
        except NoBottleneckError:
            assert name in ("fisher", "whitened") and "keys" in where
            continue
        added.add(count(grown(model, line.steps(0.3))) - count(model))
    per = {"keys": 2 * D_E + 2, "values": 2 * D_E + 1, "heads": 2 * D_E * (D_K + D_V) + 2 * D_K + D_V}
    assert added == {sum(width * per[spot.kind] for spot, width in widths.items())}


@pytest.mark.parametrize("where", ["enc.0.0:keys=3", "cross.0.1:values=2", "dec.0:heads=1", "dec.0.0:keys=23"])
@pytest.mark.parametrize("by", ["zero", "gradmax"])
def test_methods_that_change_nothing_yet(survey: GrowthSurvey, where: str, by: str) -> None:
    settled = plan_step(survey, METHODS[by], read_places(where, survey.every), 0)
    assert output_difference(survey.text_loss, settled.steps) <= 1e-10
    assert abs(settled.fall) <= 1e-10
    new = grown(survey.text_loss.original.model, settled.steps)
    assert weights_fingerprint(new) != weights_fingerprint(survey.text_loss.original.model)


def gradients(survey: GrowthSurvey, steps: Any, slot: Slot) -> dict[str, Tensor]:
    """Of the loss of a few sentences, by the weights of one layer of the grown model."""
    original: Any = survey.text_loss.original
    subject = original.with_model(grown(original.model, steps))
    survey.text_loss.losses(subject, *survey.text_loss.text.batch(0)).sum().backward()
    layer = layers_of(subject.model)[slot].attention
    assert isinstance(layer, MultiHead)
    return {name: the(parameter.grad) for name, parameter in layer.named_parameters()}


@pytest.mark.parametrize(("by", "moved"), [("zero", ("W_K", "W_O")), ("gradmax", ("W_Q", "W_V"))])
def test_what_changes_nothing_can_be_trained(survey: GrowthSurvey, by: str, moved: tuple[str, str]) -> None:
    """Where one side is zero, the gradient of that side is not."""
    for kind, name in zip(("keys", "values"), moved, strict=True):
        steps = METHODS[by](survey, read_places(f"enc.0.1:{kind}=2", survey.every), 0).steps(1.0)
        found = gradients(survey, steps, Slot.parse("enc.0"))[name]
        new = found[-2:] if name == "W_O" else found[:, -2:]
        assert new.abs().max() > 1e-6


def test_gradmax_makes_the_gradient_largest(survey: GrowthSurvey) -> None:
    """||T beta|| over beta of one length is largest for the first right singular vector of T."""
    (step,) = METHODS["gradmax"](survey, read_places("enc.0.1:keys=2", survey.every), 0).steps(1.0)
    addition: Any = step.addition
    T = survey.sums[Slot.parse("enc.0")].means()[0][0, 1]
    s = torch.linalg.svdvals(T)
    length = heads_of(layers_of(survey.text_loss.original.model)[Slot.parse("enc.0")])[1].W_K.norm(dim=0).mean()
    assert_close((T @ addition.beta).norm(dim=0), length * s[:2])


def test_random_columns_are_seeded(survey: GrowthSurvey) -> None:
    widths = read_places("enc.0.0:keys=2,dec.0:heads=1", survey.every)
    model = survey.text_loss.original.model
    for by in ("random", "zero"):
        first, again, other = (
            weights_fingerprint(grown(model, METHODS[by](survey, widths, seed).steps(0.5))) for seed in (3, 3, 4)
        )
        assert first == again != other


def test_random_steps_go_downhill(survey: GrowthSurvey) -> None:
    for where in ("enc.0.0:keys=2", "cross.0.1:values=2"):
        line = METHODS["random"](survey, read_places(where, survey.every), 5)
        taught = survey.text_loss.mean(some=slice(0, None, 2))
        original: Any = survey.text_loss.original
        small = original.with_model(grown(original.model, line.steps(1e-4)))
        assert survey.text_loss.mean(small, some=slice(0, None, 2)) < taught


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("t", [1.0, -0.4])
def test_the_document_on_one_sentence(t: float, bias: bool) -> None:
    """W_Q W_K^T = [X^+ (S + dL/dS) Z^+T / s] cut to rank k + p (S3.13, S3.27), and with t dL/dS for another t."""
    model = growing_model(attention=AttentionConfig(heads=2, d_k=D_K, d_v=D_V, bias=bias))
    one = [PASSAGES[0]]
    survey = survey_of(growing_bench(model, TextSplit(one, one, {})), "keys")
    keep, text_loss, slot, head = Keep(), survey.text_loss, Slot.parse("cross.0"), 1
    batch, rows = text_loss.text.batch(0)
    with torch.no_grad():
        text_loss.losses(text_loss.original, batch, rows, keep)
    trace = next(trace for trace in keep.traces if trace.slot == slot)
    (graded,) = graded_layers(text_loss, batch, rows, {slot: survey.outputs[slot]})
    scale = the(trace.scale)
    S, G = scale * trace.Q[0, head] @ trace.K[0, head].mT, graded.by_scores()[0, head]
    X, Z = the(trace.X)[0], the(trace.Z)[0]
    X = torch.cat([X, torch.ones_like(X[:, :1])], 1) if bias else X
    B = S + t * G
    U, s, Vh = torch.linalg.svd(torch.linalg.pinv(X) @ B @ torch.linalg.pinv(Z).mT / scale, full_matrices=False)
    rank, widths = D_K + 2, {Spot(At(slot, head), "keys"): 2}
    (step,) = METHODS["document"](survey, widths, 0).steps(0.7) if t == 1.0 else refit_steps(survey, widths)(t)
    new = heads_of(attention_layers(anatomy_of(grown(model, [step])))[slot])[head]
    assert new.W_Q.shape == (D_E, rank) and new.W_V is not None
    W_Q = torch.cat([new.W_Q, the(new.b_Q).unsqueeze(0)]) if bias else new.W_Q
    assert_close(W_Q @ new.W_K.mT, U[:, :rank] * s[:rank] @ Vh[:rank])
    assert not bias or not the(new.b_K).any()


def test_the_document_needs_one_factor_of_all_scores() -> None:
    """Where heads use different mechanisms, there is no S of the whole layer to fit."""
    mixed = AttentionConfig(heads=2, d_k=D_K, d_v=D_V, mechanism=("dense", "structured"))
    model, one = growing_model(slots={"enc.0": mixed}), [PASSAGES[0]]
    survey = survey_of(growing_bench(model, TextSplit(one, one, {})), "keys")
    with pytest.raises(UsageError, match=r"enc\.0 by document.*one factor of X W_Q"):
        METHODS["document"](survey, {Spot(At(Slot.parse("enc.0"), 0), "keys"): 1}, 0)


def test_fisher_beats_the_others(survey: GrowthSurvey) -> None:
    """At once, on the sentences that check."""
    widths = read_places("cross.0.0:values=1,enc.0.0:values=1", survey.every)
    falls = {name: plan_step(survey, METHODS[name], widths, 0).fall for name in ("fisher", "random", "zero", "gradmax")}
    assert falls["fisher"] > 0.01 and falls["fisher"] > 2 * max(fall for by, fall in falls.items() if by != "fisher")


# Through a receipt ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "done", "added"),
    [
        ("cross.0.1:values=2", {"cross.0.1": "5 -> 7 values"}, 2 * (2 * D_E + 1)),
        ("enc.0:heads=1", {"enc.0": "2 -> 3 heads"}, 2 * D_E * (D_K + D_V) + 2 * D_K + D_V),
        (
            "cross.0.0:keys=1,cross.0.0:values=1",
            {"cross.0.0": "3 -> 4 keys, 5 -> 6 values"},
            2 * D_E + 2 + 2 * D_E + 1,
        ),
    ],
)
def test_the_receipt(where: str, done: dict[str, str], added: int) -> None:
    model = growing_model()
    before = weights_fingerprint(model)
    new, receipt = grow(model, where=where)
    assert receipt.reshape == "grow" and receipt.done == done
    assert parse(RESHAPES["grow"], receipt.asked, "asked") == Grow(where=where)
    assert receipt.parameters.before == count(model) and receipt.parameters.after == count(new) == count(model) + added
    assert receipt.flops.after > receipt.flops.before or where.startswith("cross"), "which they do not count"
    assert receipt.facts["difference_at_zero"] <= 1e-12
    trusts = {name: value for name, value in receipt.facts.items() if name.startswith("trust_")}
    assert trusts.keys() == {f"trust_{spot}" for spot in spots(where, dict.fromkeys(layers_of(model), 2))}
    assert all(value >= 0.5 for value in trusts.values())
    assert receipt.loss.predicted < receipt.loss.before and receipt.loss.after < receipt.loss.before
    fall, predicted = (receipt.loss.before - loss for loss in (receipt.loss.after, receipt.loss.predicted))
    assert fall == pytest.approx(predicted, rel=0.5)
    assert receipt.fingerprint == (before, weights_fingerprint(new)) and weights_fingerprint(model) == before


def test_healing_goes_on_from_there() -> None:
    new, receipt = grow(settings=replace(CARE, steps=3, learning_rate=1e-3), where="cross.0.1:values=2")
    assert receipt.loss.healed is not None and receipt.loss.healed < receipt.loss.after
    assert weights_fingerprint(new) == receipt.fingerprint[1]


def test_growing_by_nothing_is_the_same_bit_for_bit() -> None:
    model = growing_model()
    new, receipt = grow(model, add=0)
    assert weights_fingerprint(new) == weights_fingerprint(model) and receipt.fingerprint[0] == receipt.fingerprint[1]
    assert receipt.done == {} and receipt.loss.before == receipt.loss.predicted == receipt.loss.after


@pytest.mark.slow
def test_where_it_pays() -> None:
    _, receipt = grow(add=3, kinds=("values",))
    assert sum(int(what.split()[2]) - int(what.split()[0]) for what in receipt.done.values()) == 3
    assert all(what.endswith("values") for what in receipt.done.values())
    assert receipt.loss.after < receipt.loss.before


@pytest.mark.slow
def test_nothing_held_out_is_looked_at() -> None:
    model, given = growing_model(), growing_texts()
    one, other = (
        run_reshape(Grow(where="cross.0.1:values=2"), subject_of(model), TextSplit(given.learn, held_out, {}), CARE)[0]
        for held_out in (given.held_out, given.held_out[:5])
    )
    assert weights_fingerprint(one) == weights_fingerprint(other)


@pytest.mark.slow
def test_baselines_at_the_same_places() -> None:
    _, receipt = grow(where="cross.0.1:values=2", compare=True)
    losses = {name: value for name, value in receipt.facts.items() if name.startswith("loss_by_")}
    assert {"loss_by_random", "loss_by_zero", "loss_by_gradmax"} <= losses.keys()
    assert "loss_by_document" not in losses, "which has keys only"
    assert losses["loss_by_zero"] == pytest.approx(receipt.loss.before, rel=1e-10)
    assert receipt.loss.after < min(losses["loss_by_random"], losses["loss_by_zero"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32])
def test_other_types(dtype: torch.dtype) -> None:
    new, receipt = grow(growing_model(dtype), where="cross.0.1:values=2")
    assert {parameter.dtype for parameter in new.parameters()} == {dtype}
    assert receipt.facts["difference_at_zero"] <= 1e-5 and receipt.loss.after < receipt.loss.before


# Refusals ------------------------------------------------------------------------------------------------------------


def test_noise_is_refused() -> None:
    """A few sentences with targets that have nothing to do with them teach nothing that others confirm."""
    sources = [passage.source.text for passage in PASSAGES[:12]]
    draw = torch.Generator().manual_seed(0)
    words = ["the", "very", "tired", "red", "sees", "wants", "loves", "."]
    lengths = torch.randint(3, 12, (len(sources),), generator=draw).tolist()
    noise = [
        Passage(Text(text), Text(" ".join(words[at] for at in torch.randint(8, (n,), generator=draw).tolist())))
        for text, n in zip(sources, lengths, strict=True)
    ]
    model, given = growing_model(), TextSplit(noise, noise, {})
    with pytest.raises(NoBottleneckError) as error:
        run_reshape(Grow(where="enc.0.1:keys=8"), subject_of(model), given, CARE)
    message = str(error.value)
    assert "at enc.0.1:keys, " in message and "\n" not in message
    assert "of the slope: more data, or no bottleneck" in message or "no step lowers the loss" in message


def test_relative_objectives_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"compares the model with itself.*an output layer for words .lm, mlm, seq2seq."
    ):
        run_reshape(Grow(add=2), subject_of(growing_model()), growing_texts(), ReshapeSettings("embedding"))
    text_loss = growing_bench().calibration
    assert survey_growth(text_loss, lambda *_: None, ("keys",)).text_loss is text_loss


def test_models_that_cannot_grow() -> None:
    model, reason = TINY["albert"].build(dtype=torch.float32), "weights that are used more than once in a forward pass"
    asked: list[dict[str, Any]] = [{"add": 2}, {"where": "0.0:keys=1"}]
    for options in asked:
        with pytest.raises((UsageError, NoBottleneckError)) as error:
            attnworks.grow(model, LINES * 2, tokenizer=tiny_tokenizer("bert"), **options)
        assert reason in str(error.value) and "\n" not in str(error.value)


def test_layers_that_cannot_grow() -> None:
    slots = {"enc.0": AttentionConfig(heads=2, d_k=D_K, d_v=D_V, mechanism="linear")}
    with pytest.raises(UsageError, match="mechanisms that depend on the width of a head"):
        grow(growing_model(slots=slots), where="enc.0.0:keys=1")


# Runs ----------------------------------------------------------------------------------------------------------------


class Chain:
    """A run, grown by random columns of keys, then by values and a head that change nothing yet."""

    def __init__(self, home: Path) -> None:
        self.run = small_run(home / "home")
        self.files = files_of(self.run)
        self.first, self.second = home / "home" / "first", home / "home" / "second"
        self.done = [
            self.grow(self.run, self.first, where="enc.0.1:keys=2", by="random"),
            self.grow(self.first, self.second, where="cross.0.0:values=3,dec.0:heads=1", by="zero"),
        ]

    def grow(self, source: Path, out: Path, **options: Any) -> Receipt:
        given = split_corpus(f"tsv:{self.run.parent / 'pairs.tsv'}", pairs=50, held_out=5, seed=11)
        model, receipt = run_reshape(Grow(**options), open_subject(str(source)), given, CARE)
        write_outcome(model, receipt, ModelFolder.of(str(source)), out)
        return receipt


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("chain"))


def test_grown_runs_are_read_again(chain: Chain) -> None:
    assert receipts(chain.second) == chain.done and files_of(chain.run) == chain.files
    model = load(chain.second)
    assert isinstance(model, Transformer) and weights_fingerprint(model) == chain.done[1].fingerprint[1]
    assert model.config.slot(Slot.parse("enc.0")).key_widths == (3, 5) and model.config.slot(
        Slot.parse("cross.0")
    ).value_widths == (8, 5)
    assert model.config.slot(Slot.parse("dec.0")).heads == 3


def test_undoing_gives_the_files_of_before(chain: Chain, tmp_path: Path) -> None:
    first = files_of(chain.first)
    assert undo(str(chain.second), tmp_path / "one") == chain.done[1]
    assert files_of(tmp_path / "one") == first
    undo(str(tmp_path / "one"), tmp_path / "none")
    kept = {name: data for name, data in chain.files.items() if name != "metrics.jsonl"}
    assert files_of(tmp_path / "none") == kept


def test_doing_it_again_gives_the_same_bits(chain: Chain, tmp_path: Path) -> None:
    pairs = replay(str(chain.second), str(chain.run), tmp_path / "again")
    assert [then for then, _ in pairs] == chain.done
    assert all(without_time(then) == without_time(now) for then, now in pairs)
    assert weights_fingerprint(load(tmp_path / "again")) == chain.done[1].fingerprint[1]


def test_what_the_optimizer_remembers_is_kept(chain: Chain) -> None:
    """Columns that were there keep both moments and their counters; those that are new have zeros."""
    old, new = Run.resume(chain.run), Run.resume(chain.second)
    before, after = (dict(run.model.named_parameters()) for run in (old, new))
    assert before.keys() == after.keys()
    changed: set[str] = set()
    for name, parameter in before.items():
        for moment in ("exp_avg", "exp_avg_sq"):
            one, other = (run.optimizer.state[of[name]][moment] for run, of in ((old, before), (new, after)))
            assert one.any()
            if one.shape == other.shape:
                assert torch.equal(one, other), name
            else:
                changed.add(name)
        assert new.optimizer.state[after[name]]["step"] == old.optimizer.state[parameter]["step"] == 3
    holders = [name.rpartition(".")[0] for name in changed]
    assert {name.rpartition(".")[2] for name in changed} == {
        *("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"),
    } and len(set(holders)) == 3
    self_attention = next(name for name in changed if name.startswith("encoder") and name.endswith("W_K"))
    for moment in ("exp_avg", "exp_avg_sq"):
        keys = new.optimizer.state[after[self_attention]][moment]
        one = old.optimizer.state[before[self_attention]][moment]
        assert torch.equal(keys[:, :6], torch.cat([*one], 1)) and keys.shape[1] == 8 and not keys[:, 6:].any()
    cross = next(name for name in changed if "cross" in name and name.endswith("W_O"))
    outputs = new.optimizer.state[after[cross]]["exp_avg"]
    one = old.optimizer.state[before[cross]]["exp_avg"]
    assert torch.equal(outputs[:5], one[0]) and not outputs[5:8].any() and torch.equal(outputs[8:], one[1])
    decoder = next(name for name in changed if name.startswith("decoder") and name.endswith("W_Q"))
    queries, one = (run.optimizer.state[of[decoder]]["exp_avg"] for run, of in ((new, after), (old, before)))
    assert queries.shape[0] == 3 and torch.equal(queries[:2], one) and not queries[2].any()


def test_a_grown_run_goes_on(chain: Chain, tmp_path: Path) -> None:
    run = Run.resume(Path(shutil.copytree(chain.second, tmp_path / "run")), steps=6)
    assert run.progress.step == 3 and weights_fingerprint(run.model) == chain.done[1].fingerprint[1]
    run.train()
    assert run.progress.step == 6 and weights_fingerprint(load(tmp_path / "run")) == weights_fingerprint(run.model)
    assert isinstance(run.model, Transformer) and run.model.config.slot(Slot.parse("dec.0")).heads == 3
    again = Run.resume(tmp_path / "run")
    assert weights_fingerprint(again.model) == weights_fingerprint(run.model)
    undo(str(tmp_path / "run"), tmp_path / "back")
    assert weights_fingerprint(load(tmp_path / "back")) == chain.done[1].fingerprint[0]


# Models of Hugging Face ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "objective", "where"),
    [("bert", "mlm", "enc.0.1:values=1,enc.1:heads=1"), ("bart", "seq2seq", "cross.1.0:values=2")],
)
@pytest.mark.parametrize("by", ["fisher", pytest.param("random", marks=pytest.mark.slow)])
def test_models_of_hugging_face(name: str, objective: str, where: str, by: str, tmp_path: Path) -> None:
    source = save_model(TINY[name].build(dtype=torch.float32), tmp_path / name)
    before = files_of(source)
    subject = open_subject(str(source))
    pairs = [
        Passage(Text(line), Text(other)) for line, other in zip(LINES * 6, (LINES[1:] + LINES[:1]) * 6, strict=True)
    ]
    given = (
        TextSplit(pairs, pairs, {})
        if name == "bart"
        else TextSplit([Passage(Text(line)) for line in LINES * 6], pairs, {})
    )
    model, receipt = run_reshape(Grow(where=where, by=by), subject, given, ReshapeSettings(batch_tokens=200))
    assert receipt.objective == objective and receipt.parameters.after == count(model) > receipt.parameters.before
    assert receipt.facts["difference_at_zero"] <= 1e-5
    assert receipt.loss.after <= receipt.loss.before or by == "random"
    write_outcome(model, receipt, ModelFolder.of(str(source)), tmp_path / "out")
    opened = load(tmp_path / "out")
    assert weights_fingerprint(opened) == receipt.fingerprint[1] and type(opened) is type(model)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) >= count(model) - 1
    undo(str(tmp_path / "out"), tmp_path / "back")
    assert files_of(tmp_path / "back") == before == files_of(source)


# From Python and from the shell --------------------------------------------------------------------------------------


def test_from_python() -> None:
    model, told = growing_model(torch.float32), []
    new, receipt = attnworks.grow(
        model, PASSAGES, tokenizer=WORDS, where="cross.0.1:values=2", heal=1,
        progress=lambda *event: told.append(event),
    )  # fmt: skip
    assert any(stage.startswith("Growing reads") and not total for stage, _, total in told)
    assert isinstance(new.model, Transformer) and receipt.done == {"cross.0.1": "5 -> 7 values"}
    assert receipt.loss.healed is not None and receipt.text["texts"] == len(PASSAGES)
    assert model.config.slots == {}
    assert receipt.asked["kinds"] == ["keys", "values", "heads"] and receipt.asked["by"] == "fisher"


FEW = ("--pairs", 50, "--sentences", 5, "--threads", 1)


def shell(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_command(chain: Chain, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("grow", chain.run, "--where", "enc.0.*:keys=1", "--by", "random", *FEW, "--out", out)
    result = shell(*words)
    assert result.exit_code == 0, result.output
    (receipt,) = receipts(out)
    assert "Growing reads" in result.stderr and "Growing reads" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Grew attention in 2 places (enc.0.*:keys=1): loss ") and f"Saved  {out}" in lines
    assert (
        "3 -> 4 keys" in result.stdout
        and "change of outputs with a step of zero" in result.stdout
        and "change" in result.stdout
    )
    for number in (receipt.loss.before, receipt.loss.predicted, receipt.loss.after):
        assert f"{number:.4g}" in result.stdout
    assert f"{receipt.parameters.after:,}" in result.stdout
    assert shell("history", out).stdout.startswith("1. Grew attention in 2 places (enc.0.*:keys=1): loss ")
    message = shell("undo", out, "--out", tmp_path / "back").stdout
    assert message.startswith("Undone: Grew attention in 2 places (enc.0.*:keys=1).")


def test_one_json_document(chain: Chain, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--where", "cross.0.0:values=2", "--kinds", "values", "--by", "zero", "--seed", "5"]
    result = shell("grow", chain.run, *words, *FEW, "--out", out, "--json")
    assert result.exit_code == 0 and result.stderr == "", result.output
    message = json.loads(result.stdout)
    (receipt,) = receipts(out)
    assert message["out"] == str(out) and message["done"] == receipt.done and message["facts"] == dict(receipt.facts)
    where = "cross.0.0:values=2"
    assert message["asked"] == {"add": 0, "where": where, "kinds": ["values"], "by": "zero", "compare": False}


@pytest.mark.parametrize(
    ("options", "told", "code"),
    [
        ("", "expected --add or --where, got neither", 2),
        ("--add -1", "--add", 2),
        ("--add 2 --where enc.0.0:keys=1", "got both", 2),
        ("--where enc.0.0:wings=1", "growing at 'enc.0.0:wings=1'", 2),
        ("--where enc.9.0:keys=1", "enc.9.0", 2),
        ("--add 2 --kinds keys,wings", "wings", 2),
        ("--add 2 --by fischer", "fischer", 2),
        ("--add 2 --objective embedding", "compares the model with itself", 2),
        ("--add 2 --by split", "expected one of document, fisher, gradmax, random, whitened, zero", 2),
        ("--where enc.0.0:values=1 --by document", "growing by document: expected only keys to grow", 2),
    ],
)
def test_mistakes(chain: Chain, tmp_path: Path, options: str, told: str, code: int) -> None:
    result = shell("grow", chain.run, *options.split(), *FEW, "--out", tmp_path / "out")
    assert result.exit_code == code, result.output
    assert told in result.stderr.splitlines()[-1] and result.stdout == ""
    assert not (tmp_path / "out").exists()


def test_a_refusal_writes_nothing(chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a share that nothing confirms."""
    monkeypatch.setattr("attnworks.reshape.growth.score.MIN_TRUST", 1e9)
    for where in (("--where", "enc.0.0:keys=2"), ("--add", 2)):
        result = shell("grow", chain.run, *where, *FEW, "--out", tmp_path / "out")
        assert result.exit_code == 2 and result.stdout == ""
        assert result.stderr.splitlines()[-1].startswith("attnworks: to grow: expected a place where more width lowers")
        assert "leave the model as it is" in result.stderr and not (tmp_path / "out").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_hugging_face_in_the_shell(tmp_path: Path) -> None:
    source = save_model(TINY["bert"].build(dtype=torch.float32), tmp_path / "bert")
    text = write_lines(tmp_path / "text.txt", LINES * 3)
    words = ("--where", "enc.0.0:keys=2", "--by", "zero", "--text", text, "--threads", 1)
    result = shell("grow", source, *words, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    message = json.loads(result.stdout)
    assert message["done"] == {"enc.0.0": "5 -> 7 keys"} and message["objective"] == "mlm"
    assert weights_fingerprint(load(tmp_path / "out")) == message["fingerprint"][1]
    gpt2 = save_model(TINY["gpt2"].build(dtype=torch.float32), tmp_path / "gpt2")
    result = shell("grow", gpt2, *words, "--out", tmp_path / "more")
    assert result.exit_code == 2 and "--where" not in result.stderr.splitlines()[-1]
    assert not (tmp_path / "more").exists()


def test_help_has_examples() -> None:
    text = shell("grow", "--help").stdout
    assert "Examples:" in text and "attnworks grow" in text
