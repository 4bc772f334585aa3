"""Cutting heads: what is predicted, what is left, what a receipt says, and changes of every kind in a row."""

from __future__ import annotations

import copy
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner

import attnworks
from attnworks.cli import main
from attnworks.core.errors import AttnworksError, UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.hf.subject import HFSubject
from attnworks.hf.tiny import tiny_model
from attnworks.models import build
from attnworks.models.build import PRESETS
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.heal import stream_distance
from attnworks.reshape.history import receipts, replay, undo
from attnworks.reshape.pruning import ranking
from attnworks.reshape.pruning.l0_gates import train_gates
from attnworks.reshape.pruning.prune import COMPARED_KEEP_SHARES, Prune
from attnworks.reshape.pruning.ranking import RANKINGS
from attnworks.reshape.pruning.units import units_of
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.run import ReshapeSettings, run_reshape, text_loss_on
from attnworks.reshape.surgery import heads_off, layers_alike, layers_of
from attnworks.reshape.swapping.swap import Swap
from attnworks.text.passages import Passage, Text
from attnworks.traces.edits import HeadsOffHook
from attnworks.training.objectives.sentences import SentenceEmbedding
from tests.exam_helpers import LINES, tiny_folder, tiny_run, tiny_tokenizer, write_lines
from tests.model_helpers import recurrent_config
from tests.reshape.reshape_helpers import WORDS, context_of, files_of, load, model_of, subject_of, texts
from tests.tiny_models import TINY
from tests.training.training_helpers import SMALL

HEADS = 12
"""Of the small model: two in each of two encoder, decoder and cross-attention layers."""


@pytest.fixture(autouse=True)
def small_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "small", SMALL["small"])


def prune(model: Any, settings: ReshapeSettings | None = None, **options: Any) -> tuple[Any, Receipt]:
    return run_reshape(Prune(**options), subject_of(model), texts(), settings)


def heads_left(model: Any) -> dict[str, int]:
    found = {}
    for slot, part in layers_of(model).items():
        assert part.weights is not None
        found[str(slot)] = len(part.weights().W_O)
    return found


def cut_by(receipt: Receipt, before: dict[str, int]) -> list[HeadId]:
    """The heads that are not in the brackets: 2 -> 1 head (1)."""
    gone: list[HeadId] = []
    for slot, words in receipt.done.items():
        kept = [int(number) for number in words.partition("(")[2].rstrip(")").split(",") if number]
        gone += [HeadId(Slot.parse(slot), head) for head in range(before[slot]) if head not in kept]
    return gone


@pytest.mark.parametrize("keep", [1.0, 0.75, 0.5, 0.1, 0.0])
def test_a_share_of_all_heads_stays(keep: float) -> None:
    model = model_of()
    old = weights_fingerprint(model)
    new, receipt = prune(model, keep=keep, by="random")
    assert sum(heads_left(new).values()) == round(keep * HEADS) and weights_fingerprint(model) == old
    assert receipt.facts["heads_before"] == HEADS and receipt.facts["heads_cut"] == HEADS - round(keep * HEADS)
    assert len(cut_by(receipt, heads_left(model))) == HEADS - round(keep * HEADS)
    assert math.isfinite(receipt.loss.after)


def test_cutting_none_changes_nothing() -> None:
    model = model_of()
    for asked in (Prune(keep=1.0), Prune(heads="none")):
        new, receipt = run_reshape(asked, subject_of(model), texts())
        assert weights_fingerprint(new) == weights_fingerprint(model) and new.config == model.config
        assert receipt.done == {} and receipt.loss.before == receipt.loss.predicted == receipt.loss.after
        assert receipt.bytes is not None and receipt.parameters.saved == receipt.flops.saved == receipt.bytes.saved == 0
        assert receipt.scores["embedding drift"].after == 0


