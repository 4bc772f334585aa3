"""Models whose maps are no weights: measures of rows and maps stay out, and say why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor

import attnworks
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.models import TransformerConfig
from attnworks.models.transformer import Transformer
from attnworks.reshape.surgery import mechanisms_of
from attnworks.text.vocabulary import Vocabulary
from tests.exam_helpers import LINES
from tests.training.training_helpers import SMALL

WORDS = Vocabulary.train("word", [line.split() for line in LINES])


def model_with(mechanism: str) -> Transformer:
    config = SMALL["small"].with_vocabulary(len(WORDS))
    assert isinstance(config, TransformerConfig)
    return attnworks.build(config.with_mechanism(mechanism), seed=1)  # with 0 most targets that it writes are empty


def mixed_model() -> Transformer:
    """The preset tiny, of whose first encoder layer one head goes by position alone."""
    config = attnworks.preset("tiny").with_vocabulary(len(WORDS))
    assert isinstance(config, TransformerConfig)
    mixed = replace(config.attention, mechanism=("dense", "structured", "dense", "dense"))
    return attnworks.build(replace(config, slots={"enc.0": mixed}), seed=0)


def test_in_a_layer_with_mixed_mechanisms_only_dense_heads_have_scores() -> None:
    """Heads of layer 0 without a score of the form s q.k have none; layer 1 keeps its row."""
    model = mixed_model()
    dense = [mechanism == "dense" for mechanism in mechanisms_of(model)[Slot.parse("enc.0")]]
    assert 0 < sum(dense) < len(dense)
    exam = attnworks.examine(model, LINES, tokenizer=WORDS, measures=["saturation"])
    for name in ("saturation.score_rms", "saturation.score_expected"):
        first, second = exam[f"{name}@encoder"].value
        assert isinstance(first, Tensor) and first.isfinite().tolist() == dense, name
        assert isinstance(second, Tensor) and second.shape == (4,) and second.isfinite().all(), name
    entropy = exam["saturation.entropy@encoder"].value[0]
    assert isinstance(entropy, Tensor) and entropy.isfinite().all()


@pytest.mark.parametrize("mechanism", ["linformer:rank=3,length=30", "sketched:rank=3,seed=1", "truncated:rank=2"])
def test_what_reads_weights_is_left_out_with_a_note(mechanism: str) -> None:
    exam = attnworks.examine(model_with(mechanism), LINES, tokenizer=WORDS)
    assert exam["rank.residual@encoder"].table()
    assert not any(name.startswith(("roles.", "saturation.", "sinks.")) for name in exam.readings)
    name = mechanism.partition(":")[0]
    assert any(f"{name} in enc.0 has no attention weights, but mixtures of any sign" in note for note in exam.notes)


def test_what_reads_weights_is_refused_by_name() -> None:
    with pytest.raises(
        UsageError, match=r"measures roles, sinks: expected attention weights.*got mixtures of any sign \(linf"
    ):
        attnworks.examine(model_with("linformer:rank=3,length=30"), LINES, tokenizer=WORDS, measures=["roles"])


@pytest.mark.parametrize("mechanism", ["window:window=2", "linear", "longformer:window=2", "bigbird:window=2,block=2"])
def test_sparse_and_linear_models_are_examined_like_others(mechanism: str) -> None:
    exam = attnworks.examine(model_with(mechanism), LINES, tokenizer=WORDS)
    assert any(name.startswith("roles.") for name in exam.readings)
