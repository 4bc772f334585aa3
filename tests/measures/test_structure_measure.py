"""The nearest form of planted heads, over sentences of several lengths, against the fits of single maps."""

from __future__ import annotations

import pytest
import torch
from tests.helpers import assert_close
from torch import Tensor

from attnworks.data.tokens import TokenRow, collate_tokens
from attnworks.exam.folds import Folds
from attnworks.linalg import structure
from attnworks.measures.contract import MEASURES, Placed, Sample, Setting
from attnworks.measures.structure_fit import ACROSS, EPS, FAMILIES, LONGEST, SENTENCES, Structure
from attnworks.traces.layer import Kind, Slot
from attnworks.traces.maps import Maps

SETTING = Setting(17)


def maps(P: Tensor, kind: Kind = "encoder", first: int = 0) -> Maps:
    b, h, i, j = P.shape
    rows = [TokenRow((*range(i),), (False,) * i, (*range(i),)) for _ in range(b)]
    queries, visible, V = collate_tokens(rows, 0), torch.full((b, i), j), torch.zeros(b, h, j, 3)
    return Maps(Slot(kind, 0), slice(first, first + b), slice(0, h), P, visible, V, queries)


def noisy(P: Tensor, draw: torch.Generator) -> Tensor:
    """Nine tenths of P, and noise that is nowhere larger than what is forgiven."""
    noise = torch.rand(P.shape, generator=draw, dtype=torch.float64)
    return 0.9 * P + 0.1 * noise / noise.sum(-1, keepdim=True)


def planted(n: int, draw: torch.Generator) -> Tensor:
    """Four heads: previous token, second token, blocks, and evenly."""
    previous = torch.eye(n).roll(1, 0).double()
    column = torch.zeros(n, n).double()
    column[:, 1] = 1
    blocks = structure.column_blocks(n, structure.blocks_around(n, (2, 8), (5, 5))).double()
    return torch.stack([*(noisy(P, draw) for P in (previous, column, blocks)), torch.full((n, n), 1 / n).double()])


def concluded(*given: Maps) -> dict[str, object]:
    own = Structure(SETTING)
    folds = Folds(own.declares())
    for one in given:
        for name, sample in own.maps(one).items():
            folds.add(Placed(name, one.slot, sample))
        folds.settle()
    readings = folds.readings()
    for reading in own.conclude(readings):
        readings.add(reading)
    return {name: readings[name].value[0] for name in ("structure.form", "structure.distance", "structure.map")}


def test_it_belongs_to_the_default_set_and_gives_what_it_declares() -> None:
    own = Structure(SETTING)
    assert MEASURES["structure"] is Structure and own.default
    given = {*own.maps(maps(torch.softmax(torch.randn(2, 3, 5, 5), -1)))}
    assert given | {"structure.form", "structure.distance"} == {declared.name for declared in own.declares()}


def test_planted_heads_are_named() -> None:
    draw = torch.Generator().manual_seed(3)
    found = concluded(*(maps(planted(n, draw)[None], first=number) for number, n in enumerate((13, 17, 11))))
    assert found["structure.form"] == ("offset", "column", "columns", "uniform")


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_errors_are_those_of_the_fit(kind: Kind) -> None:
    P = torch.softmax(2 * torch.randn(2, 3, 7, 7, dtype=torch.float64), -1)
    P = P.tril() / P.tril().sum(-1, keepdim=True) if kind == "decoder" else P
    samples = Structure(SETTING).maps(maps(P, kind))
    for b in range(2):
        for h in range(3):
            alone = structure.fit(P[b, h], tuple(FAMILIES), eps=EPS, causal=kind == "decoder")
            for number, name in enumerate(FAMILIES):
                sample = samples[f"structure.{name}"]
                assert isinstance(sample, Sample)
                assert_close(sample.values[b, h], alone.error[number])


def test_attention_across_has_no_diagonal() -> None:
    P = torch.zeros(1, 2, 5, 7, dtype=torch.float64)
    P[:, 0, :, 3] = 1
    P[:, 1] = 1 / 7
    given = maps(P, "cross")
    assert {*Structure(SETTING).maps(given)} == {"structure.duel", *(f"structure.{name}" for name in ACROSS)}
    assert concluded(given)["structure.form"] == ("column", "uniform")


def test_long_texts_are_left_out() -> None:
    n = LONGEST + 1
    samples = Structure(Setting(n)).maps(maps(torch.full((1, 2, n, n), 1 / n)))
    assert all(sample.valid is not None and not sample.valid.any() for sample in samples.values())
    short = torch.eye(LONGEST).expand(1, 2, -1, -1)
    both = concluded(maps(torch.full((1, 2, n, n), 1 / n)), maps(short, first=1))
    assert both["structure.form"] == ("identity", "identity")


def test_of_many_sentences_some_are_fitted_the_same_in_any_batch() -> None:
    texts = [tuple(int(token) for token in torch.randint(99, (5,))) for _ in range(40)]
    rows = [TokenRow(ids, (False,) * 5, (*range(5),)) for ids in texts]
    P = torch.softmax(torch.randn(40, 1, 5, 5, dtype=torch.float64), -1)
    own = Structure(Setting(5, sentences=40 * SENTENCES))

    def told(chosen: slice) -> Tensor:
        tokens, b = collate_tokens(rows[chosen], 0), len(rows[chosen])
        given = Maps(Slot("encoder", 0), chosen, slice(0, 1), P[chosen], torch.full((b, 5), 5), P[chosen], tokens)
        valid = own.maps(given)["structure.map"].valid
        assert valid is not None
        return valid[:, 0]

    whole = told(slice(0, 40))
    assert 0 < int(whole.sum()) < 12
    assert torch.equal(whole, torch.cat([told(slice(0, 13)), told(slice(13, 40))]))