def test_the_prediction_is_that_of_silenced_heads() -> None:
    """On the same sentences, predicted and measured are the same."""
    model = model_of()
    context = context_of(subject_of(model))
    made = Prune(keep=0.5).make(context)
    text_loss = context.calibration
    after = text_loss.mean(text_loss.original.with_model(made.model.eval()))  # pyright: ignore[reportAttributeAccessIssue]
    assert after == pytest.approx(text_loss.mean() + made.rise, rel=1e-12) and made.rise != 0


def test_named_heads() -> None:
    model = model_of()
    new, receipt = prune(model, heads="enc.0.1,cross.*.0,dec.1.*")
    assert heads_left(new) == {"enc.0": 1, "enc.1": 2, "dec.0": 2, "cross.0": 1, "dec.1": 0, "cross.1": 1}
    assert receipt.done == {
        "enc.0": "2 -> 1 head (0)", "cross.0": "2 -> 1 head (1)", "dec.1": "2 -> 0 heads", "cross.1": "2 -> 1 head (1)",
    }  # fmt: skip


def test_evenly() -> None:
    new, _ = prune(model_of(), keep=0.5, by="random", evenly=True)
    assert {*heads_left(new).values()} == {1}


@pytest.mark.parametrize("by", ["curvature", "ablation", "gradient", "redundancy", "role", "norm"])
def test_every_ranking(by: str) -> None:
    new, receipt = prune(model_of(), keep=0.5, by=by)
    assert sum(heads_left(new).values()) == HEADS // 2 and receipt.asked["by"] == by


def test_a_head_that_does_nothing_goes_first() -> None:
    model = model_of()
    with torch.no_grad():
        attention: Any = layers_of(model)[Slot.parse("dec.1")].attention
        attention.W_O[1] = 0.0
    new, receipt = prune(model, keep=11 / 12, by="gradient")
    assert heads_left(new)["dec.1"] == 1 and receipt.done == {"dec.1": "2 -> 1 head (0)"}
    assert receipt.loss.after == pytest.approx(receipt.loss.before, rel=1e-9)


@pytest.mark.slow
def test_compared() -> None:
    """Every ranking that can be had, at every level; without heads all are the same, and ours is what was measured."""
    model = model_of()
    _, receipt = prune(model, keep=0.5, by="gradient", compare=True)
    have = {name for name in RANKINGS if f"loss_by_{name}_keeping_50" in receipt.facts}
    assert {*RANKINGS} <= have
    for name in have:
        assert all(f"loss_by_{name}_keeping_{100 * level:.0f}" in receipt.facts for level in COMPARED_KEEP_SHARES)
        assert receipt.facts[f"loss_by_{name}_keeping_0"] == pytest.approx(receipt.facts["loss_by_random_keeping_0"])
    assert receipt.facts["loss_by_gradient_keeping_50"] == pytest.approx(receipt.loss.after, rel=1e-9)


def test_units_share_keys_and_values() -> None:
    units = units_of(TINY["llama"].build())
    assert {len(unit) for unit in units} == {3} and all(len({slot for slot, _ in unit}) == 1 for unit in units)
    hook = heads_off(units[:1])
    assert isinstance(hook, HeadsOffHook) and hook.off == {Slot("decoder", 0): [0, 1, 2]}


# Receipts and healing ------------------------------------------------------------------------------------------------


def test_what_a_receipt_says() -> None:
    model = model_of(torch.float32)
    new, receipt = prune(model, ReshapeSettings(steps=2), keep=0.5, by="random")
    assert receipt.parameters.after == sum(p.numel() for p in new.parameters()) < receipt.parameters.before
    assert receipt.bytes is not None and receipt.bytes.after == 4 * receipt.parameters.after
    assert receipt.flops.after < receipt.flops.before
    assert receipt.time is not None and 0 < receipt.time < 10
    bleu, drift = receipt.scores["BLEU"], receipt.scores["embedding drift"]
    assert all(value is not None and 0 <= value <= 100 for value in (bleu.before, bleu.after, bleu.healed))
    assert drift.before == 0 and 0 < drift.after <= 2 and drift.healed not in (None, drift.after)
    assert receipt.healing.by == "objective"


