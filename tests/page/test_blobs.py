"""Numbers inside a page: there and back, with errors within the bound of their coding."""

from __future__ import annotations

import base64
import gzip

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.page.blobs import (
    COARSE_LEVELS,
    FINE_LEVELS,
    MAX_FINE_WEIGHTS,
    Coding,
    coding_of,
    encode_map,
    pack,
    thumbnails,
)
from tests.page.page_helpers import decode_map, softmax_maps, unpack


@given(st.binary(max_size=997), st.booleans())
def test_bytes_come_back_and_are_gzip_without_a_time(data: bytes, noisy: bool) -> None:
    assert unpack(pack(data, noisy=noisy)) == data
    assert pack(data, noisy=noisy) == pack(data, noisy=noisy)
    assert pack(data, noisy=noisy).isascii()


def test_others_can_read_it() -> None:
    packed = base64.b64decode(pack(b"attention" * 31, noisy=True))
    assert gzip.decompress(packed) == b"attention" * 31
    assert packed[4:8] == bytes(4), "no time, so that a page is the same twice"


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=53),
    st.sampled_from((FINE_LEVELS, COARSE_LEVELS)),
)
def test_weights_come_back_within_their_bound(weights: list[float], levels: int) -> None:
    """q = round(m sqrt p) gives |q/m - sqrt p| <= 1/2m, and p' - p = (q/m - sqrt p)(q/m + sqrt p), where the second
    factor is at most 2 sqrt p + 1/2m: |p' - p| <= sqrt(p) / m + 1 / 4m^2."""
    P = torch.tensor(weights)
    again = decode_map(encode_map(P, Coding("uint8", levels)), Coding("uint8", levels))
    assert ((again - P).abs() <= P.sqrt() / levels + 1 / (4 * levels**2) + 1e-6).all()
    assert (again[P == 0] == 0).all() and (again[P == 1] == 1).all()


@given(st.lists(st.floats(-60000, 60000, width=16), min_size=1, max_size=53))
def test_other_numbers_come_back_to_the_bit(values: list[float]) -> None:
    data = encode_map(torch.tensor(values), Coding("float16"))
    assert decode_map(data, Coding("float16")).tolist() == values and len(data) == 2 * len(values)


@pytest.mark.parametrize(
    ("values", "weights", "coding"),
    [
        ((0.0, 1.0), MAX_FINE_WEIGHTS, Coding("uint8", FINE_LEVELS)),
        ((0.0, 1.0), MAX_FINE_WEIGHTS + 1, Coding("uint8", COARSE_LEVELS)),
        ((0.0, 1.01), 2, Coding("float16")),
        ((-0.01, 1.0), 2, Coding("float16")),
    ],
)
def test_the_coding_follows_from_values_and_size(values: tuple[float, float], weights: int, coding: Coding) -> None:
    assert coding_of(torch.tensor([[values]]), weights) == coding


def test_a_thumbnail_keeps_the_sharpest_weight_of_each_part() -> None:
    """Parts of 53 rows over 24 pixels: pixel k covers rows floor(53 k / 24) to ceil(53 (k + 1) / 24) - 1."""
    P = torch.zeros(3, 53, 7)
    P[1, 52, 5] = 0.25
    data, size = thumbnails(P)
    small = torch.tensor(list(data)).view(3, *size)
    assert size == (24, 7)
    assert small[1, 23, 5] == 15 * round(17 * 0.25**0.5) and small.sum() == small[1, 23, 5]


def test_thumbnails_of_other_numbers_are_shares_of_the_largest() -> None:
    P = torch.tensor([[[0.0, -4.0], [1.0, 2.0]]])
    data, _ = thumbnails(P)
    assert list(data) == [0, FINE_LEVELS, 15 * round(17 * 0.5), 15 * round(17 * 0.5**0.5)]


def test_maps_as_they_are_pack_best_without_a_search_for_repetitions() -> None:
    data = encode_map(softmax_maps(13, 61, 61), Coding("uint8", COARSE_LEVELS))
    assert len(pack(data, noisy=True)) < len(pack(data))
