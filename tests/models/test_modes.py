"""What an examination does to the model it is given: nothing; and what it refuses before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import attnworks
from attnworks.attention import Mask
from attnworks.cli import main
from attnworks.core.errors import FolderError
from attnworks.core.places import Slot
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measures.rank import Rank
from attnworks.exam.measures.saturation import Saturation
from attnworks.models import AttentionConfig, TransformerConfig
from attnworks.models.modes import in_float64
from attnworks.text.passages import Passage, Text
from attnworks.text.tokens import TokenRow, collate
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.layer import LayerTrace, StreamTrace
from tests.exam_helpers import tiny_folder, write_lines

TEXTS = ["the red dog sleeps here", "a cat sees the old dog", "dogs and cats sleep"]


def encoder() -> tuple[attnworks.models.Model, Vocabulary]:
    vocabulary = Vocabulary.train("word", [text.split() for text in TEXTS])
    config = TransformerConfig(
        vocabulary=len(vocabulary), d_e=12, d_ff=23, encoder_layers=2, decoder_layers=0, dropout=0.5,
        attention=AttentionConfig(heads=3, d_k=4, d_v=4),
    )  # fmt: skip
    return attnworks.build(config, seed=0), vocabulary


def test_dropout_is_off_and_the_mode_comes_back() -> None:
    model, vocabulary = encoder()
    model.train()
    first, second = (attnworks.examine(model, TEXTS, tokenizer=vocabulary, measures="rank,paths") for _ in range(2))
    assert torch.equal(torch.stack(first["rank.residual"].value), torch.stack(second["rank.residual"].value))  # pyright: ignore
    assert "paths.share" in first and all(part.training for part in model.modules())


def test_parts_of_other_types_come_back_as_they_were() -> None:
    model, vocabulary = encoder()
    model.encoder[1].mlp.half()  # pyright: ignore
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attnworks.examine(model, TEXTS, tokenizer=vocabulary, measures=["rank"], without=["skip"])
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == before[name].dtype and torch.equal(tensor, before[name]), name


def test_one_string_is_no_list_of_texts() -> None:
    model, vocabulary = encoder()
    with pytest.raises(FolderError, match=r"a string that is neither; put texts into a list: \[text\]") as told:
        attnworks.examine(model, "one text", tokenizer=vocabulary)
    assert "\n" not in str(told.value)


def test_passages_and_strings_may_be_mixed() -> None:
    model, vocabulary = encoder()
    texts: Any = [Passage(Text(TEXTS[0])), *TEXTS[1:]]
    exam = attnworks.examine(model, texts, tokenizer=vocabulary, measures=["rank"])
    assert exam.corpus["sentences"] == 3


def test_a_massive_first_token_leaves_cosines_right() -> None:
    X = torch.randn(1, 24, 16, generator=torch.Generator().manual_seed(0))
    X[0, 0] = 3000 * X[0, 0] / X[0, 0].norm()
    tokens = collate([TokenRow(tuple(range(24)), (False,) * 24, (-1,) * 24)], 0)
    U = torch.nn.functional.normalize(X[0].double(), dim=-1)
    expected = ((U @ U.T).sum() - 24) / (24 * 23)
    got = Rank(MeasureContext(24)).stream(StreamTrace("encoder", 0, X, tokens))["rank.cosine"].values[0]
    assert abs(float(got) - float(expected)) < 1e-5


def test_half_precision_does_not_overflow() -> None:
    tokens = collate([TokenRow(tuple(range(512)), (False,) * 512, (-1,) * 512)], 0)
    Q = (2 * torch.randn(1, 2, 512, 64)).half()
    trace = LayerTrace(Slot("encoder", 0), Q, Q, Q, Q, Mask(), 0.125, tokens, tokens)
    assert Saturation(MeasureContext(512)).layer(trace)["saturation.score_expected"].values.isfinite().all()


def test_labels_count_the_lines_of_the_text() -> None:
    from attnworks.traces.own import OwnSubject

    model, vocabulary = encoder()
    passages = [Passage(Text(text)) for text in (TEXTS[0], "dog", TEXTS[1])]
    text = OwnSubject(model, "small", vocabulary).read(passages, batch_tokens=4096)  # pyright: ignore
    assert text.passages == 3 and sorted(text.batch(0)[1].tolist()) == [0, 2] and text.dropped == 1


def test_gradients_can_be_taken_after_float64_under_inference_mode() -> None:
    layer = torch.nn.Linear(5, 3)
    with torch.inference_mode(), in_float64(layer):
        assert layer(torch.ones(2, 5, dtype=torch.float64)).dtype == torch.float64
    layer(torch.ones(2, 5, requires_grad=True)).sum().backward()
    assert layer.weight.dtype == torch.float32 and layer.weight.grad is not None


def test_types_are_as_they_were_when_memory_ends_on_the_way_to_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, double = torch.nn.Linear(5, 3), torch.Tensor.double

    def up_to_the_bias(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 1:
            raise MemoryError
        return double(tensor)

    monkeypatch.setattr(torch.Tensor, "double", up_to_the_bias)
    with pytest.raises(MemoryError), in_float64(layer):
        pass
    assert {weight.dtype for weight in layer.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--pin", "a dog sleeps"), "neither --out nor --report"),
        (("--report", "no/such/folder/r.html"), "no folder"),
        (("--pin", "", "--out", "exam"), "expected a line with text"),
    ],
)
def test_what_cannot_be_handed_over_is_refused_before_any_work(
    options: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tiny_folder("bert")
    text = write_lines(tmp_path / "text.txt", TEXTS)
    result = CliRunner().invoke(main, ["examine", str(folder), "--text", str(text), "--threads", "1", *options])
    assert result.exit_code == 2 and told in result.output and not (tmp_path / "exam").exists(), result.output


def test_measures_that_were_asked_for_are_shown_and_pins_drawn(tmp_path: Path) -> None:
    folder = tiny_folder("bert")
    text = write_lines(tmp_path / "text.txt", TEXTS)
    page = tmp_path / "report.html"
    arguments = ["examine", str(folder), "--text", str(text), "--threads", "1", "--measures", "ranks,roles,paths"]
    extra = ["--objective", "mlm", "--pin", "the red dog", "--report", str(page)]
    result = CliRunner().invoke(main, [*arguments, *extra])
    assert result.exit_code == 0, result.output
    assert "ranks.effective" in result.output and "the syntax of the text is not known" in result.output
    assert (
        'id="blob-exam0-0-enc.0-maps"' in page.read_text()
        and "only importance, ablation and bottleneck" in result.output
    )