@pytest.mark.slow
def test_healing_towards_the_model_before() -> None:
    """Distillation brings the embeddings back; the objective alone need not."""
    model = model_of(torch.float32, dropout=0.0)
    _, receipt = prune(model, ReshapeSettings(steps=60, learning_rate=1e-2, by="distil"), heads="enc.*.1")
    drift = receipt.scores["embedding drift"]
    assert drift.healed is not None and drift.healed < 0.5 * drift.after
    assert receipt.healing.by == "distil"


def test_other_ways_of_healing_are_refused() -> None:
    with pytest.raises(AttnworksError, match=r"^way of healing 'sleep': expected one of distil, objective"):
        ReshapeSettings(by="sleep")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "got none of them"),
        ({"keep": 0.5, "heads": "enc.0.1"}, "got keep and heads"),
        ({"keep": 1.5}, "a number from 0 to 1"),
        ({"keep": float("nan")}, "a number from 0 to 1"),
        ({"keep": 0.5, "by": "magic"}, "ranking of heads 'magic'"),
        ({"heads": "enc.0.1", "evenly": True}, "give keep"),
        ({"heads": "enc.0.1", "compare": True}, "give keep"),
    ],
    ids=str,
)
def test_mistakes(options: dict[str, Any], told: str) -> None:
    with pytest.raises(AttnworksError) as error:
        Prune(**options)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_models_without_heads_of_their_own() -> None:
    with pytest.raises(UsageError, match=r"^other heads: expected a transformer, got a recurrent model"):
        Prune(keep=0.5).check(build(recurrent_config(), seed=0))


@pytest.mark.parametrize("options", [{"keep": 0.5}, {"heads": "dec.0.1"}], ids=str)
def test_the_reason_why_no_head_can_go(options: dict[str, Any]) -> None:
    got = r"got heads that are mixed before a module reads them in dec\.0; choose another model$"
    with pytest.raises(UsageError, match=rf"^pruning BitNetForCausalLM: expected heads that can be cut, {got}"):
        Prune(**options).check(tiny_model("bitnet").model)


@pytest.mark.parametrize("name", ["albert", "albert-groups"])
def test_heads_of_layers_that_share_their_weights_go_together(name: str) -> None:
    model = TINY[name].build()
    subject = HFSubject(model, name, tiny_tokenizer(name))
    texts_read = [Passage(Text(line)) for line in LINES]
    text_loss = text_loss_on(subject, SentenceEmbedding(), texts_read, ReshapeSettings(batch_tokens=70))
    made = Prune(keep=0.67).make(ReshapeContext(subject, text_loss, 9))
    left, alike = heads_left(made.model), layers_alike(model)
    assert made.facts["heads_cut"] > 0 and sum(left.values()) == 3 * len(alike) - made.facts["heads_cut"]
    assert all(left[str(other)] == left[str(slots[0])] for slots in alike.values() for other in slots)
    gone = next(unit for unit in units_of(model) if unit[0].slot == Slot.parse("enc.0"))
    assert [head.slot for head in gone] == list(alike[Slot.parse("enc.0")])
    loss = text_loss.mean(subject.with_model(made.model)) - text_loss.mean()
    assert made.rise == pytest.approx(loss, rel=1e-9, abs=1e-12)


def test_a_head_that_is_named_goes_in_all_layers_that_share_its_weights() -> None:
    model = TINY["albert"].build()
    named = Prune(heads="enc.1.2,enc.3.2").chosen(model)
    assert named == [tuple(HeadId(slot, 2) for slot in layers_alike(model))]


