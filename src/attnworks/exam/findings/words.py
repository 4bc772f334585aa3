"""Words of findings: counted heads, places in the model, shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from attnworks.core.places import HeadId
from attnworks.exam.reading import HeadValue, ModelReadings

HEADS_NAMED = 4
"""The largest number of heads that a finding names."""


def runs(depths: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of every run of consecutive numbers."""
    for _, places in groupby(enumerate(depths), lambda place: place[1] - place[0]):
        run = [depth for _, depth in places]
        yield run[0], run[-1]


def place_after(first: int, last: int, stack: str) -> str:
    """The place of a run of depths in words: depth 0 is the embeddings, depth d the output of layer d - 1."""
    if last == 0:
        return f"at the {stack}embeddings"
    if first == 0:
        return f"from the {stack}embeddings to layer {last - 1}"
    return f"after {stack}layer {first - 1}" if first == last else f"after {stack}layers {first - 1}-{last - 1}"


def percent_of(share: float) -> str:
    return f"{100 * share:.0f} %"


def count_heads(model: ModelReadings, heads: list[HeadValue], of: int | None = None) -> str:
    """head 0.2; 3 heads; 3 of 8 heads."""
    if len(heads) == 1:
        return f"head {model.name_of(heads[0])}"
    return f"{len(heads)} heads" if of is None else f"{len(heads)} of {of} heads"


def verb_for(verb: str, heads: list[HeadValue]) -> str:
    """attends for one head, attend for several."""
    return verb if len(heads) == 1 else {"has": "have", "is": "are", "does": "do"}.get(verb, verb.removesuffix("s"))


def their(heads: list[HeadValue]) -> str:
    return "its" if len(heads) == 1 else "their"


def prune_command(heads: Iterable[HeadId]) -> str:
    return f"attnworks prune MODEL --heads {','.join(map(str, heads))} --out pruned"


def project_command(heads: Iterable[HeadId]) -> str:
    return f"attnworks project MODEL --heads {','.join(map(str, heads))} --out projected"


ABLATION_COMMAND = "attnworks examine MODEL --measures ablation,roles,sinks --out exam"
BARE_COMMAND = "attnworks examine MODEL --without skip,mlp --out bare"


def head_names(heads: list[HeadValue]) -> tuple[str, ...]:
    return tuple(str(head.id) for head in heads)


def list_heads(model: ModelReadings, heads: list[HeadValue]) -> str:
    return ", ".join(model.name_of(head) for head in heads[:HEADS_NAMED]) + ", ..." * (len(heads) > HEADS_NAMED)
