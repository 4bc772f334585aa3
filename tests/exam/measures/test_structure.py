"""The nearest form of planted heads, over sentences of several lengths, against the fits of single maps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.core.places import Kind, Slot
from attnworks.exam.measure import MEASURES, MeasureContext, PlacedSample, Sample
from attnworks.exam.measures.structure import (
    CROSS_FAMILIES,
    FAMILY_DESCRIPTIONS,
    FIT_MAX_TOKENS,
    FIT_SENTENCES,
    FORGIVEN_ERROR,
    Structure,
    closest_forms,
)
from attnworks.exam.reading import Readings
from attnworks.exam.statistics import Accumulator
from attnworks.exam.structure import fits, search
from attnworks.text.tokens import TokenRow, collate
from attnworks.theory import structured_sets
from attnworks.traces.maps import Maps
from tests.helpers import assert_close

SETTING = MeasureContext(17)


def maps(P: Tensor, kind: Kind = "encoder", first: int = 0) -> Maps:
    b, h, i, j = P.shape
    rows = [TokenRow((*range(i),), (False,) * i, (*range(i),)) for _ in range(b)]
    queries, visible, V = collate(rows, 0), torch.full((b, i), j), torch.zeros(b, h, j, 3)
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
    blocks = structured_sets.column_blocks(n, structured_sets.blocks_around(n, (2, 8), (5, 5))).double()
    return torch.stack([*(noisy(P, draw) for P in (previous, column, blocks)), torch.full((n, n), 1 / n).double()])


def folded(*given: Maps) -> Accumulator:
    own = Structure(SETTING)
    folds = Accumulator(own.declares())
    for one in given:
        for name, sample in own.maps(one).items():
            folds.add(PlacedSample(name, one.slot, sample))
        folds.flush()
    return folds


def told(folds: Accumulator) -> Readings:
    readings = folds.readings()
    for reading in Structure(SETTING).conclude(readings):
        readings.add(reading)
    return readings


def concluded(*given: Maps) -> dict[str, Any]:
    return {name.removeprefix("structure."): reading.value[0] for name, reading in told(folded(*given)).items()}


def shifted(n: int, offset: int, weight: float = 1.0) -> Tensor:
    """Each token looks `offset` away; tokens without such a key look nowhere."""
    return weight * search.assignment(search.shift_map(n, torch.tensor(offset)), n, dtype=torch.float64)


def test_it_belongs_to_the_default_set_and_gives_what_it_declares() -> None:
    own = Structure(SETTING)
    assert MEASURES["structure"] is Structure and own.default
    given = {*own.maps(maps(torch.softmax(torch.randn(2, 3, 5, 5), -1)))}
    concluded = {f"structure.{name}" for name in ("offset", "shift", "closest", "distance", "explained", "form")}
    assert given.isdisjoint(concluded)
    assert given | concluded == {declared.name for declared in own.declares()}


def test_planted_heads_are_named() -> None:
    draw = torch.Generator().manual_seed(3)
    found = concluded(*(maps(planted(n, draw)[None], first=number) for number, n in enumerate((13, 17, 11))))
    assert found["form"] == ("offset", "column", "columns", "none")
    assert found["closest"] == ("offset", "column", "columns", "even")
    assert found["shift"][0] == -1


# --- one offset for all sentences ------------------------------------------------------------------------------------


def test_a_head_has_one_offset_over_all_sentences() -> None:
    """Two sentences look 1 back and one looks 3 back: the offset is -1, and its error is that of -1 in all three."""
    P = [shifted(11, -1), shifted(13, -1), shifted(12, -3)]
    found = told(folded(*(maps(one[None, None], first=number) for number, one in enumerate(P))))
    shift, error, duel = (found[f"structure.{name}"].value[0] for name in ("shift", "offset", "duel"))
    assert isinstance(shift, Tensor) and isinstance(error, Tensor) and isinstance(duel, Tensor)
    assert shift.tolist() == [-1.0]
    by_hand = [fits.fit(one, ("offset",), eps=FORGIVEN_ERROR, offset=torch.tensor(-1)).error[0].item() for one in P]
    assert by_hand[:2] == [0.0, 0.0] and by_hand[2] > 1
    count, own = found["structure.offset"].count, tuple(FAMILY_DESCRIPTIONS).index("offset")
    assert_close(error, torch.tensor([sum(by_hand) / 3], dtype=torch.float64))
    assert count is not None and count[0].tolist() == [3]
    assert_close(duel[:, own, own], error)


def test_an_offset_has_a_key_for_half_of_the_queries() -> None:
    """All weight in one corner, offset -15 of 16 tokens: no such offset, and no form."""
    P = torch.zeros(1, 1, 16, 16, dtype=torch.float64)
    P[..., 15, 0] = 1
    found = concluded(maps(P))
    assert abs(found["shift"].item()) <= 8 and found["form"] == ("none",)
    far = concluded(maps(shifted(16, -8)[None, None]))
    assert far["shift"].item() == -8 and far["form"] == ("offset",)
    too_far = concluded(maps(shifted(16, -9)[None, None]))
    assert abs(too_far["shift"].item()) <= 8


def test_half_is_counted_over_all_sentences() -> None:
    """Offset -4 has a key for 2 of 6 queries, but for 12 of 22 in both sentences; -6 for 10 of 22."""
    for offset, allowed in ((-4, True), (-6, False)):
        P = [shifted(6, offset), shifted(16, offset)]
        found = concluded(*(maps(one[None, None], first=number) for number, one in enumerate(P)))
        assert found["tokens"].item() == 11 and (found["shift"].item() == offset) == allowed


def test_folds_that_are_merged_give_the_same_offset() -> None:
    draw = torch.Generator().manual_seed(7)
    given = [maps(planted(n, draw)[None], first=number) for number, n in enumerate((13, 17, 11, 12, 16))]
    whole, one, other = folded(*given), folded(*given[3:]), folded(*given[:3])
    one.merge(other.state())
    together, merged = told(whole), told(one)
    assert list(together) == list(merged)
    for name, reading in together.items():
        for left, right in zip(reading.value, merged[name].value, strict=True):
            if isinstance(left, Tensor) and isinstance(right, Tensor):
                assert torch.equal(left, right), name
            else:
                assert left == right, name


# --- the share explained ----------------------------------------------------------------------------------------------


def duels_of(**errors: float) -> Tensor:
    """Every family wins against those of larger error."""
    row = torch.tensor([errors.get(name, 1.9) for name in FAMILY_DESCRIPTIONS], dtype=torch.float64)
    return row[:, None].expand(-1, len(row)).clone()


def test_a_form_explains_half_or_more() -> None:
    names = tuple(FAMILY_DESCRIPTIONS)
    heads = torch.stack([duels_of(zero=0.8, column=0.4), duels_of(zero=0.8, column=0.401), duels_of(zero=0.8, even=0)])
    closest, distance, explained, form = closest_forms(heads, names)
    assert closest == ("column", "column", "even") and form == ("column", "none", "none")
    assert_close(distance, torch.tensor([0.4, 0.401, 0.0], dtype=torch.float64))
    assert_close(explained, torch.tensor([0.5, 1 - 0.401 / 0.8, 1.0], dtype=torch.float64))


def test_a_winner_that_explains_less_than_half_is_not_called_closest() -> None:
    """Even attention wins every duel with a share of 0.1; the band, too long for its 0.4, has the least error."""
    duels = duels_of(zero=0.8, even=0.72, band=0.48)
    duels[tuple(FAMILY_DESCRIPTIONS).index("band")] += (
        0.4 - 0.4 * torch.eye(len(FAMILY_DESCRIPTIONS))[tuple(FAMILY_DESCRIPTIONS).index("band")]
    )
    closest, distance, explained, form = closest_forms(duels[None], tuple(FAMILY_DESCRIPTIONS))
    assert closest == ("band",) and form == ("none",)
    assert distance.item() == pytest.approx(0.48) and explained.item() == pytest.approx(0.4)


@pytest.mark.parametrize("winner", ["zero", "map"])
def test_without_a_winner_the_closest_is_told_but_is_no_form(winner: str) -> None:
    """Nothing at all, or the map, wins every duel; the band has the least error of all others."""
    duels = duels_of(zero=0.8, band=0.27, map=0.1)
    place = tuple(FAMILY_DESCRIPTIONS).index(winner)
    duels[place] = 0.0
    duels[place, place] = 0.8 if winner == "zero" else 0.1
    closest, _, explained, form = closest_forms(duels[None], tuple(FAMILY_DESCRIPTIONS))
    assert closest == ("band",) and form == ("none",)
    assert explained.item() == pytest.approx(1 - 0.27 / 0.8)


def test_where_nothing_is_left_to_explain_there_is_no_share() -> None:
    found = concluded(maps(torch.full((1, 1, 60, 60), 1 / 60, dtype=torch.float64)))
    assert found["zero"].item() == 0 and found["explained"].isnan().all() and found["form"] == ("none",)


def test_a_head_of_which_nothing_is_known() -> None:
    n = FIT_MAX_TOKENS + 1
    found = concluded(maps(torch.full((1, 2, n, n), 1 / n)))
    assert not {"form", "closest", "shift", "distance", "explained"} & found.keys()


# --- errors and samples ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_errors_are_those_of_the_fit(kind: Kind) -> None:
    P = torch.softmax(2 * torch.randn(2, 3, 7, 7, dtype=torch.float64), -1)
    P = P.tril() / P.tril().sum(-1, keepdim=True) if kind == "decoder" else P
    samples = Structure(SETTING).maps(maps(P, kind))
    for b in range(2):
        for h in range(3):
            alone = fits.fit(P[b, h], tuple(FAMILY_DESCRIPTIONS), eps=FORGIVEN_ERROR, causal=kind == "decoder")
            for number, name in enumerate(FAMILY_DESCRIPTIONS):
                if name != "offset":
                    sample = samples[f"structure.{name}"]
                    assert isinstance(sample, Sample)
                    assert_close(sample.values[b, h], alone.error[number])


def test_attention_across_has_no_diagonal() -> None:
    P = torch.zeros(1, 2, 5, 7, dtype=torch.float64)
    P[:, 0, :, 3] = 1
    P[:, 1] = 1 / 7
    given = maps(P, "cross")
    names = ("duel", "tokens", *CROSS_FAMILIES)
    assert {*Structure(SETTING).maps(given)} == {f"structure.{name}" for name in names}
    found = concluded(given)
    assert found["form"] == ("column", "none") and found["closest"] == ("column", "even")
    assert "shift" not in found and "offset" not in found


def test_long_texts_are_left_out() -> None:
    n = FIT_MAX_TOKENS + 1
    samples = Structure(MeasureContext(n)).maps(maps(torch.full((1, 2, n, n), 1 / n)))
    assert all(sample.valid is not None and not sample.valid.any() for sample in samples.values())
    short = torch.eye(FIT_MAX_TOKENS).expand(1, 2, -1, -1)
    both = concluded(maps(torch.full((1, 2, n, n), 1 / n)), maps(short, first=1))
    assert both["form"] == ("identity", "identity")


def test_of_many_sentences_some_are_fitted_the_same_in_any_batch() -> None:
    texts = [tuple(int(token) for token in torch.randint(99, (5,))) for _ in range(40)]
    rows = [TokenRow(ids, (False,) * 5, (*range(5),)) for ids in texts]
    P = torch.softmax(torch.randn(40, 1, 5, 5, dtype=torch.float64), -1)
    own = Structure(MeasureContext(5, sentences=40 * FIT_SENTENCES))

    def told(chosen: slice) -> Tensor:
        tokens, b = collate(rows[chosen], 0), len(rows[chosen])
        given = Maps(Slot("encoder", 0), chosen, slice(0, 1), P[chosen], torch.full((b, 5), 5), P[chosen], tokens)
        valid = own.maps(given)["structure.map"].valid
        assert valid is not None
        return valid[:, 0]

    whole = told(slice(0, 40))
    assert 0 < int(whole.sum()) < 12
    assert torch.equal(whole, torch.cat([told(slice(0, 13)), told(slice(13, 40))]))