# Models of Hugging Face ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_in_python() -> None:
    model = TINY["bert"].build(dtype=torch.float32)
    new, receipt = attnworks.prune(model, LINES, tokenizer=tiny_tokenizer("bert"), keep=0.5, by="ablation")
    assert sum(heads_left(new.model).values()) == 3 and receipt.facts["heads_before"] == 6
    own, _ = attnworks.prune(model_of(), texts().learn, tokenizer=WORDS, keep=0.5, by="gates")
    assert sum(heads_left(own.model).values()) == 6


def test_what_transformers_can_load(tmp_path: Path) -> None:
    """As many groups in every layer of Llama: a plain folder with a history, which transformers reads as well."""
    folder = tiny_folder("llama")
    lines, out = write_lines(tmp_path / "lines.txt", LINES), tmp_path / "out"
    command("prune", folder, "--keep", 0.5, "--by", "random", "--evenly", "--text", lines, "--out", out)
    plain: Any = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert plain.config.num_key_value_heads * 2 == transformers.AutoConfig.from_pretrained(folder).num_key_value_heads
    assert weights_fingerprint(plain) == weights_fingerprint(load(out)) == receipts(out)[0].fingerprint[1]
    undo(str(out), tmp_path / "back")
    assert files_of(tmp_path / "back") == files_of(folder)


# One change after another --------------------------------------------------------------------------------------------


def command(*arguments: object) -> Any:
    result = CliRunner().invoke(main, [*map(str, arguments), "--threads", "1", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_pruned_grown_and_swapped(tmp_path: Path) -> None:
    """The history of three changes is kept, can be done again, and be undone step by step."""
    run = tiny_run()
    pairs = ("--corpus", f"tsv:{run.parent / 'pairs.tsv'}", "--pairs", 50, "--sentences", 5)
    folders = [tmp_path / name for name in ("pruned", "grown", "swapped")]
    command("prune", run, "--keep", 0.5, "--heal", 2, *pairs, "--out", folders[0])
    left = heads_left(load(folders[0]))
    slot = next(slot for slot, heads in left.items() if heads and not slot.startswith("cross"))
    where = f"{slot}.0:values=2"
    command("grow", folders[0], "--where", where, "--by", "random", *pairs, "--out", folders[1])
    command("swap", folders[1], "--to", "window:window=2", "--layers", slot, *pairs, "--out", folders[2])
    assert [receipt.reshape for receipt in receipts(folders[2])] == ["prune", "grow", "swap"]
    replayed = replay(str(folders[2]), str(run), tmp_path / "again")
    assert all(then.fingerprint == now.fingerprint for then, now in replayed)
    back = copy.copy(folders[2])
    for number, expected in enumerate((folders[1], folders[0], run)):
        undo(str(back), tmp_path / str(number))
        back = tmp_path / str(number)
        assert weights_fingerprint(load(back)) == weights_fingerprint(load(expected))


def test_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "train_gates", partial(train_gates, steps=3))
    run = tiny_run()
    pairs = ("--corpus", f"tsv:{run.parent / 'pairs.tsv'}", "--pairs", "50", "--sentences", "5")
    arguments = ["prune", str(run), "--keep", "0.5", "--compare", *pairs, "--threads", "1"]
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Cut 3 of 6 heads (ranked by curvature): loss ")
    for words in ("layer", "BLEU", "embedding drift", "bytes", "time of a forward pass", "loss, keeping"):
        assert words in result.stdout
    again = CliRunner().invoke(main, ["history", str(tmp_path / "out")])
    assert "loss, keeping" in again.stdout and "1. Cut " in again.stdout
    for odd in (["--keep", "2"], [], ["--keep", "0.5", "--heads", "enc.0.0"], ["--heads", "enc.9.9"]):
        result = CliRunner().invoke(main, [*arguments[:2], *odd, *pairs, "--out", str(tmp_path / "other")])
        assert result.exit_code == 2 and "Traceback" not in result.output and not (tmp_path / "other").exists()


# Met in use ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["curvature", "gradient", "redundancy", "role", "norm"])
def test_layers_that_never_run(by: str) -> None:
    """Cross-attention of a decoder that is given nothing to look at has no say, and is not cut."""
    model = TINY["gpt2-cross"].build(dtype=torch.float32)
    new, receipt = attnworks.prune(model, LINES, tokenizer=tiny_tokenizer("gpt2"), keep=0.5, by=by)
    assert all(slot.startswith("dec") for slot in receipt.done)
    assert {heads for slot, heads in heads_left(new.model).items() if slot.startswith("cross")} == {3}


def test_distillation_of_half_precision() -> None:
    """Squares of float16 overflow: sums are taken in float32."""
    model = model_of(torch.float16, dropout=0.0)
    with torch.no_grad():
        for embedding in (model.source_embedding, model.target_embedding):
            assert embedding is not None
            embedding.weight.mul_(40)
    subject = subject_of(model)
    text_loss = context_of(subject).calibration
    found = stream_distance(text_loss, text_loss.original.with_model(model), text_loss.text.batch(0)[0])  # pyright: ignore[reportAttributeAccessIssue]
    other = stream_distance(
        text_loss, text_loss.original.with_model(model_of(torch.float16, seed=3)), text_loss.text.batch(0)[0]
    )  # pyright: ignore[reportAttributeAccessIssue]
    assert float(found) == 0 and 0 < float(other) < math.inf


def test_flops_of_cross_attention_count() -> None:
    _, receipt = prune(model_of(), heads="cross.*")
    assert receipt.flops.after < receipt.flops.before


def test_a_folder_that_becomes_plain(tmp_path: Path) -> None:
    """What said that transformers cannot open it is gone once it can."""
    folder, lines = tiny_folder("llama"), write_lines(tmp_path / "lines.txt", LINES)
    command("prune", folder, "--heads", "0.0,0.1,0.2", "--text", lines, "--out", tmp_path / "first")
    assert (tmp_path / "first" / "README.md").is_file()
    others = ",".join(f"{layer}.{head}" for layer in range(1, 5) for head in range(3) if layer < layer_count(folder))
    command("prune", tmp_path / "first", "--heads", others, "--text", lines, "--out", tmp_path / "second")
    assert not (tmp_path / "second" / "README.md").exists() and not (tmp_path / "second" / "manifest.json").exists()
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "second")


