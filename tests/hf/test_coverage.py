"""The sweep of verbs over model types: types of every layout, numbers that are found wrong, and the page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import attnworks
from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.hf.coverage import reference, verbs
from attnworks.hf.coverage.calls import attention_calls
from attnworks.hf.coverage.page import GOALS, counts, page, summary
from attnworks.hf.coverage.reference import NotCheckedError, WrongNumbersError, mean_entropy, run
from attnworks.hf.coverage.sweep import NOT_CHECKED, Row, outcome, read_rows, study, sweep, write_rows
from attnworks.hf.coverage.verbs import VERBS, Case
from attnworks.hf.tiny import text_model_types, tiny_model

transformers: Any = pytest.importorskip("transformers")

LAYOUTS = {
    "bert": "three projections, after the norm",
    "gpt2": "fused, transposed matrices",
    "gpt_neox": "woven by head, parallel branches",
    "opt": "biases everywhere, positions from a table",
    "albert": "one block for all layers",
    "mobilebert": "queries and values from different streams",
    "modernbert": "fused, local and global layers",
    "t5": "encoder-decoder, learned biases of scores, no scale",
    "bart": "encoder-decoder, cross-attention",
    "llama": "grouped, rotary",
    "mistral": "grouped, a window",
    "phi3": "fused and grouped",
    "dbrx": "fused, grouped and clipped, experts",
    "qwen3": "norm of each head's queries and keys",
    "olmo2": "norm over all heads of queries and keys",
    "gemma2": "capped scores, norms after each branch",
    "gpt_oss": "learned sinks, experts",
    "diffllama": "differences of two heads",
    "deepseek_v3": "latent keys and values, one rotary key for all heads",
    "qwen3_next": "gated outputs, beside linear attention",
    "jamba": "hybrid with state spaces",
    "bloom": "woven, its own code, biases outside of the layer",
    "falcon": "fused by group, its own code",
    "gptj": "rotary by pairs, its own code, scores in float32",
    "deberta-v2": "relative positions in its own code",
}
"""Model type -> what is special about its attention."""


@pytest.fixture(scope="module")
def bert() -> Case:
    return Case(tiny_model("bert").model)


@pytest.mark.parametrize("model_type", LAYOUTS)
def test_verbs_work_or_refuse_and_their_numbers_are_right(model_type: str) -> None:
    row = study(model_type)
    assert "reason" not in row
    bad = {
        verb: (found["outcome"], found["why"], found.get("frames"))
        for verb, found in row["verbs"].items()
        if found["outcome"] not in ("works", "refuses")
    }
    assert bad == {}


@pytest.mark.parametrize(
    ("model_type", "verb", "why"),
    [
        ("jetmoe", "paths", "a layer with known W_V and W_O, got one without"),
        ("afmoe", "paths", "such as by a gate"),
        ("doge", "paths", "it multiplies the stream by a factor for each channel"),
        ("axk1", "paths", "values that the layer computes from something else"),
        ("deberta", "paths", "values that the layer computes in another way"),
        ("deepseek_v4", "prune named", "a layer whose code does not run with fewer heads"),
        ("deepseek_v4", "grow values", "a layer with an output projection to several vectors per token"),
        ("jetmoe", "grow values", "query columns that do not come from one linear projection"),
        ("lilt", "paths", "W_O is for heads of another width"),
        ("perceiver", "examine", "a model that reads text"),
        ("fsmt", "claims", "a model that runs in float64, got one that raises RuntimeError: value cannot be"),
        ("fastspeech2_conformer", "examine", "a model that returns one vector for each token"),
    ],
)
def test_the_reason_of_a_refusal(model_type: str, verb: str, why: str) -> None:
    found = study(model_type, [verb])["verbs"][verb]
    assert found["outcome"] == "refuses" and why in found["why"]


@pytest.mark.parametrize(
    ("model_type", "verb", "why"),
    [
        ("canine", "examine", "some layers attend to groups of characters"),
        ("canine", "prune", "some layers attend to groups of characters"),
        ("longt5", "prune", "weights of blocks times values by einsum"),
        ("prophetnet", "prune", "a second attention of each decoder layer, to several tokens ahead"),
        ("pop2piano", "prune", "generates from sound"),
        ("funnel", "prune", "weights times values by einsum"),
        ("xlnet", "examine", "weights times values by einsum, with sentences as the second axis"),
        ("dpr", "prune", "one vector for each text"),
        ("csm_depth_decoder_model", "prune", "no logits for the first token"),
        ("canary_decoder", "examine", "a decoder alone, with the config of an encoder-decoder"),
    ],
)
def test_numbers_are_checked(model_type: str, verb: str, why: str) -> None:
    found = study(model_type, [verb])["verbs"][verb]
    assert found["outcome"] == "works" and not found["checked"].startswith(NOT_CHECKED), why


def test_weights_are_those_that_are_used_where_a_sink_scales_the_output() -> None:
    """Granite returns weights that sum to one, and multiplies outputs by the share that its sink leaves."""
    case = Case(tiny_model("granite_swa").model)
    real = case.reference.real
    sums = torch.cat([P.sum(-1).movedim(1, -1)[real].flatten() for P in case.reference.weights])
    assert 0 < sums.min() < 0.1 and sums.max() < 1 + 1e-6  # eager softmax is in single precision
    assert "entropy" in verbs.try_examine(case)


@pytest.mark.slow
def test_the_goals_are_met(tmp_path: Path) -> None:
    rows = {row["type"]: row for row in sweep(text_model_types(), jobs=2)}
    write_rows(tmp_path / "coverage.json", rows)
    found = counts(rows)
    assert [verb for verb, results in found.items() if results["crashes"] or results["wrong"]] == []
    assert {verb: found[verb]["works"] for verb, goal in GOALS.items() if found[verb]["works"] < goal} == {}


@pytest.mark.parametrize(("model_type", "causal"), [("llama", True), ("gpt_oss", True), ("bert", False)])
def test_the_weights_that_are_seen_are_those_that_transformers_returns(model_type: str, causal: bool) -> None:
    tiny = tiny_model(model_type)
    tiny.model.set_attn_implementation("eager")
    with attention_calls(tiny.model, 1) as calls, torch.no_grad():
        attentions = tiny.model(**tiny.inputs, output_attentions=True).attentions
    assert len(calls.weights) == len(attentions)
    for P, returned in zip(calls.weights, attentions, strict=True):
        assert torch.equal(P, returned)
        assert bool((P.triu(1) == 0).all()) == causal


@pytest.mark.parametrize("model_type", ["bloom", "gptj"])
def test_weights_in_a_models_own_code_are_those_that_transformers_returns(model_type: str) -> None:
    tiny = tiny_model(model_type)
    tiny.model.set_attn_implementation("eager")
    with attention_calls(tiny.model, 1) as calls, torch.no_grad():
        attentions = tiny.model(**tiny.inputs, output_attentions=True).attentions
    for P, returned in zip(calls.weights, attentions, strict=True):
        torch.testing.assert_close(P, returned)


def test_setting_heads_to_zero_is_dropping_their_columns_of_the_output_projection(bert: Case) -> None:
    eager = bert.reference
    gated = eager.without([HeadId(Slot("encoder", 1), 3)], bert.heads)
    output = eager.model.bert.encoder.layer[1].attention.output.dense.weight
    width = output.shape[1] // 15
    kept = output.detach().clone()
    with torch.no_grad():
        output[:, 3 * width : 4 * width] = 0
        cut = run(eager.model, eager.inputs)
        output.copy_(kept)
    assert (gated - eager.outputs)[eager.real].abs().max() > 1e-2
    torch.testing.assert_close(gated[eager.real], cut[eager.real])


@pytest.mark.parametrize("model_type", ["bert", "bart", "gpt_oss"])
def test_entropies_of_texts_are_those_of_each_text_alone(model_type: str) -> None:
    found = Case(tiny_model(model_type).model).reference
    together, alone = found.entropies(), found.entropies_alone()
    assert together.keys() == alone.keys()
    for kind, rows in together.items():
        torch.testing.assert_close(rows, alone[kind], rtol=0, atol=1e-6)


def test_an_entropy_that_is_wrong_is_found(bert: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(verbs.try_examine, bert)["outcome"] == "works"
    monkeypatch.setattr(reference, "mean_entropy", lambda P, real: mean_entropy(P, real) + 3e-5)
    found = outcome(verbs.try_examine, bert)
    assert found["outcome"] == "wrong" and "entropy" in found["why"]


def test_a_model_that_lost_other_heads_is_found(bert: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    new, receipt = bert.pruned
    assert "equal to 1 heads" in verbs.check_pruned(bert, new.model, receipt)
    other, _ = attnworks.prune(bert.model, heads="enc.0.2", **bert.given)
    with pytest.raises(WrongNumbersError, match="outputs differ"):
        verbs.check_pruned(bert, other.model, receipt)


def test_a_cut_that_is_lost_in_rounding_is_not_checked() -> None:
    """Else a model that lost no heads would count as right."""
    model = tiny_model("bert").model
    with torch.no_grad():
        model.bert.encoder.layer[0].attention.output.dense.weight.mul_(2e-6)
    case = Case(model)
    with pytest.raises(NotCheckedError, match="hardly affect the outputs"):
        verbs.check_pruned(case, case.reference.model, case.pruned[1])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UsageError("a", "b", "c", "d"), {"outcome": "refuses", "why": "a: expected b, got c; d", "got": "c"}),
        (WrongNumbersError("x"), {"outcome": "wrong", "why": "x"}),
        (NotCheckedError("x"), {"outcome": "works", "checked": "not checked: x"}),
        (verbs.NotMeasuredError("x"), {"outcome": "refuses", "why": "x"}),
        (KeyError("x"), {"outcome": "crashes", "why": "KeyError: 'x'"}),
    ],
)
def test_how_a_verb_ends(bert: Case, error: Exception, expected: Row) -> None:
    def verb(case: Case) -> str:
        raise error

    found = outcome(verb, bert)
    assert {name: found[name] for name in expected} == expected
    assert ("frames" in found) == (expected["outcome"] == "crashes")


def test_a_verb_that_never_ends_is_stopped(bert: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnworks.hf.coverage.sweep.VERB_SECONDS", 0.05)

    def verb(case: Case) -> str:
        while True:
            pass

    assert outcome(verb, bert)["outcome"] == "slow"


def test_a_type_that_takes_too_long_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnworks.hf.coverage.sweep.TYPE_SECONDS", 0)
    monkeypatch.setattr("attnworks.hf.coverage.sweep.study", lambda *_: time.sleep(100))
    (row,) = sweep(["llama"], verbs=["examine"])
    assert {found["outcome"] for found in row["verbs"].values()} == {"slow"}


def test_a_sweep_goes_through_processes_and_its_rows_are_read_again(tmp_path: Path) -> None:
    rows = {row["type"]: row for row in sweep(["llama", "clip", "no_such_type"], verbs=["examine"])}
    assert rows["clip"] == {"type": "clip", "reason": "needs pictures"}
    assert rows["llama"]["verbs"]["examine"]["outcome"] == "works"
    assert "reason" in rows["no_such_type"]
    write_rows(tmp_path / "rows.json", rows)
    assert read_rows(tmp_path / "rows.json") == rows
    assert read_rows(tmp_path / "none.json") == {}


def rows_for_the_page() -> dict[str, Row]:
    works: dict[str, Any] = {verb: {"outcome": "works", "checked": ""} for verb in VERBS}
    works["claims"]["checked"] = f"{NOT_CHECKED}: no outputs"
    crash = {"outcome": "crashes", "why": "KeyError: 'a | b'", "frames": ["layer.py:3", "model.py:5"]}
    refusal = {"outcome": "refuses", "why": "a: expected b, got c; d", "got": "OneForCausalLM at dec.1.3"}
    return {
        "one": {"type": "one", "verbs": works},
        "two": {"type": "two", "verbs": {**works, "examine": crash, "prune named": refusal}},
        "six": {"type": "six", "reason": "needs pictures"},
    }


def test_the_page_has_counts_reasons_and_a_row_per_type() -> None:
    text = page(rows_for_the_page())
    assert "| examine | 285 | 1 | 0 | 1 | 0 | 0 | 0 |" in text and "| claims |  | 2 | 0 | 0 | 0 | 0 | 2 |" in text
    assert "| prune | 265 | 1 | 1 | 0 | 0 | 0 | 0 |" in text, "prune counts where heads can be named too"
    assert "- 1: **crash** KeyError: 'a / b' @ layer.py:3: two" in text
    assert "- 1: the model at a layer: two" in text
    assert "| `one` | yes " in text and "- `six`: needs pictures" in text
    assert "2 of 3 run on text alone" in text


def test_the_summary_has_a_line_per_verb() -> None:
    lines = summary(rows_for_the_page()).splitlines()
    assert lines[:2] == ["3 types, 2 built", "examine: works 1 (goal 285), crashes 1"]
    assert len(lines) == 1 + len(VERBS)
