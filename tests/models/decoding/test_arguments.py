"""What cannot be decoded with is refused, with words that help."""

from __future__ import annotations

from typing import Any

import pytest

from attnworks.core.errors import UsageError
from attnworks.models import Recurrent, Transformer
from attnworks.models.decoding import Writer, beam, greedy, sample
from tests.models.decoding.decoding_helpers import BOS, EOS, Toy

TOY = Toy.random(2, 3, 2)


@pytest.mark.parametrize(
    ("decode", "options", "text"),
    [
        (
            beam,
            {"beams": 0},
            "decoding with beams=0: expected a whole number from 1, got 0; beams=1 is greedy decoding",
        ),
        (
            beam,
            {"beams": 3, "n_best": 5},
            "beam search with n_best=5: expected a whole number from 1 to 3, got 5; "
            "ask for at most 3, or search with more beams",
        ),
        (beam, {"n_best": 0}, "beam search with n_best=0: expected a whole number from 1 to 5"),
        (
            beam,
            {"alpha": -0.1},
            "beam search with alpha=-0.1: expected a number from 0, got -0.1; "
            "alpha=0 ranks by probability alone, 0.6 to 1 is usual",
        ),
        (beam, {"alpha": float("nan")}, "got nan"),
        (beam, {"alpha": float("inf")}, "got inf"),
        (
            greedy,
            {"max_new_tokens": 0},
            "max_new_tokens=0: expected a whole number from 1, got 0; max_new_tokens counts the tokens written",
        ),
        (beam, {"max_new_tokens": 0}, "max_new_tokens=0"),
        (sample, {"max_new_tokens": -1}, "max_new_tokens=-1"),
        (
            sample,
            {"temperature": 0.0},
            "sampling with temperature=0.0: expected a number above 0, got 0.0; "
            "use greedy, the limit of sampling as the temperature goes to 0",
        ),
        (sample, {"temperature": -1.0}, "temperature=-1.0"),
        (sample, {"temperature": float("nan")}, "temperature=nan"),
        (
            sample,
            {"top_k": 0},
            "sampling with top_k=0: expected a whole number from 1, got 0; top_k=1 is greedy",
        ),
        (
            sample,
            {"top_p": 0.0},
            "sampling with top_p=0.0: expected a number above 0 and at most 1, got 0.0; 0.9 is usual",
        ),
        (sample, {"top_p": 1.01}, "top_p=1.01"),
        (sample, {"top_p": float("nan")}, "top_p=nan"),
        (
            greedy,
            {"eos": 3},
            "decoding with eos=3: expected a whole number from 0 to 2, got 3; "
            "pass the id of the end token in the target vocabulary",
        ),
        (beam, {"eos": -1}, "decoding with eos=-1"),
        (sample, {"eos": 3}, "decoding with eos=3"),
    ],
)
def test_refused(decode: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        decode(TOY, TOY.source, **({"bos": BOS, "eos": EOS, "max_new_tokens": 2} | options))
    assert text in str(caught.value)


def test_who_can_write() -> None:
    assert isinstance(TOY, Writer)
    assert issubclass(Transformer, Writer) and issubclass(Recurrent, Writer)
    assert not isinstance(object(), Writer)
