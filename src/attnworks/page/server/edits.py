"""The model with heads cut, layers swapped and heads projected; the model itself is never touched."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import nn

from attnworks.core.errors import UsageError
from attnworks.hf.subject import ForeignSubject
from attnworks.page.server.questions import Changes
from attnworks.page.server.queue import Recent
from attnworks.reshape.contract import Bench
from attnworks.reshape.evaluate import weight_bytes
from attnworks.reshape.heads import Head
from attnworks.reshape.projection.forms import Form
from attnworks.reshape.projection.project import Project, with_forms
from attnworks.reshape.surgery import attention_parts, mechanisms_of, silence_heads
from attnworks.reshape.swapping.advice import swapped, whole_layers
from attnworks.reshape.swapping.trials import layers_of
from attnworks.text.readers.grammar import grammar_passages
from attnworks.text.tokenizers import SideReader
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import Examinee
from attnworks.traces.text import Judge, read_text
from attnworks.training.objectives.choice import choose

FORMS = ("auto", "mix", "previous", "self", "next", "first", "last", "mean", "band")
MECHANISMS = (
    "dense",
    "window:window=1",
    "window:window=4",
    "window:window=16",
    "longformer:window=4",
    "bigbird:window=4,block=4",
    "linear",
    "luong-dot",
)
"""What needs no training of its own, and whose maps are weights; with options for a sentence."""
KEPT, KEPT_BYTES = 4, 2**30
"""Largest number and total bytes of changed models that are kept; one is kept in any case."""
SAMPLE = 32
"""Sentences to which forms are fitted."""
TOKENS_AT_ONCE = 1024


@dataclass(frozen=True)
class Possible:
    """What may be changed.

    reshape      True, or why nothing can
    forms        that heads may be given, by layer
    mechanisms   that may be in the place of those that are there, by layer
    """

    reshape: bool | str
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mechanisms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class ChangedModels:
    """A model as it is, and with changes; of the latter the last few are kept."""

    def __init__(self, base: Examinee) -> None:
        self.base = base
        self._forms: dict[tuple[Head, str], Form] = {}
        self._made: Recent[Changes, Examinee] = Recent(
            max(1, min(KEPT, KEPT_BYTES // max(1, weight_bytes(self.model))))
        )

    @property
    def model(self) -> nn.Module:
        return self.base.subject.model

    @cached_property
    def possible(self) -> Possible:
        try:
            layers = attention_parts(self.model, cross=True)
        except UsageError as error:
            return Possible(f"expected {error.expected}, got {error.got}")
        if not layers:
            return Possible("all layers share their weights")
        forms = {slot: FORMS if layer.role == "self" else () for slot, layer in layers.items()}
        forms |= {slot: tuple(form for form in FORMS if form != "next") for slot in layers if slot.startswith("dec")}
        able = {
            slot: tuple(
                spec
                for spec in MECHANISMS
                if {*layer.now} != {spec} and layer.why_not((spec,) * len(layer.now)) is None
            )
            for slot, layer in layers_of(self.model).items()
        }
        return Possible(True, forms, able)

    def examinee(self, changes: Changes) -> Examinee:
        """The model with these changes."""
        return self._made.get(changes, lambda: self._make(changes)) if changes else self.base

    def _make(self, changes: Changes) -> Examinee:
        """Layers are swapped first; then heads get their forms; then heads are cut, which keep numbers and maps."""
        if self.possible.reshape is not True:
            raise UsageError(
                asked="changes to this model",
                expected="a model whose heads can be changed",
                got=str(self.possible.reshape),
                remedy="look without changes",
            )
        self._check_heads((*changes.cut, *(head for head, _ in changes.project)))
        model: Any = self.model
        if changes.swap:
            self._check_swaps(changes.swap)
            model = swapped(model, whole_layers(model, dict(changes.swap)))
        if changes.project:
            model = with_forms(model, self._fitted(dict(changes.project)))
        if changes.cut:
            model = copy.deepcopy(model) if model is self.model else model
            for slot, heads in _by_layer(changes.cut).items():
                silence_heads(model, slot, heads)
        subject = self.base.subject
        assert isinstance(subject, OwnSubject | ForeignSubject)
        return replace(self.base, subject=subject.again(model.eval()))

    def _check_heads(self, names: Iterable[str]) -> None:
        heads = {slot: len(specs) for slot, specs in mechanisms_of(self.model, cross=True).items()}
        known = {f"{slot}.{head}" for slot, number in heads.items() for head in range(number)}
        for name in names:
            if name not in known:
                raise UsageError(
                    asked=f"head {name[:40]!r}",
                    expected=", ".join(f"{slot}.0 to {slot}.{number - 1}" for slot, number in heads.items() if number),
                    got="a head that is not there, or whose weights several layers share",
                    remedy="name heads kind.layer.head, from zero",
                )

    def _check_swaps(self, swaps: Iterable[tuple[str, str]]) -> None:
        layers = self.possible.mechanisms
        for slot, spec in swaps:
            if spec not in layers.get(slot, ()):
                raise UsageError(
                    asked=f"{spec[:40]!r} in {slot[:40]!r}",
                    expected=f"one of {', '.join(layers.get(slot, layers))}",
                    got="a mechanism that is not offered there" if slot in layers else "a layer that is not there",
                    remedy="choose one of those; attnworks reshape swap knows more mechanisms",
                )

    def _fitted(self, wanted: Mapping[str, str]) -> dict[Head, Form]:
        """The form of every head, nearest to it over some of the embedded corpus, without any error beside it."""
        for name, form in wanted.items():
            offered = self.possible.forms.get(_head(name)[0], ())
            if form not in offered:
                raise UsageError(
                    asked=f"the form {form[:40]!r} for head {name}",
                    expected=f"one of {', '.join(offered)}" if offered else "a head of self-attention",
                    got="another" if offered else "another one",
                    remedy="choose one of those; attnworks reshape project knows more forms",
                )
        heads = {name: _head(name) for name in wanted}
        missing = [name for name, form in wanted.items() if (heads[name], form) not in self._forms]
        for form in dict.fromkeys(wanted[name] for name in missing):
            names = ",".join(name for name in missing if wanted[name] == form)
            project = Project(heads=names, form=form, eps=0.0, sparsity=0.0)
            found = project.fit(self._bench, project.chosen(self.model))
            self._forms |= {(head, form): fitted for head, fitted in found.items()}
        return {heads[name]: self._forms[heads[name], form] for name, form in wanted.items()}

    @cached_property
    def _bench(self) -> Bench:
        """The untouched model, and text that forms are fitted to."""
        base = self.base
        text = read_text(cutting(base), grammar_passages(SAMPLE), TOKENS_AT_ONCE)
        judge = Judge(base.subject, choose(None, base.subject.abilities), text)
        return Bench(base, judge, text.longest)


def cutting(examinee: Examinee) -> Examinee:
    """The same, which cuts what is too long for the model."""
    target = None if examinee.target is None else _cutting(examinee.target)
    return replace(examinee, source=_cutting(examinee.source), target=target)


def _cutting(reader: SideReader) -> SideReader:
    reader = copy.copy(reader)
    reader.max_tokens = reader.longest
    return reader


def _by_layer(heads: Iterable[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for slot, head in map(_head, heads):
        found.setdefault(slot, []).append(head)
    return found


def _head(name: str) -> Head:
    slot, _, head = name.rpartition(".")
    return slot, int(head)
