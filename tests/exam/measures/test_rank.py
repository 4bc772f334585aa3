"""Rank of the residual stream against plain loops over sentences, and what collapsed input reads as."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnworks.exam.linalg.residual import NORMS, relative_residual_norm
from attnworks.exam.measure import MeasureContext, Samples, sampled_sentences
from attnworks.exam.measures.rank import BY_LINEAR_PROGRAM, LINEAR_PROGRAM_ONE_IN, Rank, Ranks, Residuals
from attnworks.text.tokens import TokenRow, Tokens, collate
from attnworks.traces.layer import StreamTrace

LENGTHS, WIDTH = (7, 5, 2, 1), 11
SETTING = MeasureContext(max(LENGTHS))


def tokens(lengths: tuple[int, ...]) -> Tokens:
    rows = [TokenRow(tuple(range(9, 9 + n)), (False,) * n, tuple(range(n))) for n in lengths]
    return collate(rows, 0)


def look(measure, X: Tensor, lengths: tuple[int, ...] = LENGTHS) -> Samples:
    return measure.stream(StreamTrace("encoder", 1, X, tokens(lengths)))


@pytest.fixture
def X() -> Tensor:
    return torch.randn(len(LENGTHS), max(LENGTHS), WIDTH, dtype=torch.float64) + 0.5


def test_rank_against_loops(X: Tensor) -> None:
    got = look(Rank(SETTING), X)
    for row, n in enumerate(LENGTHS):
        there = {name for name, sample in got.items() if sample.valid is not None and bool(sample.valid[row])}
        assert there == (set() if n == 1 else {name for name in got if not name.startswith("rank.outliers_")})
        if n == 1:
            continue
        x = X[row, :n]
        R = x - x.mean(0)
        s = torch.linalg.svdvals(x)
        cosines = [torch.cosine_similarity(x[i], x[j], dim=0) for i in range(n) for j in range(n) if i != j]
        expected = {
            "rank.residual": R.norm() / x.norm(),
            "rank.residual_absolute": R.norm(),
            "rank.stable": x.square().sum() / s[0] ** 2,
            "rank.cosine": torch.stack(cosines).mean(),
            "rank.diameter": torch.cdist(x, x).max(),
        }
        for name, value in expected.items():
            torch.testing.assert_close(got[name].values[row], value, rtol=1e-9, atol=1e-11)


def test_ranks_against_loops(X: Tensor) -> None:
    X[0, :7] = torch.randn(7, 3, dtype=torch.float64) @ torch.randn(3, WIDTH, dtype=torch.float64)
    got = look(Ranks(SETTING), X)
    for row, n in enumerate(LENGTHS[:3]):
        s = torch.linalg.svdvals(X[row, :n])
        p = s / s.sum()
        energy = (s**2).cumsum(0) / (s**2).sum()
        torch.testing.assert_close(got["ranks.effective"].values[row], (-(p * p.clamp_min(1e-300).log()).sum()).exp())
        assert got["ranks.numerical"].values[row] == torch.linalg.matrix_rank(X[row, :n])
        assert got["ranks.energy90"].values[row] == int((energy < 0.9).sum()) + 1
        torch.testing.assert_close(got["ranks.second_ratio"].values[row], s[1] / s[0])
    assert got["ranks.numerical"].values[0] == 3


def test_equal_rows_read_as_collapsed() -> None:
    X = torch.randn(len(LENGTHS), 1, WIDTH).expand(-1, max(LENGTHS), -1)
    got = {**look(Rank(SETTING), X), **look(Ranks(SETTING), X)}
    expected = {"rank.residual": 0, "rank.residual_absolute": 0, "rank.diameter": 0, "ranks.numerical": 1}
    near = {"rank.stable": 1, "rank.cosine": 1, "ranks.effective": 1, "ranks.second_ratio": 0}
    for name, value in expected.items():
        assert (got[name].values[:3] == value).all(), name
    for name, value in near.items():
        torch.testing.assert_close(got[name].values[:3], torch.full((3,), float(value)), rtol=1e-3, atol=1e-3)


def test_padding_never_counts(X: Tensor) -> None:
    for measure in (Rank(SETTING), Ranks(SETTING), Residuals(SETTING)):
        other = X.clone()
        for row, n in enumerate(LENGTHS):
            other[row, n:] = 1e6
        for name, sample in look(measure, X).items():
            torch.testing.assert_close(look(measure, other)[name].values, sample.values, msg=name)


def test_residuals_in_every_norm(X: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnworks.exam.measures.rank.LINEAR_PROGRAM_ONE_IN", 1)
    got = look(Residuals(SETTING), X)
    for norm in NORMS:
        for row, n in enumerate(LENGTHS[:3]):
            expected = relative_residual_norm(X[row, :n], norm)
            torch.testing.assert_close(got[f"residuals.{norm}"].values[row], expected, rtol=1e-6, atol=1e-9)


def test_linear_programs_are_drawn_by_the_sentence_alone() -> None:
    many = collate(
        [
            TokenRow((*range(5, 5 + n), 7 * k), (False,) * (n + 1), (-1,) * (n + 1))
            for n in (2, 3, 5)
            for k in range(99)
        ],
        0,
    )
    chosen = sampled_sentences(many, LINEAR_PROGRAM_ONE_IN, seed=0)
    assert 5 <= int(chosen.sum()) <= 40
    alone = [collate([TokenRow(tuple(many.ids[k, : many.lengths[k]].tolist()), (False,) * int(many.lengths[k]), (-1,) * int(many.lengths[k]))], 0) for k in range(0, len(chosen), 7)]  # fmt: skip  # noqa: E501
    assert [bool(sampled_sentences(one, LINEAR_PROGRAM_ONE_IN, seed=0)) for one in alone] == chosen[::7].tolist()
    assert set(BY_LINEAR_PROGRAM) < set(NORMS)
