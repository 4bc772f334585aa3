"""Copies of a model with heads cut, layers swapped or heads projected; the model itself never changes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.page.server.questions import Changes
from attnworks.page.server.queue import RecentItems
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.evaluate import weight_bytes
from attnworks.reshape.projection.forms import Form
from attnworks.reshape.projection.project import Project, with_forms
from attnworks.reshape.surgery import attention_parts, mechanisms_of, silence_heads
from attnworks.reshape.swapping.advice import swapped, whole_layers
from attnworks.reshape.swapping.trials import layers_of
from attnworks.text.grammar import grammar_passages
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import Subject
from attnworks.training.objectives import choose_objective

OFFERED_FORMS = ("auto", "mix", "previous", "self", "next", "first", "last", "mean", "band")
OFFERED_MECHANISMS = (
    "dense",
    "window:window=1",
    "window:window=4",
    "window:window=16",
    "longformer:window=4",
    "bigbird:window=4,block=4",
    "linear",
    "luong-dot",
)
"""Mechanisms that need no training and whose maps are weights, with options for a sentence."""
EDITED_MODELS_KEPT, EDITED_MODELS_BYTES = 4, 2**30
"""Number and total bytes of the edited models that are kept; one is kept in any case."""
FIT_SENTENCES_LIVE = 32
"""Sentences to which forms are fitted."""
FIT_BATCH_TOKENS = 1024


@dataclass(frozen=True)
class PossibleEdits:
    """The edits that a model allows.

    reshape      True, or the reason why there are none
    forms        layer -> structured forms for its heads
    mechanisms   layer -> mechanisms that can replace its own
    """

    reshape: bool | str
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mechanisms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class EditedModels:
    """A model and its edited copies, of which the last few are kept."""

    def __init__(self, base: Subject) -> None:
        self.base = base
        self._forms: dict[tuple[HeadId, str], Form] = {}
        self._made: RecentItems[Changes, Subject] = RecentItems(
            max(1, min(EDITED_MODELS_KEPT, EDITED_MODELS_BYTES // max(1, weight_bytes(self.model))))
        )

    @property
    def model(self) -> nn.Module:
        return self.base.model

    @cached_property
    def possible(self) -> PossibleEdits:
        try:
            layers = attention_parts(self.model, cross=True)
        except UsageError as error:
            return PossibleEdits(f"expected {error.expected}, got {error.got}")
        if not layers:
            return PossibleEdits("all layers share their weights")
        causal = tuple(form for form in OFFERED_FORMS if form != "next")
        forms = {str(slot): () if slot.crosses else causal if slot.causal else OFFERED_FORMS for slot in layers}
        able = {
            str(slot): tuple(
                spec
                for spec in OFFERED_MECHANISMS
                if {*layer.now} != {spec} and layer.refusal((spec,) * len(layer.now)) is None
            )
            for slot, layer in layers_of(self.model).items()
        }
        return PossibleEdits(True, forms, able)

    def subject(self, changes: Changes) -> Subject:
        """The model with these edits."""
        return self._made.get(changes, lambda: self._make(changes)) if changes else self.base

    def _make(self, changes: Changes) -> Subject:
        """Swap layers, then project heads, then set the outputs of cut heads to zero, which keeps their maps."""
        if self.possible.reshape is not True:
            raise UsageError(
                "changes of heads", "heads that can be changed", str(self.possible.reshape), "leave the model as it is"
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
            cut: dict[Slot, list[int]] = {}
            for slot, head in map(HeadId.parse, changes.cut):
                cut.setdefault(slot, []).append(head)
            for slot, heads in cut.items():
                silence_heads(model, slot, heads)
        return self.base.with_model(model.eval())

    def _check_heads(self, names: Iterable[str]) -> None:
        heads = {slot: len(specs) for slot, specs in mechanisms_of(self.model, cross=True).items()}
        known = {f"{slot}.{head}" for slot, number in heads.items() for head in range(number)}
        for name in names:
            if name not in known:
                raise UsageError(
                    f"head {name[:40]!r}",
                    ", ".join(f"{slot}.0 to {slot}.{number - 1}" for slot, number in heads.items() if number),
                    "a head that is not there, or whose weights several layers share",
                    "name heads kind.layer.head, from zero",
                )

    def _check_swaps(self, swaps: Iterable[tuple[str, str]]) -> None:
        layers = self.possible.mechanisms
        for slot, spec in swaps:
            if spec not in layers.get(slot, ()):
                raise UsageError(
                    f"{spec[:40]!r} in {slot[:40]!r}",
                    f"one of {', '.join(layers.get(slot, layers))}",
                    "a mechanism that is not offered there" if slot in layers else "a layer that is not there",
                    "choose one of those; attnworks reshape swap knows more mechanisms",
                )

    def _fitted(self, wanted: Mapping[str, str]) -> dict[HeadId, Form]:
        """The nearest form of every head over some sentences of the grammar corpus, without sparse errors."""
        for name, form in wanted.items():
            offered = self.possible.forms.get(str(HeadId.parse(name).slot), ())
            if form not in offered:
                raise UsageError(
                    f"the form {form[:40]!r} for head {name}",
                    f"one of {', '.join(offered)}" if offered else "a head of self-attention",
                    "another" if offered else "another one",
                    "choose one of those; attnworks reshape project knows more forms",
                )
        heads = {name: HeadId.parse(name) for name in wanted}
        missing = [name for name, form in wanted.items() if (heads[name], form) not in self._forms]
        for form in dict.fromkeys(wanted[name] for name in missing):
            names = ",".join(name for name in missing if wanted[name] == form)
            project = Project(heads=names, form=form, eps=0.0, sparsity=0.0)
            found = project.fit(self._bench, project.chosen(self.model))
            self._forms |= {(head, form): fitted for head, fitted in found.items()}
        return {heads[name]: self._forms[heads[name], form] for name, form in wanted.items()}

    @cached_property
    def _bench(self) -> ReshapeContext:
        """The original model with the text that forms are fitted to."""
        base = self.base
        text = base.cut_to(base.max_length).read(grammar_passages(FIT_SENTENCES_LIVE), batch_tokens=FIT_BATCH_TOKENS)
        text_loss = TextLoss(base, choose_objective(None, base.abilities), text)
        return ReshapeContext(base, text_loss, text.longest)