def layer_count(folder: Path) -> int:
    return transformers.AutoConfig.from_pretrained(folder).num_hidden_layers


def test_random_numbers_stay_as_they_were() -> None:
    model, before = model_of(), torch.get_rng_state()
    results = [
        attnworks.swap(model, texts().learn, tokenizer=WORDS, to="sketched", layers="enc.0")[1].loss for _ in range(2)
    ]
    assert results[0] == results[1] and torch.equal(torch.get_rng_state(), before)


def test_replaying_a_swap_puts_the_same_mechanisms_there(tmp_path: Path) -> None:
    """Whatever is faster today: the layers that were chosen then get what was chosen then."""
    chosen = Swap(to=("linear",)).again({"enc.0": "linear", "dec.1": "window:window=2"}, {})
    assert chosen.layers == "enc.0=linear dec.1=window:window=2" and chosen.to == ()
    assert set(chosen.heads(model_of()).values()) == {"linear", "window:window=2"}
    assert Swap(to=("linear",)).again({}, {}).heads(model_of()) == {}
    with pytest.raises(UsageError, match="leave out to"):
        Swap(to=("linear",), layers="enc.0=linear")


def test_without_any_head(tmp_path: Path) -> None:
    none, _ = prune(model_of(), keep=0)
    with pytest.raises(UsageError, match="none that are left"):
        prune(none, keep=0.5)
    with pytest.raises(UsageError, match="none that are left"):
        prune(none, heads="enc.0.0")
